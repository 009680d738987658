package world

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Etcd is a server of one member, with a client of its own.
type Etcd struct {
	// URL is where it listens, also after it was killed and started again.
	URL string
	// Client is connected past every Proxy.
	Client *clientv3.Client

	binary, directory, peer string
	process                 *Process
}

// StartEtcd starts one whose data lie below directory.
func StartEtcd(ctx context.Context, binary, directory string) (*Etcd, error) {
	var err error
	// Somebody may take a port between the moment it was found free and etcd's start.
	for range 5 {
		e := &Etcd{binary: binary, directory: filepath.Join(directory, "etcd")}
		if e.URL, err = freeURL(); err != nil {
			return nil, err
		}
		if e.peer, err = freeURL(); err != nil {
			return nil, err
		}
		if err = e.Start(ctx); err != nil {
			continue
		}
		e.Client, err = clientv3.New(clientv3.Config{
			Endpoints:          []string{e.URL},
			Logger:             zap.NewNop(),
			MaxCallRecvMsgSize: 1 << 30,
		})
		return e, err
	}
	return nil, err
}

func freeURL() (string, error) {
	address, err := FreeAddress()
	return "http://" + address, err
}

// Start starts it again after Kill.
func (e *Etcd) Start(ctx context.Context) error {
	var err error
	e.process, err = Command{Name: e.binary, Arguments: []string{"--name", "s1", "--data-dir", e.directory, "--unsafe-no-fsync",
		"--heartbeat-interval", "10", "--election-timeout", "100", "--log-level", "warn",
		"--max-txn-ops", "10000", "--max-request-bytes", "10000000",
		"--listen-client-urls", e.URL, "--advertise-client-urls", e.URL,
		"--listen-peer-urls", e.peer, "--initial-advertise-peer-urls", e.peer, "--initial-cluster", "s1=" + e.peer,
	}}.Start()
	if err != nil {
		return err
	}
	err = Until(ctx, "etcd starts", func() error {
		select {
		case <-e.process.Ended():
			return nil
		default:
			return healthy(e.URL + "/health")
		}
	})
	select {
	case <-e.process.Ended():
		return fmt.Errorf("etcd ended:\n%s", e.process.Output())
	default:
	}
	if err != nil {
		e.process.Kill()
	}
	return err
}

// Kill ends etcd as kill -9 does. Writes that etcd acknowledged are there again after Start.
func (e *Etcd) Kill() { e.process.Kill() }

// Close ends it for good.
func (e *Etcd) Close() {
	if e.Client != nil {
		_ = e.Client.Close()
	}
	e.process.Kill()
}

// Revision is the store's.
func (e *Etcd) Revision(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	response, err := e.Client.Get(ctx, "/", clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return response.Header.Revision, nil
}
