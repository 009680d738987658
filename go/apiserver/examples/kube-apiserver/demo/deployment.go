package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// deployment scales a deployment up, down and up again, and deletes it.
func (d *demo) deployment(ctx context.Context, name string, steps ...int) error {
	began := time.Now()
	var took []string
	for number, replicas := range steps {
		began := time.Now()
		command := []string{"scale", "deployment", name, fmt.Sprintf("--replicas=%d", replicas)}
		if number == 0 {
			command = []string{"create", "deployment", name, "--image=" + name, fmt.Sprintf("--replicas=%d", replicas)}
		}
		if _, err := d.Kubectl(ctx, "", append(command, "--namespace="+appsNamespace)...); err != nil {
			return err
		}
		if err := until(ctx, fmt.Sprintf("%s has %d pods", name, replicas), func(ctx context.Context) error { return d.has(ctx, name, replicas) }); err != nil {
			return err
		}
		took = append(took, fmt.Sprintf("%d pods in %.1fs", replicas, time.Since(began).Seconds()))
	}
	if _, err := d.Kubectl(ctx, "", "delete", "deployment", name, "--namespace="+appsNamespace); err != nil {
		return err
	}
	if err := until(ctx, "nothing is left of "+name, func(ctx context.Context) error {
		response, err := d.keysWith(ctx, "/"+appsNamespace+"/"+name)
		if err == nil && len(response) > 0 {
			err = fmt.Errorf("etcd has %d keys, such as %s", len(response), response[0])
		}
		return err
	}); err != nil {
		return err
	}
	say("deployment: %s, deleted; nothing is left in etcd after %.1fs", strings.Join(took, ", "), time.Since(began).Seconds())
	return nil
}

// has is an error unless a deployment has so many pods, all of them running.
func (d *demo) has(ctx context.Context, name string, replicas int) error {
	got, err := d.Kubernetes.AppsV1().Deployments(appsNamespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	all, err := d.Kubernetes.CoreV1().Pods(appsNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		return err
	}
	if s := got.Status; len(all.Items) != replicas || s.ObservedGeneration != got.Generation || int(s.AvailableReplicas) != replicas {
		return fmt.Errorf("%d pods are there, and the status is %+v", len(all.Items), s)
	}
	return nil
}

// keysWith are etcd's keys that contain a text, but for those of events.
func (d *demo) keysWith(ctx context.Context, text string) ([]string, error) {
	keys, err := d.keysOf(ctx, appsNamespace)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, key := range keys {
		if strings.Contains(key, text) {
			found = append(found, key)
		}
	}
	return found, nil
}

// deploymentAgain shows that the controllers go on behind all that was killed.
func (d *demo) deploymentAgain(ctx context.Context) error {
	return d.deployment(ctx, "again", d.pods/5, d.pods/50)
}
