package syntax

func (p *parser) params() ([]Param, error) {
	var params []Param
	if err := p.expect(tokOp, "("); err != nil {
		return nil, err
	}
	for !p.skip(tokOp, ")") {
		if len(params) > 0 {
			if err := p.expect(tokOp, ","); err != nil {
				return nil, err
			}
		}
		name, err := p.name()
		if err != nil {
			return nil, err
		}
		param := Param{Name: name}
		if p.skip(tokOp, "=") {
			if param.Default, err = p.expression(); err != nil {
				return nil, err
			}
		} else if len(params) > 0 && params[len(params)-1].Default != nil {
			return nil, p.fail("parameter %s has no default but follows one that has", name)
		}
		params = append(params, param)
	}
	return params, nil
}

func (p *parser) macroStmt() (Stmt, error) {
	m := &Macro{}
	var err error
	if m.Name, err = p.name(); err != nil {
		return nil, err
	}
	if m.Params, err = p.params(); err != nil {
		return nil, err
	}
	m.Body, err = p.outsideLoops("endmacro")
	return m, err
}

// outsideLoops parses a body that break and continue cannot leave.
func (p *parser) outsideLoops(end string) ([]Stmt, error) {
	loops := p.loops
	p.loops = 0
	body, err := p.body(end)
	p.loops = loops
	return body, err
}

func (p *parser) callStmt() (Stmt, error) {
	s := &CallBlock{}
	var err error
	if p.op("(") {
		if s.Params, err = p.params(); err != nil {
			return nil, err
		}
	}
	x, err := p.expression()
	if err != nil {
		return nil, err
	}
	call, ok := x.(*Call)
	if !ok {
		return nil, p.fail("expected a call")
	}
	s.Call = call
	s.Body, err = p.outsideLoops("endcall")
	return s, err
}
