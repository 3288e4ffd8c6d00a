package tokensource

import (
	"fmt"
	"log/slog"
)

// Named makes the source that a --tokenizer flag names: "bytes" for simulated
// engines, "client" when prompts are token ids, "engine" to ask the engines, or
// the folder of the model. cfg has the rest; its Mode, Model and Cuts are set
// here, and its EngineKind says by whose rules the template is rendered. Errors
// name the flag's values.
func Named(tokenizer string, cfg Config) (*Source, error) {
	switch tokenizer {
	case "", string(Client):
		cfg.Mode = Client
	case string(Bytes):
		cfg.Mode = Bytes
	case string(Engine):
		cfg.Mode = Engine
	default:
		options, err := cfg.Options()
		if err != nil {
			return nil, err
		}
		m, cuts, err := Load(tokenizer, options)
		if err != nil {
			return nil, fmt.Errorf("%w; --tokenizer takes the folder of a model, or %s, %s or %s", err, Bytes, Engine, Client)
		}
		slog.Info("prompts given as text are tokenized here", "model", m.Name(), "files", m.Sources(), "templates", m.TemplateSources())
		cfg.Mode, cfg.Model, cfg.Cuts = InProcess, m, cuts
	}
	return New(cfg)
}
