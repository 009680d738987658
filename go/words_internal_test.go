//go:build cgo

package watchcore

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// What the C interface can say is in Go's words once it has gone through inGo, also what no test provokes: the texts are
// taken out of its source. A field has a name in the table, for it does not follow from that of C.
func TestTextsOfTheInterfaceHaveGosWords(t *testing.T) {
	files, err := filepath.Glob("../watchcore-capi/src/*.rs")
	if err != nil || len(files) == 0 {
		t.Skip("the source of the C interface is not here")
	}
	comment, literal := regexp.MustCompile(`(?m)^\s*//.*$`), regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	foreign := regexp.MustCompile(`(?:watchcore|WATCHCORE)_\w+|\b(?:options|read|filter)\.[a-z_]+|[ ,]_[A-Z]|NULL|[Hh]andle is`)
	field := regexp.MustCompile(`\b(?:options|read|filter)\.[a-z_]+`)
	texts := 0
	for _, file := range files {
		if filepath.Base(file) == "tests.rs" {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if made := regexp.MustCompile(`tracing::(?:error|warn|info|debug|trace)!`).Find(comment.ReplaceAll(source, nil)); made != nil {
			t.Errorf("%s says something in the log, which does not go through inGo", filepath.Base(file))
		}
		for _, text := range literal.FindAllString(string(comment.ReplaceAll(source, nil)), -1) {
			if foreign.FindString(text) == "" {
				continue
			}
			texts++
			text = text[1 : len(text)-1]
			said := inGo(text)
			if found := foreign.FindString(said); found != "" {
				t.Errorf("%s: %q in %q", filepath.Base(file), found, said)
			}
			for _, name := range field.FindAllString(text, -1) {
				if goNames[name] == "" {
					t.Errorf("%s: the field %s has no name in Go: %s", filepath.Base(file), name, text)
				}
			}
		}
	}
	if texts < 50 {
		t.Errorf("only %d texts with names were found", texts)
	}
}

// Names that follow from those of C.
func TestNamesInGo(t *testing.T) {
	for message, want := range map[string]string{
		"watchcore_writer_apply: a bug in watchcore: x. The handle is poisoned: free it, and please report this.": "Writer.Apply: a bug in watchcore: x. It is of no further use: close it, and please report this.",
		"read.mode is 7. Give one of WATCHCORE_READ_ANY, _AT_LEAST, _EXACT.":                                      "ReadOptions.Read is 7. Give one of ReadAny, AtLeast, Exact.",
		"2 watchcore_subscription": "2 Subscription",
		`key "watchcore_cache_new": outside the cache's prefix "options.name"`: `key "watchcore_cache_new": outside the cache's prefix "options.name"`,
		`key "a\"watchcore_cache", from State, "from State`:                    `key "a\"watchcore_cache", with StartState, "from State`,
	} {
		if said := inGo(message); said != want {
			t.Errorf("%q is %q, not %q", message, said, want)
		}
	}
}
