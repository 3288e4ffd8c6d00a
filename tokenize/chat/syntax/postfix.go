package syntax

import (
	"slices"
	"strconv"
)

func (p *parser) postfix(x Expr) (Expr, error) {
	for {
		var err error
		switch {
		case p.skip(tokOp, "."):
			x, err = p.attribute(x)
		case p.skip(tokOp, "["):
			x, err = p.subscript(x)
		case p.op("("):
			x, err = p.call(x)
		default:
			return x, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) attribute(x Expr) (Expr, error) {
	switch t := p.next(); t.kind {
	case tokName:
		return &Attr{x, t.text}, nil
	case tokInt:
		v, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil {
			return nil, p.fail("number %s: %v", t.text, err)
		}
		return &Item{x, &Const{v}}, nil
	default:
		return nil, failAt(t.line, "expected a name or a number after '.', found %v", t)
	}
}

func (p *parser) subscript(x Expr) (Expr, error) {
	var keys []Expr
	for !p.skip(tokOp, "]") {
		if len(keys) > 0 {
			if err := p.expect(tokOp, ","); err != nil {
				return nil, err
			}
		}
		k, err := p.subscripted()
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	if len(keys) == 1 {
		return &Item{x, keys[0]}, nil
	}
	return &Item{x, &Tuple{keys}}, nil
}

func (p *parser) subscripted() (Expr, error) {
	s := &Slice{}
	var err error
	if !p.op(":") {
		if s.Start, err = p.expression(); err != nil || !p.op(":") {
			return s.Start, err
		}
	}
	for _, part := range []*Expr{&s.Stop, &s.Step} {
		if !p.skip(tokOp, ":") {
			break
		}
		if p.op(":") || p.op("]") || p.op(",") {
			continue
		}
		if *part, err = p.expression(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (p *parser) call(fn Expr) (Expr, error) {
	args, err := p.arguments()
	return &Call{fn, args}, err
}

func (p *parser) arguments() (Arguments, error) {
	var a Arguments
	if err := p.expect(tokOp, "("); err != nil {
		return a, err
	}
	for first := true; !p.skip(tokOp, ")"); first = false {
		if !first {
			if err := p.expect(tokOp, ","); err != nil {
				return a, err
			}
			if p.skip(tokOp, ")") {
				break
			}
		}
		if err := p.argument(&a); err != nil {
			return a, err
		}
	}
	return a, nil
}

func (p *parser) argument(a *Arguments) (err error) {
	const invalid = "the arguments of a call are in the wrong order"
	switch {
	case p.op("*"):
		if a.Star != nil || a.StarStar != nil {
			return p.fail(invalid)
		}
		p.next()
		a.Star, err = p.expression()
	case p.op("**"):
		if a.StarStar != nil {
			return p.fail(invalid)
		}
		p.next()
		a.StarStar, err = p.expression()
	case p.peek().kind == tokName && p.look().kind == tokOp && p.look().text == "=":
		if a.StarStar != nil {
			return p.fail(invalid)
		}
		k := Keyword{Name: p.next().text}
		p.next()
		k.Value, err = p.expression()
		a.Keywords = append(a.Keywords, k)
	default:
		if a.Star != nil || a.StarStar != nil || len(a.Keywords) > 0 {
			return p.fail(invalid)
		}
		var x Expr
		x, err = p.expression()
		a.Args = append(a.Args, x)
	}
	return err
}

// filters parses |filter, is test, and calls of their results.
func (p *parser) filters(x Expr) (Expr, error) {
	for {
		var err error
		switch {
		case p.op("|"):
			x, err = p.filter(x)
		case p.skip(tokName, "is"):
			x, err = p.test(x)
		case p.op("("):
			x, err = p.call(x)
		default:
			return x, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) dotted() (string, error) {
	name, err := p.name()
	for err == nil && p.skip(tokOp, ".") {
		var part string
		part, err = p.name()
		name += "." + part
	}
	return name, err
}

// filter parses one |name(args).
func (p *parser) filter(x Expr) (*Filter, error) {
	if err := p.expect(tokOp, "|"); err != nil {
		return nil, err
	}
	return p.filterAfterPipe(x)
}

func (p *parser) filterAfterPipe(x Expr) (*Filter, error) {
	f := &Filter{X: x}
	var err error
	if f.Name, err = p.dotted(); err != nil {
		return nil, err
	}
	if p.op("(") {
		f.Arguments, err = p.arguments()
	}
	return f, err
}

func (p *parser) test(x Expr) (Expr, error) {
	negated := p.skip(tokName, "not")
	t := &Test{X: x}
	var err error
	if t.Name, err = p.dotted(); err != nil {
		return nil, err
	}
	switch {
	case p.op("("):
		if t.Arguments, err = p.arguments(); err != nil {
			return nil, err
		}
	case p.testArgument():
		arg, err := p.primary()
		if err == nil {
			arg, err = p.postfix(arg)
		}
		if err != nil {
			return nil, err
		}
		t.Args = []Expr{arg}
	}
	if negated {
		return &Unary{"not", t}, nil
	}
	return t, nil
}

// testArgument reports an argument that is written without parentheses.
func (p *parser) testArgument() bool {
	switch t := p.peek(); t.kind {
	case tokString, tokInt, tokFloat:
		return true
	case tokName:
		return !slices.Contains([]string{"else", "or", "and", "is"}, t.text)
	case tokOp:
		return t.text == "[" || t.text == "{"
	}
	return false
}
