package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"runtime"
	"slices"
	"strings"

	"warmpath/routing/blockkey"
	"warmpath/tokenize/chat"
	"warmpath/tokenize/keycache"
	"warmpath/tokenize/model"
)

// The chat that is measured: its prompt's tokens, those of them that the turn
// before had, and the tokens of its parts.
const (
	chatTokens   = 6200
	chatSeen     = 5900
	systemTokens = 1200
	turnTokens   = 220
	answerTokens = 200
	chatBlock    = 16
	// chatSlack is how far from those sizes the chat may be: markup is counted in
	// whole tokens.
	chatSlack = 32
	// chatSamples is how often a round measures it.
	chatSamples = 40
)

// The bounds of text to keys, in microseconds.
const (
	maxWarmKeys = 200
	maxColdKeys = 2000
)

// conversation is a chat and its turn before.
type conversation struct {
	name         string
	request      chat.Request
	before, text string
	// ids are the tokens of text, and want its keys.
	ids  []uint32
	root blockkey.Key
	want []blockkey.Key
}

// message is one of a chat.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// contents are cut out of texts, so many tokens each, one after another and from
// the start again when they end.
type contents struct {
	*language
	ids  []uint32
	next int
}

func newContents(l *language, texts []string) (*contents, error) {
	c := &contents{language: l}
	for _, text := range texts {
		c.ids = l.Append(c.ids, text+"\n")
		if len(c.ids) > 4*chatTokens {
			break
		}
	}
	if len(c.ids) == 0 {
		return nil, errors.New("there are no texts to make a chat of")
	}
	return c, nil
}

func (c *contents) take(tokens int) string {
	var ids []uint32
	for range max(tokens, 1) {
		ids = append(ids, c.ids[c.next%len(c.ids)])
		c.next++
	}
	// Templates trim, and a cut character is no text.
	return strings.TrimSpace(strings.ToValidUTF8(c.Tokenizer().Decode(ids, true), ""))
}

// conversation makes the chat: its last message is as long as it takes.
func (b *bench) conversation(l *language, texts []string) (*conversation, error) {
	c, err := newContents(l, texts)
	if err != nil {
		return nil, err
	}
	scale := 1
	if b.quick {
		scale = 8
	}
	messages := []message{{"system", c.take(systemTokens / scale)}}
	v := &conversation{name: fmt.Sprintf("%s: chat of %s tokens", l.name, short(chatTokens)), root: blockkey.Root(l.name, "", "")}
	if l.Template(false) == nil {
		v.name = fmt.Sprintf("%s: transcript of %s tokens", l.name, short(chatTokens))
	}
	fit := func(role string, goal int) (string, []uint32, error) {
		size := turnTokens / scale
		for range 4 { // the length of a text in tokens is only known when it is there
			at := c.next
			messages = append(messages, message{role, c.take(size)})
			text, err := l.render(messages, &v.request)
			if err != nil {
				return "", nil, err
			}
			ids := l.Append(nil, text)
			if off := goal - len(ids); off > chatSlack/2 || off < -chatSlack/2 {
				c.next, size = at, max(size+off, 1)
				messages = messages[:len(messages)-1]
				continue
			}
			return text, ids, nil
		}
		return "", nil, fmt.Errorf("no message makes a chat of %d tokens", goal)
	}
	for i := 0; ; i++ {
		text, err := l.render(messages, &v.request)
		if err != nil {
			return nil, err
		}
		if i%2 == 0 && len(l.Append(nil, text)) > chatSeen/scale-2*turnTokens/scale {
			break
		}
		messages = append(messages, message{[]string{"user", "assistant"}[i%2], c.take(turnTokens / scale)})
	}
	if v.before, _, err = fit("user", chatSeen/scale); err != nil {
		return nil, err
	}
	messages = append(messages, message{"assistant", c.take(answerTokens / scale)})
	v.text, v.ids, err = fit("user", chatTokens/scale)
	v.want = blockkey.Chain(nil, v.root, v.ids, chatBlock)
	return v, err
}

