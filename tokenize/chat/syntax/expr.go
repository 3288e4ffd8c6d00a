package syntax

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// maxDepth bounds the nesting of expressions and blocks: a template is trusted,
// but a stack that overflows cannot be recovered from.
const maxDepth = 500

type parser struct {
	tokens []token
	at     int
	depth  int
	loops  int
}

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) look() token { return p.tokens[min(p.at+1, len(p.tokens)-1)] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != tokEOF {
		p.at++
	}
	return t
}

func (p *parser) is(k kind, text string) bool {
	t := p.peek()
	return t.kind == k && t.text == text
}

func (p *parser) op(text string) bool { return p.is(tokOp, text) }

func (p *parser) skip(k kind, text string) bool {
	if p.is(k, text) {
		p.next()
		return true
	}
	return false
}

func (p *parser) expect(k kind, text string) error {
	if !p.skip(k, text) {
		return p.fail("expected %q, found %v", text, p.peek())
	}
	return nil
}

func (p *parser) name() (string, error) {
	t := p.peek()
	if t.kind != tokName {
		return "", p.fail("expected a name, found %v", t)
	}
	p.next()
	return t.text, nil
}

func (p *parser) fail(format string, args ...any) error {
	return failAt(p.peek().line, format, args...)
}

// deeper guards recursion; its result undoes it.
func (p *parser) deeper() (func(), error) {
	if p.depth++; p.depth > maxDepth {
		return nil, p.fail("nested more than %d deep", maxDepth)
	}
	return func() { p.depth-- }, nil
}

func (p *parser) expression() (Expr, error) { return p.conditional(true) }

func (p *parser) conditional(withCond bool) (Expr, error) {
	shallower, err := p.deeper()
	if err != nil {
		return nil, err
	}
	defer shallower()
	x, err := p.or()
	for err == nil && withCond && p.skip(tokName, "if") {
		c := &Cond{Then: x}
		if c.Test, err = p.or(); err != nil {
			return nil, err
		}
		if p.skip(tokName, "else") {
			if c.Else, err = p.conditional(true); err != nil {
				return nil, err
			}
		}
		x = c
	}
	return x, err
}

// chain parses operand {op operand}, left to right. match consumes an operator.
func (p *parser) chain(operand func() (Expr, error), match func() string) (Expr, error) {
	left, err := operand()
	for err == nil {
		op := match()
		if op == "" {
			break
		}
		var right Expr
		if right, err = operand(); err == nil {
			left = &Binary{op, left, right}
		}
	}
	return left, err
}

func (p *parser) matchName(name string) func() string {
	return func() string {
		if p.skip(tokName, name) {
			return name
		}
		return ""
	}
}

func (p *parser) matchOp(ops ...string) func() string {
	return func() string {
		if t := p.peek(); t.kind == tokOp && slices.Contains(ops, t.text) {
			return p.next().text
		}
		return ""
	}
}

func (p *parser) or() (Expr, error)  { return p.chain(p.and, p.matchName("or")) }
func (p *parser) and() (Expr, error) { return p.chain(p.not, p.matchName("and")) }

func (p *parser) not() (Expr, error) {
	if !p.skip(tokName, "not") {
		return p.compare()
	}
	shallower, err := p.deeper()
	if err != nil {
		return nil, err
	}
	defer shallower()
	x, err := p.not()
	return &Unary{"not", x}, err
}

func (p *parser) compare() (Expr, error) {
	x, err := p.sum()
	if err != nil {
		return nil, err
	}
	c := &Compare{X: x}
	match := p.matchOp("==", "!=", "<", "<=", ">", ">=")
	for {
		op := match()
		switch {
		case op != "":
		case p.skip(tokName, "in"):
			op = "in"
		case p.is(tokName, "not") && p.look().kind == tokName && p.look().text == "in":
			p.next()
			p.next()
			op = "not in"
		default:
			if len(c.Ops) == 0 {
				return x, nil
			}
			return c, nil
		}
		right, err := p.sum()
		if err != nil {
			return nil, err
		}
		c.Ops = append(c.Ops, Operand{op, right})
	}
}

func (p *parser) sum() (Expr, error) { return p.chain(p.concat, p.matchOp("+", "-")) }

