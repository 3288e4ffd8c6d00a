// Package route shows where one request would go, and why: its length in text,
// tokens and keys, what each replica holds of it, the load and score of each, and
// the choice. It asks a router of the pool, for which the request counts nothing.
package route

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/tokensource"
	"warmpath/streams"
)

// maxFile bounds the request: what a gateway takes.
const maxFile = 64 << 20

// Command is `warmpath route`.
type Command struct {
	streams.Connection

	Pool      string `required:"" env:"WARMPATH_POOL" help:"Pool whose router is asked."`
	File      string `required:"" placeholder:"FILE" help:"Request as a client sends it: the JSON body of a chat completion or a completion; - is standard input."`
	Tokenizer string `placeholder:"SOURCE" help:"What makes the tokens: the folder of a model, bytes (simulated engines), or the URL of an engine, which is asked. Without it the router does, by its own --tokenizer."`
	tokensource.Rendering
	EngineKey string        `env:"WARMPATH_ENGINE_KEY" placeholder:"KEY" help:"API key that the engine is shown; best given by the environment."`
	LoRA      string        `name:"lora" help:"LoRA adapter; default is the request's model where the fleet lists it as an adapter."`
	Salt      string        `help:"Cache salt in place of the request's own, such as the gateway's for a tenant."`
	Exclude   []string      `placeholder:"REPLICA" help:"Replica that must not be chosen. May be repeated."`
	RequestID string        `name:"request-id" default:"dry-run" help:"Id of the request, from which the decision's randomness comes."`
	Timeout   time.Duration `default:"5s" help:"How long the router and the engine may take."`
	JSON      bool          `name:"json" help:"Print one JSON object."`
}

// Help is what the command line's help says below its first line.
func (Command) Help() string {
	return `The request is not sent on, and nothing is counted or published: run it against production. An engine sees it at most to tokenize it, where --tokenizer, or the router's, says so. With --tokenizer it shows what a gateway with that tokenizer would get, which should be what the router's own gives.

  warmpath route --pool chat --file request.json
  warmpath route --pool chat --file request.json --tokenizer /models/qwen3

A table of the replicas: blocks of the prompt that each holds from its start on the GPU, in lower tiers, in all (HELD), and with those that decisions under way are about to make (SOON); prompt tokens expected from the cache; load; the policy's score, of which the lowest wins.`
}

// Run asks once and prints. It returns an error when the request cannot be
// decided.
func (c *Command) Run(ctx context.Context) error { return c.run(ctx, os.Stdin, os.Stdout) }

func (c *Command) run(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	if err := streams.ValidName(c.Pool); err != nil {
		return fmt.Errorf("pool: %w; choose another --pool", err)
	}
	body, err := c.read(stdin)
	if err != nil {
		return err
	}
	in, err := scan(body)
	if err != nil {
		return fmt.Errorf("--file %s: %w", c.File, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	routers, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer routers.close()
	q := &pb.RouteRequest{Lora: c.LoRA, Salt: c.Salt, Exclude: c.Exclude, RequestId: c.RequestID}
	known, err := c.prompt(ctx, routers, in, q)
	if err != nil {
		return err
	}
	answer, err := routers.ask(ctx, q)
	if err != nil {
		return err
	}
	report := newReport(in, known, answer)
	if c.JSON {
		return report.writeJSON(stdout)
	}
	return report.writeTable(stdout)
}

func (c *Command) read(stdin io.Reader) ([]byte, error) {
	from := stdin
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return nil, fmt.Errorf("--file: %w", err)
		}
		defer file.Close()
		from = file
	}
	body, err := io.ReadAll(io.LimitReader(from, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("--file %s: %w", c.File, err)
	}
	if len(body) > maxFile {
		return nil, fmt.Errorf("--file %s has more than %d bytes, which no gateway takes; shorten the request", c.File, maxFile)
	}
	return body, nil
}
