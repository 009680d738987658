// Program peers-go measures watchcore by cgo and its peers in Go: the counterpart of
// benches/peers, which runs it, has its rows, and says what they include.
//
//	peers-go list                         what it can measure: a line of JSON each
//	peers-go versions                     name and version of each peer
//	peers-go measure ROW SIZE CONTESTANT  one measurement: one line of JSON
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
)

// contestant is one program at one kind of work. Those of watchcore have names that
// begin with its name.
type contestant struct {
	row, name, note string
	sizes           []int
	run             func(size int) measured
}

func contestants() []contestant {
	return slices.Concat(delivery(), objects(), broadcasts(), informing())
}

func main() {
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers-go:", err)
		os.Exit(1)
	}
}

func command(arguments []string) error {
	out := json.NewEncoder(os.Stdout)
	switch {
	case len(arguments) == 1 && arguments[0] == "list":
		return listCases(out)
	case len(arguments) == 1 && arguments[0] == "versions":
		versions()
		return nil
	case len(arguments) == 4 && arguments[0] == "measure":
		return measure(out, arguments[1], arguments[2], arguments[3])
	}
	return fmt.Errorf("list, versions, or measure ROW SIZE CONTESTANT")
}

func listCases(out *json.Encoder) error {
	for _, one := range contestants() {
		for _, size := range one.sizes {
			line := map[string]any{"row": one.row, "size": size, "contestant": one.name, "note": one.note}
			if err := out.Encode(line); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkouts are names and versions of what was built from a checkout, a line each: set
// by scripts/bench-peers.sh.
var checkouts string

func versions() {
	fmt.Println("Go", runtime.Version())
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		switch module.Path {
		case "k8s.io/apiserver", "k8s.io/apimachinery", "k8s.io/client-go", "github.com/google/btree":
			fmt.Println(module.Path, module.Version)
		}
	}
	fmt.Print(checkouts)
}

func measure(out *json.Encoder, row, size, name string) error {
	number, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	for _, one := range contestants() {
		if one.row == row && one.name == name {
			return out.Encode(one.run(number))
		}
	}
	return fmt.Errorf("nobody is named %q at row %q", name, row)
}

// check ends the process: a measurement that went wrong is none.
func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers-go:", err)
		os.Exit(1)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}
