package world

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"watchcore.test/http/internal/history"
)

// Programs are the paths of what is run.
type Programs struct {
	Etcd, Watchcore, Kubectl, KubeRust string
	// Next is the watchcore that takes the server's place when it has ended after SIGTERM: itself where there is none.
	Next string
}

// ProgramsFromEnvironment reads what scripts/http-tests.sh sets, and HTTP_TESTS_NEXT where it is set.
func ProgramsFromEnvironment() (p Programs, err error) {
	p.Next = os.Getenv("HTTP_TESTS_NEXT")
	for name, to := range map[string]*string{
		"HTTP_TESTS_ETCD": &p.Etcd, "HTTP_TESTS_WATCHCORE": &p.Watchcore, "HTTP_TESTS_KUBECTL": &p.Kubectl, "HTTP_TESTS_KUBE_RUST": &p.KubeRust,
	} {
		if *to, err = ProgramFromEnvironment(name); err != nil {
			return p, err
		}
	}
	return p, nil
}

// ProgramFromEnvironment is the path in one of these variables.
func ProgramFromEnvironment(name string) (string, error) {
	path := os.Getenv(name)
	if path == "" {
		return "", fmt.Errorf("%s does not name a program: run scripts/http-tests.sh, which builds and names them", name)
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s: %w: run scripts/http-tests.sh, which builds it", name, err)
	}
	return path, nil
}

// A World is an etcd with a writer, and watchcore serve over it by a connection that can be cut.
type World struct {
	Etcd   *Etcd
	Proxy  *Proxy
	Server *Server
	Writer *Writer
	// Say is told what happens.
	Say func(format string, arguments ...any)

	next string
}

// New starts one in a directory, with so many objects. Its Close ends it also where New fails.
func New(ctx context.Context, programs Programs, directory string, objects int, say func(string, ...any)) (*World, error) {
	w := &World{Say: say, next: programs.Next}
	return w, w.start(ctx, programs, directory, objects)
}

func (w *World) start(ctx context.Context, programs Programs, directory string, objects int) (err error) {
	if w.Etcd, err = StartEtcd(ctx, programs.Etcd, directory); err != nil {
		return err
	}
	w.Writer = NewWriter(w.Etcd, 1)
	if err = w.Writer.Fill(ctx, objects); err != nil {
		return err
	}
	if w.Proxy, err = StartProxy(strings.TrimPrefix(w.Etcd.URL, "http://")); err != nil {
		return err
	}
	w.Server, err = StartServer(ctx, programs.Watchcore, w.Proxy.URL, directory, Settings{History: 0, Grace: "10s"})
	return err
}

// Close ends what runs.
func (w *World) Close() {
	if w.Server != nil {
		w.Server.Close()
	}
	if w.Proxy != nil {
		w.Proxy.Close()
	}
	if w.Etcd != nil {
		w.Etcd.Close()
	}
}

// CaughtUp waits until the server is at etcd's revision.
func (w *World) CaughtUp(ctx context.Context) (int64, error) {
	revision, err := w.Etcd.Revision(ctx)
	if err != nil {
		return 0, err
	}
	query := url.Values{"limit": {"1"}, "resourceVersion": {fmt.Sprint(revision)}, "resourceVersionMatch": {"NotOlderThan"}}
	address := w.Server.URL + "/apis/" + Group + "/" + Version + "/widgets?" + query.Encode()
	return revision, Until(ctx, fmt.Sprintf("the server reaches revision %d", revision), func() error {
		response, err := http.Get(address)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %.300s", response.Status, body)
		}
		return nil
	})
}

// Disrupt makes changes while etcd is killed and comes back, then while a compaction happens that the server does not
// see, and then while the server itself is killed and, after that, is asked to end; each time it is started again.
func (w *World) Disrupt(ctx context.Context, changes int) error {
	part := changes / 5
	w.Say("%d changes", part)
	if err := w.Writer.Churn(ctx, part); err != nil {
		return err
	}
	w.Say("%d changes, and kill -9 of etcd in the middle", part)
	err := w.during(ctx, part, func() error {
		w.Etcd.Kill()
		return w.Etcd.Start(ctx)
	})
	if err != nil {
		return err
	}
	if err := w.compactAway(ctx, part); err != nil {
		return err
	}
	w.Say("%d changes, and kill -9 of the server in the middle", part)
	err = w.during(ctx, part, func() error {
		w.Server.Kill()
		return w.Server.Start(ctx)
	})
	if err != nil {
		return err
	}
	w.Say("%d changes, and SIGTERM to the server in the middle%s", changes-4*part, map[bool]string{true: ", whose place another version takes"}[w.next != ""])
	return w.during(ctx, changes-4*part, func() error {
		if err := w.Server.Terminate(); err != nil && !strings.Contains(err.Error(), "exit status 143") &&
			!strings.Contains(err.Error(), "signal: terminated") {
			return fmt.Errorf("the server after SIGTERM: %w", err)
		}
		if w.next != "" {
			w.Server.binary = w.next
		}
		return w.Server.Start(ctx)
	})
}

// during makes a third of the changes before something is done, a third while it is done, spread over that time, and the
// rest behind it.
func (w *World) during(ctx context.Context, changes int, do func() error) error {
	target := w.Writer.History.Len() + changes
	if err := w.Writer.Churn(ctx, changes/3); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- do() }()
	reserve := target - changes/3
	for {
		select {
		case err := <-done:
			if err != nil {
				return err
			}
			return w.Writer.Churn(ctx, target-w.Writer.History.Len())
		case <-time.After(time.Millisecond):
			if w.Writer.History.Len() < reserve {
				if err := w.Writer.Churn(ctx, 1); err != nil {
					return errors.Join(err, <-done)
				}
			}
		}
	}
}

// compactAway cuts the server off, makes changes, compacts all of them away, and lets the server come back.
func (w *World) compactAway(ctx context.Context, changes int) error {
	w.Say("%d changes and a compaction, while the server is cut off from etcd", changes)
	from, err := w.CaughtUp(ctx)
	if err != nil {
		return err
	}
	w.Proxy.Cut()
	if err := w.Writer.Churn(ctx, changes); err != nil {
		return err
	}
	to, err := w.Etcd.Revision(ctx)
	if err != nil {
		return err
	}
	w.Writer.History.AddGap(history.Gap{From: from, To: to})
	if _, err := w.Etcd.Client.Compact(ctx, to, clientv3.WithCompactPhysical()); err != nil {
		return err
	}
	w.Proxy.Mend()
	_, err = w.CaughtUp(ctx)
	return err
}

// Directory makes one for a world's files, and says how to remove it.
func Directory() (string, func(), error) {
	directory, err := os.MkdirTemp("", "http-tests")
	if err != nil {
		return "", nil, err
	}
	return filepath.Clean(directory), func() { _ = os.RemoveAll(directory) }, nil
}
