package tokenize_test

import (
	"slices"
	"testing"

	"warmpath/tokenize"
)

// edited returns body with edits made.
func edited(body string, edits ...tokenize.Edit) string {
	return string(slices.Concat(tokenize.Cut([]byte(body), edits...)...))
}

func TestAskUsage(t *testing.T) {
	cases := []struct{ in, want string }{
		{`{}`, `{"stream_options":{"include_usage":true}}`},
		{`{"a":1}`, `{"stream_options":{"include_usage":true},"a":1}`},
		{`{"a":1,"stream_options":null}`, `{"a":1,"stream_options":{"include_usage":true}}`},
		{`{"stream_options":{ }}`, `{"stream_options":{"include_usage":true }}`},
		{`{"stream_options":{"x":1}}`, `{"stream_options":{"include_usage":true,"x":1}}`},
		{`{"stream_options":{"include_usage": false }}`, `{"stream_options":{"include_usage": true }}`},
		{`{"stream_options":{"include_usage":null}}`, `{"stream_options":{"include_usage":true}}`},
		{`{"stream_options":{"include_usage":true}}`, ""},
	}
	for _, c := range cases {
		r, err := tokenize.ScanRequest([]byte(c.in), nil)
		if err != nil {
			t.Fatal(err)
		}
		edit, needed := r.AskUsage()
		got := ""
		if needed {
			got = edited(c.in, edit)
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.in, got, c.want)
		}
	}
}

func TestSetSalt(t *testing.T) {
	cases := []struct{ in, want string }{
		{`{}`, `{"cache_salt":"t\"1"}`},
		{` { "a":1}`, ` {"cache_salt":"t\"1", "a":1}`},
		{`{"a":1,"cache_salt": null }`, `{"a":1,"cache_salt": "t\"1" }`},
		{`{"cache\u005fsalt":"mine","a":1}`, `{"cache\u005fsalt":"t\"1","a":1}`},
	}
	for _, c := range cases {
		r, err := tokenize.ScanRequest([]byte(c.in), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := edited(c.in, r.SetSalt(`t"1`)); got != c.want {
			t.Errorf("%s: got %s, want %s", c.in, got, c.want)
		}
	}
}

// Several edits of one body, wherever they are.
func TestCut(t *testing.T) {
	cases := []struct{ in, want string }{
		{`{}`, `{"cache_salt":"s","stream_options":{"include_usage":true}}`},
		{`{"a":1}`, `{"cache_salt":"s","stream_options":{"include_usage":true},"a":1}`},
		{`{"stream_options":{},"cache_salt":"x"}`, `{"stream_options":{"include_usage":true},"cache_salt":"s"}`},
		{`{"cache_salt":"x","stream_options":null}`, `{"cache_salt":"s","stream_options":{"include_usage":true}}`},
	}
	for _, c := range cases {
		r, err := tokenize.ScanRequest([]byte(c.in), nil)
		if err != nil {
			t.Fatal(err)
		}
		usage, _ := r.AskUsage()
		if got := edited(c.in, r.SetSalt("s"), usage); got != c.want {
			t.Errorf("%s: got %s, want %s", c.in, got, c.want)
		}
	}
	if got := edited(`{"a":1}`); got != `{"a":1}` {
		t.Errorf("without edits: %s", got)
	}
}
