package chat

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ardanlabs/jinja"
)

var (
	errFewArguments  = errors.New("not enough arguments for format string")
	errManyArguments = errors.New("not all arguments converted during string formatting")
)

// percent is Python's format % values, where values is a tuple or one value.
func percent(format string, values jinja.Value) (string, error) {
	args := []jinja.Value{values}
	// The library does not tell a tuple from a list but in how it prints.
	if values.IsList() && strings.HasPrefix(values.String(), "(") {
		args = values.AsList().Items
	}
	var b strings.Builder
	for format != "" {
		at := strings.IndexByte(format, '%')
		if at < 0 {
			break
		}
		b.WriteString(format[:at])
		spec := format[at+1:]
		n := 0
		for n < len(spec) && strings.IndexByte("#0- +.123456789", spec[n]) >= 0 {
			n++
		}
		if n == len(spec) {
			return "", errors.New("incomplete format")
		}
		format = spec[n+1:]
		if spec[n] == '%' {
			b.WriteByte('%')
			continue
		}
		if len(args) == 0 {
			return "", errFewArguments
		}
		text, err := conversion(spec[:n], spec[n], args[0])
		if err != nil {
			return "", err
		}
		b.WriteString(text)
		args = args[1:]
	}
	if len(args) > 0 && !values.IsDict() {
		return "", errManyArguments
	}
	return b.String() + format, nil
}

// conversion formats one value. Flags and widths mean in Go what they mean in
// Python for these.
func conversion(flags string, verb byte, v jinja.Value) (string, error) {
	if len(flags) > 6 {
		return "", errors.New("the width of a format is too large")
	}
	switch verb {
	case 's':
		return fmt.Sprintf("%"+flags+"s", text(v)), nil
	case 'r':
		return fmt.Sprintf("%"+flags+"s", escapeUnprintable(v.String())), nil
	case 'd', 'i', 'u', 'x', 'X', 'o':
		if !v.IsNumber() && !v.IsBool() {
			return "", fmt.Errorf("%%%c format: a real number is required, not %s", verb, typeName(v))
		}
		if verb == 'i' || verb == 'u' {
			verb = 'd'
		}
		return fmt.Sprintf("%"+flags+string(verb), intOf(v)), nil
	case 'f', 'F', 'e', 'E':
		if !v.IsNumber() && !v.IsBool() {
			return "", fmt.Errorf("must be real number, not %s", typeName(v))
		}
		return fmt.Sprintf("%"+flags+string(verb), floatOf(v)), nil
	}
	return "", fmt.Errorf("format %%%c is not supported", verb)
}
