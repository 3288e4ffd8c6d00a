package mismatch

import (
	"fmt"
	"math"
	"slices"
)

func probeDetail(cause string) string {
	if cause == Tokenizer {
		return "the engine makes other tokens of the same text; use the engine's tokenizer.json"
	}
	return "the engine makes the same tokens of a text and others of the same messages; use the engine's chat template"
}

// point is one prompt length of which the engine counted another. The same
// prompt many times is one point.
type point struct {
	messages   int
	ours, diff int64
}

// lengthsCause tells a wrong template from a wrong tokenizer. A template adds or
// leaves out marks: the difference depends on the messages' number and not on
// their text. A tokenizer cuts the text itself otherwise: the difference grows
// with the text and varies, and is there without a template too.
func lengthsCause(texts, chats []*sample, probe *Probe) finding {
	diffs, _ := split(append(slices.Clone(texts), chats...), differs)
	points := pointsOf(diffs)
	detail := func(cause string) string {
		var sum int64
		for _, s := range diffs {
			sum += s.diff
		}
		mean := float64(sum) / float64(len(diffs))
		if cause == Template {
			return fmt.Sprintf("the engine counts %+.1f tokens a prompt on average, whatever the text; use the engine's chat template", mean)
		}
		return fmt.Sprintf("the engine counts %+.1f tokens a prompt on average, varying with the text; use the engine's tokenizer.json", mean)
	}
	if c := probe.cause(); c != "" && diffs[len(diffs)-1].source == SourceInProcess {
		return finding{c, probeDetail(c), diffs}
	}
	cause := Template
	switch plain := count(texts, differs); {
	case len(texts) >= 3 && 2*plain >= len(texts):
		cause = Tokenizer
	case len(texts) >= 3 && plain == 0:
	case count(chats, func(s *sample) bool { return s.source == SourceEngine }) == len(chats):
		// The engine's own tokens, so what it was asked to render was not the request.
	case varies(points):
		cause = Tokenizer
	}
	return finding{cause, detail(cause), diffs}
}

// pointsOf are the chat prompts among samples, each length once.
func pointsOf(samples []*sample) []point {
	var points []point
	for _, s := range samples {
		p := point{s.messages, int64(s.ours), s.diff}
		if s.chat && !slices.Contains(points, p) {
			points = append(points, p)
		}
	}
	return points
}

// varies reports whether differences go with the text rather than with the
// number of messages.
func varies(points []point) bool {
	if same, of := modal(points); of >= 6 {
		switch share := float64(same) / float64(of); {
		case share >= 0.75:
			return false
		case share <= 0.4:
			return true
		}
	}
	// Few lengths with the same number of messages: the better of two laws.
	return residual(points, false) < residual(points, true)
}

// modal counts, over the numbers of messages that several lengths have, how many
// lengths have the difference that is most frequent there.
func modal(points []point) (same, of int) {
	groups := map[int]map[int64]int{}
	for _, p := range points {
		if groups[p.messages] == nil {
			groups[p.messages] = map[int64]int{}
		}
		groups[p.messages][p.diff]++
	}
	for _, diffs := range groups {
		size, most := 0, 0
		for _, n := range diffs {
			size += n
			most = max(most, n)
		}
		if size >= 2 {
			of += size
			same += most
		}
	}
	return same, of
}

// residual is how far, in the mean, differences lie from the law that they are a
// constant and a share for each message, or else a share of the length.
func residual(points []point, byMessages bool) float64 {
	if len(points) == 0 {
		return math.Inf(1)
	}
	var slope, offset float64
	if byMessages {
		var slopes, offsets []float64
		for i, p := range points {
			for _, q := range points[:i] {
				if p.messages != q.messages {
					slopes = append(slopes, float64(p.diff-q.diff)/float64(p.messages-q.messages))
				}
			}
		}
		slope = median(slopes)
		for _, p := range points {
			offsets = append(offsets, float64(p.diff)-slope*float64(p.messages))
		}
		offset = median(offsets)
	} else {
		var shares []float64
		for _, p := range points {
			shares = append(shares, float64(p.diff)/float64(max(p.ours, 1)))
		}
		slope = median(shares)
	}
	sum := 0.0
	for _, p := range points {
		x := float64(p.ours)
		if byMessages {
			x = float64(p.messages)
		}
		sum += math.Abs(float64(p.diff) - slope*x - offset)
	}
	return sum / float64(len(points))
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[len(values)/2]
}
