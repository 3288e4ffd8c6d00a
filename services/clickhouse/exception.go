package clickhouse

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// Exception is an error as ClickHouse reports it.
type Exception struct {
	// Code is ClickHouse's error code; 60 is an unknown table.
	Code int
	// Text is the whole report: "Code: 60. DB::Exception: … (UNKNOWN_TABLE)".
	Text string
}

// Error returns the report.
func (e *Exception) Error() string { return e.Text }

// The codes that this package raises or maps itself, from ErrorCodes.cpp.
const (
	codeLogical     = 49
	codeNotSupport  = 48
	codeSyntax      = 62
	codeUnknownType = 50
	codeReadonly    = 164
	codeTooMany     = 202
	codeAborted     = 236
	codeUnknown     = 1002
	codeTooLarge    = 307
	codeBadRequest  = 36
	codeCannotRead  = 23
	codeAccess      = 497
	// codeAuthentication is the one that ClickHouse gives for a wrong user too.
	codeAuthentication = 516
)

var codeNames = map[int]string{
	codeLogical: "LOGICAL_ERROR", codeNotSupport: "NOT_IMPLEMENTED", codeSyntax: "SYNTAX_ERROR", codeUnknownType: "UNKNOWN_TYPE",
	codeReadonly: "READONLY", codeTooMany: "TOO_MANY_SIMULTANEOUS_QUERIES", codeAborted: "ABORTED", codeUnknown: "UNKNOWN_EXCEPTION",
	codeTooLarge: "TOO_MANY_BYTES", codeBadRequest: "BAD_ARGUMENTS", codeCannotRead: "CANNOT_READ_FROM_ISTREAM",
	codeAccess: "ACCESS_DENIED", codeAuthentication: "AUTHENTICATION_FAILED",
}

func newException(code int, text string) *Exception {
	return &Exception{Code: code, Text: fmt.Sprintf("Code: %d. DB::Exception: %s. (%s)", code, text, codeNames[code])}
}

var codePattern = regexp.MustCompile(`^Code: (\d+)\.`)

// asException turns any error into an exception.
func asException(err error) *Exception {
	var e *Exception
	if errors.As(err, &e) {
		return e
	}
	text := strings.TrimSpace(err.Error())
	if match := codePattern.FindStringSubmatch(text); match != nil {
		code, _ := strconv.Atoi(match[1]) // digits by the pattern
		return &Exception{Code: code, Text: text}
	}
	return newException(codeUnknown, text)
}

// report is the text with the engine's version behind it, as servers send it.
func (e *Exception) report(version string) string {
	if strings.Contains(e.Text, "(version ") {
		return e.Text + "\n"
	}
	return fmt.Sprintf("%s (version %s)\n", e.Text, version)
}

// status is the HTTP status that ClickHouse gives for the code.
func (e *Exception) status() int {
	switch e.Code {
	case 6, 25, 26, 27, 36, 38, 41, 43, 44, 53, codeSyntax, 69, 72, 117: // cannot parse, bad arguments, type mismatch
		return http.StatusBadRequest
	case 46, 47, codeUnknownType, 56, 60, 63, 73, 81, 115: // unknown function, identifier, type, engine, table, format, database, setting
		return http.StatusNotFound
	case codeReadonly, codeAccess, codeAuthentication:
		return http.StatusForbidden
	case codeTooLarge:
		return http.StatusRequestEntityTooLarge
	case codeNotSupport:
		return http.StatusNotImplemented
	case codeTooMany, codeAborted:
		return http.StatusServiceUnavailable
	case 159: // timeout exceeded
		return http.StatusRequestTimeout
	}
	return http.StatusInternalServerError
}
