// The Go consumer of the live demonstration follows a prefix of etcd, keeps the state, and hashes
// every event.
//
//	consumer ENDPOINT PREFIX LAST_KEY [NUMBER]
//
// It ends at LAST_KEY. It skips the event with the number NUMBER: a fault that the demonstration
// must detect. watchcore-cli/src/demo/consumer.rs describes its output.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"

	watchcore "github.com/watchcore/watchcore/go"
)

// fnv is FNV-1a with 64 bits: watchcore-cli/src/demo/hash.rs defines its input.
type fnv uint64

const basis fnv = 0xcbf29ce484222325

func (h fnv) bytes(bytes []byte) fnv {
	for _, b := range bytes {
		h = (h ^ fnv(b)) * 0x100000001b3
	}
	return h
}

func (h fnv) number(number uint64, length int) fnv {
	var bytes [8]byte
	binary.LittleEndian.PutUint64(bytes[:], number)
	return h.bytes(bytes[:length])
}

// field hashes the length first; an absent field has the largest length.
func (h fnv) field(bytes []byte) fnv {
	if bytes == nil {
		return h.number(0xffffffff, 4)
	}
	return h.number(uint64(len(bytes)), 4).bytes(bytes)
}

func (h fnv) event(revision uint64, kind watchcore.EventType, key string, value []byte) fnv {
	return h.number(revision, 8).number(uint64(kind), 1).field([]byte(key)).field(value)
}

func object(modRevision uint64, key string, value []byte) fnv {
	return basis.number(modRevision, 8).field([]byte(key)).field(value)
}

type consumer struct {
	out         *bufio.Writer
	last        string
	passedOver  uint64
	state       map[string]fnv
	hash        fnv
	start       uint64
	number      uint64
	events      uint64
	resyncs     uint64
	ready, done bool
}

func (c *consumer) take(e watchcore.Event) {
	switch {
	case e.Type == watchcore.EventResync:
		if r := e.Resync(); r.Phase == watchcore.ResyncBegin {
			c.resyncs++
		}
		return
	case e.EndsInitialState():
		c.start, c.ready = e.Revision, true
		fmt.Fprintf(c.out, "{\"ready\":%d}\n", c.start)
		return
	case e.Type == watchcore.EventBookmark:
		return
	}
	key, value := e.Key(), e.Value()
	if c.ready {
		c.number++
		if c.number == c.passedOver {
			return
		}
		c.events++
		c.hash = c.hash.event(e.Revision, e.Type, key, value)
		fmt.Fprintf(c.out, "%d %016x\n", e.Revision, uint64(basis.event(e.Revision, e.Type, key, value)))
	}
	if e.Type == watchcore.EventDeleted {
		delete(c.state, key)
	} else {
		c.state[key] = object(e.ModRevision(), key, value)
	}
	c.done = c.done || key == c.last
}

func (c *consumer) run(ctx context.Context, endpoint, prefix string) error {
	cache, err := watchcore.Open(ctx, watchcore.EtcdConfig{Endpoints: []string{endpoint}}, watchcore.Config{Prefix: prefix})
	if err != nil {
		return err
	}
	defer cache.Close()
	sub, err := cache.Subscribe(ctx, watchcore.SubscribeOptions{})
	if err != nil {
		return err
	}
	defer sub.Close()
	for batch, err := range sub.Batches(ctx) {
		if err != nil {
			return err
		}
		for e := range batch.Events() {
			if c.take(e); c.done {
				return nil
			}
		}
		if err := c.out.Flush(); err != nil {
			return err
		}
	}
	return fmt.Errorf("the subscription ended before %s", c.last)
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: consumer ENDPOINT PREFIX LAST_KEY [NUMBER]")
		os.Exit(2)
	}
	c := consumer{out: bufio.NewWriter(os.Stdout), last: os.Args[3], state: map[string]fnv{}, hash: basis}
	if len(os.Args) > 4 {
		c.passedOver, _ = strconv.ParseUint(os.Args[4], 10, 64)
	}
	if err := c.run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "consumer.go:", err)
		os.Exit(1)
	}
	var sum fnv
	for _, hash := range c.state {
		sum += hash
	}
	fmt.Fprintf(c.out, "{\"start\":%d,\"events\":%d,\"hash\":\"%016x\",\"state\":\"%016x\",\"objects\":%d,\"resyncs\":%d}\n",
		c.start, c.events, uint64(c.hash), uint64(sum), len(c.state), c.resyncs)
	if err := c.out.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, "consumer.go:", err)
		os.Exit(1)
	}
}
