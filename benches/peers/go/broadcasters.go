package main

// The row of the Broadcaster: apimachinery's, and the one of go/watch. Both are given
// objects that are made already, as a program gives them.

var broadcasters = []fanout{
	{"watchcore", "go/watch, by NextBatch", false, window, unlimited, openWatch},
	{"apimachinery", "", false, window, unlimited, openBroadcaster},
}

func broadcasts() (all []contestant) {
	for _, f := range broadcasters {
		body := func(size int) measured { return deliver(f, size) }
		all = append(all, contestant{"broadcast", f.name, f.note, []int{1, 10, 100, 1000}, body})
	}
	return all
}
