package clickhouse

import (
	"crypto/subtle"
	"net"
	"net/http"
)

// guard keeps out who should not ask: web pages, which a browser lets send to
// loopback, and, when there is a password, whoever does not know it. The
// engine reads files with the rights of this process, so this matters on
// loopback too.
func guard(next http.Handler, loopback bool, password, version string) http.Handler {
	refuse := func(w http.ResponseWriter, e *Exception) {
		(&answer{w: w, control: http.NewResponseController(w), version: version}).fail(e)
	}
	checked := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if loopback && !localName(r.Host) {
			refuse(w, newException(codeAccess, "the name "+quoteText(r.Host)+" is not one of this host's loopback; use 127.0.0.1 or localhost"))
			return
		}
		if password != "" && r.URL.Path != "/ping" && r.URL.Path != "/health" && subtle.ConstantTimeCompare([]byte(passwordOf(r)), []byte(password)) == 0 {
			refuse(w, newException(codeAuthentication, "Authentication failed: password is incorrect"))
			return
		}
		next.ServeHTTP(w, r)
	})
	return http.NewCrossOriginProtection().Handler(checked)
}

// localName says whether the Host header names loopback. A page whose name was
// made to resolve to loopback comes with its own name.
func localName(hostPort string) bool {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = hostPort
	}
	return isLoopback(host)
}

// passwordOf finds the password where ClickHouse's clients put it.
func passwordOf(r *http.Request) string {
	if key := r.Header.Get("X-ClickHouse-Key"); key != "" {
		return key
	}
	if _, password, ok := r.BasicAuth(); ok {
		return password
	}
	return r.URL.Query().Get("password")
}
