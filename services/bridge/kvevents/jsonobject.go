package kvevents

import (
	"bytes"
	"encoding/json/jsontext"
	"strconv"
)

// object reads a JSON value.
type object struct{ *jsontext.Decoder }

func newObject(v []byte) *object {
	return &object{jsontext.NewDecoder(bytes.NewBuffer(v), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))}
}

// fields calls read with the quoted name of each field, which is valid until
// read consumes the value.
func (j *object) fields(read func(j *object, name []byte) error) error {
	if j.PeekKind() != '{' {
		return j.unexpected()
	}
	if _, err := j.ReadToken(); err != nil {
		return err
	}
	for j.PeekKind() == '"' {
		name, err := j.ReadValue()
		if err != nil {
			return err
		}
		if err := read(j, name); err != nil {
			return err
		}
	}
	_, err := j.ReadToken()
	return err
}

func (j *object) array(read func() error) error {
	if j.PeekKind() != '[' {
		return j.unexpected()
	}
	if _, err := j.ReadToken(); err != nil {
		return err
	}
	for k := j.PeekKind(); k != ']' && k != 0; k = j.PeekKind() {
		if err := read(); err != nil {
			return err
		}
	}
	_, err := j.ReadToken()
	return err
}

// unexpected is the error of a value of the wrong kind, or of no JSON at all.
func (j *object) unexpected() error {
	if err := j.SkipValue(); err != nil {
		return err
	}
	return errShape
}

// optional reads an integer or null.
func (j *object) optional() (v int64, ok bool, err error) {
	raw, err := j.ReadValue()
	if err != nil || raw.Kind() == 'n' {
		return 0, false, err
	}
	if v, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return v, true, nil
	}
	if f, err := strconv.ParseFloat(string(raw), 64); err == nil && f == float64(int64(f)) {
		return int64(f), true, nil
	}
	return 0, false, errShape
}

// hash reads a block hash: a number, or a string of hex or decimal.
func (j *object) hash() (uint64, error) {
	raw, err := j.ReadValue()
	if err != nil {
		return 0, err
	}
	if raw.Kind() == '"' {
		if h, ok := textHash(raw[1 : len(raw)-1]); ok {
			return h, nil
		}
		return 0, errHash
	}
	if v, err := strconv.ParseUint(string(raw), 10, 64); err == nil {
		return v, nil
	}
	if v, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return uint64(v), nil
	}
	return 0, errHash
}

// text reads a string, or null as "".
func (j *object) text() (string, error) {
	t, err := j.ReadToken()
	if err != nil {
		return "", err
	}
	switch t.Kind() {
	case '"':
		if s := t.String(); len(s) <= 64<<10 {
			return s, nil
		}
		return "", errLimit
	case 'n':
		return "", nil
	}
	return "", errShape
}
