package kubernetes_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"

	"watchcore"
	"watchcore/internal/bounded"
	"watchcore/kubernetes"
)

// etcdServer is a throw-away etcd: free loopback ports, its own data, gone with the test.
type etcdServer struct {
	t            testing.TB
	binary       string
	client, peer string
	data         string
	running      *exec.Cmd
	log          bytes.Buffer
}

// reservePort takes a port that servers cannot choose by themselves. The UDP socket
// of the same number is the reservation, as in the tests of the package watchcore.
func reservePort(t testing.TB) int {
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

// startEtcd starts the etcd that scripts/etcd.sh builds.
func startEtcd(t testing.TB) *etcdServer {
	t.Helper()
	command := exec.Command("../../scripts/etcd.sh")
	command.Stderr = os.Stderr
	out, err := command.Output()
	check(t, err)
	s := &etcdServer{
		t:      t,
		binary: filepath.Join(strings.TrimSpace(string(out)), "etcd"),
		client: fmt.Sprintf("http://127.0.0.1:%d", reservePort(t)),
		peer:   fmt.Sprintf("http://127.0.0.1:%d", reservePort(t)),
		data:   filepath.Join(t.TempDir(), "data"),
	}
	t.Cleanup(s.kill)
	s.start()
	return s
}

func (s *etcdServer) start() {
	s.t.Helper()
	s.running = exec.Command(s.binary,
		"--name", "s1", "--data-dir", s.data, "--unsafe-no-fsync", "--log-level", "warn",
		"--heartbeat-interval", "10", "--election-timeout", "100",
		"--listen-client-urls", s.client, "--advertise-client-urls", s.client,
		"--listen-peer-urls", s.peer, "--initial-advertise-peer-urls", s.peer, "--initial-cluster", "s1="+s.peer)
	// etcd takes each of its options from the environment, too.
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "ETCD_") {
			s.running.Env = append(s.running.Env, variable)
		}
	}
	s.running.Stdout, s.running.Stderr = &s.log, &s.log
	check(s.t, s.running.Start())
	bounded.Eventually(s.t, "etcd is healthy", func() bool {
		response, err := http.Get(s.client + "/health")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		return err == nil && bytes.Contains(body, []byte(`"true"`))
	})
}

// kill is kill -9.
func (s *etcdServer) kill() {
	if s.running != nil {
		_ = s.running.Process.Kill()
		_ = s.running.Wait()
		s.running = nil
		http.DefaultClient.CloseIdleConnections()
	}
}

// ask sends a request to etcd's JSON gateway; []byte is base64 there.
func (s *etcdServer) ask(path string, request map[string]any) {
	s.t.Helper()
	body, err := json.Marshal(request)
	check(s.t, err)
	response, err := http.Post(s.client+"/v3/"+path, "application/json", bytes.NewReader(body))
	check(s.t, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	check(s.t, err)
	if response.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s: %s", path, response.Status, answer)
	}
}

// Informers over a cache that follows a real etcd, decoded by Kubernetes' own serializer from its
// protobuf storage form: they see every write, also over a restart and a compaction of etcd.
func TestKU16InformersFollowARealEtcd(t *testing.T) {
	bounded.LeavesNothing(t)
	s := startEtcd(t)
	config := declared()
	config.Prefix = prefix
	config.Fields[2] = watchcore.AttributeJSON("spec.nodeName", "/spec/nodeName", 2, 10)
	c, err := watchcore.Open(bounded.Context(t), watchcore.EtcdConfig{Endpoints: []string{s.client}}, config)
	check(t, err)
	t.Cleanup(func() { c.Close() })
	pods := kubernetes.Config{
		Prototype: &corev1.Pod{},
		Decode:    kubernetes.DecodeWith(scheme.Codecs.UniversalDeserializer(), &corev1.Pod{}),
	}
	l, err := kubernetes.New(c, pods)
	check(t, err)
	informers := map[string]cache.SharedIndexInformer{}
	for _, node := range []string{"", "n0", "n1"} {
		var lw cache.ListerWatcher = l
		if node != "" {
			lw = selected{l, "spec.nodeName=" + node}
		}
		informers[node] = newInformer(lw)
		runs(t, informers[node])
	}
	encoder := scheme.Codecs.EncoderForVersion(protobufOf(t), corev1.SchemeGroupVersion)
	expected := map[string]map[string]bool{"": {}, "n0": {}, "n1": {}}
	for number := range 90 {
		name, node := "pod"+strconv.Itoa(number%30), "n"+strconv.Itoa(number%4)
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}
		pod.Namespace, pod.Name = "ns", name
		var value bytes.Buffer
		check(t, encoder.Encode(pod, &value))
		s.ask("kv/put", map[string]any{"key": []byte(podKey("ns", name)), "value": value.Bytes()})
		for _, of := range expected {
			delete(of, "ns/"+name)
		}
		expected[""]["ns/"+name] = true
		if of := expected[node]; of != nil {
			of["ns/"+name] = true
		}
		switch number {
		case 40:
			s.kill()
			s.start()
		case 60:
			s.ask("kv/deleterange", map[string]any{"key": []byte(podKey("ns", "pod5"))})
			for _, of := range expected {
				delete(of, "ns/pod5")
			}
			revision, err := c.ConsistentRevision(bounded.Context(t))
			check(t, err)
			s.ask("kv/compaction", map[string]any{"revision": revision})
		}
	}
	for node, informer := range informers {
		bounded.Eventually(t, "the informer of the node "+node, func() bool {
			got := map[string]bool{}
			for name := range stateOf(t, informer.GetStore().List()) {
				got[name] = true
			}
			return maps.Equal(got, expected[node])
		})
	}
}
