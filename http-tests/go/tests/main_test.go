// Package tests runs real clients against watchcore serve.
// The rows that it proves stand in docs/HTTP.md, section HX. scripts/http-tests.sh runs it.
package tests

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"watchcore.test/http/internal/clients"
	"watchcore.test/http/internal/suite"
	"watchcore.test/http/internal/world"
)

var programs world.Programs

func TestMain(m *testing.M) {
	flag.Parse()
	clients.Quiet()
	var err error
	if programs, err = world.ProgramsFromEnvironment(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func newWorld(ctx context.Context, t *testing.T, objects int) *world.World {
	t.Helper()
	return suite.NewWorld(ctx, t, programs, objects)
}
