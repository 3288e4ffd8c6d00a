package feed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// engine is the naive truth: numbered batches of lives, and a buffer.
type engine struct {
	life   int
	first  uint64
	all    []Batch // of this life
	buffer int
	clock  int64
	// holes are batches that never reached the buffer.
	holes map[uint64]bool
	mute  bool // the replay does not answer
}

// publish makes the life's next batch. Its payload is its time.
func (e *engine) publish() Batch {
	e.clock++
	b := Batch{Seq: e.first + uint64(len(e.all)), Payload: binary.BigEndian.AppendUint64(nil, uint64(e.clock))}
	e.all = append(e.all, b)
	return b
}

func (e *engine) restart() {
	e.life++
	e.all, e.holes = nil, map[uint64]bool{}
}

func (e *engine) replay(_ context.Context, from uint64, handle func(Batch) error) error {
	if e.mute {
		return errors.New("replay endpoint does not answer")
	}
	for _, b := range e.all[max(len(e.all)-e.buffer, 0):] {
		if b.Seq >= from && !e.holes[b.Seq] {
			if err := handle(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// journal is a sink that remembers.
type journal struct {
	times []uint64 // of the batches since the engine's beginning
	lost  string   // why they are not all
	doubt string
	calls []string
}

func (j *journal) Begin() {
	j.times, j.lost, j.doubt = nil, "", ""
	j.calls = append(j.calls, "begin")
}

func (j *journal) Batch(b Batch) int64 {
	j.times = append(j.times, binary.BigEndian.Uint64(b.Payload))
	j.calls = append(j.calls, fmt.Sprint(b.Seq))
	return j.TimeUS(b.Payload)
}

func (j *journal) Lost(reason string) {
	j.lost = reason
	j.calls = append(j.calls, "lost: "+reason)
}

func (j *journal) Doubt(reason string) {
	j.doubt = reason
	j.calls = append(j.calls, "doubt: "+reason)
}

func (j *journal) TimeUS(payload []byte) int64 { return int64(binary.BigEndian.Uint64(payload)) }

// exact says whether the journal tells the engine's history.
func (j *journal) exact(e *engine) bool {
	return slices.EqualFunc(j.times, e.all, func(time uint64, b Batch) bool {
		return time == binary.BigEndian.Uint64(b.Payload)
	})
}

var silent = slog.New(slog.DiscardHandler)

func rig(first, buffer int, replays bool) (*engine, *journal, *Feed) {
	e := &engine{first: uint64(first), buffer: buffer, holes: map[uint64]bool{}}
	j := &journal{}
	cfg := Config{First: first}
	if replays {
		cfg.Replay = e.replay
	}
	return e, j, New(cfg, j, silent)
}

func TestOrder(t *testing.T) {
	ctx := t.Context()
	for _, c := range []struct {
		name    string
		first   int
		buffer  int
		replays bool
		play    func(e *engine, f *Feed)
		want    []string
	}{
		{"from the beginning", 0, 10, true, func(e *engine, f *Feed) {
			f.Connected(ctx)
			f.Live(ctx, e.publish())
			f.Live(ctx, e.publish())
		}, []string{"begin", "0", "1"}},
		{"counting from 1, without replay", 1, 0, false, func(e *engine, f *Feed) {
			f.Live(ctx, e.publish())
			f.Live(ctx, e.publish())
		}, []string{"begin", "1", "2"}},
		{"a late bridge asks for the beginning", 0, 10, true, func(e *engine, f *Feed) {
			e.publish()
			e.publish()
			f.Connected(ctx)
			f.Live(ctx, e.publish())
		}, []string{"begin", "0", "1", "2"}},
		{"a late bridge without replay", 0, 0, false, func(e *engine, f *Feed) {
			e.publish()
			f.Live(ctx, e.publish())
		}, []string{"lost: " + LostBeforeStart, "1"}},
		{"a buffer too short", 0, 2, true, func(e *engine, f *Feed) {
			for range 5 {
				e.publish()
			}
			f.Connected(ctx)
		}, []string{"lost: " + LostBeforeStart, "3", "4"}},
		{"a gap is filled", 0, 10, true, func(e *engine, f *Feed) {
			f.Live(ctx, e.publish())
			e.publish()
			e.publish()
			f.Live(ctx, e.publish())
		}, []string{"begin", "0", "1", "2", "3"}},
		{"a gap that the buffer does not reach", 0, 2, true, func(e *engine, f *Feed) {
			f.Live(ctx, e.publish())
			e.publish()
			e.publish()
			f.Live(ctx, e.publish())
		}, []string{"begin", "0", "lost: " + LostGap, "2", "3"}},
		{"a gap without replay", 0, 0, false, func(e *engine, f *Feed) {
			f.Live(ctx, e.publish())
			e.publish()
			f.Live(ctx, e.publish())
		}, []string{"begin", "0", "lost: " + LostGap, "2"}},
		{"the last batch was lost, and nothing follows", 0, 10, true, func(e *engine, f *Feed) {
			f.Live(ctx, e.publish())
			e.publish()
			f.Idle(ctx)
		}, []string{"begin", "0", "1"}},
		{"a batch comes twice", 0, 10, true, func(e *engine, f *Feed) {
			b := e.publish()
			f.Live(ctx, b)
			f.Live(ctx, e.publish())
			f.Live(ctx, b)
		}, []string{"begin", "0", "1"}},
		{"the engine begins anew", 0, 0, false, func(e *engine, f *Feed) {
			f.Live(ctx, e.publish())
			f.Live(ctx, e.publish())
			e.restart()
			f.Live(ctx, e.publish())
		}, []string{"begin", "0", "1", "begin", "0"}},
		{"the engine begins anew and goes further", 0, 10, true, func(e *engine, f *Feed) {
			f.Live(ctx, e.publish())
			f.Live(ctx, e.publish())
			e.restart()
			for range 4 {
				e.publish()
			}
			f.Live(ctx, e.publish())
		}, []string{"begin", "0", "1", "begin", "0", "1", "2", "3", "4"}},
		{"the engine begins anew while the connection is lost", 0, 10, true, func(e *engine, f *Feed) {
			f.Live(ctx, e.publish())
			f.Disconnected()
			e.restart()
			f.Connected(ctx)
			f.Live(ctx, e.publish())
		}, []string{"begin", "0", "doubt: " + DoubtDisconnected, "begin", "doubt: ", "0"}},
		{"the connection is lost and found", 0, 10, true, func(e *engine, f *Feed) {
			f.Live(ctx, e.publish())
			f.Disconnected()
			e.publish()
			f.Connected(ctx)
		}, []string{"begin", "0", "doubt: " + DoubtDisconnected, "1", "doubt: "}},
		{"the connection is lost, and nothing can be asked", 0, 0, false, func(e *engine, f *Feed) {
			f.Live(ctx, e.publish())
			f.Disconnected()
			f.Connected(ctx)
			f.Live(ctx, e.publish())
		}, []string{"begin", "0", "doubt: " + DoubtDisconnected, "lost: " + LostUnverified, "doubt: ", "1"}},
		{"a bridge starts again", 0, 10, true, func(e *engine, f *Feed) {
			e.publish()
			last := e.publish()
			f.Resume(last.Seq, (&journal{}).TimeUS(last.Payload))
			e.publish()
			f.Connected(ctx)
		}, []string{"doubt: " + DoubtDisconnected, "2", "doubt: "}},
		{"a bridge starts again, and the engine did too", 0, 10, true, func(e *engine, f *Feed) {
			e.publish()
			last := e.publish()
			f.Resume(last.Seq, (&journal{}).TimeUS(last.Payload))
			e.restart()
			e.publish()
			e.publish()
			e.publish()
			f.Connected(ctx)
		}, []string{"doubt: " + DoubtDisconnected, "begin", "0", "1", "2", "doubt: "}},
		{"old batches wait in the queue while a replay goes past them", 0, 2, true, func(e *engine, f *Feed) {
			var waiting []Batch
			for range 6 {
				waiting = append(waiting, e.publish())
			}
			for i, b := range waiting {
				b.AtUS = int64(i) * proofUS
				f.Live(ctx, b)
			}
			f.Live(ctx, e.publish())
		}, []string{"lost: " + LostBeforeStart, "4", "5", "6"}},
		{"the engine begins anew after a replay went past its buffer", 0, 2, true, func(e *engine, f *Feed) {
			for range 6 {
				e.publish()
			}
			f.Connected(ctx)
			e.restart()
			f.Live(ctx, e.publish())
		}, []string{"lost: " + LostBeforeStart, "4", "5", "begin", "0"}},
		{"a bridge starts again too late", 0, 2, true, func(e *engine, f *Feed) {
			last := e.publish()
			f.Resume(last.Seq, (&journal{}).TimeUS(last.Payload))
			for range 4 {
				e.publish()
			}
			f.Connected(ctx)
		}, []string{"doubt: " + DoubtDisconnected, "lost: " + LostGap, "3", "4", "doubt: "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, j, f := rig(c.first, c.buffer, c.replays)
			c.play(e, f)
			if !slices.Equal(j.calls, c.want) {
				t.Errorf("got  %q\nwant %q", j.calls, c.want)
			}
		})
	}
}

// An engine that counts from 1 is told from one whose batch 0 left the buffer.
func TestNumberingIsFoundOut(t *testing.T) {
	for _, c := range []struct {
		first, published, buffer int
		want                     string
	}{
		{0, 3, 10, "begin"}, {1, 3, 10, "begin"}, {1, shortReplay - 1, 5000, "begin"},
		{0, shortReplay + 1, shortReplay, "lost: " + LostBeforeStart},
		{1, shortReplay, 5000, "lost: " + LostBeforeStart}, // open, so not taken for whole
		{2, 3, 10, "lost: " + LostBeforeStart},
	} {
		e, j, _ := rig(c.first, c.buffer, true)
		f := New(Config{First: -1, Replay: e.replay}, j, silent)
		for range c.published {
			e.publish()
		}
		f.Connected(t.Context())
		if j.calls[0] != c.want || len(j.times) != min(c.published, c.buffer) {
			t.Errorf("%+v: %s, %d batches", c, j.calls[0], len(j.times))
		}
	}
	// Nothing published yet: the first batch shows it.
	e, j, _ := rig(1, 10, true)
	f := New(Config{First: -1, Replay: e.replay}, j, silent)
	f.Connected(t.Context())
	f.Live(t.Context(), e.publish())
	if last := j.calls[len(j.calls)-2:]; !slices.Equal(last, []string{"begin", "1"}) {
		t.Errorf("got %q", j.calls)
	}
}

// Whatever happens, the history told is the engine's, or it is said that it may
// not be.
func TestNothingDiffersSilently(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.IntRange(0, 1).Draw(t, "first")
		e, j, f := rig(first, rapid.IntRange(1, 8).Draw(t, "buffer"), rapid.Bool().Draw(t, "replays"))
		ctx := context.Background()
		connected := true
		var sent []Batch
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0, 1, 2, 3:
				if b := e.publish(); connected {
					f.Live(ctx, b)
					sent = append(sent, b)
				}
			case 4: // dropped on the way
				e.publish()
			case 5: // never reaches the buffer either
				e.holes[e.publish().Seq] = true
			case 6:
				if connected {
					e.restart()
					f.Disconnected()
					connected = false
					sent = nil
				}
			case 7:
				if connected {
					f.Disconnected()
				} else {
					f.Connected(ctx)
				}
				connected = !connected
			case 8:
				if n := len(sent); connected && n > 0 {
					f.Live(ctx, sent[rapid.IntRange(max(n-5, 0), n-1).Draw(t, "again")])
				}
			case 9:
				if connected {
					f.Idle(ctx)
				}
			}
		}
		if !connected {
			f.Connected(ctx)
		}
		f.Live(ctx, e.publish())
		if !j.exact(e) && j.lost == "" && j.doubt == "" {
			t.Fatalf("differs silently: told %v, is %v: %q", j.times, e.all, j.calls)
		}
		if f.cfg.Replay != nil && len(e.holes) == 0 && e.buffer >= len(e.all) && j.doubt != "" {
			t.Fatalf("a doubt stays although everything could be asked: %q", j.calls)
		}
	})
}

