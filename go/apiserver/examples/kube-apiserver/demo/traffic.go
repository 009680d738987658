package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// startTraffic changes ConfigMaps the whole time, also while a server is away. The channel is closed when it has ended.
func (d *demo) startTraffic(ctx context.Context) (<-chan struct{}, error) {
	if err := d.createNamespace(ctx, trafficNamespace); err != nil {
		return nil, err
	}
	if err := d.createNamespace(ctx, appsNamespace); err != nil {
		return nil, err
	}
	var running sync.WaitGroup
	for range 2 {
		running.Go(func() {
			for tick := time.Tick(15 * time.Millisecond); ctx.Err() == nil; {
				// What fails, because a server is away or another goroutine was first, is done another time.
				within, cancel := context.WithTimeout(ctx, 5*time.Second)
				_ = d.change(within, fmt.Sprintf("c%d", rand.IntN(40)))
				cancel()
				select {
				case <-tick:
				case <-ctx.Done():
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		running.Wait()
		close(ended)
	}()
	return ended, nil
}

// change makes, changes, labels or deletes one ConfigMap.
func (d *demo) change(ctx context.Context, name string) (err error) {
	all := d.Kubernetes.CoreV1().ConfigMaps(trafficNamespace)
	labels := map[string]string{"tier": string("ab"[rand.IntN(2)]), "round": strconv.Itoa(rand.IntN(6))}
	switch rand.IntN(10) {
	case 0:
		err = all.Delete(ctx, name, metav1.DeleteOptions{})
	case 1, 2, 3:
		_, err = all.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	case 4, 5, 6:
		patch := fmt.Sprintf(`{"metadata":{"labels":{"tier":%q,"round":%q}}}`, labels["tier"], labels["round"])
		_, err = all.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	default:
		patch := fmt.Sprintf(`{"data":{"text":%q}}`, strings.Repeat(labels["round"], rand.IntN(1000)))
		_, err = all.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	}
	return err
}

func (d *demo) createNamespace(ctx context.Context, name string) error {
	_, err := d.Kubernetes.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	return err
}
