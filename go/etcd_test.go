package watchcore_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/internal/etcdtest"
)

// server is an etcd of a test.
type server struct{ *etcdtest.Server }

func startServer(t testing.TB) *server {
	t.Helper()
	s := &server{etcdtest.New(t, "http")}
	s.Start()
	return s
}

func (s *server) put(key, value string) {
	s.T.Helper()
	s.Ask("kv/put", map[string]any{"key": []byte(key), "value": []byte(value)})
}

func (s *server) delete(key string) {
	s.T.Helper()
	s.Ask("kv/deleterange", map[string]any{"key": []byte(key)})
}

func open(t testing.TB, s *server, etcd watchcore.EtcdConfig, config watchcore.Config) *watchcore.Cache {
	t.Helper()
	etcd.Endpoints = []string{s.Client}
	cache, err := watchcore.Open(bounded.Context(t), etcd, config)
	check(t, err)
	t.Cleanup(func() { cache.Close() })
	return cache
}

// collect waits for the next events: n lines.
func collect(t testing.TB, sub *watchcore.Subscription, n int) string {
	t.Helper()
	var got []string
	for batch, err := range sub.Batches(bounded.Context(t)) {
		check(t, err)
		for e := range batch.Events() {
			got = append(got, text(e))
		}
		if len(got) >= n {
			break
		}
	}
	return lines(got...)
}

func TestOpen(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.put("/p/a", "1")       // revision 2
	s.put("/elsewhere", "1") // revision 3
	s.put("/p/b", "")        // revision 4
	cache := open(t, s, watchcore.EtcdConfig{PageSize: 1, ProgressInterval: 100 * time.Millisecond}, watchcore.Config{Prefix: "/p/"})
	want(t, "objects", cache.Status().Objects, 2)
	sub := subscribe(t, cache)
	want(t, "the state", collect(t, sub, 3), lines("2 ADDED /p/a 1<- initial", "4 ADDED /p/b <- initial", "4 BOOKMARK end"))
	s.put("/p/a", "2")
	s.delete("/p/b")
	want(t, "what follows", collect(t, sub, 2), lines("5 MODIFIED /p/a 2<1", "6 DELETED /p/b -<"))

	// Read one's own writes, and everybody's.
	s.put("/p/c", "3")
	kv, at, err := cache.Get(bounded.Context(t), "/p/c", watchcore.ReadOptions{Read: watchcore.ReadAtLeast(7)})
	check(t, err)
	want(t, "value", string(kv.Value), "3")
	want(t, "at", at, 7)
	s.put("/elsewhere", "2")
	check(t, cache.WaitUntil(bounded.Context(t), 8))
	revision, err := cache.ConsistentRevision(bounded.Context(t))
	check(t, err)
	want(t, "consistent revision", revision, 8)

	bounded.Eventually(t, "the status has the source's revision", func() bool { return cache.Status().Source.Revision >= 8 })
	status := cache.Status()
	want(t, "state", status.State, watchcore.StateReady)
	want(t, "endpoint", status.Source.Endpoint, s.Client)
	want(t, "version", strings.HasPrefix(status.Source.ServerVersion, "3."), true)
	want(t, "ids", status.Source.ClusterID != 0 && status.Source.MemberID != 0, true)
	want(t, "last error", status.LastError, nil)
	counters, err := cache.FeederCounters()
	check(t, err)
	want(t, "listings", counters.Listings, 1)
	want(t, "pages", counters.Pages, 2)
	want(t, "events", counters.Events, 3)
	want(t, "resyncs", len(counters.Resyncs), 0)

	check(t, cache.RequestResync())
	bounded.Eventually(t, "it lists again", func() bool {
		counters, err := cache.FeederCounters()
		check(t, err)
		return counters.Listings == 2
	})

	// A writer there is already: the feeder.
	_, err = cache.Writer()
	wantError(t, "a writer beside the feeder", err, watchcore.ErrBusy)
	cache.Close()
	_, err = cache.FeederCounters()
	wantError(t, "counters of a closed cache", err, watchcore.ErrClosed)
	want(t, "state of a closed cache", cache.Status().State, watchcore.StateClosed)
	want(t, "position of a closed cache", cache.Status().Position.Revision, 8)
	for batch, err := range sub.Batches(bounded.Context(t)) {
		check(t, err)
		want(t, "the rest", text(batch.At(0)), "7 ADDED /p/c 3<-")
	}
}

