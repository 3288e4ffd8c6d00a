package streams

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Change is one difference between the topology and the server.
type Change struct {
	Stream string `json:"stream"`
	// Field is the stream's setting by its name in NATS, or "stream" when it is absent.
	Field string `json:"field"`
	Have  string `json:"have"`
	Want  string `json:"want"`
}

// String is "ROUTE max_age: 1h0m0s -> 2h0m0s".
func (c Change) String() string {
	return fmt.Sprintf("%s %s: %s -> %s", c.Stream, c.Field, c.Have, c.Want)
}

// Names of the fields, as NATS writes them.
const (
	fieldSubjects   = "subjects"
	fieldRetention  = "retention"
	fieldStorage    = "storage"
	fieldReplicas   = "num_replicas"
	fieldMaxAge     = "max_age"
	fieldMaxBytes   = "max_bytes"
	fieldMaxMsgs    = "max_msgs"
	fieldPerSubject = "max_msgs_per_subject"
	fieldDiscard    = "discard"
	fieldDenyDelete = "deny_delete"
	fieldDenyPurge  = "deny_purge"
	fieldMsgTTL     = "allow_msg_ttl"
)

// fields renders the settings that the topology decides, in a fixed order.
// Placement, tags and the like stay with the operator.
func fields(c jetstream.StreamConfig) [][2]string {
	subjects := slices.Sorted(slices.Values(c.Subjects))
	republish := "none"
	if c.RePublish != nil {
		republish = fmt.Sprintf("%s to %s, headers only %t", c.RePublish.Source, c.RePublish.Destination, c.RePublish.HeadersOnly)
	}
	return [][2]string{
		{fieldSubjects, strings.Join(subjects, " ")},
		{fieldRetention, c.Retention.String()},
		{fieldStorage, c.Storage.String()},
		{fieldReplicas, fmt.Sprint(c.Replicas)},
		{fieldMaxAge, age(c.MaxAge)},
		{fieldMaxBytes, limit(c.MaxBytes)},
		{fieldMaxMsgs, limit(c.MaxMsgs)},
		{fieldPerSubject, limit(c.MaxMsgsPerSubject)},
		{"max_msg_size", limit(int64(c.MaxMsgSize))},
		{"max_consumers", limit(int64(c.MaxConsumers))},
		{fieldDiscard, c.Discard.String()},
		{"duplicate_window", c.Duplicates.String()},
		{"compression", c.Compression.String()},
		{fieldDenyDelete, fmt.Sprint(c.DenyDelete)},
		{fieldDenyPurge, fmt.Sprint(c.DenyPurge)},
		{"allow_rollup_hdrs", fmt.Sprint(c.AllowRollup)},
		{"allow_direct", fmt.Sprint(c.AllowDirect)},
		{fieldMsgTTL, fmt.Sprint(c.AllowMsgTTL)},
		{"subject_delete_marker_ttl", c.SubjectDeleteMarkerTTL.String()},
		{"allow_batched", fmt.Sprint(c.AllowBatchPublish)},
		{"republish", republish},
	}
}

func limit(n int64) string {
	if n <= 0 {
		return "unlimited"
	}
	return fmt.Sprint(n)
}

func age(d time.Duration) string {
	if d <= 0 {
		return "unlimited"
	}
	return d.String()
}

// diff lists the settings of have that differ from want.
func diff(have, want jetstream.StreamConfig) []Change {
	var changes []Change
	wanted := fields(want)
	for i, f := range fields(have) {
		if f[1] != wanted[i][1] {
			changes = append(changes, Change{Stream: want.Name, Field: f[0], Have: f[1], Want: wanted[i][1]})
		}
	}
	return changes
}

