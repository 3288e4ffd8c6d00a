package discovery

import (
	"context"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// serverInfo reads SGLang's description of itself: its arguments and, in newer
// versions, its KV event publisher. It holds keys of the server, so that none of
// it is ever logged.
func (c *Client) serverInfo(ctx context.Context, e *Engine) {
	for _, path := range []string{"/server_info", "/get_server_info"} {
		body, err := c.get(ctx, path)
		if err != nil {
			if refused(err) {
				continue // an older version has the other name
			}
			return
		}
		said, err := readFields(body)
		if err != nil {
			continue
		}
		if said.object("vllm_config") != nil || said.text("vllm_config") != "" {
			e.Kind = VLLM // the same page in vLLM's development mode
			return
		}
		if isSGLang(said) {
			e.fromServerInfo(said, c.host())
			return
		}
	}
}

// isSGLang tells SGLang's description from pages of that name elsewhere.
func isSGLang(said fields) bool {
	for _, name := range []string{"kv_events", "page_size", "disable_radix_cache", "schedule_policy", "mem_fraction_static"} {
		if _, ok := said[name]; ok {
			return true
		}
	}
	return false
}

func (e *Engine) fromServerInfo(said fields, host string) {
	e.Kind = SGLang
	if v := said.text("version"); v != "" {
		e.Version = v
	}
	if name := said.text("served_model_name"); name != "" && len(e.Models) == 0 {
		e.Models = []string{name}
	}
	if e.MaxModelLen == 0 {
		e.MaxModelLen = said.count("context_length")
	}
	e.Ranks = said.count("dp_size")
	if off := said.truth("disable_radix_cache"); off != nil {
		on := !*off
		e.PrefixCaching = &on
	}
	e.CachedTokensReported = said.truth("enable_cache_report")
	e.KVEvents = kvEventsOf(said, host)
	// Decode context parallelism widens the pages of the cache, and events with
	// them; some versions tell the size before that, with the factor beside it.
	page, events := said.count("page_size"), &e.KVEvents.BlockTokens
	if factor := said.count("dcp_size"); factor > 1 && factor <= maxRanks && page <= maxBlockTokens {
		if *events == page {
			*events *= factor
		}
		page *= factor
	}
	if *events > maxBlockTokens {
		*events = 0
	}
	e.size(*events, 0)
	e.size(page, 0)
	if tokens := maxTokens(said); e.BlockTokens > 0 {
		e.size(0, tokens/e.BlockTokens)
	}
}

// maxTokens is the capacity of a rank in tokens, which versions tell in different
// places.
func maxTokens(said fields) int {
	most := said.count("max_total_num_tokens")
	for _, state := range said.objects("internal_states") {
		most = max(most, state.count("max_total_num_tokens"), state.object("memory_usage").count("token_capacity"))
	}
	return most
}

// kvEventsOf reads the publisher's description, or in versions without one the
// argument that switches it on.
func kvEventsOf(said fields, host string) KVEvents {
	if v, ok := said["kv_events"]; ok {
		if v == nil {
			return KVEvents{Known: true}
		}
		return describedEvents(said.object("kv_events"), host)
	}
	v, ok := said["kv_events_config"]
	if !ok {
		return KVEvents{}
	}
	config, _ := v.(string)
	given, err := readFields([]byte(config))
	if config != "" && err != nil {
		return KVEvents{}
	}
	out := KVEvents{Known: true, Enabled: config != "" && given.text("publisher") == "zmq", Topic: given.text("topic")}
	if !out.Enabled {
		return KVEvents{Known: true}
	}
	out.Host, out.Endpoint = dialable(orDefault(given.text("endpoint"), "tcp://*:5557"), host)
	_, out.ReplayEndpoint = dialable(given.text("replay_endpoint"), host)
	return out
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func describedEvents(said fields, host string) KVEvents {
	port := said.count("endpoint_port_base")
	if said.text("publisher") == "null" || port == 0 {
		return KVEvents{Known: said != nil}
	}
	out := KVEvents{
		Known: true, Enabled: true, Topic: said.text("topic"), BlockTokens: said.count("block_size"),
		Host: said.text("endpoint_host"), Endpoint: endpointOf(said.text("endpoint_host"), port, host),
	}
	if port := said.count("replay_endpoint_port_base"); port > 0 {
		out.ReplayEndpoint = endpointOf(said.text("replay_endpoint_host"), port, host)
	}
	if port := said.count("load_endpoint_port_base"); port > 0 {
		// The load socket is on the same machine, whatever host the others name.
		out.LoadEndpoint, out.LoadTopic = endpointOf(said.text("endpoint_host"), port, host), orDefault(said.text("load_topic"), "load")
	}
	return out
}

// host is the one at which the engine is asked.
func (c *Client) host() string {
	u, err := url.Parse(c.base)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

func endpointOf(bound string, port int, asked string) string {
	if wildcard(bound) {
		bound = asked
	}
	return "tcp://" + net.JoinHostPort(strings.Trim(bound, "[]"), strconv.Itoa(port))
}

// wildcard reports whether a host says every interface rather than one.
func wildcard(host string) bool {
	switch strings.Trim(host, "[]") {
	case "", "*", "0.0.0.0", "::":
		return true
	}
	return false
}

// dialable replaces the wildcard in an endpoint that an engine binds, and returns
// the host that was there.
func dialable(endpoint, asked string) (bound, replaced string) {
	rest, tcp := strings.CutPrefix(endpoint, "tcp://")
	cut := strings.LastIndexByte(rest, ':')
	if !tcp || cut < 0 {
		return "", endpoint
	}
	port, err := strconv.Atoi(rest[cut+1:])
	if err != nil {
		return "", endpoint
	}
	return rest[:cut], endpointOf(rest[:cut], port, asked)
}
