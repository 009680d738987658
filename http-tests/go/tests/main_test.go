// Package tests runs real clients against watchcore serve, and asks watchcore serve and Kubernetes' API server the same.
// The rows that it proves stand in docs/HTTP.md, section HX. scripts/http-tests.sh runs it.
package tests

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"watchcore.test/http/internal/clients"
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

// bounded is a context that ends with the test, and after the longest that a test may take.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// newWorld starts an etcd with objects, and watchcore serve over it.
func newWorld(ctx context.Context, t *testing.T, objects int) *world.World {
	t.Helper()
	w, err := world.New(ctx, programs, t.TempDir(), objects, t.Logf)
	t.Cleanup(w.Close)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// newKubernetes is Kubernetes' own server over an etcd, with the resources declared.
func newKubernetes(ctx context.Context, t *testing.T, etcd string) *world.Kubernetes {
	t.Helper()
	kubernetes, err := world.StartKubernetes(ctx, programs.APIServer, etcd, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kubernetes.Close)
	if err := kubernetes.Declare(ctx); err != nil {
		t.Fatal(err)
	}
	return kubernetes
}
