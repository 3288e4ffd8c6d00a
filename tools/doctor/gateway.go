package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	pb "warmpath/schemas/warmpathv1"
)

// maxPage bounds what is read of a gateway's answer.
const maxPage = 4 << 20

// GatewayCommand is `warmpath doctor gateway`: it reads what a gateway says of
// itself, and puts its alarms into words.
type GatewayCommand struct {
	URL  string `arg:"" name:"url" help:"Base URL of the gateway, such as http://127.0.0.1:7000."`
	Key  string `env:"WARMPATH_KEY" help:"API key of the gateway, if it wants one; best given by the environment." placeholder:"KEY"`
	JSON bool   `name:"json" help:"Print one JSON object."`
}

// Run examines the gateway and prints the findings. The error says that there is
// a problem, or that the URL cannot be used.
func (c *GatewayCommand) Run(ctx context.Context) error { return c.run(ctx, os.Stdout) }

func (c *GatewayCommand) run(ctx context.Context, stdout io.Writer) error {
	c.URL = strings.TrimRight(c.URL, "/")
	if !isBase(c.URL) {
		return fmt.Errorf("url is %q; give the gateway's base URL, such as http://127.0.0.1:7000", c.URL)
	}
	x := visit{base: c.URL, key: c.Key, report: Report{Gateway: c.URL, Findings: []Finding{}}}
	x.run(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	return x.report.conclude(stdout, c.JSON)
}

// visit is one look at a gateway.
type visit struct {
	base, key string
	report    Report
	// pool is what the gateway serves; empty when it does not say.
	pool string
}

func (x *visit) found(check string, state State, seen, means, do string) {
	x.report.add(Finding{Check: check, State: state, Seen: seen, Means: means, Do: do})
}

// page is a gateway's answer.
type page struct {
	status int
	body   []byte
}

// words is the body for people, in one line.
func (p page) words() string {
	text := strings.Join(strings.Fields(string(p.body)), " ")
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "…"
	}
	return text
}

// get asks for a page. Any status is an answer.
func (x *visit) get(ctx context.Context, path string) (page, error) {
	ctx, cancel := context.WithTimeout(ctx, questionTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, x.base+path, nil)
	if err != nil {
		return page{}, err
	}
	if x.key != "" {
		request.Header.Set("Authorization", "Bearer "+x.key)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return page{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxPage))
	if err != nil {
		return page{}, fmt.Errorf("%s: %w", path, err)
	}
	return page{response.StatusCode, body}, nil
}

// run makes the checks, as far as the gateway answers.
func (x *visit) run(ctx context.Context) {
	health, err := x.get(ctx, "/health")
	if err != nil {
		x.found("gateway", Problem, err.Error(), "there is no gateway that answers at this URL",
			"check the URL and that warmpath gateway runs; where its certificate is your own, name its authority by SSL_CERT_FILE")
		return
	}
	alarms, known := x.readAlarms(ctx)
	x.judgeHealth(health)
	x.examineModels(ctx)
	if !known {
		return
	}
	x.judgeTokens(alarms)
	x.judgeAlarms(alarms)
}

func (x *visit) judgeHealth(p page) {
	const check = "gateway"
	switch {
	case p.status == http.StatusOK && x.pool != "":
		x.found(check, OK, "ready, for pool "+x.pool, "", "")
	case p.status == http.StatusOK:
		x.found(check, OK, "ready", "", "")
	case p.status == http.StatusServiceUnavailable:
		x.found(check, Problem, p.words(), "it answers and serves no requests", remedyOfHealth(p.words()))
	default:
		x.found(check, Problem, fmt.Sprintf("GET /health answers %d", p.status), "this is no warmpath gateway, or there is a proxy before it", "give the gateway's own URL, such as http://127.0.0.1:7000")
	}
}

// remedyOfHealth is what to do about a reason for not being ready.
func remedyOfHealth(reason string) string {
	if strings.Contains(reason, "stopping") {
		return "wait for its successor, or start another"
	}
	return noReplicaRemedy
}

// noReplicaRemedy is what to do when the fleet is empty.
const noReplicaRemedy = "start warmpath bridge beside each engine, with the gateway's --pool and the same NATS (--nats); GET /health of the bridge says whether its engine answers, warmpath doctor bridge ENGINE why not"

