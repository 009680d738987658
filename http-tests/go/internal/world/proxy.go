package world

import (
	"io"
	"net"
	"sync"
)

// A Proxy carries the bytes of connections: between a server and etcd, so that the server can be cut off or held back while
// others still reach etcd; or between clients and servers (Balancer).
type Proxy struct {
	// URL is what those who connect take for that of the other side.
	URL string

	listener net.Listener
	dial     func() (net.Conn, error)
	held     sync.RWMutex // locked while nothing may be carried to those who connected
	mutex    sync.Mutex
	open     map[net.Conn]bool // of both sides
	cut      bool
}

// StartProxy starts one before an address such as 127.0.0.1:2379.
func StartProxy(target string) (*Proxy, error) {
	return startProxy(func() (net.Conn, error) { return net.Dial("tcp", target) })
}

func startProxy(dial func() (net.Conn, error)) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{URL: "http://" + listener.Addr().String(), listener: listener, dial: dial, open: map[net.Conn]bool{}}
	go p.accept()
	return p, nil
}

func (p *Proxy) accept() {
	for {
		connection, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.carry(connection)
	}
}

func (p *Proxy) carry(from net.Conn) {
	defer from.Close()
	if !p.add(from) {
		return
	}
	defer p.remove(from)
	to, err := p.dial()
	if err != nil {
		return
	}
	defer to.Close()
	if !p.add(to) {
		return
	}
	defer p.remove(to)
	go func() {
		_, _ = io.Copy(to, from)
		to.Close()
	}()
	_, _ = io.Copy(gated{from, p}, to)
}

// gated is the side of the one who connected. The type is no net.Conn, so that io.Copy calls its Write.
type gated struct {
	to    io.Writer
	proxy *Proxy
}

func (g gated) Write(b []byte) (int, error) {
	g.proxy.held.RLock()
	defer g.proxy.held.RUnlock()
	return g.to.Write(b)
}

// Hold carries nothing more to those who connected until the function that it returns is called. Connections stay open, and
// new ones are accepted. Bytes that the other side sends after Hold has returned are not seen before that.
func (p *Proxy) Hold() (release func()) {
	p.held.Lock()
	return sync.OnceFunc(p.held.Unlock)
}

func (p *Proxy) add(connection net.Conn) bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.cut {
		return false
	}
	p.open[connection] = true
	return true
}

func (p *Proxy) remove(connection net.Conn) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	delete(p.open, connection)
}

// Cut closes all connections, and new ones as they come, until Mend.
func (p *Proxy) Cut() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.cut = true
	for connection := range p.open {
		connection.Close()
	}
}

// Mend lets connections through again.
func (p *Proxy) Mend() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.cut = false
}

// Close ends it for good.
func (p *Proxy) Close() {
	p.listener.Close()
	p.Cut()
}
