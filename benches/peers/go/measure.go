package main

import (
	"bytes"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// measured is one measurement: see Measured in benches/peers/src/measure.rs.
type measured struct {
	Value  float64  `json:"value"`
	Beside *float64 `json:"beside"`
	Count  uint64   `json:"count"`
	P99    *float64 `json:"p99"`
}

// atLeast is how long a section runs at least: the driver says it by PEERS_MILLIS.
func atLeast() time.Duration {
	millis, err := strconv.Atoi(os.Getenv("PEERS_MILLIS"))
	if err != nil {
		millis = 250
	}
	return time.Duration(millis) * time.Millisecond
}

const thread = 1 // RUSAGE_THREAD of Linux

// processorTime is the processor time of the process, or of the calling thread.
func processorTime(of int) time.Duration {
	var usage syscall.Rusage
	check(syscall.Getrusage(of, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// section is what a measured section took so far, less what its own thread spent on
// waiting for others.
type section struct {
	begun   time.Time
	process time.Duration
	waited  time.Duration // processor time of waiting that is not counted
	paused  time.Duration // time on the wall that is not counted
}

// begin starts a section, after a collection: what was made before it is not
// collected at its cost.
func begin() *section {
	runtime.GC()
	return &section{begun: time.Now(), process: processorTime(syscall.RUSAGE_SELF)}
}

// waiting waits, and leaves the processor time of the waiting out.
func (s *section) waiting(wait func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := processorTime(thread)
	wait()
	s.waited += processorTime(thread) - before
}

func (s *section) end(count uint64) measured {
	wall := float64(time.Since(s.begun)-s.paused) / float64(count)
	cpu := processorTime(syscall.RUSAGE_SELF) - s.process - s.waited
	return measured{Value: math.Max(0, float64(cpu)) / float64(count), Beside: &wall, Count: count}
}

// repeat repeats chunk, which says how many operations it did, until atLeast has
// passed or it did none.
func repeat(chunk func(*section) uint64) measured {
	s := begin()
	until := s.begun.Add(atLeast())
	for count := uint64(0); ; {
		done := chunk(s)
		count += done
		if done == 0 || time.Now().After(until) {
			return s.end(count)
		}
	}
}

// distribution is the median of samples, and their 99th percentile.
func distribution(samples []float64) measured {
	slices.Sort(samples)
	at := func(part float64) float64 { return samples[int(math.Round(float64(len(samples)-1)*part))] }
	late := at(0.99)
	return measured{Value: at(0.5), Count: uint64(len(samples)), P99: &late}
}

// resident is the resident memory after a collection, of Go and of C.
func resident() float64 {
	debug.FreeOSMemory()
	pages := bytes.Fields(must(os.ReadFile("/proc/self/statm")))[1]
	return float64(must(strconv.Atoi(string(pages))) * os.Getpagesize())
}
