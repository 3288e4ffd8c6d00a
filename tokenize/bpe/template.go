package bpe

import (
	"encoding/json"
	"errors"
	"fmt"
)

// templatePart is a part of what an encoded text consists of: the text's ids,
// or fixed ones.
type templatePart struct {
	sequence bool
	ids      []uint32
}

// newTemplate builds what the file's post-processor puts around a text.
func newTemplate(raw json.RawMessage, path string) ([]templatePart, error) {
	text := []templatePart{{sequence: true}}
	kind, err := component(raw, path)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "", "ByteLevel": // the latter is about offsets only
		return text, nil
	case "TemplateProcessing":
		return singleTemplate(raw, path)
	case "BertProcessing", "RobertaProcessing":
		return bertTemplate(raw, path)
	case "Sequence":
		return templateSequence(raw, path)
	}
	return nil, fmt.Errorf("%s: post-processor %q is not supported", path, kind)
}

func templateSequence(raw json.RawMessage, path string) ([]templatePart, error) {
	var f struct{ Processors []json.RawMessage }
	if err := fields(raw, path, &f); err != nil {
		return nil, err
	}
	result := []templatePart{{sequence: true}}
	for i, part := range f.Processors {
		t, err := newTemplate(part, fmt.Sprintf("%s.processors[%d]", path, i))
		if err != nil {
			return nil, err
		}
		if len(t) == 1 && t[0].sequence {
			continue
		}
		if len(result) > 1 {
			return nil, fmt.Errorf("%s.processors[%d]: a second processor that adds tokens is not supported", path, i)
		}
		result = t
	}
	return result, nil
}

func singleTemplate(raw json.RawMessage, path string) ([]templatePart, error) {
	var f struct {
		Single []struct {
			SpecialToken *struct{ ID string } `json:"SpecialToken"`
			Sequence     *struct{ ID string } `json:"Sequence"`
		}
		SpecialTokens map[string]struct{ IDs []uint32 } `json:"special_tokens"`
	}
	if err := fields(raw, path, &f); err != nil {
		return nil, err
	}
	var parts []templatePart
	sequences := 0
	for i, p := range f.Single {
		switch {
		case p.Sequence != nil && p.Sequence.ID == "A":
			parts = append(parts, templatePart{sequence: true})
			sequences++
		case p.SpecialToken != nil:
			token, ok := f.SpecialTokens[p.SpecialToken.ID]
			if !ok {
				return nil, fmt.Errorf("%s.single[%d]: %q is not in special_tokens", path, i, p.SpecialToken.ID)
			}
			parts = append(parts, templatePart{ids: token.IDs})
		default:
			return nil, fmt.Errorf("%s.single[%d]: want the sequence A or a special token", path, i)
		}
	}
	if sequences != 1 {
		return nil, fmt.Errorf("%s.single: has the text %d times, only once is supported", path, sequences)
	}
	return parts, nil
}

func bertTemplate(raw json.RawMessage, path string) ([]templatePart, error) {
	var f struct{ Sep, Cls tokenAndID }
	if err := fields(raw, path, &f); err != nil {
		return nil, err
	}
	return []templatePart{{ids: []uint32{f.Cls.id}}, {sequence: true}, {ids: []uint32{f.Sep.id}}}, nil
}

// tokenAndID is a pair written as an array.
type tokenAndID struct {
	token string
	id    uint32
}

var errTokenAndID = errors.New("want [token, id]")

// UnmarshalJSON implements json.Unmarshaler.
func (t *tokenAndID) UnmarshalJSON(data []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(data, &pair); err != nil {
		return err
	}
	if len(pair) != 2 || json.Unmarshal(pair[0], &t.token) != nil || json.Unmarshal(pair[1], &t.id) != nil {
		return errTokenAndID
	}
	return nil
}