// etcd is killed in the middle of the writes: every change comes, once and in order.
func TestServerIsKilled(t *testing.T) {
	t.Parallel()
	const writes = 200
	s := startServer(t)
	cache := open(t, s, watchcore.EtcdConfig{}, watchcore.Config{})
	start := cache.Position()
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	seen := make(chan error, 1)
	go func() {
		next := 0
		for batch, err := range sub.Batches(bounded.Context(t)) {
			if err != nil {
				seen <- err
				return
			}
			for e := range batch.Events() {
				if got := string(e.Value()); got != strconv.Itoa(next) {
					seen <- fmt.Errorf("%s came instead of %d", got, next)
					return
				}
				next++
			}
			if next == writes {
				seen <- nil
				return
			}
		}
		seen <- errors.New("the subscription ended")
	}()
	for i := range writes {
		if i == writes/2 {
			// Something has come, so that there is something to answer with.
			bounded.Eventually(t, "the first write", func() bool { return cache.Position().Revision > start.Revision })
			s.Kill()
			bounded.Eventually(t, "the cache is stale", func() bool { return cache.Status().State == watchcore.StateStale })
			if cache.Status().StaleSince.IsZero() || cache.Status().LastError == nil {
				t.Fatalf("a stale cache does not say since when and why: %+v", cache.Status())
			}
			kv, _, err := cache.Get(bounded.Context(t), "/k", watchcore.ReadOptions{})
			check(t, err)
			want(t, "what a stale cache answers", kv != nil, true)
			s.Start()
		}
		s.put("/k", strconv.Itoa(i))
	}
	check(t, <-seen)
	counters, err := cache.FeederCounters()
	check(t, err)
	want(t, "resyncs", len(counters.Resyncs), 0)
	want(t, "reconnects", counters.Reconnects > 0, true)
}

func TestNoServer(t *testing.T) {
	t.Parallel()
	// Nobody listens on a reserved port.
	endpoint := fmt.Sprintf("http://127.0.0.1:%d", etcdtest.ReservePort(t))
	cache, err := watchcore.New(watchcore.Config{ExpectLoad: true})
	check(t, err)
	defer cache.Close()
	check(t, cache.StartFeeder(watchcore.EtcdConfig{Endpoints: []string{endpoint}}))
	bounded.Eventually(t, "the status says why", func() bool { return cache.Status().LastError != nil })
	status := cache.Status()
	want(t, "state", status.State, watchcore.StateNotReady)
	want(t, "last error", status.LastError.Code, watchcore.ErrUnavailable)
	if !strings.Contains(status.LastError.Message, endpoint) {
		t.Fatalf("the error does not name the endpoint: %v", status.LastError)
	}
	_, _, err = cache.Get(bounded.Context(t), "/a", watchcore.ReadOptions{})
	wantError(t, "get", err, watchcore.ErrNotReady)
	sub := subscribe(t, cache)
	want(t, "events", drain(t, sub), "")

	waiting := make(chan error)
	go func() { waiting <- cache.WaitReady(context.Background()) }()
	bounded.Eventually(t, "it sleeps", func() bool { return cache.Stats().Waiting == 1 })
	cache.Close()
	wantError(t, "a wait while the cache is closed", <-waiting, watchcore.ErrClosed)
	_, err = sub.Next(bounded.Context(t))
	wantError(t, "next", err, watchcore.ErrClosed)
}

func TestOpenSaysWhatWentWrong(t *testing.T) {
	t.Parallel()
	endpoint := fmt.Sprintf("http://127.0.0.1:%d", etcdtest.ReservePort(t))
	// However late the first attempt fails: the context is longer in the next round.
	for limit := 50 * time.Millisecond; limit < bounded.Bound; limit *= 2 {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		_, err := watchcore.Open(ctx, watchcore.EtcdConfig{Endpoints: []string{endpoint}}, watchcore.Config{})
		cancel()
		wantError(t, "open", err, context.DeadlineExceeded)
		if errors.Is(err, watchcore.ErrUnavailable) {
			return
		}
	}
	t.Fatal("the last error is not told")
}

