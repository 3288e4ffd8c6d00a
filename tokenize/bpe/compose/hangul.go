package compose

// Hangul syllables are composed by arithmetic: The Unicode Standard, section
// 3.12.
const (
	hangulBase  = 0xac00
	hangulEnd   = 0xd7a4
	leadBase    = 0x1100
	vowelBase   = 0x1161
	trailBase   = 0x11a7 // one before the first trailing consonant
	leadCount   = 19
	vowelCount  = 21
	trailCount  = 28
	vowelTrails = vowelCount * trailCount
)

func (n *normalizer) hangul(index rune) {
	n.chars = append(n.chars, char{r: leadBase + index/vowelTrails}, char{r: vowelBase + index%vowelTrails/trailCount})
	if t := index % trailCount; t > 0 {
		n.chars = append(n.chars, char{r: trailBase + t})
	}
}

func joinHangul(a, b rune) (rune, bool) {
	switch {
	case a >= leadBase && a < leadBase+leadCount && b >= vowelBase && b < vowelBase+vowelCount:
		return hangulBase + (a-leadBase)*vowelTrails + (b-vowelBase)*trailCount, true
	case a >= hangulBase && a < hangulEnd && (a-hangulBase)%trailCount == 0 && b > trailBase && b < trailBase+trailCount:
		return a + b - trailBase, true
	}
	return 0, false
}
