//go:build race

package watch_test

// raceEnabled: the race detector makes everything some ten times slower.
const raceEnabled = true
