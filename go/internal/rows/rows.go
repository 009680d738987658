// Package rows reads the files of contract/, which README.md there describes, and runs their steps.
package rows

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchcore/watchcore/go/internal/bounded"
)

// Machine runs the steps of one case, and returns the lines that they print. If a step cannot be
// run, Run panics.
type Machine interface {
	Run(words []string) []string
	Close()
}

type row struct {
	faces []string
	cases []scenario
}

// scenario is a list of steps that share nothing with earlier scenarios. scenario runs once for each
// value in each, under the name.
type scenario struct {
	name  string
	each  []string
	steps []step
}

type step struct {
	line     int
	text     string
	expected []string
}

// Run runs the rows of an area that claim a language and whose first step has the given prefix,
// each as its own test.
func Run(t *testing.T, folder, face, first string, machine func(*testing.T) Machine) {
	run(t, folder, face, first, func(t *testing.T, f func(*testing.T)) { f(t) }, machine)
}

// RunSettled is Run for machines that call synctest.Wait: behind it every goroutine of the case is blocked, so that a step
// can say that a call waits.
func RunSettled(t *testing.T, folder, face, first string, machine func(*testing.T) Machine) {
	run(t, folder, face, first, synctest.Test, machine)
}

func run(t *testing.T, folder, face, first string, around func(*testing.T, func(*testing.T)), machine func(*testing.T) Machine) {
	files, err := filepath.Glob(filepath.Join(folder, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no rows: %v", folder, err)
	}
	for _, file := range files {
		row := read(t, file)
		if !slices.Contains(row.faces, face) || !strings.HasPrefix(row.first(), first) {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			for _, c := range row.cases {
				for _, value := range c.each {
					around(t, func(t *testing.T) { c.run(t, file, value, machine(t)) })
					if t.Failed() {
						return
					}
				}
			}
		})
	}
}

func (r *row) first() string {
	for _, c := range r.cases {
		if len(c.steps) > 0 {
			return c.steps[0].text
		}
	}
	return ""
}

func read(t *testing.T, file string) *row {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	r := &row{cases: []scenario{{each: []string{""}}}}
	head := slices.Index(lines, "")
	for _, line := range lines[:head] {
		if list, ok := strings.CutPrefix(line, "faces: "); ok {
			list, _, _ = strings.Cut(list, ";")
			r.faces = strings.Fields(list)
		}
	}
	for number := head; number < len(lines); number++ {
		line := lines[number]
		last := &r.cases[len(r.cases)-1]
		switch {
		case line == "" || line[0] == '#':
		case strings.HasPrefix(line, "  "):
			if len(last.steps) == 0 {
				t.Fatalf("%s:%d: nothing prints this", file, number+1)
			}
			printer := &last.steps[len(last.steps)-1]
			printer.expected = append(printer.expected, line[2:])
		case strings.HasPrefix(line, "case "):
			name, each, more := strings.Cut(line[5:], " in ")
			next := scenario{each: []string{""}}
			if more && !strings.Contains(name, " ") {
				next = scenario{name: name, each: strings.Fields(each)}
			}
			r.cases = append(r.cases, next)
		default:
			last.steps = append(last.steps, step{line: number + 1, text: line})
		}
	}
	return r
}

func (c *scenario) run(t *testing.T, file, value string, m Machine) {
	defer m.Close()
	names, with, now := map[string]string{c.name: value}, "", step{}
	if value != "" {
		with = " with " + value
	}
	wrong := "a wait has failed, as said above"
	defer func() {
		// A wait that fails ends the goroutine inside the step.
		if wrong != "" {
			t.Errorf("%s:%d%s: %s\n%s", file, now.line, with, now.text, wrong)
		}
	}()
	for _, now = range c.steps {
		if difference := now.run(m, names); difference != "" {
			wrong = difference
			return
		}
	}
	wrong = ""
}

// run returns the failure of the step, or "".
func (s *step) run(m Machine, names map[string]string) (wrong string) {
	defer func() {
		if reason := recover(); reason != nil {
			wrong = fmt.Sprint(reason)
		}
	}()
	text := withNames(s.text, names)
	let, keeps := strings.CutPrefix(text, "let ")
	kept, after, _ := strings.Cut(let, " = ")
	if keeps {
		text = after
	}
	text, awaited := strings.CutPrefix(text, "eventually ")
	run := func() (printed []string) {
		for _, step := range each(text) {
			printed = append(printed, m.Run(words(step))...)
		}
		return printed
	}
	printed, expected := run(), []string(nil)
	if keeps {
		if len(printed) != 1 {
			return fmt.Sprintf("it printed %d lines", len(printed))
		}
		names[kept] = printed[0]
		return ""
	}
	for _, line := range s.expected {
		for _, line := range each(withNames(line, names)) {
			expected = append(expected, braces(line)...)
		}
	}
	for begin := time.Now(); !matches(expected, printed); printed = run() {
		if !awaited || time.Since(begin) > bounded.Bound {
			return difference(expected, printed)
		}
		runtime.Gosched()
	}
	return ""
}

