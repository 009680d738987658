package main

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// Against a real etcd, where the tests have one: each line once, in its application's order.
func TestControllerExampleAgainstEtcd(t *testing.T) {
	endpoint := os.Getenv("WATCHCORE_TEST_ENDPOINT")
	if endpoint == "" {
		t.Skip("no etcd: run it by scripts/with-etcd.sh")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	if err := run(ctx, endpoint, &out); err != nil {
		t.Fatal(err, out.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	slices.Sort(lines)
	if got, want := strings.Join(lines, ", "), "db: 0 wanted, 1 there, db: 1 wanted, 0 there, the end: web-0, web: 1 wanted, 3 there, web: 3 wanted, 0 there"; got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
}
