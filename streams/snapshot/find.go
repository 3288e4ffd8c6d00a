package snapshot

import (
	"context"
	"errors"
	"fmt"
	"time"

	"warmpath/routing/prefix"
)

// Wanted says which snapshots Find may return.
type Wanted struct {
	// Created is when the KV stream was made, as it is now.
	Created time.Time
	// Head is the end of that stream, if it is known: a snapshot after it is of a
	// stream that was restored from an older copy, and refused.
	Head uint64
	// AtMost and AtLeast bound the sequence; AtMost 0 is no bound.
	AtMost, AtLeast uint64
	// Oldest looks from the oldest on instead of from the newest.
	Oldest bool
	// Refused is told of each snapshot that was looked at and cannot be used. Nil:
	// nobody is.
	Refused func(Snapshot, *DamageError)
}

// Find offers the wanted snapshots to use, newest first, until it takes one: use
// returns nil for one that it can use, and its error is why it cannot. ok is
// false when there is none. An error is one of reaching the store, and says
// nothing of the snapshots.
func (s *Store) Find(ctx context.Context, w Wanted, use func(Snapshot, []byte) error) (found Snapshot, ok bool, err error) {
	all, err := s.List(ctx)
	if err != nil {
		return Snapshot{}, false, err
	}
	for i := range all {
		one := all[i]
		if w.Oldest {
			one = all[len(all)-1-i]
		}
		err := s.try(ctx, w, one, use)
		var damage *DamageError
		switch {
		case err == nil:
			return one, true, nil
		case errors.Is(err, errGone):
		case errors.As(err, &damage):
			if w.Refused != nil {
				w.Refused(one, damage)
			}
		default:
			return Snapshot{}, false, err
		}
	}
	return Snapshot{}, false, nil
}

// try returns errGone for a snapshot that is not wanted or went meanwhile.
func (s *Store) try(ctx context.Context, w Wanted, one Snapshot, use func(Snapshot, []byte) error) error {
	if one.Seq < w.AtLeast {
		return errGone
	}
	if one.digest != "" && !one.Created.Equal(w.Created) {
		return &DamageError{Name: one.Name(), Reason: ReasonStream,
			Detail: "its stream was made at " + one.Created.Format(time.RFC3339Nano) + ", the one there is at " + w.Created.Format(time.RFC3339Nano)}
	}
	if w.Head > 0 && one.Seq > w.Head {
		return &DamageError{Name: one.Name(), Reason: ReasonStream, Detail: fmt.Sprintf("its stream ends at %d", w.Head)}
	}
	if w.AtMost > 0 && one.Seq > w.AtMost {
		return errGone
	}
	data, err := s.Read(ctx, one)
	var damage *DamageError
	if errors.As(err, &damage) {
		if _, again := s.about(ctx, one.Seq); errors.Is(again, errGone) {
			return errGone // a writer removed it while it was read
		}
	}
	if err != nil {
		return err
	}
	if err := use(one, data); err != nil {
		return &DamageError{Name: one.Name(), Reason: ReasonContent, Detail: err.Error()}
	}
	return nil
}

// Index finds the wanted snapshot whose data is an index that stands where the
// snapshot does, and restores it with the bounds of cfg. It returns a nil index
// when there is none.
func (s *Store) Index(ctx context.Context, w Wanted, cfg prefix.Config) (Snapshot, *prefix.Index, error) {
	var index *prefix.Index
	one, _, err := s.Find(ctx, w, func(one Snapshot, data []byte) error {
		restored, err := prefix.Restore(data, cfg)
		if err != nil {
			return err
		}
		if restored.Position() != one.Seq {
			return fmt.Errorf("its index stands at %d", restored.Position())
		}
		index = restored
		return nil
	})
	return one, index, err
}
