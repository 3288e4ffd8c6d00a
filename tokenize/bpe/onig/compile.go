package onig

import "slices"

// maxProgram bounds what counted repeats can blow a pattern up to.
const maxProgram = 50000

type opcode uint8

const (
	opMatch  opcode = iota
	opChar          // one character of class
	opRun           // min to max characters of class, as many as possible
	opSplit         // go on at x, on failure at y
	opJump          // go on at x
	opLook          // assertion: program from the next step to x
	opAtomic        // program from the next step to x, without a way back
	opAnchor
)

type inst struct {
	op       opcode
	class    *class
	x, y     int
	min, max int
	mode     repeatMode
	look     nodeLook
	anchor   anchor
}

type compiler struct{ prog []inst }

func (c *compiler) add(i inst) int {
	c.prog = append(c.prog, i)
	return len(c.prog) - 1
}

func (c *compiler) emit(n node) {
	if len(c.prog) > maxProgram {
		return
	}
	switch n := n.(type) {
	case nodeChar:
		c.add(inst{op: opChar, class: n.class})
	case nodeConcat:
		for _, part := range n {
			c.emit(part)
		}
	case nodeAlt:
		c.alternatives(n)
	case nodeRepeat:
		c.repeat(n)
	case nodeLook:
		at := c.add(inst{op: opLook, look: n})
		c.emit(n.body)
		if n.behind { // the matcher cuts the text where the look-behind stands
			c.add(inst{op: opAnchor, anchor: textEnd})
		}
		c.add(inst{op: opMatch})
		c.prog[at].x = len(c.prog)
	case nodeAtomic:
		c.atomic(n.body)
	case nodeAnchor:
		c.add(inst{op: opAnchor, anchor: n.kind})
	}
}

func (c *compiler) atomic(body node) {
	at := c.add(inst{op: opAtomic})
	c.emit(body)
	c.add(inst{op: opMatch})
	c.prog[at].x = len(c.prog)
}

func (c *compiler) alternatives(alt nodeAlt) {
	var jumps []int
	for i, n := range alt {
		if i == len(alt)-1 {
			c.emit(n)
			break
		}
		split := c.add(inst{op: opSplit})
		c.prog[split].x = len(c.prog)
		c.emit(n)
		jumps = append(jumps, c.add(inst{op: opJump}))
		c.prog[split].y = len(c.prog)
	}
	for _, j := range jumps {
		c.prog[j].x = len(c.prog)
	}
}

func (c *compiler) repeat(n nodeRepeat) {
	if one, ok := n.body.(nodeChar); ok && n.mode != lazy {
		c.add(inst{op: opRun, class: one.class, min: n.min, max: n.max, mode: n.mode})
		return
	}
	if n.mode == possessive {
		n.mode = greedy
		c.atomic(n)
		return
	}
	for range n.min {
		c.emit(n.body)
	}
	if n.max < 0 {
		loop := c.add(inst{op: opSplit})
		c.emit(n.body)
		c.add(inst{op: opJump, x: loop})
		c.branch(loop, n.mode)
		return
	}
	var splits []int
	for range n.max - n.min {
		splits = append(splits, c.add(inst{op: opSplit}))
		c.emit(n.body)
	}
	for _, s := range splits {
		c.branch(s, n.mode)
	}
}

// branch lets the split at a step choose between the step after it and here.
func (c *compiler) branch(split int, mode repeatMode) {
	if mode == lazy {
		c.prog[split].x, c.prog[split].y = len(c.prog), split+1
		return
	}
	c.prog[split].x, c.prog[split].y = split+1, len(c.prog)
}

// width returns the least and most characters that n can match; most is -1 when
// it has no bound.
func width(n node) (least, most int) {
	switch n := n.(type) {
	case nodeChar:
		return 1, 1
	case nodeConcat:
		for _, part := range n {
			lo, hi := width(part)
			least += lo
			if hi < 0 || most < 0 {
				most = -1
			} else {
				most += hi
			}
		}
	case nodeAlt:
		for i, part := range n {
			lo, hi := width(part)
			if i == 0 {
				least, most = lo, hi
				continue
			}
			least = min(least, lo)
			if hi < 0 || most < 0 {
				most = -1
			} else {
				most = max(most, hi)
			}
		}
	case nodeRepeat:
		lo, hi := width(n.body)
		least, most = lo*n.min, -1
		if n.max >= 0 && hi >= 0 {
			most = hi * n.max
		}
	case nodeAtomic:
		return width(n.body)
	}
	return least, most
}

func unbounded(n node) bool {
	_, most := width(n)
	return most < 0
}

// asserts says whether n holds an anchor or look-around.
func asserts(n node) bool {
	switch n := n.(type) {
	case nodeAnchor, nodeLook:
		return true
	case nodeConcat:
		return slices.ContainsFunc(n, asserts)
	case nodeAlt:
		return slices.ContainsFunc(n, asserts)
	case nodeRepeat:
		return asserts(n.body)
	case nodeAtomic:
		return asserts(n.body)
	}
	return false
}

// firstOf returns the characters that a match of n begins with, nil when that
// cannot be said.
func firstOf(n node) *class {
	switch n := n.(type) {
	case nodeChar:
		return n.class
	case nodeConcat:
		var all []*class
		for _, part := range n {
			f := firstOf(part)
			if r, ok := part.(nodeRepeat); ok && f == nil {
				f = firstOf(r.body)
			}
			if f == nil {
				return nil
			}
			all = append(all, f)
			if least, _ := width(part); least > 0 {
				return union(all)
			}
		}
	case nodeAlt:
		var all []*class
		for _, part := range n {
			f := firstOf(part)
			if f == nil {
				return nil
			}
			all = append(all, f)
		}
		return union(all)
	case nodeRepeat:
		if n.min > 0 {
			return firstOf(n.body)
		}
	case nodeAtomic:
		return firstOf(n.body)
	}
	return nil
}
