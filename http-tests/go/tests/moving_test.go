package tests

import (
	"testing"
	"time"

	"watchcore.test/http/internal/fleet"
	"watchcore.test/http/internal/suite"
)

// Three servers over one etcd, behind one address. Each is held behind etcd once while the two others are killed, so that all
// clients come to it with revisions that it does not have.
func TestServersInTurn(t *testing.T) {
	ctx := suite.Bounded(t)
	f, err := fleet.Start(ctx, programs, "", t.TempDir(), 300, t.Logf)
	t.Cleanup(f.Close)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Clients(ctx); err != nil {
		t.Fatal(err)
	}
	f.Begin(ctx, 20*time.Millisecond)
	for round := range fleet.Servers {
		if err := f.Round(ctx, round); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.End(ctx); err != nil {
		t.Error(err)
	}
	t.Log(f)
}
