package main

import (
	"context"
	"os"
)

func Example() {
	if err := run(context.Background(), os.Stdout); err != nil {
		panic(err)
	}
	// Output:
	// waits: saw 1000 jobs, lost 0
	// drops: saw 8 jobs, lost 992, at first: ADDED@1: job 0 ADDED@2: job 1 …
	// late: saw 500 jobs, from ADDED@501: job 500
}
