//go:build race

package router

// raceDetector makes everything several times slower.
const raceDetector = true
