package chat

import (
	"fmt"
	"strings"
	"time"
)

// strftime formats a time as Python's datetime.strftime does on Linux, in the C
// locale. A directive that it does not know stays as it is.
func strftime(format string, t time.Time) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		pad := byte(0)
		if strings.IndexByte("-_0", format[i]) >= 0 && i+1 < len(format) {
			pad = format[i]
			i++
		}
		if s, ok := directive(format[i], pad, t); ok {
			b.WriteString(s)
			continue
		}
		b.WriteByte('%')
		if pad != 0 {
			b.WriteByte(pad)
		}
		b.WriteByte(format[i])
	}
	return b.String()
}

// layouts are the directives that Go knows by another name.
var layouts = map[byte]string{
	'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'h': "Jan", 'p': "PM", 'Z': "MST", 'z': "-0700",
	'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'D': "01/02/06", 'X': "15:04:05", 'T': "15:04:05",
	'F': "2006-01-02", 'R': "15:04", 'r': "03:04:05 PM",
}

func directive(d, pad byte, t time.Time) (string, bool) {
	if layout, ok := layouts[d]; ok {
		return t.Format(layout), true
	}
	hour12 := (t.Hour()+11)%12 + 1
	var n int
	width, fill := 2, byte('0')
	switch d {
	case '%':
		return "%", true
	case 'n':
		return "\n", true
	case 't':
		return "\t", true
	case 's':
		return fmt.Sprint(t.Unix()), true
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), true
	case 'Y':
		n, width = t.Year(), 4
	case 'C':
		n = t.Year() / 100
	case 'y':
		n = t.Year() % 100
	case 'm':
		n = int(t.Month())
	case 'd':
		n = t.Day()
	case 'e':
		n, fill = t.Day(), ' '
	case 'H':
		n = t.Hour()
	case 'k':
		n, fill = t.Hour(), ' '
	case 'I':
		n = hour12
	case 'l':
		n, fill = hour12, ' '
	case 'M':
		n = t.Minute()
	case 'S':
		n = t.Second()
	case 'j':
		n, width = t.YearDay(), 3
	case 'w':
		n, width = int(t.Weekday()), 1
	case 'u':
		n, width = (int(t.Weekday())+6)%7+1, 1
	case 'U':
		n = (t.YearDay() + 6 - int(t.Weekday())) / 7
	case 'W':
		n = (t.YearDay() + 6 - (int(t.Weekday())+6)%7) / 7
	case 'V':
		_, n = t.ISOWeek()
	case 'G':
		n, _ = t.ISOWeek()
		width = 4
	default:
		return "", false
	}
	switch pad {
	case '-':
		width = 0
	case '_':
		fill = ' '
	case '0':
		fill = '0'
	}
	s := fmt.Sprint(n)
	return strings.Repeat(string(fill), max(0, width-len(s))) + s, true
}
