package router

import (
	"slices"
	"strings"

	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/tokensource"
	"warmpath/tokenize"
)

// form is how a request gives its prompt.
type form uint8

const (
	formLength form = iota // its length alone: it is routed by load
	formKeys
	formTokens
	formText
	formChat
)

func (f form) String() string {
	return [...]string{"prompt_tokens", "keys", "token_ids", "prompt", "chat"}[f]
}

// needsTokens says whether the prompt is text, which only a tokenizer can turn
// into keys.
func (f form) needsTokens() bool { return f == formText || f == formChat }

// formOf finds the one form in which a request gives its prompt.
func formOf(q *pb.RouteRequest) (form, error) {
	var given []string
	found := formLength
	for _, one := range []struct {
		form  form
		given bool
	}{
		{formKeys, len(q.Keys) > 0}, {formTokens, len(q.TokenIds) > 0}, {formText, q.Prompt != ""}, {formChat, len(q.Chat) > 0},
	} {
		if one.given {
			found = one.form
			given = append(given, found.String())
		}
	}
	switch {
	case len(given) > 1:
		return found, invalid("%s are given together; give one of them, since the others follow from it", strings.Join(given, " and "))
	case len(given) == 0 && q.PromptTokens == 0:
		return found, invalid("prompt_tokens is 0 and there is no prompt; give its keys and prompt_tokens, or token_ids, prompt or chat")
	case found == formKeys && q.PromptTokens == 0:
		return found, invalid("prompt_tokens is 0; give the prompt's length beside its keys")
	case found.needsTokens() && q.PromptTokens != 0:
		return found, invalid("prompt_tokens is %d beside %s; leave it out, since it follows", q.PromptTokens, found)
	}
	return found, nil
}

// validPrompt checks the sizes of a prompt.
func validPrompt(q *pb.RouteRequest) error {
	tokens := uint64(len(q.TokenIds))
	switch {
	case tokens > 0 && q.PromptTokens != 0 && q.PromptTokens != tokens:
		return invalid("prompt_tokens is %d and token_ids has %d; leave prompt_tokens out when token_ids is given", q.PromptTokens, tokens)
	case max(tokens, q.PromptTokens) > maxPromptTokens:
		return tooLong(max(tokens, q.PromptTokens))
	case len(q.Keys) > maxKeys:
		return invalid("keys has %d keys; the limit is %d: use larger blocks, or shorten the prompt", len(q.Keys), maxKeys)
	}
	return nil
}

func tooLong(tokens uint64) error {
	return invalid("prompt_tokens is %d; the limit is %d: shorten the prompt", tokens, maxPromptTokens)
}

// asked is a request whose prompt was looked at. What it has beside the request
// may come from the body of a chat.
type asked struct {
	*pb.RouteRequest
	form form
	body tokenize.Request // of a chat

	model, lora, salt, session string

	fleet []seen // what the request may choose from
	sheet *sheet // and what becomes of it in the decision; nil before

	// keys and tokens are the prompt's; nil and an estimate where they are not
	// known. source is where tokens came from that were made here, or none.
	keys   []uint64
	tokens uint64
	source string
	// textBytes is the length of the rendered text, and unkeyed why a text got no
	// keys: for people who ask, not for the decision.
	textBytes int
	unkeyed   string
}

// read checks a request, and looks into the body of a chat.
func read(pool string, q *pb.RouteRequest) (*asked, error) {
	f, err := validate(pool, q)
	if err != nil {
		return nil, err
	}
	a := &asked{
		RouteRequest: q, form: f, model: q.Model, lora: q.Lora, salt: q.Salt, session: q.SessionId,
		keys: q.Keys, tokens: max(q.PromptTokens, uint64(len(q.TokenIds))),
	}
	if f == formLength {
		a.source = tokensource.SourceNone // an auditor asks where the keys are
	}
	if f != formChat {
		return a, nil
	}
	if a.body, err = tokenize.ScanRequest(q.Chat, nil); err != nil {
		return nil, invalid("chat: %v", err)
	}
	switch {
	case a.body.PromptKind != tokenize.NoPrompt:
		return nil, invalid("chat: has a prompt, as completions have; send that as prompt or token_ids")
	case a.body.Messages == nil:
		return nil, invalid("chat: messages: missing; send the body of a chat completion request")
	}
	if a.salt == "" {
		a.salt = a.body.CacheSalt
	}
	if a.session == "" {
		a.session = a.body.User
	}
	for _, one := range []struct{ name, value string }{
		{"chat: model", a.body.Model}, {"chat: cache_salt", a.salt},
	} {
		if err := validText(one.name, one.value, maxText); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// nameModel finds the model and the adapter that are meant. A chat's body names a
// model where the request does not: it is what the engine will read. And a name
// that no replica serves, but that the fleet lists as an adapter, is one.
func (a *asked) nameModel() {
	for _, name := range []string{a.model, a.body.Model} {
		if a.lora == "" && name != "" && a.isAdapter(name) {
			a.lora = name
		}
	}
	if a.model == "" {
		a.model = a.body.Model
	}
	if a.model == a.lora {
		a.model = ""
	}
}

func (a *asked) isAdapter(name string) bool {
	listed := false
	for _, s := range a.fleet {
		if s.entry.Model == name {
			return false
		}
		listed = listed || slices.Contains(s.entry.Loras, name)
	}
	return listed
}
