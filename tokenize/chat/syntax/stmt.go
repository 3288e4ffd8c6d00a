package syntax

import "slices"

// Parse reads a template. Errors are *Error.
func Parse(source string) ([]Stmt, error) {
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	body, err := p.statements()
	if err != nil {
		return nil, err
	}
	if p.peek().kind != tokEOF {
		return nil, p.fail("unexpected %v", p.look())
	}
	return body, nil
}

// statements parses until the end, or until a block that starts with one of
// ends. That block's begin is not consumed.
func (p *parser) statements(ends ...string) ([]Stmt, error) {
	shallower, err := p.deeper()
	if err != nil {
		return nil, err
	}
	defer shallower()
	var body []Stmt
	for {
		switch t := p.peek(); t.kind {
		case tokEOF:
			if len(ends) > 0 {
				return nil, p.fail("expected {%% %s %%}, found the end of the template", ends[len(ends)-1])
			}
			return body, nil
		case tokData:
			p.next()
			body = append(body, &Data{t.text})
		case tokOutputBegin:
			p.next()
			x, err := p.tuple(true, false)
			if err == nil {
				err = p.expect(tokOutputEnd, "}}")
			}
			if err != nil {
				return nil, err
			}
			body = append(body, &Output{x})
		default:
			if word := p.look(); word.kind == tokName && slices.Contains(ends, word.text) {
				return body, nil
			}
			s, err := p.statement()
			if err != nil {
				return nil, err
			}
			body = append(body, s)
		}
	}
}

// end consumes "{% name", and with last also its "%}".
func (p *parser) end(last bool) (string, error) {
	p.next()
	name, err := p.name()
	if err == nil && last {
		err = p.expect(tokBlockEnd, "%}")
	}
	return name, err
}

// body parses the rest of an opening tag and a block up to its end tag.
func (p *parser) body(end string) ([]Stmt, error) {
	if err := p.expect(tokBlockEnd, "%}"); err != nil {
		return nil, err
	}
	body, err := p.statements(end)
	if err != nil {
		return nil, err
	}
	_, err = p.end(end != "endblock")
	return body, err
}

func (p *parser) statement() (Stmt, error) {
	p.next() // {%
	word, err := p.name()
	if err != nil {
		return nil, err
	}
	switch word {
	case "if":
		return p.ifStmt()
	case "for":
		return p.forStmt()
	case "set":
		return p.setStmt()
	case "macro":
		return p.macroStmt()
	case "call":
		return p.callStmt()
	case "filter":
		return p.filterStmt()
	case "generation":
		body, err := p.body("endgeneration")
		return &Scope{Body: body}, err
	case "block":
		return p.blockStmt()
	case "with":
		return p.withStmt()
	case "break", "continue":
		if p.loops == 0 {
			return nil, p.fail("%s outside of a loop", word)
		}
		err := p.expect(tokBlockEnd, "%}")
		if word == "break" {
			return &Break{}, err
		}
		return &Continue{}, err
	}
	return nil, p.fail("unknown statement %q", word)
}

