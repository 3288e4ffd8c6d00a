package chat

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"
)

// TestVectors renders the templates of testdata/vectors.py as Python rendered
// them; where Python raised, rendering must fail.
func TestVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/vectors.json")
	must(t, err)
	var vectors struct {
		Data  json.RawMessage
		Cases []struct {
			Template, Error string
			OK              *string
		}
	}
	must(t, json.Unmarshal(text, &vectors))
	if len(vectors.Cases) < 300 {
		t.Fatalf("only %d cases", len(vectors.Cases))
	}
	now := func() time.Time { return time.Date(2026, 3, 5, 19, 8, 9, 0, time.UTC) }
	for _, c := range vectors.Cases {
		got, err := renderData(c.Template, vectors.Data, Options{Now: now})
		switch {
		case c.OK == nil && err == nil:
			t.Errorf("%s = %q, but Python raises %s", c.Template, got, c.Error)
		case c.OK != nil && err != nil:
			t.Errorf("%s: %v, want %q", c.Template, err, *c.OK)
		case c.OK != nil && got != *c.OK:
			t.Errorf("%s = %q, want %q", c.Template, got, *c.OK)
		}
	}
}

// renderData renders a template with the members of a JSON object.
func renderData(template string, data []byte, options Options) (string, error) {
	tmpl, err := Compile(template, Specials{}, options)
	if err != nil {
		return "", err
	}
	vars, err := parseJSON(data)
	if err != nil {
		return "", fmt.Errorf("data: %w", err)
	}
	return tmpl.execute(vars.AsDict().Data)
}
