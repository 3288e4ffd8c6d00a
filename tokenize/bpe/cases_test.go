package bpe

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// testCase is a case of testdata/cases.json: a tokenizer, given as a base file
// and what differs from it, and what the crate says about texts.
type testCase struct {
	Name  string
	Base  string
	With  map[string]json.RawMessage
	Size  int
	Texts []struct {
		Text, Decoded, Skipped string
		IDs, Special           []uint32
	}
}

func readCases(t testing.TB) []testCase {
	t.Helper()
	data, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []testCase
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// variant returns a base file with some of its parts replaced; within the model
// its fields.
func variant(t testing.TB, base string, with map[string]json.RawMessage) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", base+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var file, model, change map[string]json.RawMessage
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	for name, value := range with {
		if name != "model" {
			file[name] = value
			continue
		}
		if json.Unmarshal(file["model"], &model) != nil || json.Unmarshal(value, &change) != nil {
			t.Fatalf("%s: bad model", base)
		}
		maps.Copy(model, change)
		if file["model"], err = json.Marshal(model); err != nil {
			t.Fatal(err)
		}
	}
	if data, err = json.Marshal(file); err != nil {
		t.Fatal(err)
	}
	return data
}

func load(t testing.TB, base string, with map[string]json.RawMessage) *Tokenizer {
	t.Helper()
	tok, err := Load(variant(t, base, with))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestCasesAreTheCrates(t *testing.T) {
	cases := readCases(t)
	if len(cases) < 80 {
		t.Fatalf("%d cases in the file", len(cases))
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			tok := load(t, c.Base, c.With)
			if got := tok.VocabSize(); got != c.Size {
				t.Errorf("VocabSize = %d, want %d", got, c.Size)
			}
			for _, text := range c.Texts {
				for range 2 { // computed, then from the cache
					if got := tok.Append(nil, text.Text); !slices.Equal(got, text.IDs) {
						t.Errorf("%+q is %v, want %v", text.Text, got, text.IDs)
					}
				}
				if got := tok.AppendSpecial(nil, text.Text); !slices.Equal(got, text.Special) {
					t.Errorf("%+q with special tokens is %v, want %v", text.Text, got, text.Special)
				}
				if got := tok.Decode(text.Special, false); got != text.Decoded {
					t.Errorf("%v is %+q, want %+q", text.Special, got, text.Decoded)
				}
				if got := tok.Decode(text.Special, true); got != text.Skipped {
					t.Errorf("%v without special tokens is %+q, want %+q", text.Special, got, text.Skipped)
				}
			}
		})
	}
}