func (p *parser) concat() (Expr, error) {
	x, err := p.product()
	if err != nil || !p.op("~") {
		return x, err
	}
	c := &Concat{Items: []Expr{x}}
	for p.skip(tokOp, "~") {
		if x, err = p.product(); err != nil {
			return nil, err
		}
		c.Items = append(c.Items, x)
	}
	return c, nil
}

func (p *parser) product() (Expr, error) {
	return p.chain(p.power, p.matchOp("*", "/", "//", "%"))
}

func (p *parser) power() (Expr, error) {
	return p.chain(func() (Expr, error) { return p.unary(true) }, p.matchOp("**"))
}

func (p *parser) unary(filters bool) (Expr, error) {
	shallower, err := p.deeper()
	if err != nil {
		return nil, err
	}
	defer shallower()
	var x Expr
	if sign := p.matchOp("-", "+")(); sign != "" {
		operand, err := p.unary(false)
		if err != nil {
			return nil, err
		}
		x = &Unary{sign, operand}
	} else if x, err = p.primary(); err != nil {
		return nil, err
	}
	if x, err = p.postfix(x); err != nil || !filters {
		return x, err
	}
	return p.filters(x)
}

func (p *parser) primary() (Expr, error) {
	switch t := p.peek(); {
	case t.kind == tokName:
		p.next()
		return nameOrConst(t.text), nil
	case t.kind == tokString:
		var b strings.Builder
		for p.peek().kind == tokString {
			b.WriteString(p.next().text)
		}
		return &Const{b.String()}, nil
	case t.kind == tokInt:
		p.next()
		v, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil {
			return nil, p.fail("number %s: %v", t.text, err)
		}
		return &Const{v}, nil
	case t.kind == tokFloat:
		p.next()
		v, err := strconv.ParseFloat(t.text, 64)
		if err != nil && !math.IsInf(v, 0) {
			return nil, p.fail("number %s: %v", t.text, err)
		}
		return &Const{v}, nil
	case p.skip(tokOp, "("):
		x, err := p.tuple(true, true)
		if err == nil {
			err = p.expect(tokOp, ")")
		}
		return x, err
	case p.skip(tokOp, "["):
		items, err := p.items("]")
		return &List{items}, err
	case p.skip(tokOp, "{"):
		return p.dict()
	default:
		return nil, p.fail("expected an expression, found %v", t)
	}
}

func nameOrConst(name string) Expr {
	switch name {
	case "true", "True":
		return &Const{true}
	case "false", "False":
		return &Const{false}
	case "none", "None":
		return &Const{nil}
	}
	return &Name{name}
}

// tuple parses a, b, c. Without a comma it is the expression itself. empty
// allows nothing at all.
func (p *parser) tuple(withCond, empty bool) (Expr, error) {
	var items []Expr
	comma := false
	for !p.tupleEnd() {
		x, err := p.conditional(withCond)
		if err != nil {
			return nil, err
		}
		items = append(items, x)
		if comma = p.skip(tokOp, ","); !comma {
			break
		}
	}
	switch {
	case len(items) == 1 && !comma:
		return items[0], nil
	case len(items) == 0 && !empty:
		return nil, p.fail("expected an expression, found %v", p.peek())
	}
	return &Tuple{items}, nil
}

func (p *parser) tupleEnd() bool {
	t := p.peek()
	return t.kind == tokBlockEnd || t.kind == tokOutputEnd || p.op(")") || p.is(tokName, "recursive")
}

// items parses a comma-separated list up to its closer.
func (p *parser) items(closer string) ([]Expr, error) {
	var items []Expr
	for !p.skip(tokOp, closer) {
		if len(items) > 0 {
			if err := p.expect(tokOp, ","); err != nil {
				return nil, err
			}
			if p.skip(tokOp, closer) {
				break
			}
		}
		x, err := p.expression()
		if err != nil {
			return nil, err
		}
		items = append(items, x)
	}
	return items, nil
}

func (p *parser) dict() (Expr, error) {
	d := &Dict{}
	for !p.skip(tokOp, "}") {
		if len(d.Pairs) > 0 {
			if err := p.expect(tokOp, ","); err != nil {
				return nil, err
			}
			if p.skip(tokOp, "}") {
				break
			}
		}
		k, err := p.expression()
		if err != nil {
			return nil, err
		}
		if err := p.expect(tokOp, ":"); err != nil {
			return nil, err
		}
		v, err := p.expression()
		if err != nil {
			return nil, err
		}
		d.Pairs = append(d.Pairs, Pair{k, v})
	}
	return d, nil
}
