package wireengine

import (
	"encoding/binary"

	"warmpath/services/bridge/kvevents"
)

func seqPart(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// answer is the replay socket's: every batch kept from a number on, then the end.
func (e *Engine) answer(from uint64, reply func(parts ...[]byte) error) error {
	e.mu.Lock()
	ring, mute, every := e.buffer(), e.mute, e.every
	e.mu.Unlock()
	if mute {
		return nil
	}
	send := reply
	if every > 0 {
		n := 0
		send = func(parts ...[]byte) error {
			if n++; n%every == 0 {
				return nil
			}
			return reply(parts...)
		}
	}
	for _, k := range ring {
		if k.seq < from {
			continue
		}
		if err := send(e.framed([]byte(e.cfg.Topic), seqPart(k.seq), k.payload)...); err != nil {
			return err
		}
	}
	return send(e.framed(nil, seqPart(^uint64(0)), nil)...)
}

// buffer is what the replay has.
func (e *Engine) buffer() []kept { return e.ring[max(0, len(e.ring)-e.cfg.Buffer):] }

// framed is a reply in the generation's framing: vLLM's newer and those who copied
// it tell the topic.
func (e *Engine) framed(topic, seq, payload []byte) [][]byte {
	switch e.cfg.Cache.Generation {
	case kvevents.VLLMMap, kvevents.VLLMBatchMap, kvevents.TRTLLMMap, kvevents.SimulatorArray, kvevents.SimulatorMap:
		return [][]byte{nil, topic, seq, payload}
	}
	return [][]byte{nil, seq, payload}
}

// Mute makes the replay socket take requests and not answer, or answer again.
func (e *Engine) Mute(mute bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mute = mute
}

// DropReplies makes every nth reply of an answer get lost, as libzmq's ROUTER
// loses those that its peer is slow to take; 0 ends that. n must not be 1: nothing
// would come.
func (e *Engine) DropReplies(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.every = n
}

// Shorten leaves only the last keep batches for replay.
func (e *Engine) Shorten(keep int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if keep < len(e.ring) {
		e.ring = append([]kept(nil), e.ring[len(e.ring)-keep:]...)
	}
}
