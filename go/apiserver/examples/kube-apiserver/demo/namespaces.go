package main

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/cluster"
	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/follow"
)

// namespaces makes a namespace, uses it and deletes it, twice by the same name.
func (d *demo) namespaces(ctx context.Context) error {
	const name = "team"
	for range 2 {
		for _, command := range []string{
			"create namespace " + name,
			"--namespace=" + name + " create configmap settings --from-literal=a=b",
			"--namespace=" + name + " create secret generic password --from-literal=a=b",
			"--namespace=" + name + " create deployment web --image=web --replicas=5",
			"--namespace=" + name + " expose deployment web --port=80",
			"--namespace=" + name + " create role reader --verb=get --resource=pods",
			"--namespace=" + name + " rollout status deployment web --timeout=60s",
			"delete namespace " + name + " --timeout=60s",
		} {
			if _, err := d.Kubectl(ctx, "", strings.Fields(command)...); err != nil {
				return err
			}
		}
		if err := d.nothingBelow(ctx, name); err != nil {
			return err
		}
	}
	say("namespaces: made, used by a deployment, a service, a secret, a role, and deleted, twice; etcd has nothing left of them")
	return nil
}

// keysOf are etcd's keys that have a namespace's or object's name as one of their parts.
func (d *demo) keysOf(ctx context.Context, name string) ([]string, error) {
	response, err := d.Client.Get(ctx, follow.Prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	var keys []string
	for _, kv := range response.Kvs {
		key := string(kv.Key)
		// Kubernetes keeps events for an hour, those of a namespace that was deleted too.
		if strings.Contains(key+"/", "/"+name+"/") && !strings.HasPrefix(key, follow.Prefix+"events/") {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// nothingBelow is an error unless etcd has nothing left of a namespace.
func (d *demo) nothingBelow(ctx context.Context, name string) error {
	keys, err := d.keysOf(ctx, name)
	if err != nil {
		return err
	}
	if len(keys) > 0 {
		return fmt.Errorf("etcd still has %d keys of %s, such as %s", len(keys), name, keys[0])
	}
	if _, err := d.Kubernetes.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return fmt.Errorf("the namespace %s after it was deleted: %v", name, err)
	}
	return nil
}

// apply lets two managers apply the same field.
func (d *demo) apply(ctx context.Context) error {
	const name = "applied"
	manifest := func(value string) string {
		return "{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + ", namespace: default}, data: {owner: " + value + "}}"
	}
	by := func(manager, value string, more ...string) (string, error) {
		return d.Kubectl(ctx, manifest(value), append([]string{"apply", "--server-side", "--field-manager=" + manager, "--filename=-"}, more...)...)
	}
	if _, err := by("one", "one"); err != nil {
		return err
	}
	_, err := by("other", "other")
	if err == nil || !strings.Contains(err.Error(), `conflict with "one"`) {
		return fmt.Errorf("a second manager applied the same field, and the answer was: %v", err)
	}
	if _, err := by("other", "other", "--force-conflicts"); err != nil {
		return err
	}
	if _, err := by("other", "mine"); err != nil {
		return err
	}
	if _, err := by("one", "one"); err == nil || !strings.Contains(err.Error(), `conflict with "other"`) {
		return fmt.Errorf("the first manager applied a field that it had lost, and the answer was: %v", err)
	}
	got, err := d.Kubectl(ctx, "", "get", "configmap", name, "--output=jsonpath={.data.owner}")
	if err != nil || got != "mine" {
		return fmt.Errorf("the applied value is %q (%v)", got, err)
	}
	say("server-side apply: the second manager of a field gets a conflict, takes the field by force, and the first one gets a conflict then")
	return nil
}

// until waits with the demonstration's bound.
func until(ctx context.Context, what string, ask func(context.Context) error) error {
	return cluster.Until(ctx, what, ask)
}
