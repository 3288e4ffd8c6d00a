package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"
)

// messageBlockTokens is the block size chat traces are replayed with unless told
// otherwise: their texts are short, and 16 is what engines use by default.
const messageBlockTokens = 16

// chatMessage is what is read of a message; the rest of it is passed on unread.
type chatMessage struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	ToolCalls json.RawMessage `json:"tool_calls"`
}

// readMessages reads FormMessages: every assistant turn is a request with the
// messages before it, and as many tokens to generate as the turn has bytes,
// which is how the byte tokenizer counts it. The form has no times: pauses are
// drawn by the seed, long before a user's turn and short before a tool's.
func (t *Trace) readMessages(input *bufio.Reader, options Options) error {
	t.Form = FormMessages
	if t.BlockTokens == 0 {
		t.BlockTokens = messageBlockTokens
	}
	decoder := json.NewDecoder(io.LimitReader(input, maxArray))
	if _, err := decoder.Token(); err != nil {
		return &FieldError{Place: elementOf(0), Err: jsonError(err)}
	}
	random := rand.New(rand.NewPCG(options.Seed, golden))
	for n := 0; decoder.More(); n++ {
		var trajectory struct {
			Messages []json.RawMessage `json:"traj"`
		}
		if err := decoder.Decode(&trajectory); err != nil {
			return &FieldError{Place: elementOf(n), Err: arrayError(err)}
		}
		if trajectory.Messages == nil {
			return &FieldError{Place: elementOf(n), Field: "traj", Err: errors.New("is missing; give an array of chat messages")}
		}
		requests, err := conversation(n, trajectory.Messages, random)
		if err != nil {
			return err
		}
		if len(requests) > 0 {
			t.Sessions = append(t.Sessions, Session{ID: fmt.Sprintf("trajectory-%d", n), Requests: requests})
		}
	}
	if _, err := decoder.Token(); err != nil {
		return &FieldError{Place: elementOf(len(t.Sessions)), Err: arrayError(err)}
	}
	if n := options.Sessions; n > 0 && n < len(t.Sessions) {
		t.Sessions = t.Sessions[:n]
	}
	t.Users = options.users(len(t.Sessions))
	return nil
}

func arrayError(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errCutOff
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Errorf("%s: cannot be %s", wrong.Field, wrong.Value)
	}
	// What the decoder says where the input ends between two elements.
	if err.Error() == "unexpected end of JSON input" {
		return errCutOff
	}
	return jsonError(err)
}

var errCutOff = errors.New("the JSON array is cut off")

// conversation makes a request of each assistant turn.
func conversation(n int, messages []json.RawMessage, random *rand.Rand) ([]Request, error) {
	buffer := []byte{'['}
	last := ""
	var requests []Request
	for i, raw := range messages {
		where := fmt.Sprintf("traj[%d]", i)
		var m chatMessage
		if err := json.Unmarshal(raw, &m); err != nil {
			return nil, &FieldError{Place: elementOf(n), Field: where, Err: jsonError(err)}
		}
		switch m.Role {
		case "system", "user", "tool", "assistant", "developer":
		default:
			return nil, &FieldError{Place: elementOf(n), Field: where + ".role", Err: fmt.Errorf("is %q; known are system, developer, user, assistant and tool", m.Role)}
		}
		if m.Role == "assistant" && i > 0 {
			list := append(bytes.Clone(buffer), ']')
			requests = append(requests, Request{
				Think: turnPause(last, random), OutputTokens: max(len(text(m.Content))+len(m.ToolCalls), 1), Messages: list,
			})
		}
		if i > 0 {
			buffer = append(buffer, ',')
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, raw); err != nil {
			return nil, &FieldError{Place: elementOf(n), Field: where, Err: jsonError(err)}
		}
		buffer = append(buffer, compact.Bytes()...)
		last = m.Role
	}
	return requests, nil
}

// text is a content's text, or the raw content where it is not a string.
func text(content json.RawMessage) string {
	var s string
	if json.Unmarshal(content, &s) == nil {
		return s
	}
	return string(content)
}

// turnPause draws the pause before a turn that follows a message of the role: a
// tool answers in about half a second, a person in about eight.
func turnPause(after string, random *rand.Rand) time.Duration {
	if after == "tool" {
		return logNormal(random, 500*time.Millisecond, 0.6, MaxThink)
	}
	return logNormal(random, 8*time.Second, 0.8, MaxThink)
}

// logNormal draws a heavy-tailed duration with the median and the sigma of its
// logarithm given, at most limit.
func logNormal(random *rand.Rand, median time.Duration, sigma float64, limit time.Duration) time.Duration {
	return min(time.Duration(float64(median)*math.Exp(sigma*random.NormFloat64())), limit)
}
