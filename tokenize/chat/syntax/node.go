// Package syntax reads Jinja templates as chat templates are read everywhere:
// with trim_blocks and lstrip_blocks, break and continue, and the generation
// block. It yields a tree; what the tree means is for others.
package syntax

// Expr is an expression.
type Expr interface{ expr() }

// Expressions.
type (
	// Name is a variable.
	Name struct{ Name string }
	// Const is nil, a bool, an int64, a float64 or a string.
	Const struct{ Value any }
	// List is [a, b].
	List struct{ Items []Expr }
	// Tuple is (a, b), or a, b where that is allowed.
	Tuple struct{ Items []Expr }
	// Dict is {a: b}.
	Dict struct{ Pairs []Pair }
	// Attr is x.name.
	Attr struct {
		X    Expr
		Name string
	}
	// Item is x[key]; Key may be a Slice.
	Item struct{ X, Key Expr }
	// Slice is start:stop:step inside an Item; parts that are not given are nil.
	Slice struct{ Start, Stop, Step Expr }
	// Call is fn(args).
	Call struct {
		Fn Expr
		Arguments
	}
	// Filter is x|name(args); X is nil for the first filter of a filter block or
	// of a block assignment.
	Filter struct {
		X    Expr
		Name string
		Arguments
	}
	// Test is x is name(args); "is not" is a Unary around it.
	Test struct {
		X    Expr
		Name string
		Arguments
	}
	// Unary is not, - or +.
	Unary struct {
		Op string
		X  Expr
	}
	// Binary is an arithmetic operator, and, or.
	Binary struct {
		Op   string
		L, R Expr
	}
	// Concat is a ~ b ~ c.
	Concat struct{ Items []Expr }
	// Compare is a chain: x op a op b.
	Compare struct {
		X   Expr
		Ops []Operand
	}
	// Cond is then if test else other; Else is nil when not given.
	Cond struct{ Test, Then, Else Expr }
	// NSRef is ns.attr as the target of an assignment.
	NSRef struct{ Name, Attr string }
)

// Pair is one entry of a Dict.
type Pair struct{ Key, Value Expr }

// Operand is one step of a Compare. Op is ==, !=, <, <=, >, >=, in or not in.
type Operand struct {
	Op string
	X  Expr
}

// Keyword is name=value in a call.
type Keyword struct {
	Name  string
	Value Expr
}

// Arguments of a call, filter or test.
type Arguments struct {
	Args     []Expr
	Keywords []Keyword
	// Star is *args and StarStar **kwargs; nil when not given.
	Star, StarStar Expr
}

func (*Name) expr()    {}
func (*Const) expr()   {}
func (*List) expr()    {}
func (*Tuple) expr()   {}
func (*Dict) expr()    {}
func (*Attr) expr()    {}
func (*Item) expr()    {}
func (*Slice) expr()   {}
func (*Call) expr()    {}
func (*Filter) expr()  {}
func (*Test) expr()    {}
func (*Unary) expr()   {}
func (*Binary) expr()  {}
func (*Concat) expr()  {}
func (*Compare) expr() {}
func (*Cond) expr()    {}
func (*NSRef) expr()   {}

// Stmt is a statement, an output or text.
type Stmt interface{ stmt() }

// Statements.
type (
	// Data is text as it is printed: whitespace control is already applied.
	Data struct{ Text string }
	// Output is {{ x }}.
	Output struct{ X Expr }
	// If has one branch for if and for each elif; Else may be nil.
	If struct {
		Branches []Branch
		Else     []Stmt
	}
	// For is a loop. Target is a Name or a Tuple; Test and Else may be nil.
	For struct {
		Target, Iter, Test Expr
		Recursive          bool
		Body, Else         []Stmt
	}
	// Set assigns to a Name, an NSRef or a Tuple of them.
	Set struct{ Target, Value Expr }
	// SetBlock assigns what Body prints, through Filter when that is not nil.
	SetBlock struct {
		Target Expr
		Filter *Filter
		Body   []Stmt
	}
	// Macro defines a macro.
	Macro struct {
		Name   string
		Params []Param
		Body   []Stmt
	}
	// CallBlock calls a macro with Body as its caller.
	CallBlock struct {
		Params []Param
		Call   *Call
		Body   []Stmt
	}
	// FilterBlock prints what Body prints through Filter.
	FilterBlock struct {
		Filter *Filter
		Body   []Stmt
	}
	// Scope is a block, with or generation statement: Body in a scope of its own,
	// with the assignments of with first.
	Scope struct {
		Vars []*Set
		Body []Stmt
	}
	// Break leaves a loop.
	Break struct{}
	// Continue goes to a loop's next item.
	Continue struct{}
)

// Branch of an If.
type Branch struct {
	Test Expr
	Body []Stmt
}

// Param of a macro; Default is nil when there is none.
type Param struct {
	Name    string
	Default Expr
}

func (*Data) stmt()        {}
func (*Output) stmt()      {}
func (*If) stmt()          {}
func (*For) stmt()         {}
func (*Set) stmt()         {}
func (*SetBlock) stmt()    {}
func (*Macro) stmt()       {}
func (*CallBlock) stmt()   {}
func (*FilterBlock) stmt() {}
func (*Scope) stmt()       {}
func (*Break) stmt()       {}
func (*Continue) stmt()    {}
