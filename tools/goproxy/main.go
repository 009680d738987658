// Goproxy makes a directory that the go command takes as a module proxy (GOPROXY=file://DIRECTORY), of tags of a repository:
//
//	goproxy REPOSITORY DIRECTORY TAG...
//
// A tag names a module as the go command wants it: go/v0.1.0 is version v0.1.0 of the module in go/. Its zip is made as
// GOPROXY=direct makes it. The lines for go.sum are printed.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("goproxy: ")
	if len(os.Args) < 4 {
		log.Fatal("usage: goproxy REPOSITORY DIRECTORY TAG...")
	}
	for _, tag := range os.Args[3:] {
		if err := publish(os.Args[1], os.Args[2], tag); err != nil {
			log.Fatalf("%s: %v", tag, err)
		}
	}
}

// publish writes the four files that a proxy serves of a module.
func publish(repository, proxy, tag string) error {
	subdir, version := path.Split(tag)
	subdir = strings.TrimSuffix(subdir, "/")
	gomod, err := git(repository, "show", tag+":"+path.Join(subdir, "go.mod"))
	if err != nil {
		return err
	}
	seconds, err := git(repository, "log", "-1", "--format=%cI", tag)
	if err != nil {
		return err
	}
	committed, err := time.Parse(time.RFC3339, strings.TrimSpace(string(seconds)))
	if err != nil {
		return err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{version, committed.UTC()})
	if err != nil {
		return err
	}
	m := module.Version{Path: modfile.ModulePath(gomod), Version: version}
	escaped, err := module.EscapePath(m.Path)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	if err := zip.CreateFromVCS(&packed, m, repository, tag, subdir); err != nil {
		return err
	}
	base := filepath.Join(proxy, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(base, 0o755); err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"list":            []byte(version + "\n"),
		version + ".info": info,
		version + ".mod":  gomod,
		version + ".zip":  packed.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(base, name), content, 0o644); err != nil {
			return err
		}
	}
	return printSums(m, gomod, filepath.Join(base, version+".zip"))
}

// printSums prints what go.sum of a user says.
func printSums(m module.Version, gomod []byte, packed string) error {
	whole, err := dirhash.HashZip(packed, dirhash.Hash1)
	if err != nil {
		return err
	}
	alone, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(gomod)), nil
	})
	if err != nil {
		return err
	}
	fmt.Printf("%s %s %s\n%s %s/go.mod %s\n", m.Path, m.Version, whole, m.Path, m.Version, alone)
	return nil
}

func git(repository string, arguments ...string) ([]byte, error) {
	c := exec.Command("git", append([]string{"-C", repository}, arguments...)...)
	c.Stderr = os.Stderr
	return c.Output()
}
