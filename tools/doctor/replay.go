package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"warmpath/services/bridge/zmq"
)

// replayPatience bounds the wait for each reply: idle engines look for requests
// every tenth of a second.
const replayPatience = 5 * time.Second

// errEnough ends a replay after its first batch: an engine has ten thousand.
var errEnough = errors.New("enough")

// examineReplay asks the replay socket of each rank that is watched for the last
// batch that came, or for any.
func (x *examination) examineReplay(ctx context.Context, w *watching) {
	const check = "replay"
	base := orWord(x.KVReplay, x.engine.KVEvents.ReplayEndpoint)
	if base == "" {
		x.found(check, Unknown, "no replay endpoint is known", "batches that are lost between engine and bridge cannot be had again: each loss puts the replica in doubt", switchOnReplay(x.engine.Kind)+" (--kv-replay, here too)")
		return
	}
	ranks := []int{0}
	if len(w.sights) > 0 {
		ranks = ranks[:0]
		for _, s := range w.sights {
			ranks = append(ranks, s.rank)
		}
	}
	for _, rank := range ranks {
		x.examineRankReplay(ctx, check, base, rank, w.lastOf(rank))
	}
}

func (w *watching) lastOf(rank int) uint64 {
	for _, s := range w.sights {
		if s.rank == rank {
			return s.facts.last
		}
	}
	return 0
}

func (x *examination) examineRankReplay(ctx context.Context, check, base string, rank int, from uint64) {
	endpoint, err := zmq.AtRank(base, rank)
	if err != nil {
		x.found(check, Problem, err.Error(), fmt.Sprintf("rank %d has no replay port of its own there", rank), "give rank 0's endpoint as tcp://host:port by --kv-replay")
		return
	}
	got, err := zmq.Replaying{Endpoint: endpoint, From: from, Quiet: replayPatience}.Do(ctx, func(zmq.Frame) error { return errEnough })
	switch {
	case errors.Is(err, errEnough) && got.First > from && from > 0:
		x.found(check, Problem, fmt.Sprintf("%s: asked from %d, it begins at %d", endpoint, from, got.First), "its buffer is so short that it does not hold the batch just published: no loss can be repaired", `raise "buffer_steps" in --kv-events-config`)
	case errors.Is(err, errEnough):
		x.found(check, OK, fmt.Sprintf("%s answers, from batch %d", endpoint, got.First), "", "")
	case err == nil:
		x.found(check, OK, fmt.Sprintf("%s answers; it has no batch from %d on", endpoint, from), "", "")
	default:
		x.found(check, Problem, err.Error(), "batches that are lost between engine and bridge cannot be had again: each loss puts the replica in doubt", switchOnReplay(x.engine.Kind)+"; it is another port than that of the events (--kv-replay, here too)")
	}
}
