package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Programs are where the programs are.
type Programs struct{ Etcd, Server, Manager, Kubectl string }

// Cluster is what runs.
type Cluster struct {
	Programs  Programs
	Directory string
	// Client is etcd's own, Kubernetes that of the API server.
	Client     *clientv3.Client
	Config     *rest.Config
	Kubernetes kubernetes.Interface
	// Starts counts the starts of the API server.
	Starts int

	etcdURL, peerURL, address string
	etcd, server, manager     *Process
}

// Close ends everything that runs.
func (c *Cluster) Close() {
	for _, p := range []*Process{c.manager, c.server, c.etcd} {
		if p != nil {
			p.Kill()
		}
	}
	if c.Client != nil {
		_ = c.Client.Close()
	}
}

// StartEtcd starts etcd, the first time or again.
func (c *Cluster) StartEtcd(ctx context.Context) error {
	if c.Client == nil {
		if err := c.place(); err != nil {
			return err
		}
	}
	var err error
	c.etcd, err = start(c.Directory, "etcd", nil, c.Programs.Etcd, "--name", "s1", "--data-dir", filepath.Join(c.Directory, "etcd"), "--unsafe-no-fsync",
		"--log-level", "warn", "--heartbeat-interval", "10", "--election-timeout", "100",
		"--listen-client-urls", c.etcdURL, "--advertise-client-urls", c.etcdURL,
		"--listen-peer-urls", c.peerURL, "--initial-advertise-peer-urls", c.peerURL, "--initial-cluster", "s1="+c.peerURL)
	if err != nil {
		return err
	}
	return Until(ctx, "etcd starts", func(ctx context.Context) error {
		if err := c.etcd.Alive(); err != nil {
			return err
		}
		within, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := c.Client.Get(within, "health")
		return err
	})
}

// place chooses addresses and makes etcd's client.
func (c *Cluster) place() error {
	var addresses [3]string
	var err error
	for i := range addresses {
		if addresses[i], err = freeAddress(); err != nil {
			return err
		}
	}
	c.etcdURL, c.peerURL, c.address = "http://"+addresses[0], "http://"+addresses[1], addresses[2]
	c.Client, err = clientv3.New(clientv3.Config{Endpoints: []string{c.etcdURL}, Logger: zap.NewNop(), MaxCallRecvMsgSize: 1 << 30})
	return err
}

func (c *Cluster) file(name string) string { return filepath.Join(c.Directory, name) }

// token is that of the administrator.
const token = "the-token-of-the-demonstration"

