package router

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/streams"
)

// Limits of a request. They bound what one caller can cost, not what a model can
// do: the longest context windows on offer are a few million tokens.
const (
	maxPromptTokens = 1 << 23
	maxKeys         = 1 << 17 // two million tokens in blocks of 16, and 1 MiB in a decision
	maxRequestID    = 256
	maxText         = 512 // model, lora, salt, session id
	maxExcluded     = 4096
	maxAttempt      = 1 << 10
)

// refusal is why there is no decision.
type refusal struct {
	code pb.RouteErrorCode
	text string
}

func (e *refusal) Error() string { return e.text }

func invalid(format string, args ...any) error {
	return &refusal{pb.RouteErrorCode_ROUTE_ERROR_CODE_INVALID, fmt.Sprintf(format, args...)}
}

// validate checks every field of a request on its own and against the others, and
// finds the form of its prompt. What depends on the fleet is checked by shapeOf.
func validate(pool string, q *pb.RouteRequest) (form, error) {
	if err := validNames(pool, q); err != nil {
		return 0, err
	}
	f, err := formOf(q)
	if err == nil {
		err = validPrompt(q)
	}
	return f, err
}

// validNames checks everything but the prompt.
func validNames(pool string, q *pb.RouteRequest) error {
	if q.Pool != pool {
		return invalid("pool is %.64q; this router routes %q: ask its own router, on %s or with its URL", q.Pool, pool, streams.ServiceSubject(pool))
	}
	if err := streams.ValidName(q.Gateway); err != nil {
		return invalid("gateway: %v; give the name under which the decision will be published", err)
	}
	if q.RequestId == "" {
		return invalid("request_id is empty; give each request an id of its own, which it keeps over its attempts")
	}
	for _, f := range []struct {
		name, value string
		limit       int
	}{
		{"request_id", q.RequestId, maxRequestID},
		{"model", q.Model, maxText},
		{"lora", q.Lora, maxText},
		{"salt", q.Salt, maxText},
		{"session_id", q.SessionId, maxText},
	} {
		if err := validText(f.name, f.value, f.limit); err != nil {
			return err
		}
	}
	if q.Attempt > maxAttempt {
		return invalid("attempt is %d; the limit is %d: give the request up before", q.Attempt, maxAttempt)
	}
	if len(q.Exclude) > maxExcluded {
		return invalid("exclude has %d replicas; the limit is %d", len(q.Exclude), maxExcluded)
	}
	for i, name := range q.Exclude {
		if err := streams.ValidReplica(name); err != nil {
			return invalid("exclude[%d]: %v; give replica ids as the candidates of a decision name them", i, err)
		}
	}
	return nil
}

// validText refuses what could not be a name: too long, not UTF-8, or with
// control characters, a zero byte among them, which separates the parts of a key.
func validText(field, value string, limit int) error {
	switch {
	case len(value) > limit:
		return invalid("%s has %d bytes; the limit is %d: shorten it, or send a hash of it", field, len(value), limit)
	case !utf8.ValidString(value):
		return invalid("%s is not UTF-8; encode it", field)
	case strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return invalid("%s has a control character; remove it", field)
	}
	return nil
}

// shape is what the replicas that fit a request have in common.
type shape struct {
	model       string
	blockTokens uint32
}

// served is a shape and how many live replicas have it.
type served struct {
	shape
	replicas int
}

// shapes are those that live replicas have: mostly one, so a list is searched.
func shapes(fleet []seen) []served {
	var all []served
	for _, f := range fleet {
		s := shape{f.entry.Model, f.entry.BlockTokens}
		if f.dead || s.blockTokens == 0 || s.blockTokens > math.MaxInt32 {
			continue
		}
		at := slices.IndexFunc(all, func(one served) bool { return one.shape == s })
		if at < 0 {
			at, all = len(all), append(all, served{shape: s})
		}
		all[at].replicas++
	}
	return all
}

// shapeOf finds the model and block size that a request is for among the fleet.
// A pool has one of each; while it changes, the one that fits the request is
// taken, and of several that fit, the one most replicas have.
func shapeOf(q *asked, fleet []seen) (shape, error) {
	all := shapes(fleet)
	if len(all) == 0 {
		return shape{}, &refusal{pb.RouteErrorCode_ROUTE_ERROR_CODE_NO_REPLICA,
			"no replica of the pool is alive; start an engine with its bridge, or look at bucket " + streams.FleetBucket}
	}
	if q.model == "" && slices.ContainsFunc(all, func(s served) bool { return s.model != all[0].model }) {
		return shape{}, invalid("model is empty and the pool serves %s; name one", models(all))
	}
	var best served
	known := false
	for _, s := range all {
		if q.model != "" && s.model != q.model {
			continue
		}
		known = true
		if fits(q, s.blockTokens) && (s.replicas > best.replicas || s.replicas == best.replicas && s.blockTokens < best.blockTokens) {
			best = s
		}
	}
	switch {
	case !known:
		return shape{}, &refusal{pb.RouteErrorCode_ROUTE_ERROR_CODE_NO_REPLICA,
			fmt.Sprintf("no live replica serves model %q; served: %s", q.model, models(all))}
	case best.replicas == 0:
		return shape{}, misfit(q, all)
	}
	return best.shape, nil
}

// models lists the models of shapes for a message.
func models(all []served) string {
	names := map[string]bool{}
	for _, s := range all {
		names[s.model] = true
	}
	return listed(names)
}

// fits says whether the request's keys can be those of its full blocks.
func fits(q *asked, blockTokens uint32) bool {
	return q.form != formKeys || uint64(len(q.Keys)) == q.PromptTokens/uint64(blockTokens)
}

func misfit(q *asked, all []served) error {
	sizes := map[string]bool{}
	for _, s := range all {
		if q.model == "" || s.model == q.model {
			sizes[fmt.Sprint(s.blockTokens)] = true
		}
	}
	return invalid("keys has %d keys, which %d prompt_tokens do not give with the pool's block size of %s tokens; send the keys of all full blocks of that size, or token_ids",
		len(q.Keys), q.PromptTokens, listed(sizes))
}
