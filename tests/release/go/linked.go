package main

import (
	"fmt"

	watchcore "github.com/watchcore/watchcore/go"
)

func init() { fmt.Println(watchcore.Linked, "is", watchcore.Version()) }
