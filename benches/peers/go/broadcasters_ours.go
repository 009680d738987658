package main

import (
	"context"
	"runtime"

	"github.com/watchcore/watchcore/go/watch"
)

// ourBroadcaster publishes by the Broadcaster of go/watch.
type ourBroadcaster struct {
	*watch.Broadcaster[*object]
	revision uint64
}

func (b *ourBroadcaster) publish(key string, value []byte) {
	b.revision++
	check(b.Action(watch.Modified, newObject(b.revision, key, value)))
}

func openWatch(interests []interest) (publisher, []receiver) {
	b := &ourBroadcaster{watch.NewLongQueueBroadcaster[*object](room, watch.WaitIfChannelFull), 0}
	receivers := make([]receiver, len(interests))
	for at := range interests {
		w := must(b.Watch())
		receivers[at] = func(took func(int)) {
			for into := make([]watch.Event[*object], 32); ; {
				count, err := w.NextBatch(context.Background(), into)
				check(err)
				for _, event := range into[:count] {
					runtime.KeepAlive(len(event.Object.ResourceVersion))
				}
				took(count)
			}
		}
	}
	return b, receivers
}
