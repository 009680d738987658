package follow

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/check"
)

// Etcd follows etcd itself, past the API server: every change below Prefix from the first revision on.
type Etcd struct {
	mutex   sync.Mutex
	changes []raw
	reached int64
	failed  error
	more    chan struct{} // closed and replaced with each response
}

type raw struct {
	key      string
	value    []byte
	revision int64
	deleted  bool
}

// FollowEtcd begins; it ends with the context.
func FollowEtcd(ctx context.Context, client *clientv3.Client) *Etcd {
	e := &Etcd{more: make(chan struct{})}
	responses := client.Watch(clientv3.WithRequireLeader(ctx), Prefix, clientv3.WithPrefix(), clientv3.WithRev(1), clientv3.WithProgressNotify())
	go func() {
		for response := range responses {
			e.add(response)
		}
		if ctx.Err() == nil {
			e.fail(fmt.Errorf("the watch of etcd ended"))
		}
	}()
	go func() { // a revision of another key is known by progress alone
		for ctx.Err() == nil {
			_ = client.RequestProgress(clientv3.WithRequireLeader(ctx))
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	return e
}

func (e *Etcd) add(response clientv3.WatchResponse) {
	if err := response.Err(); err != nil {
		e.fail(err)
		return
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	for _, event := range response.Events {
		kv := event.Kv
		e.changes = append(e.changes, raw{string(kv.Key), kv.Value, kv.ModRevision, event.Type == clientv3.EventTypeDelete})
		e.reached = kv.ModRevision
	}
	if len(response.Events) == 0 {
		e.reached = max(e.reached, response.Header.Revision)
	}
	close(e.more)
	e.more = make(chan struct{})
}

func (e *Etcd) fail(err error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.failed = err
	close(e.more)
	e.more = make(chan struct{})
}

// Wait waits until everything up to a revision is there.
func (e *Etcd) Wait(ctx context.Context, revision int64) error {
	for {
		e.mutex.Lock()
		reached, failed, more := e.reached, e.failed, e.more
		e.mutex.Unlock()
		if failed != nil || reached >= revision {
			return failed
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("etcd's watch is at %d, not at %d: %w", reached, revision, ctx.Err())
		}
	}
}

// Len is how many changes there are.
func (e *Etcd) Len() int {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return len(e.changes)
}

// Histories decodes what there is, of each resource.
func (e *Etcd) Histories(resources []Resource) ([]*check.History, error) {
	e.mutex.Lock()
	changes := e.changes
	e.mutex.Unlock()
	histories := make([]*check.History, len(resources))
	for i := range resources {
		histories[i] = &check.History{}
	}
	for _, c := range changes {
		for i, r := range resources {
			key, ok := r.key(c.key)
			if !ok {
				continue
			}
			if c.deleted {
				histories[i].Delete(key, c.revision)
				continue
			}
			decoded, err := r.stored(c.value)
			if err != nil {
				return nil, fmt.Errorf("%s at %d: %w", c.key, c.revision, err)
			}
			o, err := object(decoded)
			if err != nil {
				return nil, fmt.Errorf("%s at %d: %w", c.key, c.revision, err)
			}
			if o.Key != key {
				return nil, fmt.Errorf("%s at %d is named %s", c.key, c.revision, o.Key)
			}
			o.Revision = c.revision
			histories[i].Put(o)
		}
	}
	return histories, nil
}
