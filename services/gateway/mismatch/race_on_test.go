//go:build race

package mismatch_test

// The race detector makes simulations some 15 times slower, and they use one
// goroutine each: it gets a tenth of them.
const effort = 1
