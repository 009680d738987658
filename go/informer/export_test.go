package informer

import (
	"fmt"
	"regexp"
	"runtime"
)

// IsAsleep says whether the handler's goroutine waits for something to do. It reads the stacks of all goroutines: a channel
// that is sent to or closed makes who waits for it runnable at once, so this never sees one asleep that is about to wake.
func (r *Registration) IsAsleep() bool {
	stacks := make([]byte, 1<<16)
	for n := len(stacks); n == len(stacks); n = runtime.Stack(stacks, true) {
		stacks = make([]byte, 2*len(stacks))
	}
	asleep := fmt.Sprintf(`(?m)^goroutine %d \[select[^\]]*\]:\n.*runner\[\.\.\.\]\)\.sleep\(`, r.goroutine.Load())
	return regexp.MustCompile(asleep).Match(stacks)
}
