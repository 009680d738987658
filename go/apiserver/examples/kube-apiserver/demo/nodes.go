package main

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
)

const nodes = 3

// startNodes makes nodes and does what a scheduler and kubelets do that have nothing to start: each pod gets a node, runs, and goes when
// it is deleted.
func (d *demo) startNodes(ctx context.Context) error {
	ready := corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
	}}}
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: ready}
		if _, err := d.Kubernetes.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return err
		}
		go d.beat(ctx, name)
	}
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, time.Second))
	factory := informers.NewSharedInformerFactory(d.Kubernetes, 0)
	all := factory.Core().V1().Pods().Informer()
	put := func(o any) {
		if m, err := meta.Accessor(o); err == nil {
			queue.Add(m.GetNamespace() + "/" + m.GetName())
		}
	}
	if _, err := all.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: put, UpdateFunc: func(_, o any) { put(o) }}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	context.AfterFunc(ctx, queue.ShutDown)
	for range 6 {
		go func() {
			for {
				key, ended := queue.Get()
				if ended {
					return
				}
				if err := d.tend(ctx, all.GetStore(), key); err != nil {
					queue.AddRateLimited(key)
				} else {
					queue.Forget(key)
				}
				queue.Done(key)
			}
		}()
	}
	say("%d nodes that are none: each pod gets one, runs, and goes when it is deleted", nodes)
	return nil
}

// beat renews a node's lease.
func (d *demo) beat(ctx context.Context, name string) {
	leases := d.Kubernetes.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	for tick := time.Tick(5 * time.Second); ctx.Err() == nil; {
		now := metav1.NowMicro()
		lease, err := leases.Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			lease.Spec.RenewTime = &now
			_, _ = leases.Update(ctx, lease, metav1.UpdateOptions{})
		} else {
			_, _ = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{
				HolderIdentity: &name, LeaseDurationSeconds: ptr.To[int32](40), RenewTime: &now,
			}}, metav1.CreateOptions{})
		}
		select {
		case <-tick:
		case <-ctx.Done():
		}
	}
}

// tend takes a pod one step further.
func (d *demo) tend(ctx context.Context, store cache.Store, key string) error {
	one, there, err := store.GetByKey(key)
	if err != nil || !there {
		return err
	}
	pod := one.(*corev1.Pod)
	all := d.Kubernetes.CoreV1().Pods(pod.Namespace)
	switch {
	case pod.DeletionTimestamp != nil && pod.Spec.NodeName != "":
		err := all.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		return ignoreGone(err)
	case pod.DeletionTimestamp != nil:
		return nil
	case pod.Spec.NodeName == "":
		node := fmt.Sprintf("node-%d", pod.UID[0]%nodes)
		return ignoreGone(all.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{}))
	case pod.Status.Phase == corev1.PodPending:
		pod = pod.DeepCopy()
		pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, ptr.To(metav1.Now())
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
		_, err := all.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return ignoreGone(err)
	}
	return nil
}

// ignoreGone takes a pod that has gone as done. A conflict is tried again: the server answers a binding so also where etcd failed.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
