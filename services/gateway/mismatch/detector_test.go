package mismatch_test

import (
	"fmt"
	"slices"
	"testing"

	"warmpath/services/gateway/mismatch"
)

// Healthy pools of every kind raise nothing, whatever misses their caches have.
func TestHealthyPoolsRaiseNothing(t *testing.T) {
	mixed := options{salted: 0.3, lora: 0.3, text: 0.2, stray: 0.2}
	with := func(change func(*options)) options {
		o := mixed
		change(&o)
		return o
	}
	cases := map[string]options{
		"mixed":             mixed,
		"thrashing":         with(func(o *options) { o.cacheBlocks = 60 }),
		"small cache":       with(func(o *options) { o.cacheBlocks = 400 }),
		"reports hits only": with(func(o *options) { o.nullOnMiss, o.cacheBlocks = true, 300 }),
		"thrashing, hits":   with(func(o *options) { o.nullOnMiss, o.cacheBlocks = true, 60 }),
		"no events":         with(func(o *options) { o.noEvents = true }),
		"no events, small":  with(func(o *options) { o.noEvents, o.cacheBlocks = true, 200 }),
		"cold":              with(func(o *options) { o.unique = 1 }),
		"strays":            with(func(o *options) { o.stray, o.unique = 1, 0.5 }),
		"bursts":            with(func(o *options) { o.burst, o.sessions = true, 40 }),
		"larger blocks":     with(func(o *options) { o.block = 64 }),
		"one replica":       with(func(o *options) { o.replicas, o.indexed = 1, true }),
		"another ending":    with(func(o *options) { o.template, o.unique = "ending", 0.02 }),
		"all salted":        with(func(o *options) { o.salted, o.lora = 1, 1 }),
	}
	const total = 10_000 * effort
	for name, o := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const worlds = 4
			for seed := range uint64(worlds) {
				w := newWorld(seed, o)
				w.run(total / worlds / len(cases))
				w.settle()
				for _, e := range w.events {
					t.Errorf("after %d requests: %s of %q: %s", e.requests, e.event.Cause, e.event.Replica, e.event.Detail)
				}
			}
		})
	}
}

// Each fault is found within 50 requests of the kind that it is about, under its
// own name.
func TestFaultsAreFound(t *testing.T) {
	cases := []struct {
		name    string
		options options
		cause   string
		replica string
	}{
		{"template, constant", options{template: "constant"}, mismatch.Template, ""},
		{"template, every message", options{template: "message"}, mismatch.Template, ""},
		{"template, and completions", options{template: "message", text: 0.4}, mismatch.Template, ""},
		{"template, one replica in the pool", options{template: "message", replicas: 1}, mismatch.Template, ""},
		{"template, same length", options{template: "date", indexed: true, text: 0.5}, mismatch.Template, ""},
		{"template, cold", options{template: "message", unique: 1}, mismatch.Template, ""},
		{"tokenizer", options{tokenizer: true}, mismatch.Tokenizer, ""},
		{"tokenizer, and completions", options{tokenizer: true, text: 0.4}, mismatch.Tokenizer, ""},
		{"tokenizer, cold", options{tokenizer: true, unique: 1}, mismatch.Tokenizer, ""},
		{"block size, announced", options{engineBlock: 32, fleetBlock: 32}, mismatch.BlockSize, ""},
		{"block size, larger", options{engineBlock: 32}, mismatch.BlockSize, ""},
		{"block size, smaller", options{block: 32, engineBlock: 16}, mismatch.BlockSize, ""},
		{"block size, much larger", options{engineBlock: 128}, mismatch.BlockSize, ""},
		{"salt not in events", options{saltLost: true, salted: 0.6}, mismatch.Salt, ""},
		{"salt not in events, all salted", options{saltLost: true, salted: 1}, mismatch.Salt, ""},
		{"salt not in keys", options{saltBlind: true, salted: 1, salts: 10000, sessions: 60, replicas: 1}, mismatch.Salt, ""},
		{"lora under another name", options{loraLost: true, lora: 0.6}, mismatch.LoRA, ""},
		{"lora, all requests", options{loraLost: true, lora: 1}, mismatch.LoRA, ""},
		{"lora, among salts", options{loraLost: true, lora: 0.6, salted: 0.5, sessions: 16}, mismatch.LoRA, ""},
		{"events off", options{eventsOff: true}, mismatch.EventsOff, ""},
		{"events off, index known empty", options{eventsOff: true, indexed: true, salted: 1}, mismatch.EventsOff, ""},
		{"events off, mixed", options{eventsOff: true, salted: 0.3, lora: 0.3, text: 0.3}, mismatch.EventsOff, ""},
		{"usage off", options{usageOff: true}, mismatch.UsageOff, ""},
		{"usage off, one of two", options{usageOff: true, replicas: 2, wrongReplica: 2}, mismatch.UsageOff, "b"},
		{"events off, one of two", options{eventsOff: true, replicas: 2, wrongReplica: 1}, mismatch.EventsOff, "a"},
		{"caching off", options{caching: true, indexed: true, replicas: 1}, mismatch.CachingOff, "a"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := c.options
			o.sessions = max(o.sessions, 8)
			for seed := range uint64(2 * effort) {
				if c.options.replicas == 0 {
					o.replicas = 1 + int(seed%3)
				}
				w := newWorld(seed, o)
				for w.concerned < 50 {
					w.request()
				}
				w.settle()
				if problem := judge(w, c.cause, c.replica); problem != "" {
					t.Errorf("seed %d: %s", seed, problem)
				}
			}
		})
	}
}

// judge compares what was raised with the only cause that is right. A fault of
// engines may be raised for the pool or for its replicas.
func judge(w *world, cause, replica string) string {
	if len(w.events) == 0 {
		return "nothing"
	}
	ofEngine := slices.Contains([]string{mismatch.BlockSize, mismatch.EventsOff, mismatch.UsageOff, mismatch.CachingOff}, cause)
	for _, raised := range w.events {
		e := raised.event
		switch {
		case e.Cause != cause || e.Resolved:
			return fmt.Sprintf("%s of %q, resolved %v", e.Cause, e.Replica, e.Resolved)
		case replica != "" && e.Replica != replica, e.Replica != "" && !ofEngine:
			return fmt.Sprintf("%s of %q", e.Cause, e.Replica)
		case e.Replica == "" && len(w.events) > 1:
			return fmt.Sprintf("%d alarms", len(w.events))
		}
	}
	return ""
}
