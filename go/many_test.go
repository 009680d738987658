package watchcore_test

import (
	"context"
	"fmt"
	"log"
	"strings"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

func TestGetMany(t *testing.T) {
	cache, writer := hundred(t)
	ctx := bounded.Context(t)
	var keys, expected []string
	for i := range 3000 { // more than the library reads without giving way to its reclaimer
		key := fmt.Sprintf("/%04d", i%211)
		kv, _, err := cache.Get(ctx, key, watchcore.ReadOptions{})
		check(t, err)
		value := "-"
		if kv != nil {
			value = bytesText(kv.Value)
		}
		keys, expected = append(keys, key), append(expected, value)
	}
	values := func(page *watchcore.Page) string {
		var all []string
		for kv := range page.All() {
			value := "-"
			if kv.Found() {
				value = bytesText(kv.Value())
			}
			all = append(all, value)
		}
		return strings.Join(all, " ")
	}
	want(t, "absent and present", strings.Contains(strings.Join(expected, " "), "-"), true)
	page, err := cache.GetMany(ctx, keys, watchcore.ReadOptions{})
	check(t, err)
	snapshot, err := cache.Snapshot()
	check(t, err)
	then, err := snapshot.GetMany(keys)
	check(t, err)
	want(t, "pages held", cache.Stats().UnreleasedPages, 2)
	want(t, "positions", page.Position() == then.Position(), true)

	// The key-values outlive the snapshot, the writer and the cache.
	check(t, snapshot.Close())
	_, err = snapshot.GetMany(keys)
	wantError(t, "a closed snapshot", err, watchcore.ErrClosed)
	check(t, writer.Close())
	check(t, cache.Close())
	_, err = cache.GetMany(ctx, keys, watchcore.ReadOptions{})
	wantError(t, "a closed cache", err, watchcore.ErrClosed)
	want(t, "values", values(page), strings.Join(expected, " "))
	want(t, "values of the snapshot", values(then), strings.Join(expected, " "))

	item := page.At(0)
	page.Release()
	then.Release()
	panics(t, "an item of a released page", func() { item.Value() })
}

func ExampleCache_GetMany() {
	cache, writer := filled()
	defer cache.Close()
	defer writer.Close()
	keys := []string{"/pods/b", "/none", "/pods/a"}
	page, err := cache.GetMany(context.Background(), keys, watchcore.ReadOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer page.Release()
	for i, key := range keys {
		if kv := page.At(i); kv.Found() {
			fmt.Printf("%s = %s\n", key, kv.ValueView())
		} else {
			fmt.Printf("no %s at %d\n", key, page.Revision())
		}
	}
	// Output:
	// /pods/b = 1
	// no /none at 4
	// /pods/a = 2
}