// examineModels asks which models are served: those of the live replicas.
func (x *visit) examineModels(ctx context.Context) {
	const check = "models"
	p, err := x.get(ctx, "/v1/models")
	if err != nil {
		x.found(check, Problem, err.Error(), "clients get no answer either", "look at the gateway's log")
		return
	}
	if p.status == http.StatusUnauthorized || p.status == http.StatusForbidden {
		seen := "it asks for an API key"
		if x.key != "" {
			seen = "it refuses the API key: " + p.words()
		}
		x.found(check, Unknown, seen, "which models it serves is told to its clients only", "give a key by WARMPATH_KEY or --key")
		return
	}
	var list struct {
		Data []struct{ ID, Parent string }
	}
	if err := json.Unmarshal(p.body, &list); err != nil || p.status != http.StatusOK {
		x.found(check, Problem, fmt.Sprintf("GET /v1/models answers %d: %s", p.status, p.words()), "this is no warmpath gateway", "give the gateway's own URL")
		return
	}
	var models, adapters []string
	for _, m := range list.Data {
		if m.Parent == "" {
			models = append(models, m.ID)
		} else {
			adapters = append(adapters, m.ID)
		}
	}
	slices.Sort(models)
	slices.Sort(adapters)
	seen := strings.Join(models, ", ")
	if len(adapters) > 0 {
		seen += ", with the adapters " + strings.Join(adapters, ", ")
	}
	switch {
	case len(list.Data) == 0 && x.key != "":
		x.found(check, Problem, "none", "no replica is known, or the key may use none of the models", noReplicaRemedy)
	case len(list.Data) == 0:
		x.found(check, Problem, "none", "no replica of the pool is known", noReplicaRemedy)
	case len(models) > 1:
		x.found(check, Problem, seen, "a pool serves one model: requests for the others are refused, because keys are made for one", "give the bridges of each model a --pool of its own, with a gateway and a router")
	default:
		x.found(check, OK, seen, "", "")
	}
}

// alarms is what a gateway says of its tokens and hits.
type alarms struct {
	Pool, Gateway, Tokenizer, Fallback string
	Mismatches                         []json.RawMessage
}

var errNotServed = errors.New("GET /v1/mismatches is not served")

// readAlarms asks for the alarms. It reports false, and says so, when there is no
// answer to judge.
func (x *visit) readAlarms(ctx context.Context) (alarms, bool) {
	const check = "alarms"
	var a alarms
	p, err := x.get(ctx, "/v1/mismatches")
	if err == nil && p.status != http.StatusOK {
		err = fmt.Errorf("%w: it answers %d", errNotServed, p.status)
	}
	if err == nil {
		err = json.Unmarshal(p.body, &a)
	}
	switch {
	case errors.Is(err, errNotServed):
		x.found(check, Unknown, err.Error(), "this is no warmpath gateway, or one of an older version", "give the gateway's own URL")
	case err != nil:
		x.found(check, Unknown, "GET /v1/mismatches: "+err.Error(), "the alarms cannot be read", "use a doctor of the gateway's version")
	}
	x.pool = a.Pool
	return a, err == nil
}

// judgeTokens says where tokens come from.
func (x *visit) judgeTokens(a alarms) {
	const check = "tokens"
	switch {
	case a.Fallback != "":
		name, _, _ := strings.Cut(a.Fallback, ":")
		x.found(check, Problem, "the engines' /tokenize is asked, because the tokens made by "+a.Tokenizer+" are wrong: "+a.Fallback,
			"hits are right again, and every prompt costs a question to an engine; engines without /tokenize are routed to by load alone",
			causeOf(&pb.Mismatch{Cause: name}).do+"; then restart the gateway: it does not go back by itself")
	case a.Tokenizer == "client":
		x.found(check, OK, "clients send token ids", "prompts of text are routed by load alone", "")
	case a.Tokenizer == "engine":
		x.found(check, OK, "the engines' /tokenize is asked", "", "")
	case a.Tokenizer == "bytes":
		x.found(check, OK, "one a byte, as simulated engines have them", "with real engines no hit is ever predicted so", "for real engines give --tokenizer the folder of the model that they serve")
	default:
		x.found(check, OK, "made by "+orWord(a.Tokenizer, "a source of its own"), "", "")
	}
}

// judgeAlarms puts each alarm into words.
func (x *visit) judgeAlarms(a alarms) {
	if len(a.Mismatches) == 0 {
		x.found("alarms", OK, "none", "", "")
		return
	}
	for _, raw := range a.Mismatches {
		m := &pb.Mismatch{}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, m); err != nil {
			x.found("alarm", Problem, string(raw), "an alarm that this version cannot read: "+err.Error(), "use a doctor of the gateway's version")
			continue
		}
		check := m.Cause + " of the pool"
		if m.Replica != "" {
			check = m.Cause + " of " + m.Replica
		}
		c := causeOf(m)
		x.found(check, Problem, seenOf(m), c.means, c.do)
	}
}

// seenOf is an alarm's evidence.
func seenOf(m *pb.Mismatch) string {
	reported := "no cached tokens reported"
	if m.CachedTokens != nil {
		reported = fmt.Sprintf("%d reported", m.GetCachedTokens())
	}
	return fmt.Sprintf("%s (in %d requests of %d prompt tokens, %d cached tokens were expected by the index and %s)",
		m.Detail, m.Requests, m.PromptTokens, m.PredictedCachedTokens, reported)
}
