package informer_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"watchcore/informer"
	"watchcore/internal/bounded"
	"watchcore/internal/contract"
	"watchcore/internal/handclock"
)

// reflecting is an informer that a row drives.
type reflecting struct{ in *informer.Informer[string] }

func (r reflecting) Poll() bool    { return false }
func (r reflecting) At() uint64    { return r.in.Lister().Position().Revision }
func (r reflecting) Given() string { return "a reflector gives nothing" }

func (r reflecting) Objects() string {
	var all []string
	for o := range r.in.Lister().All() {
		all = append(all, fmt.Sprint(o.Value, "@", o.Revision))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// The rows of contract/toolkit that are about a reflector.
func TestContractRowsOfTheReflector(t *testing.T) {
	contract.Rows(t, "reflector", func(t *testing.T, _ []string, source *contract.Source, clock *handclock.Clock) contract.Machine {
		in, err := informer.NewFromSource[string](contract.Lister{Source: source}, contract.Key, options{
			Clock: clock, OnError: func(error) {}})
		check(t, err)
		t.Cleanup(func() { check(t, in.StopAndWait(bounded.Context(t))) })
		return reflecting{in}
	})
}

// Whatever the server did, the informer has its state in the end.
func TestRF28ReflectorSurvivesHostileServers(t *testing.T) {
	for seed := range uint64(1000) {
		server, clock := contract.NewHostile(seed, seed%2 == 0), newClock()
		in, err := informer.NewFromSource[string](contract.Besieged{Hostile: server}, contract.Key, options{Clock: clock, OnError: func(error) {}})
		check(t, err)
		server.Drive(t, clock, runtime.Gosched, func() bool {
			truth, revision := server.Truth()
			return in.HasSynced() && objects(in) == strings.Join(truth, " ") && in.Lister().Position().Revision == revision
		})
		check(t, in.StopAndWait(bounded.Context(t)))
	}
}
