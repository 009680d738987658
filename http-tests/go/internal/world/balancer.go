package world

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
)

// StartBalancer starts a proxy before several servers, such as 127.0.0.1:8080. The proxy gives each connection to the next
// of them, and skips those that do not take it.
func StartBalancer(servers []string) (*Proxy, error) {
	var turn atomic.Uint64
	return startProxy(func() (net.Conn, error) {
		var failures []error
		for range servers {
			connection, err := net.Dial("tcp", servers[turn.Add(1)%uint64(len(servers))])
			if err == nil {
				return connection, nil
			}
			failures = append(failures, err)
		}
		return nil, errors.Join(failures...)
	})
}

// The sections that Debian's package has, but for what needs root or a log; behind them what an operator writes.
const haproxyConfiguration = `defaults
 mode http
 option dontlognull
 timeout connect 5000
 timeout client 50000
 timeout server 50000

frontend all
 bind %s
 default_backend servers

backend servers
 balance roundrobin
 option httpchk GET /readyz
`

// StartHaproxy starts haproxy before several servers. Haproxy gives each request to the next of those that are ready.
func StartHaproxy(ctx context.Context, binary, directory string, servers []string) (url string, process *Process, err error) {
	address, err := FreeAddress()
	if err != nil {
		return "", nil, err
	}
	var text strings.Builder
	fmt.Fprintf(&text, haproxyConfiguration, address)
	for number, server := range servers {
		fmt.Fprintf(&text, " server s%d %s check inter 200\n", number, server)
	}
	file := filepath.Join(directory, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		return "", nil, err
	}
	// Without a master process, so that a kill ends all of it.
	process, err = Command{Name: binary, Arguments: []string{"-db", "-f", file}}.Start()
	if err != nil {
		return "", nil, err
	}
	url = "http://" + address
	if err := Until(ctx, "haproxy listens", func() error { return healthy(url + "/readyz") }); err != nil {
		process.Kill()
		return "", nil, fmt.Errorf("%w\n%s", err, process.Output())
	}
	return url, process, nil
}