// StartServer starts the API server, the first time or again, and waits until it is ready.
func (c *Cluster) StartServer(ctx context.Context, flags ...string) error {
	if c.Starts == 0 {
		if err := c.keys(); err != nil {
			return err
		}
	}
	host, port, err := net.SplitHostPort(c.address)
	if err != nil {
		return err
	}
	c.Starts++
	c.server, err = start(c.Directory, "kube-apiserver", []string{"KUBE_WATCHCACHE_CONSISTENCY_CHECKER=true"}, c.Programs.Server, append([]string{
		"--etcd-servers=" + c.etcdURL, "--etcd-compaction-interval=1m", "--bind-address=" + host, "--secure-port=" + port, "--cert-dir=" + c.Directory,
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-signing-key-file=" + c.file("sa.key"),
		"--service-account-key-file=" + c.file("sa.key"), "--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=Node,RBAC",
		"--token-auth-file=" + c.file("tokens"),
	}, flags...)...)
	if err != nil {
		return err
	}
	return Until(ctx, "the API server is ready", func(ctx context.Context) error {
		if err := c.server.Alive(); err != nil {
			return err
		}
		if c.Kubernetes == nil {
			if err := c.connect(); err != nil { // the server writes its certificate
				return err
			}
		}
		return c.Kubernetes.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// keys writes the key of service accounts and the administrator's token.
func (c *Cluster) keys() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	if err := os.WriteFile(c.file("sa.key"), text, 0o600); err != nil {
		return err
	}
	return os.WriteFile(c.file("tokens"), []byte(token+",admin,admin,system:masters\n"), 0o600)
}

// connect makes the client and the kubeconfig.
func (c *Cluster) connect() error {
	certificate, err := os.ReadFile(c.file("apiserver.crt"))
	if err != nil {
		return err
	}
	c.Config = &rest.Config{
		Host: "https://" + c.address, BearerToken: token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: certificate},
		WarningHandler: rest.NoWarnings{},
	}
	if c.Kubernetes, err = kubernetes.NewForConfig(c.Config); err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["demo"] = &clientcmdapi.Cluster{Server: c.Config.Host, CertificateAuthorityData: certificate}
	config.AuthInfos["demo"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["demo"] = &clientcmdapi.Context{Cluster: "demo", AuthInfo: "demo"}
	config.CurrentContext = "demo"
	return clientcmd.WriteToFile(*config, c.file("kubeconfig"))
}

// StartManager starts the controller manager.
func (c *Cluster) StartManager() (err error) {
	c.manager, err = start(c.Directory, "kube-controller-manager", nil, c.Programs.Manager, "--kubeconfig="+c.file("kubeconfig"), "--leader-elect=false",
		"--service-account-private-key-file="+c.file("sa.key"), "--root-ca-file="+c.file("apiserver.crt"), "--secure-port=0",
		"--kube-api-qps=1000", "--kube-api-burst=2000")
	return err
}

// KillEtcd and KillServer end them as kill -9 does.
func (c *Cluster) KillEtcd() { c.etcd.Kill() }

// KillServer ends the API server as kill -9 does.
func (c *Cluster) KillServer() { c.server.Kill() }

// Stop ends the controller manager and the API server by SIGTERM. The error says what the server ended with.
func (c *Cluster) Stop() error {
	if err := c.manager.Alive(); err != nil {
		return err
	}
	c.manager.Kill()
	if err := c.server.Alive(); err != nil {
		return err
	}
	return c.server.Terminate()
}

// Alive is an error where something has ended by itself.
func (c *Cluster) Alive() error {
	for _, p := range []*Process{c.etcd, c.server, c.manager} {
		if err := p.Alive(); err != nil {
			return err
		}
	}
	return nil
}

// Kubectl runs kubectl and returns what it prints.
func (c *Cluster) Kubectl(ctx context.Context, input string, arguments ...string) (string, error) {
	command := c.KubectlCommand(ctx, arguments...)
	command.Stdin = strings.NewReader(input)
	var errors bytes.Buffer
	command.Stderr = &errors
	out, err := command.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(arguments, " "), err, strings.TrimSpace(errors.String()))
	}
	return strings.TrimSpace(string(out)), err
}

// KubectlCommand is kubectl with arguments, as the administrator.
func (c *Cluster) KubectlCommand(ctx context.Context, arguments ...string) *exec.Cmd {
	return exec.CommandContext(ctx, c.Programs.Kubectl, append([]string{"--kubeconfig", c.file("kubeconfig"), "--cache-dir", c.file("kubectl")}, arguments...)...)
}

// Revision is etcd's.
func (c *Cluster) Revision(ctx context.Context) (int64, error) {
	response, err := c.Client.Get(ctx, "/", clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return response.Header.Revision, nil
}

// Address is where the API server listens.
func (c *Cluster) Address() string { return c.address }

// Metric adds up a metric of the API server, by the value of one of its labels.
func (c *Cluster) Metric(ctx context.Context, name, label string) (map[string]float64, error) {
	text, err := c.Kubernetes.Discovery().RESTClient().Get().AbsPath("/metrics").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	sums := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		labels, ok := strings.CutPrefix(line, name+"{")
		if !ok {
			continue
		}
		_, labelled, _ := strings.Cut(labels, label+`="`)
		of, _, _ := strings.Cut(labelled, `"`)
		var value float64
		if _, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &value); err != nil {
			return nil, err
		}
		sums[of] += value
	}
	return sums, nil
}
