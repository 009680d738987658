// Package comparison asks watchcore serve and Kubernetes' API server the same. The rows that it proves stand in docs/HTTP.md, sections
// HP and HX. scripts/http-tests.sh --comparison runs it.
package comparison

import (
	"context"
	"fmt"
	"os"
	"testing"

	"watchcore.test/http/internal/suite"
	"watchcore.test/http/internal/world"
)

var (
	programs  world.Programs
	apiserver string
)

func TestMain(m *testing.M) {
	var err error
	if programs, err = world.ProgramsFromEnvironment(); err == nil {
		apiserver, err = world.ProgramFromEnvironment("HTTP_TESTS_APISERVER")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func newWorld(ctx context.Context, t *testing.T) *world.World {
	t.Helper()
	return suite.NewWorld(ctx, t, programs, 40)
}

// newKubernetes is Kubernetes' own server over an etcd, with the resources declared.
func newKubernetes(ctx context.Context, t *testing.T, etcd string) *world.Kubernetes {
	t.Helper()
	kubernetes, err := world.StartKubernetes(ctx, apiserver, etcd, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kubernetes.Close)
	if err := kubernetes.Declare(ctx); err != nil {
		t.Fatal(err)
	}
	return kubernetes
}
