//go:build !race

package mismatch_test

// effort is how much is simulated, in tenths.
const effort = 10
