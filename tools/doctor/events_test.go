package doctor

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"path/filepath"
	"testing"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/bridge/kvevents"
	"warmpath/services/bridge/zmq"
)

func TestTopicThatNobodyExpects(t *testing.T) {
	p := healthy(t)
	p.publish = func(p *patient) { p.send("kv@10.0.0.7:8000@llama", stored(16, "")) }
	c := p.command(patience)
	c.Topic = "kv@10.0.0.7@"
	want(t, examine(t, c), "topic", Problem, `"kv@10.0.0.7:8000@llama" 1`, `"topic":"kv@10.0.0.7@"`, "--kv-events-config")
	c.Topic = "kv@10.0.0.7:8000@"
	want(t, examine(t, c), "topic", OK)
	p.sglang(`{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":1,"topic":"other","block_size":16,"dp_size":1}`)
	c.Topic = "" // as the engine says
	want(t, examine(t, c), "topic", Problem, `none begins with "other"`)
}

func TestBlockSizes(t *testing.T) {
	for _, c := range []struct {
		engine, pool int
		state        State
		words        string
	}{
		{16, 0, OK, "--block-tokens gives"}, {64, 16, OK, "cuts them anew"}, {16, 64, OK, "cuts them anew"},
		{24, 16, Problem, "--block-size 16"}, {1, 16, Problem, "event for every token"},
	} {
		t.Run(fmt.Sprint(c.engine, " in ", c.pool), func(t *testing.T) {
			p := healthy(t)
			p.publish = func(p *patient) { p.send("", stored(c.engine, "")) }
			command := p.command(patience)
			command.BlockTokens = c.pool
			want(t, examine(t, command), "block size", c.state, c.words)
		})
	}
	p := healthy(t)
	var mixed []kvevents.Event
	for _, one := range []struct {
		tokens int
		spec   string
	}{{24, "sliding_window"}, {16, "full_attention"}, {8, "full_attention"}} { // a window's is no measure, nor is a part of a block
		mixed = append(mixed, kvevents.Event{
			Kind: kvevents.Stored, Hashes: []uint64{7}, Tokens: make([]uint32, one.tokens), BlockSize: one.tokens, Tier: pb.Tier_TIER_GPU, Spec: one.spec, HasGroup: true,
		})
	}
	p.publish = func(p *patient) { p.send("", encode(kvevents.VLLMMap, mixed...)) }
	want(t, examine(t, p.command(patience)), "block size", OK, "blocks are of 16 tokens")
	p.sglang("null")
	p.publish = func(p *patient) { p.send("", stored(1, "")) }
	want(t, examine(t, p.command(patience)), "block size", Problem, "start SGLang with --page-size 16")
}

func TestEventsThatCannotBeUsed(t *testing.T) {
	block := kvevents.Event{Kind: kvevents.Stored, Hashes: []uint64{7}, BlockSize: 16, Tier: pb.Tier_TIER_GPU}
	window := block
	window.Spec, window.Tokens, window.HasGroup = "sliding_window", make([]uint32, 16), true
	good := stored(16, "")
	for name, c := range map[string]struct {
		payload []byte
		alone   bool // no good batch after it
		check   string
		state   State
		words   string
	}{
		"no token ids":     {encode(kvevents.VLLMFull, block), false, "tokens", Problem, "no token ids"},
		"windows only":     {encode(kvevents.VLLMFull, window), true, "groups", Problem, `"sliding_window" 1`},
		"not a batch":      {[]byte("no msgpack batch"), false, "encoding", Problem, "1 batches cannot be read"},
		"a broken event":   {bytes.Replace(good, []byte("block_hashes"), []byte("block_harshes")[:12], 1), false, "encoding", Problem, "1 events cannot be read"},
		"an unknown event": {bytes.Replace(good, []byte("BlockStored"), []byte("BlockBorrow"), 1), false, "encoding", Unknown, "newer than what is known"},
	} {
		t.Run(name, func(t *testing.T) {
			p := healthy(t)
			p.publish = func(p *patient) {
				p.send("", c.payload)
				if !c.alone {
					p.send("", good)
				}
			}
			want(t, examine(t, p.command(patience)), c.check, c.state, c.words)
		})
	}
}

func TestForeignMessages(t *testing.T) {
	p := healthy(t)
	p.publish = func(p *patient) { p.pub.Send([]byte("hello"), []byte("world")) }
	want(t, examine(t, p.command(patience)), "kv events", Problem, `"parts"`, "no engine's KV event publisher")
}

