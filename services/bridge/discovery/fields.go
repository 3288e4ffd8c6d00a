package discovery

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// fields are the members of a JSON object whose types vary between versions of
// engines: a number may come as a string, a missing value as null or "None".
type fields map[string]any

// readFields reads an object. The error says what else it is.
func readFields(body []byte) (fields, error) {
	v, err := readJSON(body)
	if err != nil {
		return nil, err
	}
	object, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%T is not a JSON object", v)
	}
	return object, nil
}

func readJSON(body []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber() // token counts must not pass through a float's spelling
	var v any
	if err := decoder.Decode(&v); err != nil {
		return nil, err
	}
	return v, nil
}

// text is a member that is a string, and not empty.
func (f fields) text(name string) string {
	s, _ := f[name].(string)
	return s
}

// number is a member that is a finite number, or spells one.
func (f fields) number(name string) (float64, bool) {
	switch v := f[name].(type) {
	case json.Number:
		return finite(v.String())
	case string:
		return finite(v)
	}
	return 0, false
}

func finite(s string) (float64, bool) {
	x, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	return x, err == nil && !math.IsNaN(x) && !math.IsInf(x, 0)
}

// maxCount bounds counts: no engine has more tokens or blocks, and an int holds it.
const maxCount = 1 << 53

// count is a member that is a whole number of things, 0 when it is not one or not
// positive.
func (f fields) count(name string) int {
	x, _ := f.number(name)
	return countOf(x)
}

func countOf(x float64) int {
	if x < 1 || x > maxCount {
		return 0
	}
	return int(x)
}

// truth is a member that is true or false, nil when it is neither.
func (f fields) truth(name string) *bool {
	switch v := f[name].(type) {
	case bool:
		return &v
	case string:
		return truthOf(v)
	}
	return nil
}

// truthOf reads the words by which Python and JSON write a truth value.
func truthOf(s string) *bool {
	switch strings.ToLower(s) {
	case "true", "1":
		yes := true
		return &yes
	case "false", "0":
		no := false
		return &no
	}
	return nil
}

// object is a member that is an object, nil when it is not.
func (f fields) object(name string) fields {
	v, _ := f[name].(map[string]any)
	return v
}

// objects are the objects in a member that is a list.
func (f fields) objects(name string) []fields {
	list, _ := f[name].([]any)
	return objectsOf(list)
}

func objectsOf(list []any) []fields {
	var out []fields
	for _, v := range list {
		if object, ok := v.(map[string]any); ok {
			out = append(out, object)
		}
	}
	return out
}