var (
	reference = regexp.MustCompile(`\$([A-Za-z0-9]+)([-+%][0-9]+)?`)
	counter   = regexp.MustCompile(`#([-+%][0-9]+)?`)
	repeated  = regexp.MustCompile(`^each ([0-9]+)\.\.([0-9]+) (.*)$`)
	times     = regexp.MustCompile(`\{([^{}]*)\*([0-9]+)\}`)
	braced    = regexp.MustCompile(`\{([0-9]+)\.\.([0-9]+)\}`)
)

func withNames(text string, names map[string]string) string {
	return reference.ReplaceAllStringFunc(text, func(found string) string {
		parts := reference.FindStringSubmatch(found)
		value, ok := names[parts[1]]
		if !ok {
			panic("$" + parts[1] + " is kept nowhere")
		}
		return computed(value, parts[2])
	})
}

// computed returns a value, or +1, -1 or %5 of it.
func computed(value, by string) string {
	number, err := strconv.ParseUint(value, 10, 64)
	if by == "" || err != nil {
		return value + by
	}
	operand, _ := strconv.ParseUint(by[1:], 10, 64)
	switch by[0] {
	case '+':
		number += operand
	case '-':
		number -= operand
	case '%':
		number %= operand
	}
	return strconv.FormatUint(number, 10)
}

// each returns the text for each number of "each A..B TEXT", the texts of "TEXT ; TEXT" in turn, or the text itself.
func each(text string) []string {
	parts := repeated.FindStringSubmatch(text)
	if parts == nil {
		return []string{text}
	}
	var all []string
	for number, last := Number(parts[1]), Number(parts[2]); number <= last; number++ {
		text := counter.ReplaceAllStringFunc(parts[3], func(found string) string {
			return computed(strconv.FormatUint(number, 10), found[1:])
		})
		all = append(all, strings.Split(text, " ; ")...)
	}
	return all
}

// braces expands a{08..10}b to three words, and a{x*3}b to axxxb; a word may have several of them.
func braces(word string) []string {
	word = times.ReplaceAllStringFunc(word, func(found string) string {
		parts := times.FindStringSubmatch(found)
		return strings.Repeat(parts[1], int(Number(parts[2])))
	})
	at := braced.FindStringSubmatchIndex(word)
	if at == nil {
		return []string{word}
	}
	first, last := word[at[2]:at[3]], word[at[4]:at[5]]
	ends := braces(word[at[1]:])
	var all []string
	for number := Number(first); number <= Number(last); number++ {
		for _, end := range ends {
			all = append(all, fmt.Sprintf("%s%0*d%s", word[:at[0]], len(first), number, end))
		}
	}
	return all
}

var word = regexp.MustCompile(`"[^"]*"|[^ ]+`)

// words splits a step at spaces; a quoted word may contain spaces.
func words(step string) []string {
	var all []string
	for _, found := range word.FindAllString(step, -1) {
		if found[0] == '"' {
			all = append(all, found[1:len(found)-1])
		} else {
			all = append(all, braces(found)...)
		}
	}
	return all
}

// matches compares lines; "..." stands for any lines.
func matches(expected, printed []string) bool {
	for at, line := range expected {
		if line == "..." {
			for skipped := at; skipped <= len(printed); skipped++ {
				if matches(expected[at+1:], printed[skipped:]) {
					return true
				}
			}
			return false
		}
		if at == len(printed) || printed[at] != line {
			return false
		}
	}
	return len(expected) == len(printed)
}

// difference returns the lines that differ, without the common beginning and end.
func difference(expected, printed []string) string {
	same := 0
	for same < min(len(expected), len(printed)) && expected[same] == printed[same] {
		same++
	}
	expected, printed = expected[same:], printed[same:]
	tail := 0
	for tail < min(len(expected), len(printed)) && expected[len(expected)-1-tail] == printed[len(printed)-1-tail] {
		tail++
	}
	all := fmt.Sprintf("  %d lines are as expected\n", same)
	for _, line := range expected[:len(expected)-tail] {
		all += "- " + line + "\n"
	}
	for _, line := range printed[:len(printed)-tail] {
		all += "+ " + line + "\n"
	}
	return all
}

// Number parses a decimal word.
func Number(word string) uint64 {
	number, err := strconv.ParseUint(word, 10, 64)
	if err != nil {
		panic(word + " is no number")
	}
	return number
}

// Duration is that of a word: 50ms, 3s, 2m.
func Duration(word string) time.Duration {
	d, err := time.ParseDuration(word)
	if err != nil {
		panic(err)
	}
	return d
}

var escaped = regexp.MustCompile(`\\x[0-9a-f]{2}`)

// Bytes are those of a word: \x0a is one.
func Bytes(word string) []byte {
	return escaped.ReplaceAllFunc([]byte(word), func(found []byte) []byte {
		value, _ := strconv.ParseUint(string(found[2:]), 16, 8)
		return []byte{byte(value)}
	})
}

// Word is bytes as a word.
func Word(bytes []byte) string {
	var all strings.Builder
	for _, b := range bytes {
		if b > ' ' && b < 0x7f && b != '\\' {
			all.WriteByte(b)
		} else {
			fmt.Fprintf(&all, `\x%02x`, b)
		}
	}
	return all.String()
}