// overlay is the server's configuration with the topology's settings put over it.
func overlay(have, want jetstream.StreamConfig) jetstream.StreamConfig {
	c := have
	c.Description = want.Description
	c.Subjects = want.Subjects
	c.Retention, c.Storage, c.Replicas = want.Retention, want.Storage, want.Replicas
	c.MaxAge, c.MaxBytes, c.MaxMsgs = want.MaxAge, want.MaxBytes, want.MaxMsgs
	c.MaxMsgsPerSubject, c.MaxMsgSize, c.MaxConsumers = want.MaxMsgsPerSubject, want.MaxMsgSize, want.MaxConsumers
	c.Discard, c.Duplicates, c.Compression = want.Discard, want.Duplicates, want.Compression
	c.DenyDelete, c.DenyPurge, c.AllowRollup = want.DenyDelete, want.DenyPurge, want.AllowRollup
	c.AllowDirect, c.AllowMsgTTL, c.SubjectDeleteMarkerTTL = want.AllowDirect, want.AllowMsgTTL, want.SubjectDeleteMarkerTTL
	c.AllowBatchPublish, c.RePublish = want.AllowBatchPublish, want.RePublish
	return c
}

// refusals picks the changes that would lose what the stream holds, or take
// away a protection of it.
func refusals(info jetstream.StreamInfo, want jetstream.StreamConfig, changes []Change) []Refusal {
	var refused []Refusal
	for _, change := range changes {
		if hint := lossOf(change.Field, info, want); hint != "" {
			refused = append(refused, Refusal{Change: change, Hint: hint})
		}
	}
	return refused
}

// lossOf says what changing a field would lose, "" when nothing.
func lossOf(field string, info jetstream.StreamInfo, want jetstream.StreamConfig) string {
	have, state := info.Config, info.State
	switch field {
	case fieldSubjects:
		var gone []string
		for _, s := range have.Subjects {
			if !slices.Contains(want.Subjects, s) {
				gone = append(gone, s)
			}
		}
		if len(gone) > 0 {
			return fmt.Sprintf("messages on %s would no longer be stored; keep the subject", strings.Join(gone, " "))
		}
	case fieldRetention, fieldStorage:
		return "a stream cannot change this and keep its messages; copy it to a new stream by hand"
	case fieldReplicas:
		if want.Replicas < have.Replicas {
			return fmt.Sprintf("fewer copies survive fewer failures; give --replicas %d, or lower it by hand with the nats tool", have.Replicas)
		}
	case fieldMaxAge:
		if want.MaxMsgsPerSubject == 1 {
			break // A heartbeat or report is written again before it is missed.
		}
		oldest := info.TimeStamp.Sub(state.FirstTime)
		if want.MaxAge > 0 && state.Msgs > 0 && oldest > want.MaxAge {
			return fmt.Sprintf("its oldest message is %v old and would go; give at least that", oldest.Round(time.Second))
		}
	case fieldMaxBytes:
		if want.MaxBytes > 0 && state.Bytes > uint64(want.MaxBytes) {
			return fmt.Sprintf("it holds %d bytes, and the oldest would go; give at least that", state.Bytes)
		}
	case fieldMaxMsgs:
		if want.MaxMsgs > 0 && state.Msgs > uint64(want.MaxMsgs) {
			return fmt.Sprintf("it holds %d messages, and the oldest would go", state.Msgs)
		}
	case fieldPerSubject:
		shrinks := want.MaxMsgsPerSubject > 0 && (have.MaxMsgsPerSubject <= 0 || want.MaxMsgsPerSubject < have.MaxMsgsPerSubject)
		if shrinks && state.Msgs > state.NumSubjects {
			return fmt.Sprintf("it holds %d messages on %d subjects, and older ones would go", state.Msgs, state.NumSubjects)
		}
	case fieldDenyDelete:
		if have.DenyDelete && !want.DenyDelete {
			return "messages could be deleted afterwards; keep it denied"
		}
	case fieldDenyPurge:
		if have.DenyPurge && !want.DenyPurge {
			return "messages could be purged afterwards; keep it denied"
		}
	case fieldMsgTTL:
		if have.AllowMsgTTL && !want.AllowMsgTTL {
			return "a stream that allows message TTLs cannot stop to; use a new stream"
		}
	}
	return ""
}
