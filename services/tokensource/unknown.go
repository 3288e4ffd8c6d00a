package tokensource

// What decisions record as the source of tokens, beside those of Tokens.Source.
const (
	// SourceClient says that the request brought token ids along.
	SourceClient = string(Client)
	// SourceNone says that nobody knows the prompt's tokens: its length is an
	// estimate, and it has no keys.
	SourceNone = "none"
)

// bytesPerToken is about right for English and for program text.
const bytesPerToken = 4

// EstimateTokens is the length to assume of a prompt of so many bytes whose tokens
// are not known; at least 1.
func EstimateTokens(bytes int) uint64 { return max(1, uint64(bytes)/bytesPerToken) }
