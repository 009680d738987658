package world

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Server is watchcore serve.
type Server struct {
	// URL is where it listens, also after a restart.
	URL string

	binary, config string
	process        *Process
}

// Settings are what differs from server to server.
type Settings struct {
	// History is how many revisions before now a server begins with. Without any, each restart makes the clients list anew.
	History int
	// Grace is how long watches take to end after SIGTERM: a duration of the configuration.
	Grace string
}

const configuration = `etcd = [%q]
listen = %q
bookmark_interval = "1s"
history = %d
grace_period = %q

[[cache]]
prefix = "/registry/"

[[resource]]
group = "matrix.test"
version = "v1"
plural = "widgets"
singular = "widget"
kind = "Widget"
namespaced = true
prefix = "/registry/matrix.test/widgets/"
short_names = ["wd"]
fields = { "spec.color" = "/spec/color", "spec.size" = "/spec/size" }
columns = [
  { name = "Color", type = "string", pointer = "/spec/color" },
  { name = "Serial", type = "integer", pointer = "/spec/serial" },
]

[[resource]]
group = "matrix.test"
version = "v1"
plural = "gizmos"
singular = "gizmo"
kind = "Gizmo"
namespaced = false
prefix = "/registry/matrix.test/gizmos/"
short_names = ["gz"]
fields = { "spec.color" = "/spec/color" }
columns = [
  { name = "Color", type = "string", pointer = "/spec/color" },
  { name = "Serial", type = "integer", pointer = "/spec/serial" },
]
`

// StartServer starts watchcore serve over an etcd, and waits until it is ready. Its configuration lies in directory.
func StartServer(ctx context.Context, binary, etcd, directory string, settings Settings) (*Server, error) {
	address, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	s := &Server{URL: "http://" + address, binary: binary, config: filepath.Join(directory, "serve.toml")}
	text := fmt.Appendf(nil, configuration, etcd, address, settings.History, settings.Grace)
	if err := os.WriteFile(s.config, text, 0o600); err != nil {
		return nil, err
	}
	return s, s.Start(ctx)
}

// Start starts it again, at the same address, after Kill or Terminate.
func (s *Server) Start(ctx context.Context) error {
	var err error
	s.process, err = Command{Name: s.binary, Arguments: []string{"serve", "--config", s.config}}.Start()
	if err != nil {
		return err
	}
	err = Until(ctx, "watchcore serve is ready", func() error {
		select {
		case <-s.process.Ended():
			return nil
		default:
			return healthy(s.URL + "/readyz")
		}
	})
	select {
	case <-s.process.Ended():
		return fmt.Errorf("watchcore serve ended:\n%s", s.process.Output())
	default:
	}
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, s.process.Output())
		s.process.Kill()
	}
	return err
}

// Runs says whether it does.
func (s *Server) Runs() bool {
	select {
	case <-s.process.Ended():
		return false
	default:
		return true
	}
}

// Kill ends it as kill -9 does.
func (s *Server) Kill() { s.process.Kill() }

// Terminate ends it as SIGTERM does.
func (s *Server) Terminate() error { return s.process.Terminate() }

// Close ends it for good, also where it does not run.
func (s *Server) Close() {
	if s.process != nil {
		s.Kill()
	}
}

// Output is the last of what it logged.
func (s *Server) Output() string { return s.process.Output() }

// Kubernetes is its API server for custom resources (comparison/apiserver), with the resources of this package.
type Kubernetes struct {
	URL     string
	process *Process
	input   io.Closer
}

// StartKubernetes starts one over an etcd, with its files below directory. The resources are not declared yet: see Declare.
func StartKubernetes(ctx context.Context, binary, etcd, directory string) (*Kubernetes, error) {
	reader, writer := io.Pipe()
	// The server ends when its input does, and so not later than this program.
	input, hold, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer input.Close()
	process, err := Command{
		Name: binary, Arguments: []string{"-etcd", etcd}, Environment: []string{"TMPDIR=" + directory}, Input: input, Output: writer,
	}.Start()
	if err != nil {
		hold.Close()
		return nil, err
	}
	k := &Kubernetes{process: process, input: hold}
	line := make(chan string, 1)
	go func() {
		scanner := bufio.NewScanner(reader)
		if scanner.Scan() {
			line <- scanner.Text()
		}
		_, _ = io.Copy(io.Discard, reader)
	}()
	select {
	case text := <-line:
		k.URL = strings.TrimPrefix(text, "listening on ")
	case <-process.Ended():
		k.Close()
		return nil, fmt.Errorf("the API server ended:\n%s", process.Output())
	case <-time.After(Timeout):
		process.Kill()
		k.Close()
		return nil, fmt.Errorf("the API server does not start:\n%s", process.Output())
	}
	// Its informers are of what another API server would have: they never are in step.
	ready := k.URL + "/readyz?exclude=informer-sync"
	if err := Until(ctx, "the API server is ready", func() error { return healthy(ready) }); err != nil {
		k.Close()
		return nil, fmt.Errorf("%w\n%s", err, process.Output())
	}
	return k, nil
}

// Declare makes the resources of this package custom resources, and waits until they are served.
func (k *Kubernetes) Declare(ctx context.Context) error {
	for _, definition := range []string{
		definition("widgets", "widget", "Widget", "Namespaced", "wd", `[{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.size"}]`),
		definition("gizmos", "gizmo", "Gizmo", "Cluster", "gz", `[{"jsonPath": ".spec.color"}]`),
	} {
		url := k.URL + "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
		response, err := http.Post(url, "application/json", strings.NewReader(definition))
		if err != nil {
			return err
		}
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != http.StatusCreated {
			return fmt.Errorf("a resource was refused: %s", body)
		}
	}
	for _, plural := range []string{"widgets", "gizmos"} {
		path := "/apis/" + Group + "/" + Version + "/" + plural
		if err := Until(ctx, path+" is served", func() error { return healthy(k.URL + path) }); err != nil {
			return err
		}
	}
	return nil
}

func definition(plural, singular, kind, scope, short, fields string) string {
	return fmt.Sprintf(`{
  "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
  "metadata": {"name": "%[1]s.matrix.test"},
  "spec": {
    "group": "matrix.test", "scope": "%[4]s",
    "names": {"plural": "%[1]s", "singular": "%[2]s", "kind": "%[3]s", "shortNames": ["%[5]s"]},
    "versions": [{
      "name": "v1", "served": true, "storage": true,
      "selectableFields": %[6]s,
      "additionalPrinterColumns": [
        {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
        {"name": "Serial", "type": "integer", "jsonPath": ".spec.serial"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
      "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "color": {"type": "string"}, "size": {"type": "integer"}, "serial": {"type": "integer"}}}}}}
    }]
  }
}`, plural, singular, kind, scope, short, fields)
}

// Close ends it.
func (k *Kubernetes) Close() {
	// Not a kill: it removes what it wrote.
	k.input.Close()
	select {
	case <-k.process.Ended():
	case <-time.After(Timeout):
		k.process.Kill()
	}
}
