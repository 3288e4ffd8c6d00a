package syntax

// Walk calls visit for every statement and expression, each before its parts,
// in the order of the text. Targets of assignments and loops are visited too.
func Walk(body []Stmt, visit func(node any)) {
	w := walker{visit}
	w.body(body)
}

type walker struct{ visit func(any) }

func (w walker) body(body []Stmt) {
	for _, s := range body {
		w.stmt(s)
	}
}

func (w walker) stmt(s Stmt) {
	w.visit(s)
	switch s := s.(type) {
	case *Output:
		w.expr(s.X)
	case *If:
		for _, b := range s.Branches {
			w.expr(b.Test)
			w.body(b.Body)
		}
		w.body(s.Else)
	case *For:
		w.exprs(s.Target, s.Iter)
		w.body(s.Body)
		w.body(s.Else)
		w.expr(s.Test)
	case *Set:
		w.exprs(s.Target, s.Value)
	case *SetBlock:
		w.expr(s.Target)
		w.filter(s.Filter)
		w.body(s.Body)
	case *Macro:
		w.params(s.Params)
		w.body(s.Body)
	case *CallBlock:
		w.expr(s.Call)
		w.params(s.Params)
		w.body(s.Body)
	case *FilterBlock:
		w.body(s.Body)
		w.filter(s.Filter)
	case *Scope:
		for _, v := range s.Vars {
			w.stmt(v)
		}
		w.body(s.Body)
	}
}

func (w walker) params(params []Param) {
	for _, p := range params {
		w.expr(p.Default)
	}
}

func (w walker) filter(f *Filter) {
	if f != nil {
		w.expr(f)
	}
}

func (w walker) exprs(list ...Expr) {
	for _, x := range list {
		w.expr(x)
	}
}

func (w walker) expr(x Expr) {
	if x == nil {
		return
	}
	w.visit(x)
	switch x := x.(type) {
	case *List:
		w.exprs(x.Items...)
	case *Tuple:
		w.exprs(x.Items...)
	case *Dict:
		for _, p := range x.Pairs {
			w.exprs(p.Key, p.Value)
		}
	case *Attr:
		w.expr(x.X)
	case *Item:
		w.exprs(x.X, x.Key)
	case *Slice:
		w.exprs(x.Start, x.Stop, x.Step)
	case *Call:
		w.expr(x.Fn)
		w.arguments(&x.Arguments)
	case *Filter:
		w.expr(x.X)
		w.arguments(&x.Arguments)
	case *Test:
		w.expr(x.X)
		w.arguments(&x.Arguments)
	case *Unary:
		w.expr(x.X)
	case *Binary:
		w.exprs(x.L, x.R)
	case *Concat:
		w.exprs(x.Items...)
	case *Compare:
		w.expr(x.X)
		for _, o := range x.Ops {
			w.expr(o.X)
		}
	case *Cond:
		w.exprs(x.Test, x.Then, x.Else)
	}
}

func (w walker) arguments(a *Arguments) {
	w.exprs(a.Args...)
	for _, k := range a.Keywords {
		w.expr(k.Value)
	}
	w.exprs(a.Star, a.StarStar)
}