func (p *parser) ifStmt() (Stmt, error) {
	s := &If{}
	for {
		test, err := p.tuple(false, false)
		if err == nil {
			err = p.expect(tokBlockEnd, "%}")
		}
		if err != nil {
			return nil, err
		}
		body, err := p.statements("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		s.Branches = append(s.Branches, Branch{test, body})
		word, err := p.end(false)
		switch {
		case err != nil:
			return nil, err
		case word == "elif":
		case word == "else":
			s.Else, err = p.body("endif")
			return s, err
		default:
			return s, p.expect(tokBlockEnd, "%}")
		}
	}
}

func (p *parser) forStmt() (Stmt, error) {
	s := &For{}
	var err error
	if s.Target, err = p.target("in"); err != nil {
		return nil, err
	}
	if err := p.expect(tokName, "in"); err != nil {
		return nil, err
	}
	if s.Iter, err = p.tuple(false, false); err != nil {
		return nil, err
	}
	if p.skip(tokName, "if") {
		if s.Test, err = p.expression(); err != nil {
			return nil, err
		}
	}
	s.Recursive = p.skip(tokName, "recursive")
	if err := p.expect(tokBlockEnd, "%}"); err != nil {
		return nil, err
	}
	p.loops++
	s.Body, err = p.statements("else", "endfor")
	p.loops--
	if err != nil {
		return nil, err
	}
	word, err := p.end(false)
	if err == nil && word == "else" {
		s.Else, err = p.body("endfor")
	} else if err == nil {
		err = p.expect(tokBlockEnd, "%}")
	}
	return s, err
}

// target parses what is assigned to: names, and outside of loops ns.attr.
func (p *parser) target(stop string) (Expr, error) {
	var items []Expr
	comma := false
	ended := func() bool {
		return p.is(tokName, stop) || p.is(tokOp, stop) || p.peek().kind == tokBlockEnd
	}
	for len(items) == 0 || !ended() {
		x, err := p.targetItem(stop)
		if err != nil {
			return nil, err
		}
		items = append(items, x)
		if !p.skip(tokOp, ",") {
			break
		}
		comma = true
	}
	if len(items) == 1 && !comma {
		return items[0], nil
	}
	return &Tuple{items}, nil
}

func (p *parser) targetItem(stop string) (Expr, error) {
	if p.skip(tokOp, "(") {
		x, err := p.target(")")
		if err == nil {
			err = p.expect(tokOp, ")")
		}
		return x, err
	}
	name, err := p.name()
	if err != nil {
		return nil, err
	}
	x := nameOrConst(name)
	if _, ok := x.(*Name); !ok {
		return nil, p.fail("cannot assign to %s", name)
	}
	if stop == "=" && p.skip(tokOp, ".") {
		attr, err := p.name()
		return &NSRef{name, attr}, err
	}
	return x, nil
}

func (p *parser) setStmt() (Stmt, error) {
	target, err := p.target("=")
	if err != nil {
		return nil, err
	}
	if p.skip(tokOp, "=") {
		v, err := p.tuple(true, false)
		if err == nil {
			err = p.expect(tokBlockEnd, "%}")
		}
		return &Set{target, v}, err
	}
	if _, ok := target.(*Tuple); ok {
		return nil, p.fail("a block is assigned to one name")
	}
	s := &SetBlock{Target: target}
	if p.op("|") {
		if s.Filter, err = p.filterChain(false); err != nil {
			return nil, err
		}
	}
	s.Body, err = p.body("endset")
	return s, err
}

// filterChain parses a|b|c, whose first filter has no operand. bare: the first
// one stands without its pipe.
func (p *parser) filterChain(bare bool) (*Filter, error) {
	var f *Filter
	for bare || p.op("|") {
		if !bare {
			p.next()
		}
		bare = false
		var x Expr
		if f != nil {
			x = f
		}
		var err error
		if f, err = p.filterAfterPipe(x); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (p *parser) filterStmt() (Stmt, error) {
	f, err := p.filterChain(true)
	if err != nil {
		return nil, err
	}
	s := &FilterBlock{Filter: f}
	s.Body, err = p.body("endfilter")
	return s, err
}

func (p *parser) blockStmt() (Stmt, error) {
	if _, err := p.name(); err != nil {
		return nil, err
	}
	for p.is(tokName, "scoped") || p.is(tokName, "required") {
		p.next() // the words change nothing here
	}
	body, err := p.outsideLoops("endblock")
	if err != nil {
		return nil, err
	}
	if p.peek().kind == tokName { // the block's name may be repeated
		p.next()
	}
	return &Scope{Body: body}, p.expect(tokBlockEnd, "%}")
}

func (p *parser) withStmt() (Stmt, error) {
	s := &Scope{}
	for p.peek().kind != tokBlockEnd {
		if len(s.Vars) > 0 {
			if err := p.expect(tokOp, ","); err != nil {
				return nil, err
			}
		}
		x, err := p.targetItem("")
		if err != nil {
			return nil, err
		}
		if err := p.expect(tokOp, "="); err != nil {
			return nil, err
		}
		v, err := p.expression()
		if err != nil {
			return nil, err
		}
		s.Vars = append(s.Vars, &Set{x, v})
	}
	var err error
	s.Body, err = p.body("endwith")
	return s, err
}
