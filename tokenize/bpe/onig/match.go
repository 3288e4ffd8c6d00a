package onig

import "unicode/utf8"

// matcher runs a program over a text by backtracking, which gives the order of
// alternatives that Oniguruma has.
type matcher struct {
	prog  []inst
	s     string
	stack []choice
}

// choice is a way not taken yet: go on at pc from pos, or, for a run of
// characters, from any shorter end down to least.
type choice struct{ pc, pos, least int }

// run matches from pos and returns where the match ends.
func (m *matcher) run(pc, pos int) (int, bool) {
	base := len(m.stack)
	defer func() { m.stack = m.stack[:base] }()
	for {
		i := &m.prog[pc]
		ok := true
		switch i.op {
		case opMatch:
			return pos, true
		case opChar:
			if ok = pos < len(m.s); ok {
				r, n := decode(m.s, pos)
				if ok = i.class.has(r); ok {
					pos += n
					pc++
				}
			}
		case opRun:
			if pos, ok = m.repeat(i, pc, pos); ok {
				pc++
			}
		case opSplit:
			m.stack = append(m.stack, choice{pc: i.y, pos: pos, least: pos})
			pc = i.x
		case opJump:
			pc = i.x
		case opLook:
			if ok = m.look(i, pc, pos); ok {
				pc = i.x
			}
		case opAtomic:
			var end int
			if end, ok = m.run(pc+1, pos); ok {
				pc, pos = i.x, end
			}
		case opAnchor:
			if ok = m.anchored(i.anchor, pos); ok {
				pc++
			}
		}
		if ok {
			continue
		}
		if len(m.stack) == base {
			return 0, false
		}
		pc, pos = m.back()
	}
}

// repeat takes as many characters as it may and remembers the shorter ways.
func (m *matcher) repeat(i *inst, pc, pos int) (int, bool) {
	n, least := 0, pos
	for (i.max < 0 || n < i.max) && pos < len(m.s) {
		r, size := decode(m.s, pos)
		if !i.class.has(r) {
			break
		}
		pos += size
		if n++; n == i.min {
			least = pos
		}
	}
	if n < i.min {
		return pos, false
	}
	if i.mode == greedy && pos > least {
		_, size := utf8.DecodeLastRuneInString(m.s[:pos])
		m.stack = append(m.stack, choice{pc: pc + 1, pos: pos - size, least: least})
	}
	return pos, true
}

// back takes the newest way not taken yet.
func (m *matcher) back() (pc, pos int) {
	top := &m.stack[len(m.stack)-1]
	pc, pos = top.pc, top.pos
	if pos > top.least {
		_, size := utf8.DecodeLastRuneInString(m.s[:pos])
		top.pos -= size
	} else {
		m.stack = m.stack[:len(m.stack)-1]
	}
	return pc, pos
}

func (m *matcher) look(i *inst, pc, pos int) bool {
	if !i.look.behind {
		_, ok := m.run(pc+1, pos)
		return ok != i.look.negate
	}
	for _, n := range i.look.lengths {
		start := pos
		for ; n > 0 && start > 0; n-- {
			_, size := utf8.DecodeLastRuneInString(m.s[:start])
			start -= size
		}
		if n > 0 {
			continue
		}
		cut := matcher{prog: m.prog, s: m.s[:pos]}
		if _, ok := cut.run(pc+1, start); ok {
			return !i.look.negate
		}
	}
	return i.look.negate
}

func (m *matcher) anchored(kind anchor, pos int) bool {
	switch kind {
	case textBegin:
		return pos == 0
	case textEnd:
		return pos == len(m.s)
	case lineBegin:
		return pos == 0 || m.s[pos-1] == '\n' && pos < len(m.s)
	default:
		return pos == len(m.s) || m.s[pos] == '\n'
	}
}
