// Package model reads a Hugging Face model directory and turns requests into
// token ids as an engine that serves the directory does: chats through the
// model's template, texts with the tokens that its tokenizer puts around them.
package model

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"warmpath/tokenize/bpe"
	"warmpath/tokenize/chat"
	"warmpath/tokenize/keycache"
)

// Options change how a directory is read. The zero value reads it as engines do.
type Options struct {
	// Name is the model's name in logs and errors; empty means the directory's.
	Name string
	// ChatTemplate replaces the directory's templates, as vLLM's --chat-template
	// does; empty keeps them.
	ChatTemplate string
	// Chat are the options of the templates.
	Chat chat.Options
}

// Model is a loaded model directory. It is safe for concurrent use.
type Model struct {
	name      string
	tokenizer *bpe.Tokenizer
	templates templates
	// around: the tokens before and after a text come from tokenizer_config.json
	// instead of tokenizer.json.
	around        bool
	before, after []uint32
	cuts          keycache.Cuts
	sources       []string
}

// ErrNoTemplate is returned for chats when the directory has no chat template.
var ErrNoTemplate = errors.New("model: no chat template in chat_template.jinja, chat_template.json or tokenizer_config.json; give one as a file")

// Load reads a directory. Errors name the file and what to do about it.
func Load(dir string, options Options) (*Model, error) {
	if options.Name == "" {
		options.Name = filepath.Base(filepath.Clean(dir))
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("model directory: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("model directory %s: it is a file; give the directory with tokenizer.json in it", dir)
	}
	m, err := Open(os.DirFS(dir), options)
	if err != nil {
		return nil, fmt.Errorf("model directory %s: %w", dir, err)
	}
	return m, nil
}

// Open reads a model directory from a file system.
func Open(dir fs.FS, options Options) (*Model, error) {
	m := &Model{name: options.Name}
	var c config
	if err := m.readConfig(dir, &c); err != nil {
		return nil, err
	}
	if err := m.readTokenizer(dir, &c); err != nil {
		return nil, err
	}
	if err := m.readTemplates(dir, &c, options); err != nil {
		return nil, err
	}
	return m, m.putAround(&c)
}

// read returns a file's bytes, nil when it does not exist.
func (m *Model) read(dir fs.FS, name string) ([]byte, error) {
	data, err := fs.ReadFile(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	m.sources = append(m.sources, name)
	return data, nil
}

func (m *Model) readTokenizer(dir fs.FS, c *config) error {
	const name = "tokenizer.json"
	data, err := m.read(dir, name)
	if err != nil {
		return err
	}
	if data == nil {
		return fmt.Errorf("%s: no such file; a model with only tokenizer.model must be converted first (AutoTokenizer.from_pretrained(…).save_pretrained(…))", name)
	}
	if data, err = withAddedTokens(data, c.AddedTokens); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if m.tokenizer, err = bpe.Load(data); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	m.cuts, err = keycache.ReadCuts(data) // its errors name the file
	return err
}

// putAround finds the tokens that the configuration wants around a text. With
// either flag given they replace what tokenizer.json says.
func (m *Model) putAround(c *config) error {
	if c.AddBOS == nil && c.AddEOS == nil {
		return nil
	}
	m.around = true
	for _, side := range []struct {
		flag  *bool
		name  string
		token token
		ids   *[]uint32
	}{{c.AddBOS, "bos_token", c.BOS, &m.before}, {c.AddEOS, "eos_token", c.EOS, &m.after}} {
		if side.flag == nil || !*side.flag || side.token == "" {
			continue // without such a token the flag has no effect
		}
		id, ok := m.tokenizer.ID(string(side.token))
		if !ok {
			return fmt.Errorf("%s: %s %q is not in tokenizer.json; the two files are of different models", configFile, side.name, side.token)
		}
		*side.ids = []uint32{id}
	}
	return nil
}

// Name returns the model's name.
func (m *Model) Name() string { return m.name }

// Sources returns the files that were read, for logs.
func (m *Model) Sources() []string { return slices.Clone(m.sources) }

// Tokenizer returns the model's tokenizer.
func (m *Model) Tokenizer() *bpe.Tokenizer { return m.tokenizer }

// Cuts returns the exact cuts of the model's tokenizer, with the added tokens that
// only tokenizer_config.json has. They must not be changed.
func (m *Model) Cuts() keycache.Cuts { return m.cuts }

// Template returns the chat template for requests with or without tools, nil
// when there is none.
func (m *Model) Template(tools bool) *chat.Template {
	if tools {
		return m.templates.tools
	}
	return m.templates.plain
}

// Chat renders a chat request. Errors are those of chat.Template.Render, and
// ErrNoTemplate.
func (m *Model) Chat(r chat.Request) (string, error) {
	t := m.Template(hasTools(r.Tools))
	if t == nil {
		return "", ErrNoTemplate
	}
	return t.Render(r)
}

func hasTools(raw []byte) bool {
	text := strings.TrimSpace(string(raw))
	return text != "" && text != "null" && strings.Trim(text, "[] \t\r\n") != ""
}

// ChatIDs appends the ids of a chat request's prompt. special puts the
// tokenizer's tokens around it, as a request's add_special_tokens asks; engines do
// not unless asked, because templates write them themselves.
func (m *Model) ChatIDs(dst []uint32, r chat.Request, special bool) ([]uint32, error) {
	text, err := m.Chat(r)
	if err != nil {
		return dst, err
	}
	if special {
		return m.AppendSpecial(dst, text), nil
	}
	return m.Append(dst, text), nil
}

// Append appends the ids of a text and nothing around it: a rendered chat.
func (m *Model) Append(dst []uint32, text string) []uint32 {
	return m.tokenizer.Append(dst, text)
}

// AppendSpecial appends the ids of a text with the tokens that the tokenizer puts
// around it: the prompt of a completion.
func (m *Model) AppendSpecial(dst []uint32, text string) []uint32 {
	if !m.around {
		return m.tokenizer.AppendSpecial(dst, text)
	}
	dst = append(dst, m.before...)
	dst = m.tokenizer.Append(dst, text)
	return append(dst, m.after...)
}

// Text returns the ids of a completion's prompt.
func (m *Model) Text(text string) []uint32 { return m.AppendSpecial(nil, text) }
