// Package chat renders chat requests to text as inference engines do: by the
// model's own Jinja template, with the values that transformers gives it, after
// the changes that vLLM or SGLang make to messages and tools. One byte of difference
// moves every block key behind it, so where Python would raise, rendering fails
// here too, instead of printing something else.
//
// Templates run in github.com/ardanlabs/jinja. They are parsed here first
// (package syntax), to detect the form of content they want, and written anew in
// the library's dialect with its gaps closed.
package chat

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"

	"warmpath/tokenize/chat/syntax"
)

// Specials are the texts of a model's special tokens, as templates see them.
// Empty ones are undefined in the template.
type Specials struct {
	BOS, EOS, UNK, SEP, PAD, CLS, MASK string
	// Additional are the additional_special_tokens.
	Additional []string
	// Extra are further tokens by their name in templates, such as image_token.
	Extra map[string]string
}

// Engine is whose way with messages and tools is followed.
type Engine uint8

const (
	// VLLM is vLLM 0.33 with transformers before 5.21.
	VLLM Engine = iota
	// SGLang is SGLang 0.5.23. It shows no tools to the model when tool_choice is
	// none, and only the named one when it names one: that is the caller's part.
	SGLang
)

// Options change how a template is compiled and rendered.
type Options struct {
	// Engine is the pool's; the zero value is VLLM.
	Engine Engine
	// ContentFormat overrides the detection, as vLLM's
	// --chat-template-content-format does; nil detects.
	ContentFormat *Format
	// Defaults are template variables for requests that do not set them, a JSON
	// object: vLLM's --default-chat-template-kwargs.
	Defaults []byte
	// Now is the clock of templates that print the date; nil means time.Now. It
	// must tell the time in the zone of the engines.
	Now func() time.Time
	// MaxOutput bounds the rendered text in bytes; 0 means DefaultMaxOutput.
	MaxOutput int
	// MaxWork bounds the steps of a rendering; 0 means DefaultMaxWork.
	MaxWork int
}

// Template is a compiled chat template. It is safe for concurrent use.
type Template struct {
	compiled *jinja.Template
	format   Format
	// developer: the template names the developer role, so messages keep it.
	developer bool
	specials  map[string]jinja.Value
	defaults  *jinja.Dict
	options   Options
}

// Refused is a request that cannot be rendered: the template raised an
// exception, or a message has a form that the engine refuses too. The engine
// answers such a request with 400.
type Refused struct {
	// Reason is for the client, and not for logs: a template may quote a message.
	Reason string
}

func (r *Refused) Error() string { return "chat template: " + r.Reason }

var (
	// ErrTooLarge is wrapped by errors of renderings that were stopped by a limit.
	ErrTooLarge = errors.New("chat template: the rendering is too large")
	// ErrMedia is wrapped by errors of requests with images, audio or video: what
	// stands for them in the prompt is the model's own affair.
	ErrMedia = errors.New("chat: the messages have content that is not text")
)

// Compile reads a template. Errors name the line.
func Compile(source string, specials Specials, options Options) (*Template, error) {
	body, err := syntax.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	dialect, err := toDialect(body)
	if err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	t := &Template{format: detectFormat(body), specials: specials.values(), options: options}
	if t.compiled, err = compile(dialect); err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	if options.Engine == SGLang {
		t.format = detectSGLang(source, body)
	}
	if options.ContentFormat != nil {
		t.format = *options.ContentFormat
	}
	if t.defaults, err = parseDict(options.Defaults, "the default template variables"); err != nil {
		return nil, err
	}
	t.developer = strings.Contains(source, `"developer"`) || strings.Contains(source, `'developer'`)
	if t.options.Now == nil {
		t.options.Now = time.Now
	}
	if t.options.MaxOutput <= 0 {
		t.options.MaxOutput = DefaultMaxOutput
	}
	if t.options.MaxWork <= 0 {
		t.options.MaxWork = DefaultMaxWork
	}
	return t, nil
}

// compile calls the library, which may panic on what it cannot read.
func compile(source string) (t *jinja.Template, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the template cannot be compiled: %v", p)
		}
	}()
	return jinja.Compile(source)
}

// ContentFormat returns the form in which messages' content is given to the
// template.
func (t *Template) ContentFormat() Format { return t.format }

func (s *Specials) values() map[string]jinja.Value {
	vars := map[string]jinja.Value{}
	for name, text := range map[string]string{
		"bos_token": s.BOS, "eos_token": s.EOS, "unk_token": s.UNK, "sep_token": s.SEP,
		"pad_token": s.PAD, "cls_token": s.CLS, "mask_token": s.MASK,
	} {
		if text != "" {
			vars[name] = jinja.NewString(text)
		}
	}
	for name, text := range s.Extra {
		vars[name] = jinja.NewString(text)
	}
	if len(s.Additional) > 0 {
		vars["additional_special_tokens"] = stringList(s.Additional)
	}
	return vars
}

// execute renders with the given variables alone.
func (t *Template) execute(vars map[string]jinja.Value) (out string, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = "", fmt.Errorf("chat template: the template engine failed: %v", p)
		}
	}()
	r := &rendering{maxWork: t.options.MaxWork, maxOut: t.options.MaxOutput, now: t.options.Now}
	all := make(map[string]jinja.Value, len(vars)+len(t.specials)+48)
	r.bind(all)
	maps.Copy(all, t.specials)
	maps.Copy(all, vars)
	out, err = t.compiled.RenderValues(all)
	if err == nil {
		return out, nil
	}
	var refused *Refused
	if errors.Is(err, ErrTooLarge) || errors.As(err, &refused) {
		return "", err
	}
	return "", &Refused{Reason: err.Error()}
}
