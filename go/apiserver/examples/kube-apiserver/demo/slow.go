package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/check"
	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/follow"
)

const (
	unread       = time.Minute // for how long a slow watcher does not read
	smallWindow  = 5000        // events, of the API server's second start
	slowObjects  = 20
	slowChanges  = 5000
	slowText     = 8 << 10 // bytes of each object
	slowParallel = 6
	// slowFill is how many changes are more than a connection's buffers and the events that the server has ready for it.
	slowFill = 3000
)

// slowNamespace makes the objects that slow watchers watch.
func (d *demo) slowNamespace(ctx context.Context, name string) error {
	if err := d.createNamespace(ctx, name); err != nil {
		return err
	}
	for i := range slowObjects {
		one := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", i)}}
		if _, err := d.Kubernetes.CoreV1().ConfigMaps(name).Create(ctx, one, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) openSlow(ctx context.Context, namespace string, difference bool) (*follow.Slow, error) {
	s, err := follow.OpenSlow(ctx, d.clients, configMaps, "a watcher of "+namespace+" that does not read for long", check.View{Namespace: namespace}, difference)
	if err == nil {
		d.slow = append(d.slow, s)
	}
	return s, err
}

// hurry makes changes as fast as it can, and goes on slowly until so much time has passed. It returns how many.
func (d *demo) hurry(ctx context.Context, namespace string, changes int, least time.Duration) (int, error) {
	end := time.Now().Add(least)
	var running sync.WaitGroup
	counts, errs := make([]int, slowParallel), make([]error, slowParallel)
	for worker := range slowParallel {
		running.Go(func() {
			for n := 0; n < changes/slowParallel || time.Now().Before(end); n++ {
				text := strings.Repeat(strconv.Itoa(n%10), slowText)
				patch := fmt.Sprintf(`{"data":{"text":%q,"number":"%d"}}`, text, n)
				name := fmt.Sprintf("s%d", (n*slowParallel+worker)%slowObjects)
				if _, err := d.Kubernetes.CoreV1().ConfigMaps(namespace).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
					errs[worker] = err
					return
				}
				counts[worker]++
				if n >= changes/slowParallel { // the rest of the time
					time.Sleep(100 * time.Millisecond)
				}
			}
		})
	}
	running.Wait()
	all := 0
	for worker, err := range errs {
		if err != nil {
			return 0, err
		}
		all += counts[worker]
	}
	return all, nil
}

// last is the newest revision of a namespace's ConfigMaps.
func (d *demo) last(ctx context.Context, namespace string) (int64, error) {
	list, err := d.Kubernetes.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	newest := int64(0)
	for _, item := range list.Items {
		revision, err := strconv.ParseInt(item.ResourceVersion, 10, 64)
		if err != nil {
			return 0, err
		}
		newest = max(newest, revision)
	}
	return newest, nil
}

// slowWatchAndDeployment leaves a watch unread for a minute in which thousands of its objects change, and shows a deployment meanwhile.
func (d *demo) slowWatchAndDeployment(ctx context.Context) error {
	const namespace = "slow"
	if err := d.slowNamespace(ctx, namespace); err != nil {
		return err
	}
	s, err := d.openSlow(ctx, namespace, false)
	if err != nil {
		return err
	}
	opened := time.Now()
	var changes int
	hurried := make(chan error, 1)
	go func() {
		var err error
		changes, err = d.hurry(ctx, namespace, slowChanges, unread)
		hurried <- err
	}()
	if err := d.deployment(ctx, "web", d.pods, d.pods/5, d.pods*4/5); err != nil {
		return err
	}
	if err := <-hurried; err != nil {
		return err
	}
	newest, err := d.last(ctx, namespace)
	if err != nil {
		return err
	}
	closed := time.Since(opened)
	began := time.Now()
	if err := s.Read(ctx, newest); err != nil {
		return fmt.Errorf("the slow watcher: %w", err)
	}
	say("a watcher did not read for %.0fs while its objects changed %d times: it was not ended, and has all of it %.1fs after it read again",
		closed.Seconds(), changes, time.Since(began).Seconds())
	return nil
}

// slowWatchBehindWindow leaves watches unread while more happens than the server's small window has. One catches up by a difference. The
// other one has lost a deletion, and gets 410.
func (d *demo) slowWatchBehindWindow(ctx context.Context) error {
	if _, _, err := d.restart(ctx, fmt.Sprintf("--window-events=%d", smallWindow)); err != nil {
		return err
	}
	const kept, deleted = "slow-again", "slow-deleted"
	var open []*follow.Slow
	for _, namespace := range []string{kept, deleted} {
		if err := d.slowNamespace(ctx, namespace); err != nil {
			return err
		}
		s, err := d.openSlow(ctx, namespace, true)
		if err != nil {
			return err
		}
		open = append(open, s)
	}
	if _, err := d.hurry(ctx, deleted, slowFill, 0); err != nil {
		return err
	}
	if err := d.Kubernetes.CoreV1().ConfigMaps(deleted).Delete(ctx, "s0", metav1.DeleteOptions{}); err != nil {
		return err
	}
	changes, err := d.hurry(ctx, kept, 2*smallWindow, 0)
	if err != nil {
		return err
	}
	newest, err := d.last(ctx, kept)
	if err != nil {
		return err
	}
	if err := open[0].Read(ctx, newest); err != nil {
		return fmt.Errorf("the slow watcher: %w", err)
	}
	received := len(open[0].Sessions()[0].Events)
	if received >= changes {
		return fmt.Errorf("the slow watcher received %d events of %d changes: it lost none", received, changes)
	}
	say("with a window of %d events: a watcher did not read while its objects changed %d times: it was not ended, and caught up by %d events", smallWindow, changes, received)
	now, err := d.Revision(ctx)
	if err != nil {
		return err
	}
	if err := open[1].Read(ctx, now); !apierrors.IsResourceExpired(err) {
		return fmt.Errorf("the watcher that lost a deletion got: %v", err)
	}
	d.lost++
	say("another one, of which a deletion was lost meanwhile, gets 410 and lists anew")
	return open[1].List(ctx, d.clients)
}
