package workqueue_test

import (
	"testing"

	"watchcore/internal/bounded"
)

// What a test has closed, stopped or shut down leaves no goroutine behind.
func TestMain(m *testing.M) { bounded.Main(m) }
