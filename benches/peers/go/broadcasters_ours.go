package main

import (
	"context"
	"runtime"

	"watchcore/watch"
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

func openWatch(interests []interest, receive func(*watch.Watcher[*object]) receiver) (publisher, []receiver) {
	b := &ourBroadcaster{watch.NewLongQueueBroadcaster[*object](room, watch.WaitIfChannelFull), 0}
	receivers := make([]receiver, len(interests))
	for at := range interests {
		receivers[at] = receive(must(b.Watch()))
	}
	return b, receivers
}

// openWatchBatches has watchers without a goroutine and a channel of their own.
func openWatchBatches(interests []interest) (publisher, []receiver) {
	return openWatch(interests, func(w *watch.Watcher[*object]) receiver {
		return func(took func(int)) {
			for into := make([]watch.Event[*object], 32); ; {
				count, err := w.NextBatch(context.Background(), into)
				check(err)
				for _, event := range into[:count] {
					readOurs(event)
				}
				took(count)
			}
		}
	})
}

// openWatchNext has such watchers, too. They say that they took something at the end of a
// window: they cannot see how much is there.
func openWatchNext(interests []interest) (publisher, []receiver) {
	return openWatch(interests, func(w *watch.Watcher[*object]) receiver {
		return func(took func(int)) {
			for count := 0; ; {
				event, err := w.Next(context.Background())
				check(err)
				readOurs(event)
				if count++; count == window {
					took(count)
					count = 0
				}
			}
		}
	})
}

func openWatchChannel(interests []interest) (publisher, []receiver) {
	return openWatch(interests, func(w *watch.Watcher[*object]) receiver {
		events := w.ResultChan()
		return func(took func(int)) {
			for first := range events {
				took(drained(events, first, readOurs))
			}
		}
	})
}

func readOurs(event watch.Event[*object]) { runtime.KeepAlive(len(event.Object.ResourceVersion)) }
