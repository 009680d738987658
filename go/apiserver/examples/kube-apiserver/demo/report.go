package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/check"
	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/cluster"
	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/follow"
)

// compare waits until every watcher has what happened, ends them, and compares.
func (d *demo) compare(ctx context.Context, endWatching context.CancelFunc, ended <-chan struct{}) error {
	until, err := d.settle(ctx)
	if err != nil {
		return err
	}
	endWatching()
	<-ended
	for _, s := range d.slow {
		s.Close() // the server waits for its watches before it ends
	}
	if err := d.addChecks(ctx); err != nil {
		return err
	}
	// Watchers may have received more than what they were waited for.
	histories, _, err := d.historiesNow(ctx)
	if err != nil {
		return err
	}
	if err := d.Stop(); err != nil {
		return fmt.Errorf("the API server: %w", err)
	}
	say("every watcher is compared with etcd's %d changes", d.etcd.Len())
	return d.report(histories, until)
}

// historiesNow are the histories by their directories, whole up to a revision.
func (d *demo) historiesNow(ctx context.Context) (map[string]*check.History, int64, error) {
	revision, err := d.Revision(ctx)
	if err != nil {
		return nil, 0, err
	}
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := d.etcd.Wait(within, revision); err != nil {
		return nil, 0, err
	}
	all, err := d.etcd.Histories(resources)
	if err != nil {
		return nil, 0, err
	}
	byDirectory := map[string]*check.History{}
	for i, r := range resources {
		byDirectory[r.Directory] = all[i]
	}
	return byDirectory, revision, nil
}

// settle waits until every watcher has received the last change that it must receive of those that there are now, and returns the revision. What is lost is named
// later, so the wait ends without an error where nothing more comes.
func (d *demo) settle(ctx context.Context) (int64, error) {
	histories, revision, err := d.historiesNow(ctx)
	if err != nil {
		return 0, err
	}
	last := map[*check.Log]int64{} // of what each must receive
	of := func(log *check.Log, r follow.Resource) {
		if events := log.View.Expected(histories[r.Directory].Changes()); len(events) > 0 {
			last[log] = events[len(events)-1].Revision
		}
	}
	for _, w := range d.watchers {
		of(&w.Log, w.Resource)
	}
	for _, k := range d.kubectls {
		of(&k.Log, k.Resource)
	}
	within, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	_ = cluster.Until(within, "the watchers have everything", func(context.Context) error {
		for log, revision := range last {
			if log.Reached() < revision {
				return errors.New(log.Name)
			}
			delete(last, log)
		}
		return nil
	})
	return revision, ctx.Err()
}

// report prints what each watcher received, and how it compares.
func (d *demo) report(histories map[string]*check.History, until int64) error {
	var failures []string
	expired := map[string]int{}
	watchers, events := 0, 0
	fmt.Printf("\n%-72s %8s %6s %8s %8s  %s\n", "watcher", "requests", "lists", "events", "skipped", "result")
	row := func(log *check.Log, directory string, troubles []string) {
		result, err := check.Check(histories[directory], log, until)
		verdict := "equal to etcd"
		if content := (*check.ContentError)(nil); errors.As(err, &content) {
			err = fmt.Errorf("%w: %s", err, follow.Difference(content.Got, content.Want))
		}
		if err == nil && len(troubles) > 0 {
			err = fmt.Errorf("%s: %d errors, such as %s", log.Name, len(troubles), troubles[0])
		}
		if err != nil {
			verdict = "FAILED"
			failures = append(failures, err.Error())
		}
		watchers, events = watchers+1, events+result.Events
		fmt.Printf("%-72s %8d %6d %8d %8d  %s\n", log.Name, result.Sessions, result.Lists, result.Events, result.Skipped, verdict)
	}
	for _, w := range d.watchers {
		troubles := w.Troubles()
		for _, e := range w.Expired() {
			why, _, _ := strings.Cut(e, ":")
			expired[why]++
			if !follow.IsExplained(e) {
				troubles = append(troubles, e)
			}
		}
		row(&w.Log, w.Resource.Directory, troubles)
	}
	for _, k := range d.kubectls {
		row(&k.Log, k.Resource.Directory, k.Troubles)
	}
	for _, s := range d.slow {
		row(&s.Log, s.Resource.Directory, nil)
	}
	for _, i := range d.informers {
		objects, err := i.Check(histories[i.Resource.Directory])
		verdict := "equal to etcd"
		if err != nil {
			verdict = "FAILED"
			failures = append(failures, err.Error())
		}
		fmt.Printf("%-72s %33d  %s (objects)\n", i.Name, objects, verdict)
	}
	if d.lost > 0 {
		expired["the slow watcher had lost a deletion"] = d.lost
	}
	fmt.Printf("\n410: %s.\nKubernetes' consistency checker: %s.\n", counts(expired), counts(d.checks))
	if d.checks["failure"] > 0 {
		failures = append(failures, "the consistency checker found a difference")
	}
	if d.checks["success"] == 0 {
		failures = append(failures, "the consistency checker never ran")
	}
	if len(failures) > 0 {
		return fmt.Errorf("%d of %d:\n%s", len(failures), watchers, strings.Join(failures, "\n"))
	}
	fmt.Printf("%d watchers received %d events, through a kill -9 of etcd and one of the API server: nothing was lost, doubled, or other than etcd has it.\n", watchers, events)
	return nil
}

// counts prints numbers by their names.
func counts[N int | float64](of map[string]N) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		all = append(all, fmt.Sprintf("%s %v", name, of[name]))
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}
