package main

import (
	"context"
	"fmt"
	"os"
)

func Example() {
	if err := tour(context.Background(), os.Stdout); err != nil {
		fmt.Println(err)
	}
	// Output:
	// web has 3 instances, db has 1
	// web is at 10.0.0.1:80 10.0.0.2:80 10.0.0.3:80
	// web lost 10.0.0.2:80
	// web at 10.0.0.3:80 is not healthy any more
	// web is at 10.0.0.1:80
	// cache: no instance
}
