package watchcore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"watchcore"
)

// said is what a log function was given.
type said struct {
	sync.Mutex
	lines []string
}

func (s *said) log(level watchcore.LogLevel, message string) {
	s.Lock()
	defer s.Unlock()
	s.lines = append(s.lines, level.String()+": "+message)
}

func (s *said) count(part string) (count int) {
	s.Lock()
	defer s.Unlock()
	for _, line := range s.lines {
		if strings.Contains(line, part) {
			count++
		}
	}
	return count
}

func TestSetLog(t *testing.T) {
	defer func() { check(t, watchcore.SetLog(watchcore.LogOff, nil)) }()
	endpoint := fmt.Sprintf("http://127.0.0.1:%d", reservePort(t))
	first, second := &said{}, &said{}
	check(t, watchcore.SetLog(watchcore.LogDebug, first.log))
	cache, err := watchcore.Open(context.Background(), watchcore.Etcd(endpoint), watchcore.WithoutWaiting())
	check(t, err)
	defer cache.Close()
	eventually(t, "the failure is told", func() bool { return first.count("Warn: ") > 0 && first.count(endpoint) > 0 })

	// Whoever comes next is told the rest, and the first one nothing any more.
	check(t, watchcore.SetLog(watchcore.LogDebug, second.log))
	before := first.count("")
	counters, err := cache.Counters()
	check(t, err)
	eventually(t, "the next failure is told", func() bool { return second.count(endpoint) > 0 })
	eventually(t, "it failed again", func() bool {
		now, err := cache.Counters()
		check(t, err)
		return now.Failures > counters.Failures
	})
	want(t, "what the first one is told behind it", first.count(""), before)

	wantError(t, "a level", watchcore.SetLog(99, second.log), watchcore.ErrInvalidArgument)
	check(t, watchcore.SetLog(watchcore.LogError, second.log))
	check(t, watchcore.SetLog(watchcore.LogOff, second.log))
	check(t, watchcore.SetLog(watchcore.LogDebug, nil))
	for level, name := range map[watchcore.LogLevel]string{watchcore.LogOff: "Off", watchcore.LogTrace: "Trace", 6: "LogLevel(6)"} {
		want(t, "name", level.String(), name)
	}
}

// A function that does not come to its end holds nobody up, and is told what it missed.
func TestSlowLogFunction(t *testing.T) {
	defer func() { check(t, watchcore.SetLog(watchcore.LogOff, nil)) }()
	s := &said{}
	var once sync.Once
	inside, goOn := make(chan struct{}), make(chan struct{})
	check(t, watchcore.SetLog(watchcore.LogTrace, func(level watchcore.LogLevel, message string) {
		once.Do(func() { close(inside) })
		<-goOn
		s.log(level, message)
	}))
	endpoint := watchcore.Etcd(fmt.Sprintf("http://127.0.0.1:%d", reservePort(t)))
	// Each feeder says at least that it failed: more than the socket holds.
	for range 500 {
		cache, err := watchcore.Open(context.Background(), endpoint, watchcore.WithoutWaiting())
		check(t, err)
		eventually(t, "it failed", func() bool {
			counters, err := cache.Counters()
			check(t, err)
			return counters.Failures > 0
		})
		cache.Close()
	}
	<-inside
	close(goOn)
	eventually(t, "it is told", func() bool { return s.count("are lost") > 0 })
	check(t, watchcore.SetLog(watchcore.LogOff, nil))
	t.Logf("%d messages came", s.count(""))
}
