package main

import (
	"bytes"
	"fmt"
	"math/bits"
	"strings"
)

// What every row works on: see benches/peers/src/load.rs.
const (
	prefix        = "/registry/pods/"
	namespaceSize = 1000
	// fillsALog is more events than watchcore's log holds by default.
	fillsALog = 100_000
)

var value = bytes.Repeat([]byte{'v'}, 512)

// key is the key of an object: 37 bytes.
func key(number int) string {
	return fmt.Sprintf("%sp-%05d", namespace(number/namespaceSize), number%namespaceSize)
}

// newKey is a key that no object has, between those of the objects.
func newKey(number int) string {
	return fmt.Sprintf("%sp-%05d", namespace(number/namespaceSize), namespaceSize+number%namespaceSize)
}

// namespace is the prefix of a namespace.
func namespace(number int) string {
	return fmt.Sprintf("%snamespace-%04d/", prefix, number)
}

// namespaceOf is the prefix of a key up to its last slash.
func namespaceOf(key string) string {
	return key[:strings.LastIndexByte(key, '/')+1]
}

func keys(count int) []string {
	all := make([]string, count)
	for number := range all {
		all[number] = key(number)
	}
	return all
}

// scattered gives the numbers below count, each once before any is repeated,
// in no order that a processor could know.
type scattered struct{ count, at int }

func (s *scattered) next() int {
	width := max(2, bits.Len(uint(s.count-1)))
	for {
		mixed := mix(s.at, width)
		s.at++
		if mixed < s.count {
			return mixed
		}
	}
}

// mix gives for each number of so many bits another one of as many.
func mix(number, width int) int {
	mask := 1<<width - 1
	for _, factor := range [...]int{0x9e3779b1, 0x85ebca6b, 0xc2b2ae35} {
		number = number * factor & mask
		number ^= number >> (width / 2)
	}
	return number
}

// version is what peers keep of a version of an object, and send.
type version struct {
	key      string
	value    []byte
	revision uint64
}

// copied makes a version of its own: key and value in one allocation each.
func copied(revision uint64, key string, value []byte) *version {
	return &version{key: strings.Clone(key), value: bytes.Clone(value), revision: revision}
}

// touched is what a consumer does with an object whose content it reads.
func touched(value []byte) uint64 {
	if len(value) == 0 {
		return 0
	}
	return uint64(value[0])
}
