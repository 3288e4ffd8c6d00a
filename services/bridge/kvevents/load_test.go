package kvevents_test

import (
	"bytes"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"warmpath/services/bridge/kvevents"
)

func TestLoad(t *testing.T) {
	known := unhex(t, "96a84c6f6164537461740c03cdb26ece0002000000")
	want := kvevents.LoadStat{Running: 12, Waiting: 3, Tokens: 45678, MaxTokens: 131072, QueuedTokens: -1}
	got, err := kvevents.DecodeLoad(known)
	if err != nil || got != want {
		t.Fatalf("got %+v, %v; want %+v", got, err, want)
	}
	if again := kvevents.AppendLoad(nil, want); !bytes.Equal(again, known) {
		t.Errorf("encoded %x, want %x", again, known)
	}
	for end := range known {
		if _, err := kvevents.DecodeLoad(known[:end]); err == nil {
			t.Errorf("%d of %d bytes were accepted", end, len(known))
		}
	}
}

func TestLoadVariants(t *testing.T) {
	absent := kvevents.LoadStat{Running: -1, Waiting: -1, Tokens: -1, MaxTokens: -1, Rank: -1, QueuedTokens: -1}
	cases := map[string]struct {
		payload []byte
		want    kvevents.LoadStat
		bad     bool
	}{
		"absent figures are not zero": {payload: kvevents.AppendLoad(nil, absent), want: absent},
		"below zero":                  {payload: value([]any{"LoadStat", -7, 0}), want: kvevents.LoadStat{Running: -1, Tokens: -1, MaxTokens: -1, Rank: -1, QueuedTokens: -1}},
		"fewer figures": {payload: value([]any{"LoadStat", 4}),
			want: kvevents.LoadStat{Running: 4, Waiting: -1, Tokens: -1, MaxTokens: -1, Rank: -1, QueuedTokens: -1}},
		"more figures": {payload: value([]any{"LoadStat", 1, 2, 3.0, 4, 5, 6, "new", []any{7}}),
			want: kvevents.LoadStat{Running: 1, Waiting: 2, Tokens: 3, MaxTokens: 4, Rank: 5, QueuedTokens: 6}},
		"queued tokens": {payload: kvevents.AppendLoad(nil, kvevents.LoadStat{Rank: 1, QueuedTokens: 9}),
			want: kvevents.LoadStat{Rank: 1, QueuedTokens: 9}},
		"map": {payload: value(fields{{"type", "LoadStat"}, {"num_running_reqs", 1}, {"num_waiting_reqs", 2}, {"num_tokens", 3},
			{"max_total_num_tokens", 4}, {"attn_dp_rank", 5}, {"num_waiting_uncached_tokens", 6}, {"new", nil}}),
			want: kvevents.LoadStat{Running: 1, Waiting: 2, Tokens: 3, MaxTokens: 4, Rank: 5, QueuedTokens: 6}},
		"other tag":    {payload: value([]any{"BlockStored", 1}), bad: true},
		"no tag":       {payload: value(fields{{"num_tokens", 3}}), bad: true},
		"empty":        {payload: value([]any{}), bad: true},
		"text figure":  {payload: value([]any{"LoadStat", "4"}), bad: true},
		"not a record": {payload: msgp.AppendInt(nil, 1), bad: true},
		"bomb":         {payload: []byte{0xdd, 0x80, 0, 0, 0, 0xa8}, bad: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := kvevents.DecodeLoad(c.payload)
			if c.bad != (err != nil) {
				t.Fatalf("error %v", err)
			}
			if !c.bad && got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
