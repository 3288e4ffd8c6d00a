package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Figure is one measured figure beside its floor.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Floor is the same figure of the floor, of the same run; absent where the
	// floor has none.
	Floor *float64 `json:"floor"`
	// Ratio is Value over Floor: the median over rounds, in each of which both
	// were measured one after the other.
	Ratio *float64 `json:"ratio"`
	// Bound is what is asked of the figure, such as "ratio <= 1.5"; empty for a
	// figure that explains others.
	Bound string `json:"bound"`
	// OK says whether the bound holds; absent where nothing is judged.
	OK *bool `json:"ok"`
}

// bound is what is asked of a figure.
type bound struct {
	of      string // value or ratio
	atLeast bool
	limit   float64
}

func valueAtMost(limit float64) *bound  { return &bound{of: "value", limit: limit} }
func ratioAtMost(limit float64) *bound  { return &bound{of: "ratio", limit: limit} }
func ratioAtLeast(limit float64) *bound { return &bound{of: "ratio", limit: limit, atLeast: true} }

func (b *bound) String() string {
	sign := "<="
	if b.atLeast {
		sign = ">="
	}
	return fmt.Sprintf("%s %s %s", b.of, sign, strconv.FormatFloat(b.limit, 'g', -1, 64))
}

// holds says whether f keeps the bound; a ratio without a floor does not.
func (b *bound) holds(f Figure) bool {
	v := f.Value
	if b.of == "ratio" {
		if f.Ratio == nil {
			return false
		}
		v = *f.Ratio
	}
	if b.atLeast {
		return v >= b.limit
	}
	return v <= b.limit
}

// missed says whether the figure's bound was judged and does not hold.
func (f Figure) missed() bool { return f.OK != nil && !*f.OK }

// output prints figures as they come: as JSON lines, or as a table whose width is
// known at the end.
type output struct {
	json  *json.Encoder
	table *tabwriter.Writer
}

func newOutput(w io.Writer, asJSON bool) *output {
	if asJSON {
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false) // bounds hold <= and >=
		return &output{json: encoder}
	}
	return &output{table: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
}

func (o *output) machine(m machine) error {
	if o.json != nil {
		return o.json.Encode(struct {
			Machine machine `json:"machine"`
		}{m})
	}
	fmt.Fprintln(o.table, m.String())
	_, err := fmt.Fprintln(o.table, "name\tvalue\tunit\tfloor\tratio\tbound\tok\t")
	return err
}

func (o *output) figure(f Figure) error {
	if o.json != nil {
		return o.json.Encode(f)
	}
	ok := "-"
	if f.OK != nil {
		ok = map[bool]string{true: "ok", false: "MISSED"}[*f.OK]
	}
	dash := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return short(*v)
	}
	bound := f.Bound
	if bound == "" {
		bound = "-"
	}
	_, err := fmt.Fprintf(o.table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", f.Name, short(f.Value), f.Unit, dash(f.Floor), dash(f.Ratio), bound, ok)
	return err
}

func (o *output) close() error {
	if o.table == nil {
		return nil
	}
	return o.table.Flush()
}

// short prints a number with four digits that count, thousands apart.
func short(v float64) string {
	if v < 1000 {
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	text := strconv.FormatFloat(v, 'f', 0, 64)
	var out strings.Builder
	for i, c := range text {
		if i > 0 && (len(text)-i)%3 == 0 {
			out.WriteByte(' ')
		}
		out.WriteRune(c)
	}
	return out.String()
}
