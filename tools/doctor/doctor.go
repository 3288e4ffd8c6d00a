// Package doctor checks a deployment and names what is wrong: what was seen, what
// it means, and what to do about it.
package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"
)

// Command is `warmpath doctor`.
type Command struct {
	Bridge  BridgeCommand  `cmd:"" help:"Explain in words why an engine would give no hits: its KV events, block size, topic, replay, usage reports and load figures."`
	Gateway GatewayCommand `cmd:"" help:"Explain in words what a gateway's alarms mean and what to do: hits that are predicted and not served, or served and not predicted."`
}

// BridgeCommand is `warmpath doctor bridge`: it looks at an engine as a bridge
// would, without one.
type BridgeCommand struct {
	URL         string        `arg:"" name:"url" help:"Base URL of the engine, such as http://127.0.0.1:8000."`
	KV          string        `name:"kv" placeholder:"ENDPOINT" help:"ZMQ endpoint of the engine's KV events (of rank 0); by default what the engine says, else tcp://<engine host>:5557."`
	KVListen    string        `name:"kv-listen" placeholder:"ENDPOINT" help:"Listen there for an engine that dials, as a bridge with this flag does, such as on tcp://*:5557. No such bridge may be running."`
	KVReplay    string        `name:"kv-replay" placeholder:"ENDPOINT" help:"ZMQ endpoint of the engine's replay socket (of rank 0); by default what the engine says."`
	Topic       string        `help:"Topic prefix that the bridge expects; by default what the engine says, else any."`
	BlockTokens int           `placeholder:"N" help:"The pool's block size in tokens; not compared when it is not given."`
	Model       string        `help:"Model as the engine serves it; by default the only one it lists."`
	EngineKey   string        `env:"WARMPATH_ENGINE_KEY" help:"API key of the engine, if it wants one."`
	Wait        time.Duration `default:"5s" help:"How long to listen for events."`
	Probe       bool          `default:"true" negatable:"" help:"Send the same short prompt twice, one token to be answered, to provoke events and see what the engine reports as cached."`
	JSON        bool          `name:"json" help:"Print one JSON object."`
}

// Run examines the engine and prints the findings. The error says that there is a
// problem, or that a flag cannot be used.
func (c *BridgeCommand) Run(ctx context.Context) error { return c.run(ctx, os.Stdout) }

func (c *BridgeCommand) run(ctx context.Context, stdout io.Writer) error {
	if err := c.check(); err != nil {
		return err
	}
	x := newExamination(*c)
	x.run(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	return x.report.conclude(stdout, c.JSON)
}

// check names the flag that is wrong.
func (c *BridgeCommand) check() error {
	c.URL = strings.TrimRight(c.URL, "/")
	if !isBase(c.URL) {
		return fmt.Errorf("url is %q; give the engine's base URL, such as http://127.0.0.1:8000", c.URL)
	}
	if c.BlockTokens < 0 {
		return fmt.Errorf("--block-tokens is %d; give the pool's block size, such as 16", c.BlockTokens)
	}
	if c.Wait <= 0 {
		return fmt.Errorf("--wait is %v; give some seconds", c.Wait)
	}
	if c.KVListen != "" && c.KV != "" {
		return errors.New("--kv and --kv-listen are both given; an engine is dialed or dials, not both")
	}
	if strings.Contains(c.KV, "://*") {
		return fmt.Errorf("--kv is %q, which can be bound but not dialed; give the engine's host, or --kv-listen", c.KV)
	}
	return nil
}

// isBase reports whether a text can be the base URL of an HTTP server.
func isBase(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

// State is how a check came out.
type State string

// The states of a check. Unknown is no failure: what was seen does not tell.
const (
	OK      State = "ok"
	Problem State = "problem"
	Unknown State = "unknown"
)

// Finding is what one check found.
type Finding struct {
	Check string `json:"check"`
	State State  `json:"state"`
	// Seen is the observation, Means what follows from it, and Do the remedy. The
	// last two may be empty when all is well.
	Seen  string `json:"seen"`
	Means string `json:"means,omitempty"`
	Do    string `json:"do,omitempty"`
}

// Report is everything that was found, in the order of the checks. One of Engine
// and Gateway names what was looked at, by its URL.
type Report struct {
	Engine   string    `json:"engine,omitempty"`
	Gateway  string    `json:"gateway,omitempty"`
	Findings []Finding `json:"findings"`
}

func (r *Report) add(f Finding) { r.Findings = append(r.Findings, f) }

func (r *Report) problems() int {
	n := 0
	for _, f := range r.Findings {
		if f.State == Problem {
			n++
		}
	}
	return n
}

// conclude prints the report. The error says that there is a problem.
func (r *Report) conclude(w io.Writer, asJSON bool) error {
	if err := r.write(w, asJSON); err != nil {
		return err
	}
	if n := r.problems(); n > 0 {
		return fmt.Errorf("%d of %d checks found a problem", n, len(r.Findings))
	}
	return nil
}

func (r *Report) write(w io.Writer, asJSON bool) error {
	if asJSON {
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		out.SetEscapeHTML(false) // remedies are command lines
		return out.Encode(struct {
			*Report
			OK bool `json:"ok"`
		}{r, r.problems() == 0})
	}
	subject := "engine " + r.Engine
	if r.Gateway != "" {
		subject = "gateway " + r.Gateway
	}
	_, err := fmt.Fprintln(w, subject)
	for _, f := range r.Findings {
		_, err = fmt.Fprintf(w, "%-8s %s: %s\n", f.State, f.Check, f.Seen)
		for _, more := range []struct{ name, text string }{{"means", f.Means}, {"do", f.Do}} {
			if more.text != "" {
				_, err = fmt.Fprintf(w, "         %s: %s\n", more.name, more.text)
			}
		}
	}
	return err
}
