package dashboards_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// scope is what a person has chosen in Grafana: a time range, its interval,
// and pools (none is All).
type scope struct {
	from, to time.Time
	interval time.Duration
	pools    []string
}

// expand does what Grafana's ClickHouse data source does with the macros that
// the queries use. A macro that it does not know is an error of the query.
func (s scope) expand(t *testing.T, sql string) string {
	t.Helper()
	seconds := fmt.Sprint(int(s.interval.Seconds()))
	for _, macro := range []struct {
		name string
		with func(args []string) string
	}{
		{"$__conditionalAll", func(args []string) string {
			if len(s.pools) == 0 {
				return "1=1"
			}
			return args[0]
		}},
		{"$__timeFilter", func(args []string) string {
			return fmt.Sprintf("%s >= toDateTime(%d) AND %s <= toDateTime(%d)", args[0], s.from.Unix(), args[0], s.to.Unix())
		}},
		{"$__timeInterval", func(args []string) string {
			return fmt.Sprintf("toStartOfInterval(toDateTime(%s), INTERVAL %s second)", args[0], seconds)
		}},
	} {
		sql = replaceCalls(t, sql, macro.name, macro.with)
	}
	sql = strings.ReplaceAll(sql, "$__interval_s", seconds)
	var quoted []string
	for _, pool := range s.pools {
		quoted = append(quoted, "'"+pool+"'")
	}
	sql = strings.ReplaceAll(sql, "${pool:singlequote}", strings.Join(quoted, ","))
	if left := regexp.MustCompile(`\$(__\w+|\{|\w+)`).FindString(sql); left != "" {
		t.Fatalf("%s is left in the query:\n%s", left, sql)
	}
	return sql
}

// replaceCalls replaces each name(args), arguments split at the outermost commas.
func replaceCalls(t *testing.T, sql, name string, with func([]string) string) string {
	t.Helper()
	for {
		start := strings.Index(sql, name+"(")
		if start < 0 {
			return sql
		}
		depth, from := 0, start+len(name)+1
		var args []string
		at := from - 1
		for ; at < len(sql); at++ {
			switch sql[at] {
			case '(':
				depth++
			case ')':
				depth--
			case ',':
				if depth == 1 {
					args, from = append(args, strings.TrimSpace(sql[from:at])), at+1
				}
			}
			if depth == 0 {
				break
			}
		}
		if at == len(sql) {
			t.Fatalf("%s is not closed in:\n%s", name, sql)
		}
		sql = sql[:start] + with(append(args, strings.TrimSpace(sql[from:at]))) + sql[at+1:]
	}
}
