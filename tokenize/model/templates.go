package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"warmpath/tokenize/chat"
)

// Where directories keep chat templates.
const (
	templateFile  = "chat_template.jinja"
	processorFile = "chat_template.json"
	templatesDir  = "additional_chat_templates"
)

// templates are the model's, for requests without and with tools.
type templates struct{ plain, tools *chat.Template }

// source is a template that was found.
type source struct{ file, text string }

// readTemplates finds the templates as transformers and vLLM do: files before
// tokenizer_config.json; of several named ones tool_use for requests with tools,
// default for the others; the processor's chat_template.json only without tools.
func (m *Model) readTemplates(dir fs.FS, c *config, options Options) error {
	named, err := m.namedTemplates(dir, c)
	if err != nil {
		return err
	}
	plain, hasPlain := named["default"]
	tools, hasTools := named["tool_use"]
	if !hasTools {
		tools, hasTools = plain, hasPlain
	}
	processor, err := m.processorTemplate(dir)
	if err != nil {
		return err
	}
	if _, file := named["default"]; processor.text != "" && (!file || plain.file != templateFile) {
		plain, hasPlain = processor, true
		if !hasTools {
			tools, hasTools = processor, true
		}
	}
	if options.ChatTemplate != "" {
		plain = source{"the given chat template", options.ChatTemplate}
		tools, hasPlain, hasTools = plain, true, true
	}
	if len(named) > 0 && !hasPlain {
		return fmt.Errorf("%s: several chat templates but none named default; give the one to use as a file", configFile)
	}
	if m.templates.plain, err = compile(plain, hasPlain, c, options.Chat); err != nil {
		return err
	}
	if tools == plain {
		m.templates.tools = m.templates.plain
		return nil
	}
	m.templates.tools, err = compile(tools, hasTools, c, options.Chat)
	return err
}

func compile(s source, found bool, c *config, options chat.Options) (*chat.Template, error) {
	if !found {
		return nil, nil
	}
	t, err := chat.Compile(s.text, c.forTemplates(), options)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.file, err)
	}
	return t, nil
}

// namedTemplates returns the tokenizer's templates; a single one is the default.
func (m *Model) namedTemplates(dir fs.FS, c *config) (map[string]source, error) {
	named := map[string]source{}
	text, err := m.read(dir, templateFile)
	if err != nil {
		return nil, err
	}
	if text != nil {
		named["default"] = source{templateFile, string(text)}
	}
	entries, err := fs.ReadDir(dir, templatesDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", templatesDir, err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".jinja")
		if !ok {
			continue
		}
		file := path.Join(templatesDir, e.Name())
		if text, err = m.read(dir, file); err != nil {
			return nil, err
		}
		named[name] = source{file, string(text)}
	}
	if len(named) > 0 {
		return named, nil
	}
	return templatesIn(c.ChatTemplate, configFile)
}

// templatesIn reads the chat_template of a configuration: a string, a list of
// named ones, or an object of them.
func templatesIn(raw json.RawMessage, file string) (map[string]source, error) {
	if isNull(raw) {
		return nil, nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return map[string]source{"default": {file, one}}, nil
	}
	byName := map[string]string{}
	var list []struct{ Name, Template string }
	switch {
	case json.Unmarshal(raw, &list) == nil:
		for _, t := range list {
			byName[t.Name] = t.Template
		}
	case json.Unmarshal(raw, &byName) != nil:
		return nil, fmt.Errorf("%s: chat_template: expected a string, or a list of objects with name and template", file)
	}
	named := map[string]source{}
	for name, text := range byName {
		named[name] = source{file, text}
	}
	return named, nil
}

// processorTemplate reads chat_template.json, which multimodal models have.
func (m *Model) processorTemplate(dir fs.FS) (source, error) {
	data, err := m.read(dir, processorFile)
	if err != nil || data == nil {
		return source{}, err
	}
	var c struct {
		ChatTemplate json.RawMessage `json:"chat_template"`
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return source{}, fmt.Errorf("%s: %w", processorFile, err)
	}
	named, err := templatesIn(c.ChatTemplate, processorFile)
	if err != nil {
		return source{}, err
	}
	return named["default"], nil
}

// TemplateSources returns the files that the templates were read from, for logs.
func (m *Model) TemplateSources() []string {
	var files []string
	for _, s := range m.sources {
		if strings.HasSuffix(s, ".jinja") || s == processorFile {
			files = append(files, s)
		}
	}
	if len(files) == 0 && m.templates.plain != nil && slices.Contains(m.sources, configFile) {
		files = append(files, configFile)
	}
	return files
}
