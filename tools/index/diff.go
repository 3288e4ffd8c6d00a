package index

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"

	"warmpath/routing/prefix"
)

// DiffCommand is `warmpath index diff`.
type DiffCommand struct {
	Place
	A     string `arg:"" optional:"" default:"snapshot" placeholder:"INDEX" help:"One index: snapshot (the newest), snapshot:SEQ, stream, stream:SEQ, or file:PATH."`
	B     string `arg:"" optional:"" default:"stream" placeholder:"INDEX" help:"The other one. A stream without SEQ is folded to where the first stands."`
	Limit int    `default:"20" help:"Blocks to list; all are counted."`
	JSON  bool   `name:"json" help:"Print one JSON object."`
}

// Diff is how two indexes differ.
type Diff struct {
	A Side `json:"a"`
	B Side `json:"b"`
	// SameBytes is true when their snapshots are equal byte by byte: they also have
	// the same counters, and will go on in the same way.
	SameBytes bool `json:"same_bytes"`
	// Lives lists replicas of which other things are known.
	Lives []LifeDiff `json:"lives"`
	// Blocks that one has and the other has not; Listed are the first ones.
	OnlyA  int         `json:"only_a"`
	OnlyB  int         `json:"only_b"`
	Listed []BlockDiff `json:"listed"`
}

// Side is one of the two.
type Side struct {
	From     string `json:"from"`
	Position uint64 `json:"position"`
	Entries  int    `json:"entries"`
	// Forgotten are replicas that the snapshot's writer had given up as lost: the
	// stream still tells of them.
	Forgotten []string `json:"forgotten"`
}

func sideOf(x *loaded) Side {
	forgotten := slices.AppendSeq([]string{}, maps.Keys(x.Snapshot.Lost))
	slices.Sort(forgotten)
	return Side{x.From, x.Position(), x.Index.Stats().Entries, forgotten}
}

// LifeDiff is a replica as both see it; empty where it is not known.
type LifeDiff struct {
	Replica string `json:"replica"`
	A       string `json:"a"`
	B       string `json:"b"`
}

// BlockDiff is a block that only one has.
type BlockDiff struct {
	block
	Only string `json:"only"`
}

func (d *Diff) same() bool {
	return len(d.Lives) == 0 && d.OnlyA == 0 && d.OnlyB == 0 && d.A.Position == d.B.Position
}

// Run compares, and fails when the two differ in what they answer.
func (c *DiffCommand) Run(ctx context.Context) error { return c.run(ctx, os.Stdout) }

func (c *DiffCommand) run(ctx context.Context, stdout io.Writer) error {
	first, err := parseSpec(c.A)
	if err != nil {
		return err
	}
	second, err := parseSpec(c.B)
	if err != nil {
		return err
	}
	o := &opened{place: &c.Place}
	defer o.close()
	a, b, err := o.both(ctx, first, second)
	if err != nil {
		return err
	}
	d := compare(a, b, c.Limit)
	if c.JSON {
		out := json.NewEncoder(stdout)
		out.SetIndent("", "  ")
		err = out.Encode(d)
	} else {
		err = d.print(stdout)
	}
	if err == nil && !d.same() {
		err = fmt.Errorf("the indexes differ: %d replicas, %d and %d blocks", len(d.Lives), d.OnlyA, d.OnlyB)
	}
	return err
}

// both loads two indexes; a stream whose end is not given ends where the other is.
func (o *opened) both(ctx context.Context, first, second spec) (a, b *loaded, err error) {
	open := func(s spec) bool { return s.kind == kindStream && s.seq == 0 }
	if open(first) && !open(second) {
		b, a, err = o.both(ctx, second, first)
		return a, b, err
	}
	if a, err = o.load(ctx, first); err != nil {
		return nil, nil, err
	}
	if open(second) {
		second.seq = a.Position()
	}
	b, err = o.load(ctx, second)
	return a, b, err
}

