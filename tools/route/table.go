package route

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// lowerTiers are the columns that are shown where a replica has blocks there.
var lowerTiers = []string{"cpu", "disk", "remote"}

// reasons say in words why the chosen replica is.
var reasons = map[string]string{
	"score":   "the best score",
	"tie":     "scores as good as equal, and the first of the order of its prefix",
	"explore": "chosen at random, as the explore rate asks",
	"steal":   "the first choice is over its budget",
	"only":    "the only one that can take it",
}

// writeTable prints the report for people.
func (r *Report) writeTable(w io.Writer) error {
	out := &page{w: w}
	out.line("request", "%s", r.Kind)
	out.line("text", "%s", r.text())
	out.line("tokens", "%s", r.tokens())
	out.line("keys", "%s", r.keys())
	out.line("pool", "%s", r.pool())
	out.line("router", "%s, at KV sequence %d (%s old when it was applied), decided in %s", r.Router, r.KVSeq, micros(r.IndexAgeUS), micros(int64(r.DecideUS)))
	out.line("policy", "%s", r.policy())
	out.print("\n")
	r.writeCandidates(out)
	out.print("\n")
	out.line("choice", "%s", r.choice())
	return out.err
}

// page keeps the first error of writing.
type page struct {
	w   io.Writer
	err error
}

func (p *page) print(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *page) line(name, format string, args ...any) {
	p.print("%-8s %s\n", name, fmt.Sprintf(format, args...))
}

func (r *Report) text() string {
	switch {
	case r.TextBytes > 0 && r.Kind == kindChat:
		return fmt.Sprintf("%d bytes, rendered", r.TextBytes)
	case r.TextBytes > 0:
		return fmt.Sprintf("%d bytes", r.TextBytes)
	case r.Kind == kindTokens:
		return "none"
	case r.Unkeyed != "":
		return "not rendered"
	}
	return "rendered by an engine"
}

func (r *Report) tokens() string {
	if r.Unkeyed != "" {
		return fmt.Sprintf("about %d; %s", r.Tokens, r.Unkeyed)
	}
	return fmt.Sprintf("%d, by %s (%s)", r.Tokens, r.TokensBy, r.TokenSource)
}

func (r *Report) keys() string {
	switch {
	case r.Unkeyed != "":
		return "none: load alone decides"
	case r.Keys == 0:
		return fmt.Sprintf("none: shorter than a block of %d tokens", r.BlockTokens)
	case r.Keys == 1:
		return fmt.Sprintf("1 block of %d tokens: %s", r.BlockTokens, r.FirstKey)
	}
	return fmt.Sprintf("%d blocks of %d tokens: %s … %s", r.Keys, r.BlockTokens, r.FirstKey, r.LastKey)
}

func (r *Report) pool() string {
	if r.LoRA != "" {
		return fmt.Sprintf("%s, model %s with adapter %s", r.Pool, r.Model, r.LoRA)
	}
	return fmt.Sprintf("%s, model %s", r.Pool, r.Model)
}

func (r *Report) policy() string {
	parts := make([]string, 0, len(r.params))
	for _, p := range r.params {
		parts = append(parts, p.Name+"="+number(p.Value))
	}
	return strings.TrimSpace(fmt.Sprintf("%s version %d  %s", r.Policy, r.PolicyVersion, strings.Join(parts, " ")))
}

func (r *Report) choice() string {
	where := r.Chosen + " at " + r.Address
	if r.Rank != nil {
		where += fmt.Sprintf(", rank %d", *r.Rank)
	}
	why, known := reasons[r.Reason]
	if !known {
		why = r.Reason
	}
	if r.FirstChoice != r.Chosen && r.FirstChoice != "" {
		why += " (first choice " + r.FirstChoice + ")"
	}
	return fmt.Sprintf("%s: %s; %d of %d prompt tokens expected from its cache", where, why, r.PredictedCachedTokens, r.Tokens)
}

func (r *Report) writeCandidates(out *page) {
	var tiers []string
	for _, tier := range lowerTiers {
		for _, c := range r.Candidates {
			if c.Tiers[tier] > 0 {
				tiers = append(tiers, tier)
				break
			}
		}
	}
	table := tabwriter.NewWriter(out.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(cells []string) {
		if out.err == nil {
			_, out.err = fmt.Fprintln(table, strings.Join(cells, "\t")+"\t")
		}
	}
	head := []string{" ", "REPLICA", "GPU"}
	for _, tier := range tiers {
		head = append(head, strings.ToUpper(tier))
	}
	row(append(head, "HELD", "SOON", "CACHED", "QUEUED", "IN FLIGHT", "RUNNING", "WAITING", "KV", "REPORT", "PREFILL/S", "SCORE", "NOTE"))
	for _, c := range r.Candidates {
		row(r.cells(c, tiers))
	}
	if out.err == nil {
		out.err = table.Flush()
	}
}

func (r *Report) cells(c Candidate, tiers []string) []string {
	mark := " "
	if c.Replica == r.Chosen {
		mark = ">"
	}
	cells := []string{mark, c.Replica, count(c.GPU)}
	for _, tier := range tiers {
		cells = append(cells, count(c.Tiers[tier]))
	}
	age := "none"
	if c.ReportAgeUS != nil {
		age = micros(*c.ReportAgeUS)
	}
	score := strconv.FormatFloat(c.Score, 'f', 2, 64)
	if c.Ineligible != "" {
		score = "-"
	}
	note := c.Ineligible
	if c.Suspect {
		note = strings.TrimSpace(note + " suspect")
	}
	if note == "" {
		note = "-"
	}
	return append(cells, count(c.Held), count(c.Soon), strconv.FormatUint(c.ExpectedCachedTokens, 10),
		strconv.FormatUint(c.QueuedPrefillTokens, 10), count(c.InFlight), count(c.Running), count(c.Waiting),
		strconv.FormatFloat(100*c.KVUsed, 'f', 0, 64)+"%", age, strconv.FormatFloat(c.PrefillTokensPerSecond, 'f', 0, 64), score, note)
}

func count(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// micros prints microseconds as people read them.
func micros(us int64) string {
	d := time.Duration(us) * time.Microsecond
	switch {
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.String()
}