func TestSequenceWithHoles(t *testing.T) {
	p := healthy(t)
	p.publish = func(p *patient) {
		p.send("", encode(kvevents.VLLMMap))
		p.seq += 3
		p.send("", stored(16, ""))
	}
	want(t, examine(t, p.command(patience)), "sequence", Problem, "3 batches are missing", `"hwm"`, `"replay_endpoint"`)

	p.publish = func(p *patient) {
		p.send("", encode(kvevents.VLLMMap))
		p.seq--
		p.send("", stored(16, ""))
	}
	want(t, examine(t, p.command(patience)), "sequence", Problem, "went back 1 times", "port of its own")
}

func TestReplayEndpoints(t *testing.T) {
	p := healthy(t)
	c := p.command(patience)
	want(t, examine(t, c), "replay", Unknown, `"replay_endpoint":"tcp://*:5558"`)
	c.KVReplay = closedPort(t)
	want(t, examine(t, c), "replay", Problem, "does not answer", `"replay_endpoint"`, "--kv-replay")

	short, err := zmq.NewRouter("tcp://127.0.0.1:0", func(from uint64, reply func(...[]byte) error) error {
		return reply(nil, binary.BigEndian.AppendUint64(nil, from+5), stored(16, ""))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(short.Close)
	p.seq = 7
	c.KVReplay = short.Endpoint()
	want(t, examine(t, c), "replay", Problem, "it begins at", `"buffer_steps"`)
}

func TestRanksHavePortsOfTheirOwn(t *testing.T) {
	p := healthy(t)
	p.pages["/metrics"] = vllmMetrics(2)
	second := rankAfter(t, p)
	found := examine(t, p.command(patience))
	want(t, found, "ranks", OK, "2 data-parallel ranks")
	want(t, found, "load", OK, "2 ranks")
	if problems(found) != "" {
		t.Errorf("problems: %s", problems(found))
	}
	for _, rank := range p.ranks {
		if rank != "0" {
			t.Errorf("prompts went to ranks %q", p.ranks)
		}
	}

	p.publish = func(p *patient) { // the second port says what the first one says
		if err := second.AwaitSubscribers(t.Context(), 1); err != nil {
			return
		}
		second.Send(nil, make([]byte, 8), stored(16, ""))
	}
	want(t, examine(t, p.command(patience)), "rank", Problem, "port of rank 1, but its batches are stamped 0")

	second.Close()
	p.publish = nil
	want(t, examine(t, p.command(glance)), "kv port", Problem, "refused")
}

// rankAfter binds the port after the patient's, whose own is chosen until that is
// free.
func rankAfter(t *testing.T, p *patient) *zmq.Publisher {
	t.Helper()
	for range 50 {
		endpoint, err := zmq.AtRank(p.pub.Endpoint(), 1)
		if err == nil {
			if second, err := zmq.NewPublisher(zmq.Publishing{Endpoint: endpoint}); err == nil {
				t.Cleanup(second.Close)
				return second
			}
		}
		p.pub = publisher(t, zmq.Publishing{Endpoint: "tcp://127.0.0.1:0"})
	}
	t.Fatal("no two ports in a row are free")
	return nil
}

func TestGuessedPortIsToBeGivenToTheBridge(t *testing.T) {
	x := newExamination(BridgeCommand{URL: "http://h:8000"})
	x.judgePorts(&watching{sights: []*sight{{endpoint: x.where(), connected: true}}})
	want(t, x.report.Findings, "kv port", OK, "give the bridge --kv tcp://h:5557")
}

func TestEngineThatDials(t *testing.T) {
	p := healthy(t)
	p.publish = nil
	c := p.command(glance)
	c.KV, c.KVListen = "", "ipc://"+filepath.Join(t.TempDir(), "kv")
	p.pub = publisher(t, zmq.Publishing{Endpoint: c.KVListen, Dial: true})
	p.publish = func(p *patient) { p.send("kv@h:1@llama", stored(16, "")) }
	c.Wait = patience
	found := examine(t, c)
	want(t, found, "kv port", OK, "a publisher dialed")
	if problems(found) != "" {
		t.Errorf("problems: %s", problems(found))
	}

	// Somebody, such as a bridge, listens there already.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	p.publish = nil
	c.KVListen, c.Wait = "tcp://"+taken.Addr().String(), glance
	want(t, examine(t, c), "kv port", Problem, "cannot be bound", "such as a bridge")
}