func compare(a, b *loaded, limit int) *Diff {
	d := &Diff{
		A: sideOf(a), B: sideOf(b),
		SameBytes: bytes.Equal(a.AppendSnapshot(nil), b.AppendSnapshot(nil)),
		Lives:     []LifeDiff{}, Listed: []BlockDiff{},
	}
	d.lives(a.Lives(), b.Lives())
	if !d.SameBytes {
		d.blocks(a.Index, b.Index, limit)
	}
	return d
}

func lifeText(l prefix.Life) string {
	return fmt.Sprintf("epoch %s, seq %d, missing %d, suspect %t, entries %d", hex.EncodeToString(l.Epoch[:]), l.Seq, l.Missing, l.Suspect, l.Entries)
}

// lives compares what is known of each replica. Both lists are sorted.
func (d *Diff) lives(a, b []prefix.Life) {
	for len(a) > 0 || len(b) > 0 {
		var order int
		switch {
		case len(a) == 0:
			order = 1
		case len(b) == 0:
			order = -1
		default:
			order = strings.Compare(a[0].Replica, b[0].Replica)
		}
		var one LifeDiff
		if order <= 0 {
			one.Replica, one.A = a[0].Replica, lifeText(a[0])
			a = a[1:]
		}
		if order >= 0 {
			one.Replica, one.B = b[0].Replica, lifeText(b[0])
			b = b[1:]
		}
		if one.A != one.B {
			d.Lives = append(d.Lives, one)
		}
	}
}

// blocks compares the entries, which both give in the same order.
func (d *Diff) blocks(a, b *prefix.Index, limit int) {
	nextA, stopA := iter.Pull(func(yield func(prefix.Entry) bool) { a.Visit(yield) })
	defer stopA()
	nextB, stopB := iter.Pull(func(yield func(prefix.Entry) bool) { b.Visit(yield) })
	defer stopB()
	x, inA := nextA()
	y, inB := nextB()
	only := func(side string, e prefix.Entry) {
		if len(d.Listed) < limit {
			d.Listed = append(d.Listed, BlockDiff{blockOf(e), side})
		}
	}
	for inA || inB {
		switch order := entryOrder(x, inA, y, inB); {
		case order < 0:
			d.OnlyA++
			only("a", x)
			x, inA = nextA()
		case order > 0:
			d.OnlyB++
			only("b", y)
			y, inB = nextB()
		default:
			x, inA = nextA()
			y, inB = nextB()
		}
	}
}

func entryOrder(x prefix.Entry, inA bool, y prefix.Entry, inB bool) int {
	switch {
	case !inB:
		return -1
	case !inA:
		return 1
	}
	return cmp.Or(cmp.Compare(x.Key, y.Key), strings.Compare(x.Replica, y.Replica), cmp.Compare(x.Tier, y.Tier))
}

func (d *Diff) print(w io.Writer) error {
	for _, side := range []struct {
		name string
		Side
	}{{"a", d.A}, {"b", d.B}} {
		fmt.Fprintf(w, "%s: %s, at %d, %d entries\n", side.name, side.From, side.Position, side.Entries)
		if len(side.Forgotten) > 0 {
			fmt.Fprintf(w, "%s: its writer had given up as lost: %s\n", side.name, strings.Join(side.Forgotten, ", "))
		}
	}
	for _, l := range d.Lives {
		for _, side := range []struct{ name, text string }{{"a", l.A}, {"b", l.B}} {
			if side.text == "" {
				side.text = "not known"
			}
			fmt.Fprintf(w, "replica %s in %s: %s\n", l.Replica, side.name, side.text)
		}
	}
	for _, b := range d.Listed {
		fmt.Fprintf(w, "only in %s: %s %s %s\n", b.Only, b.Key, b.Replica, b.Tier)
	}
	if left := d.OnlyA + d.OnlyB - len(d.Listed); left > 0 {
		fmt.Fprintf(w, "… and %d more\n", left)
	}
	verdict := "equal"
	if !d.same() {
		verdict = "different"
	}
	bytesAre := "different"
	if d.SameBytes {
		bytesAre = "the same"
	}
	_, err := fmt.Fprintf(w, "%s; snapshot bytes are %s\n", verdict, bytesAre)
	return err
}
