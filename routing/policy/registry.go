// Package policy decides where a request goes, and keeps the load figures that
// decisions are made from.
//
// Policies work on the Decided event itself: everything they read is in it, so
// that an auditor re-runs the very same function on a recorded event. They are
// pure; what is random in them comes from the event's seed. Arithmetic is
// written so that it rounds alike on every machine.
package policy

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	pb "warmpath/schemas/warmpathv1"
)

// policy is one named way to decide.
type policy struct {
	name    string
	version uint32
	// params is sorted by name.
	params []param
	// score fills in every candidate's score, lower being better, and returns by
	// how much scores may differ from the best and still be equal.
	score func(*decision) (tolerance float64)
	// tieKey is what HRW orders equal candidates by.
	tieKey func(*decision) uint64
}

// param is one number of a policy.
type param struct {
	name string
	// standard is the default, why the reason for it.
	standard float64
	why      string
	// least and most bound it.
	least, most float64
}

// Param describes a policy's parameter for help texts.
type Param struct {
	Name                 string
	Default, Least, Most float64
	// Why says what it does and why the default is what it is.
	Why string
}

// fallbackName is the policy of Fallback. It is not among Names: a router never
// decides by it.
const fallbackName = "fallback"

// Names returns the policies that a router can decide by, sorted.
func Names() []string {
	var out []string
	for _, p := range all() {
		if p.name != fallbackName {
			out = append(out, p.name)
		}
	}
	slices.Sort(out)
	return out
}

// Params describes a policy's parameters, sorted by name.
func Params(name string) ([]Param, error) {
	p, err := find(name)
	if err != nil {
		return nil, err
	}
	out := make([]Param, len(p.params))
	for i, q := range p.params {
		out[i] = Param{Name: q.name, Default: q.standard, Least: q.least, Most: q.most, Why: q.why}
	}
	return out, nil
}

// Defaults returns a policy's parameters as they are when nothing else is said.
func Defaults(name string) (map[string]float64, error) {
	p, err := find(name)
	if err != nil {
		return nil, err
	}
	out := make(map[string]float64, len(p.params))
	for _, q := range p.params {
		out[q.name] = q.standard
	}
	return out, nil
}

// Ref names a policy with every parameter, sorted: the defaults, with overrides
// in their place. An unknown policy or parameter, or a value out of range, is an
// error that lists what is valid.
func Ref(name string, overrides map[string]float64) (*pb.PolicyRef, error) {
	p, err := find(name)
	if err != nil {
		return nil, err
	}
	ref := &pb.PolicyRef{Name: p.name, Version: p.version}
	left := maps.Clone(overrides)
	for _, q := range p.params {
		value := q.standard
		if v, ok := left[q.name]; ok {
			value = v
			delete(left, q.name)
		}
		if err := q.check(value); err != nil {
			return nil, fmt.Errorf("policy %s: %w", p.name, err)
		}
		ref.Params = append(ref.Params, &pb.Param{Name: q.name, Value: value})
	}
	if len(left) > 0 {
		unknown := slices.Sorted(maps.Keys(left))
		return nil, fmt.Errorf("policy %s has no parameter %s; it has: %s", p.name, strings.Join(unknown, ", "), p.paramNames())
	}
	return ref, nil
}

func (q param) check(value float64) error {
	if math.IsNaN(value) || value < q.least || value > q.most {
		return fmt.Errorf("parameter %s is %v; it must be from %v to %v", q.name, value, q.least, q.most)
	}
	return nil
}

func (p *policy) paramNames() string {
	if len(p.params) == 0 {
		return "none"
	}
	var names []string
	for _, q := range p.params {
		names = append(names, q.name)
	}
	return strings.Join(names, ", ")
}

func find(name string) (*policy, error) {
	for _, p := range all() {
		if p.name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no policy is named %q; there are: %s", name, strings.Join(Names(), ", "))
}

// of returns the policy that a decision names, if it can be run here: of the
// same version and with every parameter.
func of(ref *pb.PolicyRef) (*policy, error) {
	if ref == nil {
		return nil, fmt.Errorf("the decision names no policy; set Policy to policy.Ref of one")
	}
	p, err := find(ref.Name)
	if err != nil {
		return nil, err
	}
	if p.version != ref.Version {
		return nil, fmt.Errorf("policy %s is version %d here; version %d cannot be run", p.name, p.version, ref.Version)
	}
	if len(ref.Params) != len(p.params) {
		return nil, fmt.Errorf("policy %s has %d parameters here, not %d; it has: %s", p.name, len(p.params), len(ref.Params), p.paramNames())
	}
	for i, q := range p.params {
		got := ref.Params[i]
		if got.GetName() != q.name {
			return nil, fmt.Errorf("policy %s: parameter %d is %q; sorted by name it is %s", p.name, i, got.GetName(), q.name)
		}
		if err := q.check(got.Value); err != nil {
			return nil, fmt.Errorf("policy %s: %w", p.name, err)
		}
	}
	return p, nil
}
