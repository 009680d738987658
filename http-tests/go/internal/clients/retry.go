package clients

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	watchtools "k8s.io/client-go/tools/watch"

	"watchcore.test/http/internal/history"
)

// RetryWatcher starts client-go's watcher that resumes by itself. The watcher follows a list, and where it can no longer
// resume, another one.
func RetryWatcher(ctx context.Context, url, plural string) (*Client, error) {
	client, err := dynamic.NewForConfig(Config(url))
	if err != nil {
		return nil, err
	}
	log := newLog("RetryWatcher", plural, "", Lists)
	c, ctx := start(ctx, log)
	c.run(func() error {
		for {
			if err := retryWatch(ctx, client.Resource(Resource(plural)), log, plural); err != nil {
				return err
			}
			if !pause(ctx) {
				return nil
			}
		}
	})
	return c, nil
}

// retryWatch lists and watches once: nil when another list is needed.
func retryWatch(ctx context.Context, resource dynamic.ResourceInterface, log *history.Log, plural string) error {
	list, err := resource.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil // the server is away
	}
	items := map[string]int64{}
	for i := range list.Items {
		if key, revision, ok := place(plural, &list.Items[i]); ok {
			items[key] = revision
		}
	}
	log.List(metadataOf{ResourceVersion: list.GetResourceVersion()}.revision(), items)

	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), watchOf{resource})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		switch event.Type {
		case watch.Added, watch.Modified, watch.Deleted:
			key, revision, _ := place(plural, event.Object)
			log.Event(string(event.Type), key, revision)
		case watch.Bookmark:
			object, ok := event.Object.(*unstructured.Unstructured)
			if !ok {
				return fmt.Errorf("a bookmark with a %T", event.Object)
			}
			log.Bookmark(metadataOf{ResourceVersion: object.GetResourceVersion()}.revision())
		case watch.Error:
			// The watcher gives up: the revision to resume from is gone.
			return nil
		}
	}
	return nil
}

type watchOf struct{ dynamic.ResourceInterface }

func (w watchOf) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return w.Watch(ctx, options)
}
