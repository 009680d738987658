package kubernetes_test

import (
	"testing"

	"github.com/watchcore/watchcore/go/internal/bounded"
)

// What a test has closed, stopped or shut down leaves no goroutine behind.
func TestMain(m *testing.M) { bounded.Main(m) }
