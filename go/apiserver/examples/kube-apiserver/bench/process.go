package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// token is that of the one user: it is a member of system:masters, which the limits of priority and fairness leave alone.
const token = "bench"

// clockTick is the unit of the processor times in /proc, the same on all of Linux.
const clockTick = 10 * time.Millisecond

// process is a program that runs while it is measured.
type process struct {
	*exec.Cmd
	port int
	log  string
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func start(log string, port int, program string, arguments ...string) (*process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{exec.Command(program, arguments...), port, log}
	p.Stdout, p.Stderr = out, out
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return p, p.Start()
}

// stop ends the program, and waits for it.
func (p *process) stop() {
	_ = p.Process.Signal(syscall.SIGTERM)
	ended := make(chan struct{})
	go func() {
		_ = p.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(5 * time.Second): // a server that ends waits for its watches
		_ = p.Process.Kill()
		<-ended
	}
}

// startEtcd starts an etcd without synchronous writes, and connects to it.
func startEtcd(ctx context.Context, program, directory string) (*process, *clientv3.Client, error) {
	port, err := freePort()
	if err != nil {
		return nil, nil, err
	}
	peers, err := freePort()
	if err != nil {
		return nil, nil, err
	}
	url, peer := fmt.Sprintf("http://127.0.0.1:%d", port), fmt.Sprintf("http://127.0.0.1:%d", peers)
	p, err := start(filepath.Join(directory, "etcd.log"), port, program, "--data-dir", filepath.Join(directory, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", "default="+peer, "--quota-backend-bytes", "8589934592", "--max-request-bytes", "8388608", "--log-level", "warn")
	if err != nil {
		return nil, nil, err
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, DialTimeout: 10 * time.Second, MaxCallSendMsgSize: 8 << 20})
	if err == nil {
		err = poll(ctx, 30*time.Second, "etcd answers", func() bool {
			_, err := client.Get(ctx, "ready")
			return err == nil
		})
	}
	if err != nil {
		p.stop()
		return nil, nil, err
	}
	return p, client, nil
}

// server is an API server that runs.
type server struct {
	*process
	name   string
	url    string
	ready  time.Duration // from its start
	client *http.Client
}

// startServer starts an API server, and waits until it is ready.
func (b *bench) startServer(ctx context.Context, name string) (*server, error) {
	directory := filepath.Join(b.directory, name)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return nil, err
	}
	tokens := filepath.Join(directory, "tokens")
	if err := os.WriteFile(tokens, []byte(token+",bench,bench,system:masters\n"), 0o600); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	p, err := start(filepath.Join(directory, "log"), port, b.programs[name],
		"--etcd-servers", fmt.Sprintf("http://127.0.0.1:%d", b.etcd.port), "--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(port),
		"--cert-dir", directory, "--token-auth-file", tokens, "--authorization-mode", "AlwaysAllow",
		"--service-account-issuer", "https://bench", "--service-account-key-file", b.key, "--service-account-signing-key-file", b.key,
		"--disable-admission-plugins", "ServiceAccount", "--service-cluster-ip-range", "10.0.0.0/24")
	if err != nil {
		return nil, err
	}
	s := &server{process: p, name: name, url: fmt.Sprintf("https://127.0.0.1:%d", port), client: newClient(nil)}
	err = poll(ctx, 2*time.Minute, "the server is ready: "+p.log, func() bool {
		_, err := s.get(ctx, "/readyz", "")
		return err == nil
	})
	if err != nil {
		p.stop()
		return nil, err
	}
	s.ready = time.Since(begin)
	return s, nil
}

// newClient is one with connections of its own.
func newClient(http2 *http.HTTP2Config) *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, // the server has made its certificate itself
		ForceAttemptHTTP2:  true,
		DisableCompression: true,
		HTTP2:              http2,
	}}
}

func (s *server) request(ctx context.Context, client *http.Client, method, path, accept string, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode >= 300 {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
		answer.Body.Close()
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, text)
	}
	return answer, nil
}

func (s *server) get(ctx context.Context, path, accept string) ([]byte, error) {
	answer, err := s.request(ctx, s.client, http.MethodGet, path, accept, nil)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return io.ReadAll(answer.Body)
}

// metric sums the series of a metric, of any labels.
func (s *server) metric(ctx context.Context, name string) (float64, error) {
	text, err := s.get(ctx, "/metrics", "")
	return sum(string(text), name), err
}

func sum(text, name string) (total float64) {
	for line := range strings.Lines(text) {
		rest, found := strings.CutPrefix(line, name)
		if !found || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' ')+1:]), 64)
		if err == nil {
			total += value
		}
	}
	return total
}

// cpu is the processor time that the process has taken.
func (p *process) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
	if err != nil {
		return 0, err
	}
	behindName := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, err := strconv.ParseInt(behindName[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(behindName[12], 10, 64)
	return time.Duration(user+system) * clockTick, err
}

// status returns a number of a file of /proc, such as Pss of smaps_rollup.
func (p *process) status(file, field string) (int64, error) {
	text, err := os.Open(fmt.Sprintf("/proc/%d/%s", p.Process.Pid, file))
	if err != nil {
		return 0, err
	}
	defer text.Close()
	for lines := bufio.NewScanner(text); lines.Scan(); {
		if rest, found := strings.CutPrefix(lines.Text(), field+":"); found {
			return strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, field)
}

// settle lets the server collect its garbage until its memory does not fall any more.
func (s *server) settle(ctx context.Context) error {
	before, unchanged := int64(0), 0
	for range 30 {
		if _, err := s.get(ctx, "/debug/pprof/heap?gc=1", ""); err != nil {
			return err
		}
		now, err := s.status("smaps_rollup", "Pss")
		if err != nil {
			return err
		}
		if unchanged++; before == 0 || now < before-before/100 {
			unchanged = 0
		}
		if unchanged == 3 {
			return nil
		}
		before = now
		time.Sleep(time.Second) // in which pages are given back
	}
	return nil
}

// connections counts those that this machine has to a port.
func connections(port int) (count int64, err error) {
	text, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return 0, err
	}
	const established = "01"
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 3 && strings.HasSuffix(fields[2], fmt.Sprintf(":%04X", port)) && fields[3] == established {
			count++
		}
	}
	return count, nil
}

func poll(ctx context.Context, limit time.Duration, what string, is func() bool) error {
	for end := time.Now().Add(limit); !is(); {
		if time.Now().After(end) {
			return errors.New("it did not happen: " + what)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}
