package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"warmpath/services/gateway/apikey"
)

// Why a request with keys in force is not served, as metrics name it; the limits
// of a key name themselves.
const (
	rejectedNoKey       = "no_key"
	rejectedUnknownKey  = "unknown_key"
	rejectedDisabledKey = "disabled_key"
	rejectedModel       = "model_not_allowed"
)

// keyHeaders may carry a client's key, and are kept from engines.
var keyHeaders = []string{"Authorization", "X-Api-Key", "Api-Key"}

// presentedKey is the key that a request carries, as OpenAI's or as other clients do.
func presentedKey(h http.Header) string {
	scheme, key, _ := strings.Cut(h.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(key)
	}
	for _, name := range keyHeaders[1:] {
		if key := h.Get(name); key != "" {
			return key
		}
	}
	return ""
}

// authorize finds whose request it is: nil when no keys are in force.
func (g *Gateway) authorize(h http.Header) (*apikey.Client, *apiError) {
	if g.keys == nil {
		return nil, nil
	}
	client, err := g.keys.Authenticate(presentedKey(h))
	unauthorized := &apiError{status: http.StatusUnauthorized, kind: "invalid_request_error", code: "invalid_api_key"}
	switch {
	case err == nil:
		return client, nil
	case errors.Is(err, apikey.ErrMissing):
		unauthorized.reason = rejectedNoKey
		unauthorized.message = "the request has no API key; send the header Authorization: Bearer with a key of this gateway"
		return nil, unauthorized
	case errors.Is(err, apikey.ErrDisabled):
		return nil, &apiError{
			status: http.StatusForbidden, kind: "permission_error", code: "key_disabled", reason: rejectedDisabledKey,
			message: "this API key is disabled; ask the operator of the gateway",
		}
	default:
		unauthorized.reason = rejectedUnknownKey
		unauthorized.message = "the API key is not one of this gateway; check it, or ask the operator for a new one"
		return nil, unauthorized
	}
}

// begin takes a request into its key's limits. A nil error of a client that is
// not nil must be followed by Done.
func begin(client *apikey.Client, now time.Time) *apiError {
	if client == nil {
		return nil
	}
	var limit *apikey.LimitError
	if err := client.Begin(now); errors.As(err, &limit) {
		return &apiError{
			status: http.StatusTooManyRequests, kind: "rate_limit_error", code: "rate_limit_exceeded", reason: limit.Limit,
			message: limit.Error() + "; try again later, or ask the operator for more", retryAfter: limit.RetryAfter,
		}
	}
	return nil
}

// mayUse refuses a model that the request's key is not for.
func mayUse(client *apikey.Client, model string) *apiError {
	if client == nil || client.Key().Allows(model) {
		return nil
	}
	return &apiError{
		status: http.StatusForbidden, kind: "permission_error", code: "model_not_allowed", param: "model", reason: rejectedModel,
		message: fmt.Sprintf("this API key may not use model %q; use one of GET /v1/models", model),
	}
}

// keyName is whose request it is, for metrics.
func keyName(client *apikey.Client) string {
	if client == nil {
		return ""
	}
	return client.Key().Name
}

// watchKeys reloads the key file when it changes.
func (g *Gateway) watchKeys(ctx context.Context) error {
	return g.keys.Watch(ctx, keysPeriod, func(keys int, err error) {
		if err != nil {
			g.metrics.keyReloads.WithLabelValues("failed").Inc()
			g.log.Error("the key file cannot be used; the keys from before stay in force", "error", err)
			return
		}
		g.metrics.keyReloads.WithLabelValues("ok").Inc()
		g.log.Info("the key file was read again", "keys", keys)
	})
}

// keysPeriod is how often the key file is looked at: soon enough to take a key
// away, and one system call each time.
const keysPeriod = time.Second

// isLoopback reports whether only this machine can reach a listener.
func isLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