func TestStartRevision(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for i := range 5 {
		s.put("/a", strconv.Itoa(i)) // revisions 2 to 6
	}
	cache := open(t, s, watchcore.EtcdConfig{StartRevision: 3}, watchcore.Config{})
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartAfter(3)})
	want(t, "etcd's own history", collect(t, sub, 3), lines("4 MODIFIED /a 2<1", "5 MODIFIED /a 3<2", "6 MODIFIED /a 4<3"))

	s.Ask("kv/compaction", map[string]any{"revision": 5})
	_, err := watchcore.Open(bounded.Context(t), watchcore.EtcdConfig{Endpoints: []string{s.Client}, StartRevision: 3}, watchcore.Config{})
	wantError(t, "a start that etcd has compacted", err, watchcore.ErrCompacted)
	var numbers *watchcore.Error
	errors.As(err, &numbers)
	want(t, "asked", numbers.Asked, 3)

	// Somebody who follows sees what it does not.
	listed := open(t, s, watchcore.EtcdConfig{StartRevision: 5, StopAfterListing: true}, watchcore.Config{})
	for revision := uint64(7); revision < 10; revision++ {
		s.put("/a", "later")
		check(t, cache.WaitUntil(bounded.Context(t), revision))
	}
	want(t, "revision of what stopped after its listing", listed.Position().Revision, 5)
	counters, err := listed.FeederCounters()
	check(t, err)
	want(t, "watches", counters.Connects, 0)
}

// A program that begins again goes on where it was, as far back as was asked for.
func TestHistory(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for i := range 9 {
		s.put("/a", strconv.Itoa(i)) // revisions 2 to 10
	}
	cache := open(t, s, watchcore.EtcdConfig{History: 3}, watchcore.Config{})
	check(t, cache.WaitUntil(bounded.Context(t), 10))
	want(t, "oldest", cache.Oldest(), 8)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartAfter(7)})
	want(t, "what came since", collect(t, sub, 3), lines("8 MODIFIED /a 6<5", "9 MODIFIED /a 7<6", "10 MODIFIED /a 8<7"))

	whole := open(t, s, watchcore.EtcdConfig{History: 1 << 63}, watchcore.Config{})
	check(t, whole.WaitUntil(bounded.Context(t), 10))
	want(t, "oldest of more than there is", whole.Oldest(), 2)
	first := open(t, s, watchcore.EtcdConfig{History: 3, StartRevision: 5}, watchcore.Config{})
	check(t, first.WaitUntil(bounded.Context(t), 10))
	want(t, "oldest with a start revision", first.Oldest(), 6)
}

func TestPassword(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.put("/a", "1")
	for _, step := range []struct {
		path    string
		request map[string]any
	}{
		{"auth/user/add", map[string]any{"name": "root", "password": "right"}},
		{"auth/role/add", map[string]any{"name": "root"}},
		{"auth/user/grant", map[string]any{"user": "root", "role": "root"}},
		{"auth/enable", map[string]any{}},
	} {
		s.Ask(step.path, step.request)
	}
	cache := open(t, s, watchcore.EtcdConfig{Username: "root", Password: "right"}, watchcore.Config{})
	want(t, "objects", cache.Status().Objects, 1)
	_, err := watchcore.Open(bounded.Context(t), watchcore.EtcdConfig{Endpoints: []string{s.Client}, Username: "root", Password: "wrong"}, watchcore.Config{})
	wantError(t, "a wrong password", err, watchcore.ErrUnauthenticated)
	if strings.Contains(err.Error(), "wrong") {
		t.Fatalf("the error tells the password: %v", err)
	}
}

// pair is a certificate and its key: in PEM, in files, and parsed.
type pair struct {
	cert, key         []byte
	certFile, keyFile string
	parsed            *x509.Certificate
	private           *ecdsa.PrivateKey
}

