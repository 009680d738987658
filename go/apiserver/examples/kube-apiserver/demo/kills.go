package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// steady makes pods that stay while a server is killed.
const steady = 20

// killEtcd kills etcd while everything watches and writes, and starts it again.
func (d *demo) killEtcd(ctx context.Context) error {
	if _, err := d.Kubectl(ctx, "", "create", "deployment", "steady", "--image=steady", fmt.Sprintf("--replicas=%d", steady), "--namespace="+appsNamespace); err != nil {
		return err
	}
	if err := until(ctx, "every kubectl get -w has printed something", func(context.Context) error {
		if n := d.printed(); n < len(d.kubectls) {
			return fmt.Errorf("%d of %d have", n, len(d.kubectls))
		}
		return nil
	}); err != nil {
		return err
	}
	ended, printed := d.ends("ended"), d.printed()
	d.KillEtcd()
	if err := d.sleep(ctx, 3*time.Second); err != nil {
		return err
	}
	if err := d.StartEtcd(ctx); err != nil {
		return err
	}
	began := time.Now()
	if err := until(ctx, "writes are possible again", func(ctx context.Context) error { return d.has(ctx, "steady", steady) }); err != nil {
		return err
	}
	say("etcd was killed and started again: the controllers went on within %.1fs", time.Since(began).Seconds())
	if ended, printed := d.ends("ended")-ended, d.printed()-printed; ended > 0 || printed > 0 {
		return fmt.Errorf("%d watches and %d kubectl get -w ended with etcd", ended, printed)
	}
	say("kubectl get -w: each of %d went on through that, as did all watches", len(d.kubectls))
	return nil
}

// printed is how often kubectl get -w began.
func (d *demo) printed() int {
	n := 0
	for _, k := range d.kubectls {
		n += len(k.Sessions())
	}
	return n
}

// ends is how often watches ended so.
func (d *demo) ends(how string) int {
	n := 0
	for _, w := range d.watchers {
		n += w.Ends()[how]
	}
	return n
}

// killServer kills the API server while everything watches and writes, and starts it again.
func (d *demo) killServer(ctx context.Context) error {
	expired := d.ends("410")
	ready, all, err := d.restart(ctx)
	if err != nil {
		return err
	}
	if err := until(ctx, "every watch resumes", func(context.Context) error {
		for _, w := range d.watchers {
			if !w.Resource.Custom && !w.Watches() {
				return errors.New(w.Name)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	say("the API server was killed and started again: it was ready after %.1fs, the controllers went on after %.1fs", ready.Seconds(), all.Seconds())
	say("kubectl get -w: each ended with its connection, and lists and watches again")
	say("the other %d watchers resume behind the last revision that they received, %d of them with a list after 410", len(d.watchers), d.ends("410")-expired)
	return nil
}

// restart kills the API server and starts it with other flags. It returns when the server was ready and the controllers went on.
func (d *demo) restart(ctx context.Context, flags ...string) (ready, all time.Duration, err error) {
	if err := d.addChecks(ctx); err != nil {
		return 0, 0, err
	}
	before := d.printed()
	d.KillServer()
	if err := d.sleep(ctx, 2*time.Second); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := d.startServer(ctx, flags...); err != nil {
		return 0, 0, err
	}
	ready = time.Since(began)
	replicas := steady + d.Starts
	if err := until(ctx, "the controllers go on", func(ctx context.Context) error { return d.scaled(ctx, "steady", replicas) }); err != nil {
		return 0, 0, err
	}
	all = time.Since(began)
	return ready, all, until(ctx, "kubectl get -w is there again", func(context.Context) error {
		if again := d.printed() - before; again != len(d.kubectls) {
			return fmt.Errorf("%d of %d are", again, len(d.kubectls))
		}
		return nil
	})
}

// scaled is an error unless a deployment has so many pods, which it is scaled to.
func (d *demo) scaled(ctx context.Context, name string, replicas int) error {
	if scale, err := d.Kubernetes.AppsV1().Deployments(appsNamespace).GetScale(ctx, name, metav1.GetOptions{}); err != nil {
		return err
	} else if scale.Spec.Replicas != int32(replicas) {
		scale.Spec.Replicas = int32(replicas)
		if _, err := d.Kubernetes.AppsV1().Deployments(appsNamespace).UpdateScale(ctx, name, scale, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return d.has(ctx, name, replicas)
}

func (d *demo) sleep(ctx context.Context, duration time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(duration):
		return nil
	}
}

// addChecks adds up how often Kubernetes' consistency checker compared a cache with etcd, by the result, before a server ends.
func (d *demo) addChecks(ctx context.Context) error {
	counts, err := d.Metric(ctx, "apiserver_storage_consistency_checks_total", "status")
	if err != nil {
		return err
	}
	if d.checks == nil {
		d.checks = map[string]float64{}
	}
	for _, status := range slices.Sorted(maps.Keys(counts)) {
		d.checks[status] += counts[status]
	}
	return nil
}
