package policy

import (
	pb "warmpath/schemas/warmpathv1"
)

// Parameters of the estimate that every policy has: what a prompt costs where.
// Policies other than ttft use it for steals and for what decisions record.
func estimateParams() []param {
	return []param{
		{name: "cpu_rate", standard: 150_000, least: 1, most: 1e12, why: "Tokens a second loaded from CPU memory: 320 KiB a token (a 70B model's KV in bf16, 8 KV heads) over some 50 GB/s of PCIe 5."},
		{name: "default_prefill_rate", standard: 8000, least: 1, most: 1e9, why: "Prefill tokens a second of a replica of which nothing is known: 14,000 is a 70B model on an H100 at full use of it; engines reach some 60 %."},
		{name: "disk_rate", standard: 20_000, least: 1, most: 1e12, why: "Tokens a second loaded from local disk: 320 KiB a token over some 6.5 GB/s of NVMe."},
		{name: "in_flight_ms", standard: 2, least: 0, most: 1e6, why: "Milliseconds that each request under way adds to a new one's first token: a step that decodes them and prefills a chunk takes about 1 ms longer for each (its KV is read), and a prompt takes a few chunks."},
		{name: "kv_full", standard: 0.95, least: 0, most: 0.999, why: "Share of KV blocks in use by running requests above which a new one waits for blocks: engines stop admitting a few percent below full."},
		{name: "kv_wait_ms", standard: 2000, least: 0, most: 1e6, why: "Milliseconds of that wait when every block is in use: about the time until one of a few dozen answers of a few hundred tokens ends."},
		{name: "remote_rate", standard: 35_000, least: 1, most: 1e12, why: "Tokens a second loaded from a remote store: 320 KiB a token over 100 Gbit/s."},
		{name: "suspect_credit", standard: 0.5, least: 0, most: 1, why: "Share of its match that a suspect replica is credited with: events are missing, and half is right about as often as not."},
	}
}

// credited is how many of a candidate's blocks count.
func (d *decision) credited(c *pb.Candidate) uint32 {
	blocks := uint32(held(c))
	if c.Suspect {
		blocks = uint32(float64(blocks) * d.param("suspect_credit"))
	}
	return blocks
}

// expected is how many prompt tokens a candidate would serve from its cache.
func (d *decision) expected(c *pb.Candidate) uint64 {
	return ExpectedCached(d.credited(c), d.BlockTokens, d.PromptTokens)
}

// estimate predicts each candidate's time to first token in milliseconds:
// waiting for the prompts before it, computing what is not cached, loading what
// lies in lower tiers, sharing steps with the requests under way, and waiting
// for KV blocks.
//
// Products are converted so that no machine fuses them with a sum: fused
// results differ in the last bit, and an audit would see that.
func (d *decision) estimate() {
	inFlightMS, kvFull, kvWaitMS := d.param("in_flight_ms"), d.param("kv_full"), d.param("kv_wait_ms")
	for i, c := range d.Candidates {
		rate := c.PrefillTokensPerSecond
		if !(rate > 0) {
			rate = d.param("default_prefill_rate")
		}
		load := c.GetLoad()
		uncached := d.PromptTokens - min(d.PromptTokens, c.ExpectedCachedTokens)
		d.queueMS[i] = float64(1000*float64(load.GetQueuedPrefillTokens())) / rate
		d.computeMS[i] = float64(1000*float64(max(uncached, 1))) / rate
		ms := d.queueMS[i] + d.computeMS[i]
		ms += d.loadMS(c)
		ms += float64(inFlightMS * float64(underWay(load)))
		if over := load.GetKvUsed() - kvFull; over > 0 {
			ms += float64(kvWaitMS * min(1, over/(1-kvFull)))
		}
		d.totalMS[i] = ms
	}
}

// loadMS is the time to load the matched blocks of lower tiers.
func (d *decision) loadMS(c *pb.Candidate) float64 {
	ms := 0.0
	for _, t := range c.Tiers {
		var rate float64
		switch t.Tier {
		case pb.Tier_TIER_CPU:
			rate = d.param("cpu_rate")
		case pb.Tier_TIER_DISK:
			rate = d.param("disk_rate")
		case pb.Tier_TIER_REMOTE:
			rate = d.param("remote_rate")
		default:
			continue
		}
		blocks := float64(t.Blocks)
		if c.Suspect {
			blocks = float64(blocks * d.param("suspect_credit"))
		}
		ms += float64(1000*float64(blocks*float64(d.BlockTokens))) / rate
	}
	return ms
}

// underWay is how many requests a replica has, running or waiting: what the
// ledger counts, or what the engine reports when that is more, as when others
// send to it too.
func underWay(load *pb.LoadTerms) uint64 {
	return max(uint64(load.GetInFlight()), uint64(load.GetRunning())+uint64(load.GetWaiting()))
}

// meanUnderWay is the mean of underWay over the eligible candidates, and at least 1.
func (d *decision) meanUnderWay() float64 {
	sum := uint64(0)
	for _, i := range d.eligible {
		sum += underWay(d.Candidates[i].GetLoad())
	}
	return max(1, float64(sum)/float64(max(len(d.eligible), 1)))
}
