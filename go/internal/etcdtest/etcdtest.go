// Package etcdtest starts throw-away etcds for tests.
package etcdtest

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/watchcore/watchcore/go/internal/bounded"
)

// binaries is the directory of the etcd that scripts/etcd.sh builds where need be.
var binaries = sync.OnceValues(func() (string, error) {
	_, file, _, _ := runtime.Caller(0)
	command := exec.Command(filepath.Join(filepath.Dir(file), "../../../scripts/etcd.sh"))
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("scripts/etcd.sh: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
})

// Server is an etcd with free loopback ports and its own data, which is gone with the test.
type Server struct {
	T      testing.TB
	Client string // its URL
	HTTP   *http.Client

	peer    string
	data    string
	extra   []string
	running *exec.Cmd
	exited  chan struct{}
	log     *bytes.Buffer
}

// ReservePort takes a port that servers cannot choose by themselves. The UDP socket
// of the same number is the reservation, as in the tests in Rust; it lies outside of
// the range that the system gives to outgoing connections.
func ReservePort(t testing.TB) int {
	t.Helper()
	for attempt := range 20_000 {
		port := 10_000 + (os.Getpid()*7919+attempt*101)%22_000
		reserved, err := net.ListenPacket("udp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		listener, err := net.Listen("tcp", reserved.LocalAddr().String())
		if err != nil {
			reserved.Close()
			continue
		}
		listener.Close()
		t.Cleanup(func() { reserved.Close() })
		return port
	}
	t.Fatal("no free port on the loopback")
	return 0
}

// New makes a server that is not started yet. extra are options of etcd.
func New(t testing.TB, scheme string, extra ...string) *Server {
	t.Helper()
	s := &Server{
		T:      t,
		Client: fmt.Sprintf("%s://127.0.0.1:%d", scheme, ReservePort(t)),
		HTTP:   &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{}}},
		peer:   fmt.Sprintf("http://127.0.0.1:%d", ReservePort(t)),
		data:   filepath.Join(t.TempDir(), "data"),
		extra:  extra,
	}
	t.Cleanup(s.Kill)
	return s
}

// Start starts it, or starts it again on the same ports and data.
func (s *Server) Start() {
	s.T.Helper()
	directory, err := binaries()
	s.check(err)
	s.log = &bytes.Buffer{}
	s.exited = make(chan struct{})
	s.running = exec.Command(filepath.Join(directory, "etcd"), append([]string{
		"--name", "s1", "--data-dir", s.data, "--unsafe-no-fsync", "--log-level", "warn",
		"--heartbeat-interval", "10", "--election-timeout", "100",
		"--listen-client-urls", s.Client, "--advertise-client-urls", s.Client,
		"--listen-peer-urls", s.peer, "--initial-advertise-peer-urls", s.peer, "--initial-cluster", "s1=" + s.peer,
	}, s.extra...)...)
	// etcd takes each of its options from the environment, too.
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "ETCD_") {
			s.running.Env = append(s.running.Env, variable)
		}
	}
	s.running.Stdout, s.running.Stderr = s.log, s.log
	s.check(s.running.Start())
	go func(running *exec.Cmd, exited chan struct{}) {
		defer close(exited)
		_ = running.Wait()
	}(s.running, s.exited)
	bounded.Eventually(s.T, "etcd is healthy", func() bool {
		select {
		case <-s.exited:
			s.T.Fatalf("etcd ended: %s", s.log)
		default:
		}
		response, err := s.HTTP.Get(s.Client + "/health")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		return err == nil && bytes.Contains(body, []byte(`"true"`))
	})
}

// Kill is kill -9.
func (s *Server) Kill() {
	if s.running != nil {
		_ = s.running.Process.Signal(syscall.SIGKILL)
		<-s.exited
		s.running = nil
		s.HTTP.CloseIdleConnections()
	}
}

// Ask sends a request to etcd's JSON gateway, which has to succeed; []byte is base64 there.
func (s *Server) Ask(path string, request map[string]any) {
	s.T.Helper()
	body, err := json.Marshal(request)
	s.check(err)
	response, err := s.HTTP.Post(s.Client+"/v3/"+path, "application/json", bytes.NewReader(body))
	s.check(err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	s.check(err)
	if response.StatusCode != http.StatusOK {
		s.T.Fatalf("%s: %s: %s", path, response.Status, answer)
	}
}

func (s *Server) check(err error) {
	s.T.Helper()
	if err != nil {
		s.T.Fatal(err)
	}
}
