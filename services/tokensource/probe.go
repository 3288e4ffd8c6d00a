package tokensource

import (
	"context"
	"errors"
	"slices"

	"warmpath/tokenize/keycache"
)

// Probe is a comparison of tokens made in process with an engine's. Nil fields
// could not be compared.
type Probe struct {
	// SameText says that the engine makes the same tokens of the same text, and
	// SameChat that it does of the same messages.
	SameText, SameChat *bool
	// FirstDifference is the position of the first token that differs for the
	// messages, or for the text of a completion; -1 when none does.
	FirstDifference int
	// Ours and Theirs are the lengths.
	Ours, Theirs int
}

// Probe asks the engine of a replica, past all memory, for the tokens of a prompt
// and compares. It needs a model in process. An empty name asks any replica.
func (s *Source) Probe(ctx context.Context, p *Prompt, replica string) (Probe, error) {
	if s.inProcess == nil || s.engines == nil {
		return Probe{}, unavailable("unsupported", "a probe needs a model in process and engines to ask")
	}
	q, err := s.inProcess.prompt(p)
	if err != nil {
		return Probe{}, err
	}
	replicas := s.engines.able()
	at := slices.IndexFunc(replicas, func(r Replica) bool { return replica == "" || r.Name == replica })
	if at < 0 {
		return Probe{}, unavailable("no_engine", "replica "+replica+" is not live or has no /tokenize")
	}
	q.IDs, q.BlockTokens = true, 0
	var ours keycache.Result
	s.inProcess.cache.Keys(&ours, q)

	result := Probe{FirstDifference: -1, Ours: len(ours.IDs)}
	theirs, err := s.fresh(ctx, replicas[at], p)
	var unsupported *UnavailableError
	switch {
	case p.Chat && errors.As(err, &unsupported):
		// It cannot render; the text can be compared all the same.
	case err != nil:
		return Probe{}, err
	default:
		same := slices.Equal(ours.IDs, theirs)
		result.Theirs, result.FirstDifference = len(theirs), firstDifference(ours.IDs, theirs)
		if !p.Chat {
			result.SameText = &same
			return result, nil
		}
		result.SameChat = &same
	}
	// The text that was rendered here, with no tokens around it but those that the
	// chat's own tokens had.
	special := len(q.Before)+len(q.After) > 0
	text := Prompt{Text: q.Text, Model: p.Model, LoRA: p.LoRA}
	text.Template.AddSpecialTokens = &special
	plain, err := s.fresh(ctx, replicas[at], &text)
	if err != nil {
		return Probe{}, err
	}
	same := slices.Equal(ours.IDs, plain)
	result.SameText = &same
	return result, nil
}

// fresh asks a replica and no memory.
func (s *Source) fresh(ctx context.Context, to Replica, p *Prompt) ([]uint32, error) {
	body, err := question(to.Kind, p)
	if err != nil {
		return nil, err
	}
	ids, err := s.engines.post(ctx, to, body, nil)
	var prompt *PromptError
	var unavailable *UnavailableError
	if err != nil && !errors.As(err, &prompt) && !errors.As(err, &unavailable) {
		return nil, &UnavailableError{Reason: "engine", Err: err}
	}
	return ids, err
}

// firstDifference is the position of the first token that differs, -1 when none does.
func firstDifference(a, b []uint32) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	return -1
}