func certificate(t testing.TB, name string, issuer *pair) *pair {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		BasicConstraintsValid: true,
		IsCA:                  issuer == nil,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		DNSNames:              []string{name},
	}
	if issuer != nil {
		template.KeyUsage = x509.KeyUsageDigitalSignature
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	} else {
		issuer = &pair{parsed: template, private: private}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuer.parsed, &private.PublicKey, issuer.private)
	check(t, err)
	parsed, err := x509.ParseCertificate(der)
	check(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	check(t, err)
	directory := t.TempDir()
	p := &pair{
		cert:     pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		key:      pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
		certFile: filepath.Join(directory, "cert"),
		keyFile:  filepath.Join(directory, "key"),
		parsed:   parsed,
		private:  private,
	}
	check(t, os.WriteFile(p.certFile, p.cert, 0o600))
	check(t, os.WriteFile(p.keyFile, p.key, 0o600))
	return p
}

// A server that wants the client's certificate, known by another name than its address.
func TestTLS(t *testing.T) {
	t.Parallel()
	authority := certificate(t, "authority", nil)
	own := certificate(t, "etcd.test", authority)
	client := certificate(t, "client", authority)
	s := &server{etcdtest.New(t, "https", "--cert-file", own.certFile, "--key-file", own.keyFile,
		"--trusted-ca-file", authority.certFile, "--client-cert-auth")}
	mine, err := tls.X509KeyPair(client.cert, client.key)
	check(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(authority.parsed)
	s.HTTP.Transport = &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: pool, ServerName: "etcd.test", Certificates: []tls.Certificate{mine},
	}}
	s.Start()
	s.put("/a", "1")
	config := watchcore.TLSConfig{CA: authority.cert, Cert: client.cert, Key: client.key, ServerName: "etcd.test"}
	cache := open(t, s, watchcore.EtcdConfig{TLS: config}, watchcore.Config{})
	want(t, "objects", cache.Status().Objects, 1)

	files := watchcore.TLSConfig{
		CAFile: authority.certFile, CertFile: client.certFile, KeyFile: client.keyFile, ServerName: "etcd.test",
		MinVersion: tls.VersionTLS13,
	}
	cache = open(t, s, watchcore.EtcdConfig{TLS: files}, watchcore.Config{})
	want(t, "objects", cache.Status().Objects, 1)
	want(t, "warning", cache.Status().Source.Warning, "")
	refusal := func(name string, config watchcore.TLSConfig) string {
		t.Helper()
		_, err := watchcore.Open(bounded.Context(t), watchcore.EtcdConfig{Endpoints: []string{s.Client}, TLS: config}, watchcore.Config{})
		wantError(t, name, err, watchcore.ErrInvalidArgument)
		return err.Error()
	}
	bad := files
	bad.KeyFile = own.keyFile
	text := refusal("another's key", bad)
	for _, part := range []string{own.keyFile, "is not the key of", client.certFile} {
		if !strings.Contains(text, part) {
			t.Fatalf("%q is not in: %s", part, text)
		}
	}
	for _, wrong := range []watchcore.TLSConfig{
		{CAFile: authority.certFile, CA: authority.cert},
		{CertFile: client.certFile, Key: client.key},
		{CertFile: client.certFile},
		{Key: client.key},
		{MinVersion: tls.VersionTLS11},
	} {
		if text := refusal("half of it", wrong); !strings.Contains(text, "TLSConfig") {
			t.Fatalf("not in Go's words: %s", text)
		}
	}

	config.CA = certificate(t, "another authority", nil).cert
	refused, err := watchcore.New(watchcore.Config{ExpectLoad: true})
	check(t, err)
	defer refused.Close()
	check(t, refused.StartFeeder(watchcore.EtcdConfig{Endpoints: []string{s.Client}, TLS: config}))
	bounded.Eventually(t, "the status says that it is refused", func() bool { return refused.Status().LastError != nil })
	want(t, "state", refused.Status().State == watchcore.StateReady, false)
}
