package kvevents_test

import (
	"testing"

	"pgregory.net/rapid"

	"warmpath/routing/blockkey"
	"warmpath/services/bridge/kvevents"

	pb "warmpath/schemas/warmpathv1"
)

// Words that appear as names, salts and identifiers; none equals another kind's.
var (
	loras = []string{"", "adapter-a", "адаптер"}
	salts = []string{"", "tenant-a", "tenant-b"}
	items = []string{"image-1", "image-2", "embeds:00ff"}
	specs = []string{"", "full_attention", "sliding_window", "mamba"}
)

func drawEvent(t *rapid.T) kvevents.Event {
	tiers := []pb.Tier{gpu, cpu, pb.Tier_TIER_DISK, pb.Tier_TIER_REMOTE}
	ev := kvevents.Event{Kind: rapid.SampledFrom([]kvevents.Kind{kvevents.Stored, kvevents.Removed, kvevents.Cleared}).Draw(t, "kind")}
	if ev.Kind == kvevents.Cleared {
		return ev
	}
	ev.Hashes = rapid.SliceOfN(rapid.Uint64(), 1, 5).Draw(t, "hashes")
	ev.Tier = rapid.SampledFrom(tiers).Draw(t, "tier")
	if ev.HasGroup = rapid.Bool().Draw(t, "grouped"); ev.HasGroup {
		ev.Group = rapid.IntRange(0, 300).Draw(t, "group")
	}
	ev.Spec = rapid.SampledFrom(specs).Draw(t, "spec")
	if ev.Kind == kvevents.Removed {
		if rapid.Bool().Draw(t, "counted") {
			ev.CopiesLeft = rapid.SliceOfN(rapid.Int64Range(0, 1<<40), len(ev.Hashes), len(ev.Hashes)).Draw(t, "copies")
		}
		return ev
	}
	ev.Parent = rapid.Uint64().Draw(t, "parent")
	ev.HasParent = ev.Parent != 0
	ev.BlockSize = rapid.IntRange(1, 20).Draw(t, "size")
	if rapid.Bool().Draw(t, "tokens") {
		n := len(ev.Hashes) * ev.BlockSize
		ev.Tokens = rapid.SliceOfN(rapid.Uint32(), n, n).Draw(t, "ids")
	}
	ev.LoRA = rapid.SampledFrom(loras).Draw(t, "lora")
	if ev.HasLoRAID = rapid.Bool().Draw(t, "numbered"); ev.HasLoRAID {
		ev.LoRAID = rapid.Int64().Draw(t, "id")
	}
	ev.Salt = rapid.SampledFrom(salts).Draw(t, "salt")
	ev.Window = rapid.SampledFrom([]int{0, 128, 70_000}).Draw(t, "window")
	ev.Origin = rapid.SampledFrom([]string{"", "NEW", "REUSED"}).Draw(t, "origin")
	ev.Extras = drawExtras(t, &ev)
	return ev
}

// drawExtras draws items in the order of their offsets. Digests of prompt
// embeddings come last, where vLLM has them, and their offset is 0, so that they
// are only drawn alone.
func drawExtras(t *rapid.T, ev *kvevents.Event) [][]blockkey.Extra {
	extras := make([][]blockkey.Extra, len(ev.Hashes))
	some := false
	for block := range extras {
		for offset := range ev.BlockSize {
			if rapid.IntRange(0, 9).Draw(t, "here") > 0 {
				continue
			}
			id := rapid.SampledFrom(items).Draw(t, "item")
			if id == "embeds:00ff" {
				if len(extras[block]) == 0 && offset == 0 {
					extras[block], some = []blockkey.Extra{{ID: id}}, true
				}
				break
			}
			extras[block] = append(extras[block], blockkey.Extra{ID: id, Offset: uint32(offset)})
			some = true
		}
	}
	if !some {
		return nil
	}
	return extras
}

// carried is what of an event a generation has a place for, stated apart from
// the encoder.
func carried(g kvevents.Generation, ev kvevents.Event) kvevents.Event {
	old := g == kvevents.VLLMv090 || g == kvevents.VLLMRank || g == kvevents.SGLangLegacy
	vllmMap := g == kvevents.VLLMMap || g == kvevents.VLLMBatchMap
	rich := g == kvevents.VLLMFull || vllmMap
	if ev.Kind == kvevents.Cleared {
		return ev
	}
	if old {
		ev.Tier = gpu
	}
	if !rich && g != kvevents.TRTLLMMap {
		ev.Group, ev.HasGroup = 0, false
	}
	if !vllmMap {
		ev.Origin, ev.CopiesLeft = "", nil
	}
	// vLLM's removals name the group alone.
	if withSpec := rich && ev.Kind == kvevents.Stored || g == kvevents.SGLangMap; !withSpec {
		ev.Spec = ""
	}
	if ev.Kind == kvevents.Removed {
		return ev
	}
	switch g {
	case kvevents.VLLMv090, kvevents.VLLMRank, kvevents.VLLMMedium, kvevents.SGLangLegacy, kvevents.SGLangMedium, kvevents.SGLangMetadata:
		ev.LoRA = ""
	}
	if !rich && g != kvevents.SGLangMetadata && g != kvevents.SGLangMap {
		ev.Salt = ""
	}
	if !rich {
		ev.Window = 0
		if g != kvevents.TRTLLMMap {
			ev.Extras = nil
		}
	}
	return ev
}

func TestRoundTrip(t *testing.T) {
	for _, g := range kvevents.Generations() {
		for _, e := range []kvevents.Encoder{{Generation: g}, {Generation: g, HashBytes: 32}, {Generation: g, HashBytes: 8}, {Generation: g, Wrap: true}} {
			name := g.String()
			if e.HashBytes > 0 {
				name += "/bytes"
			}
			if e.Wrap {
				name += "/wrapped"
			}
			d := kvevents.NewDecoder(kvevents.Limits{})
			t.Run(name, func(t *testing.T) {
				rapid.Check(t, func(rt *rapid.T) { roundTrip(rt, d, e) })
			})
		}
	}
}

func roundTrip(rt *rapid.T, d *kvevents.Decoder, e kvevents.Encoder) {
	in := kvevents.Batch{
		TimeUS: rapid.Int64Range(0, 4_000_000_000_000_000).Draw(rt, "time"),
		Rank:   rapid.IntRange(-1, 300).Draw(rt, "rank"),
	}
	want := in
	if e.Generation == kvevents.VLLMv090 || e.Generation == kvevents.SGLangLegacy {
		want.Rank = -1
	}
	for range rapid.IntRange(0, 6).Draw(rt, "events") {
		ev := drawEvent(rt)
		if e.Generation == kvevents.TRTLLMMap {
			ev = trtllm(ev)
		}
		in.Events = append(in.Events, ev)
		want.Events = append(want.Events, carried(e.Generation, ev))
	}
	payload := e.AppendBatch([]byte("before"), in)
	got, err := d.Decode(payload[len("before"):])
	if err != nil {
		rt.Fatal(err)
	}
	same(rt, *got, want)
}

// trtllm makes of an event's extras what TensorRT-LLM can say: the place of an
// item only if its digest stands for the token there.
func trtllm(ev kvevents.Event) kvevents.Event {
	for k, extras := range ev.Extras {
		for i, x := range extras {
			if pos := k*ev.BlockSize + int(x.Offset); pos < len(ev.Tokens) {
				ev.Tokens[pos] = 0
			} else {
				// Without tokens only one item a block stays apart from others.
				ev.Extras[k] = []blockkey.Extra{{ID: extras[i].ID}}
				break
			}
		}
	}
	return ev
}
