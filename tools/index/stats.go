package index

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"warmpath/routing/prefix"
	"warmpath/streams"
)

// StatsCommand is `warmpath index stats`.
type StatsCommand struct {
	Place
	Index string `default:"snapshot" placeholder:"INDEX" help:"Which: snapshot (the newest), snapshot:SEQ, stream, stream:SEQ, or file:PATH."`
	JSON  bool   `name:"json" help:"Print one JSON object."`
}

// Stats is what an index holds.
type Stats struct {
	From     string `json:"from"`
	Position uint64 `json:"position"`
	Replicas int    `json:"replicas"`
	Suspects int    `json:"suspects"`
	// Entries is blocks, one per replica, tier and key; Keys different ones.
	Entries int            `json:"entries"`
	Keys    int            `json:"keys"`
	Tiers   map[string]int `json:"tiers"`
	// Bytes is the memory, SnapshotBytes the size of its snapshot.
	Bytes           int64    `json:"bytes"`
	SnapshotBytes   int      `json:"snapshot_bytes"`
	Batches         uint64   `json:"batches"`
	Gaps            uint64   `json:"gaps"`
	Missing         uint64   `json:"missing_batches"`
	Late            uint64   `json:"late_batches"`
	Stale           uint64   `json:"stale"`
	Duplicates      uint64   `json:"duplicates"`
	UnknownRemovals uint64   `json:"unknown_removals"`
	Evicted         uint64   `json:"evicted"`
	Lives           []Life   `json:"lives"`
	Snapshots       []Stored `json:"snapshots"`
}

// Life is one replica's part of an index.
type Life struct {
	Replica string         `json:"replica"`
	Epoch   string         `json:"epoch"`
	Seq     uint64         `json:"seq"`
	Missing uint64         `json:"missing_batches"`
	Suspect bool           `json:"suspect"`
	Entries int            `json:"entries"`
	Tiers   map[string]int `json:"tiers"`
}

// Stored is one snapshot of the store.
type Stored struct {
	Seq     uint64    `json:"seq"`
	Bytes   uint64    `json:"bytes"`
	Writer  string    `json:"writer"`
	Written time.Time `json:"written"`
	Whole   bool      `json:"whole"`
}

// Run prints what the index holds.
func (c *StatsCommand) Run(ctx context.Context) error { return c.run(ctx, os.Stdout) }

func (c *StatsCommand) run(ctx context.Context, stdout io.Writer) error {
	which, err := parseSpec(c.Index)
	if err != nil {
		return err
	}
	o := &opened{place: &c.Place}
	defer o.close()
	x, err := o.load(ctx, which)
	if err != nil {
		return err
	}
	s := statsOf(x)
	if which.kind != kindFile {
		if s.Snapshots, err = o.list(ctx); err != nil {
			return err
		}
	}
	if c.JSON {
		out := json.NewEncoder(stdout)
		out.SetIndent("", "  ")
		return out.Encode(s)
	}
	return s.print(stdout)
}

func (o *opened) list(ctx context.Context) ([]Stored, error) {
	store, err := o.streams.Snapshots(o.place.Pool)
	if err != nil {
		return nil, err
	}
	all, err := store.List(ctx)
	if errors.Is(err, streams.ErrNoStream) {
		return []Stored{}, nil
	}
	if err != nil {
		return nil, err
	}
	out := []Stored{}
	for _, one := range all {
		out = append(out, Stored{one.Seq, one.Size, one.Writer, one.Written, one.Whole})
	}
	return out, nil
}

func tiersOf(counts [prefix.NumTiers]int) map[string]int {
	out := map[string]int{}
	for t, n := range counts {
		out[prefix.Tier(t).String()] = n
	}
	return out
}

func statsOf(x *loaded) Stats {
	n := x.Stats()
	s := Stats{
		From: x.From, Position: x.Position(), Replicas: n.Replicas, Suspects: n.Suspects, Entries: n.Entries, Keys: n.Keys,
		Tiers: tiersOf(n.Tiers), Bytes: n.Bytes, SnapshotBytes: len(x.AppendSnapshot(nil)), Batches: n.Batches, Gaps: n.Gaps,
		Missing: n.Missing, Late: n.Late, Stale: n.Stale, Duplicates: n.Duplicates, UnknownRemovals: n.UnknownRemovals, Evicted: n.Evicted,
		Lives: []Life{}, Snapshots: []Stored{},
	}
	for _, l := range x.Lives() {
		s.Lives = append(s.Lives, Life{l.Replica, hex.EncodeToString(l.Epoch[:]), l.Seq, l.Missing, l.Suspect, l.Entries, tiersOf(l.Tiers)})
	}
	return s
}

func (s Stats) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "index\t%s\nposition\t%d\nreplicas\t%d, %d suspect\n", s.From, s.Position, s.Replicas, s.Suspects)
	fmt.Fprintf(t, "entries\t%d over %d keys: %s\n", s.Entries, s.Keys, tierText(s.Tiers))
	per := func(n float64) string {
		if s.Entries == 0 {
			return ""
		}
		return fmt.Sprintf(", %.1f an entry", n/float64(s.Entries))
	}
	fmt.Fprintf(t, "memory\t%d bytes%s\nsnapshot\t%d bytes%s\n", s.Bytes, per(float64(s.Bytes)), s.SnapshotBytes, per(float64(s.SnapshotBytes)))
	fmt.Fprintf(t, "batches\t%d: %d stale, %d duplicates, %d gaps with %d missing, %d late\n", s.Batches, s.Stale, s.Duplicates, s.Gaps, s.Missing, s.Late)
	fmt.Fprintf(t, "removals\t%d unknown, %d entries evicted\n", s.UnknownRemovals, s.Evicted)
	for _, one := range s.Snapshots {
		fmt.Fprintf(t, "stored\tsnapshot %d: %d bytes, by %s at %s, whole %t\n", one.Seq, one.Bytes, one.Writer, one.Written.Format(time.RFC3339), one.Whole)
	}
	fmt.Fprintf(t, "\nreplica\tepoch\tseq\tmissing\tsuspect\tentries\ttiers\n")
	for _, l := range s.Lives {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%t\t%d\t%s\n", l.Replica, l.Epoch, l.Seq, l.Missing, l.Suspect, l.Entries, tierText(l.Tiers))
	}
	return t.Flush()
}

func tierText(tiers map[string]int) string {
	var parts []string
	for t := range prefix.NumTiers {
		if n := tiers[t.String()]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", t, n))
		}
	}
	if parts == nil {
		return "-"
	}
	return strings.Join(parts, ", ")
}