// keys is how many microseconds an empty memory takes from the chat's text to its
// keys, or one that has seen the turn before; and the tokens that it knew. They
// must be the keys of the whole text's tokens.
func (v *conversation) keys(tokenizer keycache.Tokenizer, cuts keycache.Cuts, seen bool) (us float64, reused int, err error) {
	c, err := keycache.New(tokenizer, keycache.Config{Cuts: cuts})
	if err != nil {
		return 0, 0, err
	}
	var r keycache.Result
	if seen {
		c.Keys(&r, keycache.Prompt{Text: v.before, Root: v.root, BlockTokens: chatBlock})
	}
	us = nanoseconds(func() { c.Keys(&r, keycache.Prompt{Text: v.text, Root: v.root, BlockTokens: chatBlock}) }) / 1e3
	if r.Tokens != len(v.ids) || !slices.Equal(r.Keys, v.want) {
		return 0, 0, fmt.Errorf("%s: the keys are not those of its %d tokens", v.name, len(v.ids))
	}
	return us, r.Reused, nil
}

// render makes the prompt of messages, and sets r to the request. Without a
// template it is a transcript.
func (l *language) render(messages []message, r *chat.Request) (string, error) {
	data, err := json.Marshal(messages)
	if err != nil {
		return "", err
	}
	r.Messages = data
	text, err := l.Chat(*r)
	if errors.Is(err, model.ErrNoTemplate) {
		return transcript(messages), nil
	}
	return text, err
}

// transcript is a chat without a template.
func transcript(messages []message) string {
	var out strings.Builder
	for _, m := range messages {
		out.WriteString(m.Role + ": " + m.Content + "\n\n")
	}
	return out.String()
}

// chat measures a chat whose turn before was seen, and the same never seen, from
// rendered text to keys; and its rendering apart. The floor of the next turn reads
// the text once, as any memory of texts must; that of a chat never seen hashes
// tokens that are known already.
func (b *bench) chat(l *language, v *conversation) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var fault error
	reused := 0
	keys := func(seen bool) float64 {
		us, again, err := v.keys(l.Tokenizer(), l.cuts, seen)
		fault = errors.Join(fault, err)
		if seen {
			reused = again
		}
		return us
	}
	seed := maphash.MakeSeed()
	sum := uint64(0)
	known := make([]blockkey.Key, 0, len(v.want))
	warm, tails := b.samples(func() { sum += maphash.String(seed, v.text) }, func() float64 { return keys(true) })
	cold, _ := b.samples(func() { known = blockkey.Chain(known[:0], v.root, v.ids, chatBlock) }, func() float64 { return keys(false) })
	runtime.KeepAlive(sum)
	if fault != nil {
		return fault
	}
	seen := fmt.Sprintf("%s, %s seen", v.name, short(chatSeen))
	for _, one := range []struct {
		figure Figure
		limit  *bound
	}{
		{warm.figure(seen+", text to keys", "us"), valueAtMost(maxWarmKeys)},
		{tails.figure(seen+", text to keys, p99", "us"), nil},
		{Figure{Name: seen + ", tokens known", Value: float64(reused), Unit: "tokens"}, nil},
		{cold.figure(v.name+", none seen, text to keys", "us"), valueAtMost(maxColdKeys)},
	} {
		if err := b.report(one.figure, one.limit); err != nil {
			return err
		}
	}
	if l.Template(false) == nil {
		return nil
	}
	return b.rendering(l, v)
}

// rendering measures the template. The floor decodes the messages and puts them
// one after another.
func (b *bench) rendering(l *language, v *conversation) error {
	var fault error
	size := 0
	p, _ := b.samples(
		func() {
			var messages []message
			fault = errors.Join(fault, json.Unmarshal(v.request.Messages, &messages))
			size += len(transcript(messages))
		},
		func() float64 {
			var text string
			var err error
			took := nanoseconds(func() { text, err = l.Chat(v.request) })
			if err == nil && text != v.text {
				err = errors.New("the template renders the same chat differently")
			}
			fault = errors.Join(fault, err)
			return took / 1e3
		})
	runtime.KeepAlive(size)
	if fault != nil {
		return fault
	}
	return b.report(p.figure(v.name+", rendering the template", "us"), nil)
}

// samples measures single calls in microseconds: per round the median of both, and
// the 99th percentile of ours.
func (b *bench) samples(floor func(), ours func() float64) (medians, tails pair) {
	n := chatSamples
	if b.quick {
		n = 4
	}
	for range b.rounds {
		runtime.GC()
		floors, values := make([]float64, n), make([]float64, n)
		for i := range n {
			floors[i] = nanoseconds(floor) / 1e3
		}
		for i := range n {
			values[i] = ours()
		}
		medians.add(median(floors), median(values))
		tails.values = append(tails.values, quantile(values, 0.99))
	}
	return medians, tails
}