// An engine may publish a batch before it keeps it for replay.
func TestBatchThatIsKeptLate(t *testing.T) {
	e, j, _ := rig(1, 10, true)
	asked := 0
	late := func(ctx context.Context, from uint64, handle func(Batch) error) error {
		if asked++; asked < 3 { // once before anything, and once for the first batch
			return nil
		}
		return e.replay(ctx, from, handle)
	}
	f := New(Config{First: -1, Replay: late}, j, silent)
	f.Connected(t.Context())
	f.Live(t.Context(), e.publish())
	f.Live(t.Context(), e.publish())
	if !j.exact(e) || j.lost != "" || j.doubt != "" {
		t.Errorf("the numbering was not found out: %v", j.calls)
	}
}

func TestReplayThatFails(t *testing.T) {
	e, j, f := rig(0, 10, true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // no pauses between the tries
	f.Live(ctx, e.publish())
	e.mute = true
	e.publish()
	f.Live(ctx, e.publish())
	if want := []string{"begin", "0", "lost: " + LostGap, "2"}; !slices.Equal(j.calls, want) {
		t.Errorf("got %q", j.calls)
	}
	f.Disconnected()
	f.Connected(ctx)
	if j.doubt == "" {
		t.Error("nothing was verified, and nothing is in doubt")
	}
	e.mute = false
	f.Connected(ctx)
	if j.doubt != "" {
		t.Errorf("still in doubt: %q", j.calls)
	}
	if s := f.Stats(); s.FailedReplays == 0 || s.Losses[LostGap] != 1 {
		t.Errorf("%+v", s)
	}
}
