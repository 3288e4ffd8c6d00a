package kvevents

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"
)

// LoadStat is what SGLang says of its load on the topic "load". A figure that
// is absent is -1.
type LoadStat struct {
	// Running and Waiting count requests.
	Running, Waiting int64
	// Tokens are in the KV cache, of MaxTokens that fit.
	Tokens, MaxTokens int64
	// Rank is the data-parallel rank.
	Rank int64
	// QueuedTokens are prompt tokens that wait, after prefix reuse. Only newer
	// versions say it.
	QueuedTokens int64
}

const (
	tagLoad = "LoadStat"
	// maxLoadFields is far above what any version has.
	maxLoadFields = 256
)

// DecodeLoad reads a LoadStat, as an array or as a tagged map. Fields that are
// not known here are ignored. It is safe for concurrent use.
func DecodeLoad(payload []byte) (LoadStat, error) {
	c := &cursor{b: payload}
	s := LoadStat{Running: -1, Waiting: -1, Tokens: -1, MaxTokens: -1, Rank: -1, QueuedTokens: -1}
	var err error
	switch c.peek() {
	case famArray:
		err = s.array(c)
	case famMap:
		err = s.fields(c)
	case famNone:
		_, _, err = c.length()
	default:
		err = errShape
	}
	if err != nil {
		return LoadStat{}, fmt.Errorf("load of %d bytes: %w", len(payload), err)
	}
	return s, nil
}

func (s *LoadStat) array(c *cursor) error {
	n, err := c.container(famArray, maxLoadFields)
	if err != nil {
		return err
	}
	if n == 0 {
		return errShape
	}
	if err := loadTag(c); err != nil {
		return err
	}
	order := [...]*int64{&s.Running, &s.Waiting, &s.Tokens, &s.MaxTokens, &s.Rank, &s.QueuedTokens}
	for k := range n - 1 {
		if k >= len(order) {
			err = c.skip()
		} else {
			err = loadFigure(c, order[k])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *LoadStat) fields(c *cursor) error {
	n, err := c.container(famMap, maxLoadFields)
	if err != nil {
		return err
	}
	tagged := false
	for range n {
		key, err := c.text(maxLoadFields)
		if err != nil {
			return err
		}
		switch string(key) {
		case "type":
			tagged = true
			err = loadTag(c)
		case "num_running_reqs":
			err = loadFigure(c, &s.Running)
		case "num_waiting_reqs":
			err = loadFigure(c, &s.Waiting)
		case "num_tokens":
			err = loadFigure(c, &s.Tokens)
		case "max_total_num_tokens":
			err = loadFigure(c, &s.MaxTokens)
		case "attn_dp_rank", "data_parallel_rank":
			err = loadFigure(c, &s.Rank)
		case "num_waiting_uncached_tokens":
			err = loadFigure(c, &s.QueuedTokens)
		default:
			err = c.skip()
		}
		if err != nil {
			return err
		}
	}
	if !tagged {
		return fmt.Errorf("%w: it has no type", errShape)
	}
	return nil
}

func loadTag(c *cursor) error {
	tag, err := c.text(maxLoadFields)
	if err != nil {
		return err
	}
	if string(tag) != tagLoad {
		return fmt.Errorf("%w: it is %q, not %s", errShape, tag, tagLoad)
	}
	return nil
}

func loadFigure(c *cursor, to *int64) error {
	if c.null() {
		return nil
	}
	v, err := c.integer()
	if err != nil {
		return err
	}
	*to = max(v, -1)
	return nil
}

// AppendLoad appends a LoadStat as SGLang encodes it; a figure below 0 is nil, and
// QueuedTokens below 0 is left out, as older versions do.
func AppendLoad(dst []byte, s LoadStat) []byte {
	figures := []int64{s.Running, s.Waiting, s.Tokens, s.MaxTokens, s.Rank}
	if s.QueuedTokens >= 0 {
		figures = append(figures, s.QueuedTokens)
	}
	dst = msgp.AppendArrayHeader(dst, uint32(1+len(figures)))
	dst = msgp.AppendString(dst, tagLoad)
	for _, v := range figures {
		dst = appendOptional(dst, v >= 0, v)
	}
	return dst
}
