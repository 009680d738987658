// Package contract runs the rows of contract/toolkit/ for the tests of several packages, from the files that Rust runs too:
// contract/README.md says what their words mean.
package contract

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Line is one step of a file.
type Line struct {
	file   string
	number int
	Words  []string
}

// Expect fails the test where something else came.
func (l Line) Expect(t testing.TB, came, expected any) {
	t.Helper()
	if came != expected {
		t.Fatalf("%s:%d: %s\n expected %v\n     came %v", l.file, l.number, strings.Join(l.Words, " "), expected, came)
	}
}

// Unknown fails the test at a word that its machine does not have.
func (l Line) Unknown(t testing.TB) {
	t.Helper()
	t.Fatalf("%s:%d: %s is no word of this machine", l.file, l.number, l.Words[0])
}

// Number is a word as a number.
func Number(t testing.TB, word string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(word, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Duration is a word as a duration.
func Duration(t testing.TB, word string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(word)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Rows runs each row that names Go and this machine, whose words behind its name are given to run.
func Rows(t *testing.T, machine string, run func(t *testing.T, words []string, lines []Line)) {
	paths, err := filepath.Glob("../../contract/toolkit/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatal("no rows in contract/toolkit", err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(string(text), "\n\n")
		var lines []Line
		for n, line := range strings.Split(string(text), "\n") {
			words := strings.Fields(line)
			if n > strings.Count(head, "\n") && len(words) > 0 && !strings.HasPrefix(words[0], "#") {
				lines = append(lines, Line{filepath.Base(path), n + 1, words})
			}
		}
		if lines[0].Words[1] == machine && slices.Contains(faces(head), "go") {
			t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) { run(t, lines[0].Words[2:], lines[1:]) })
		}
	}
}

// faces are those that run a row; behind a semicolon stands why another one does not.
func faces(head string) []string {
	for line := range strings.Lines(head) {
		if list, is := strings.CutPrefix(line, "faces:"); is {
			list, _, _ = strings.Cut(list, ";")
			return strings.Fields(list)
		}
	}
	return nil
}
