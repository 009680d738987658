// A stranger's program: a cache that it fills itself, and one that finds no server.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
)

func embedded() error {
	cache, err := watchcore.New(watchcore.Config{Prefix: "/"})
	if err != nil {
		return err
	}
	defer cache.Close()
	writer, err := cache.Writer()
	if err != nil {
		return err
	}
	defer writer.Close()
	if err := writer.Apply(17, watchcore.Put("/a", "1")); err != nil {
		return err
	}
	sub, err := cache.Subscribe(context.Background(), watchcore.SubscribeOptions{})
	if err != nil {
		return err
	}
	defer sub.Close()
	for batch, err := range sub.Batches(context.Background()) {
		if err != nil {
			return err
		}
		for e := range batch.Events() {
			fmt.Println(e.Revision, e.Type, e.Key(), string(e.Value()))
			if e.EndsInitialState() {
				return nil
			}
		}
	}
	return errors.New("the subscription ended")
}

func main() {
	watchcore.SetLogger(slog.New(slog.DiscardHandler))
	if err := embedded(); err != nil {
		log.Fatal(err)
	}
	// Port 1 has no etcd: the feeder's thread, its connections and its errors.
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err := watchcore.Open(ctx, watchcore.EtcdConfig{Endpoints: []string{"http://127.0.0.1:1"}}, watchcore.Config{})
	fmt.Println("no server:", errors.Is(err, context.DeadlineExceeded))
}
