package world

import (
	"io"
	"net"
	"sync"
)

// A Proxy stands between a server and etcd, so that the server can be cut off while others still reach etcd.
type Proxy struct {
	// URL is what the server takes for etcd's.
	URL string

	listener net.Listener
	target   string
	mutex    sync.Mutex
	open     map[net.Conn]bool // of both sides
	cut      bool
}

// StartProxy starts one before an address such as 127.0.0.1:2379.
func StartProxy(target string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{URL: "http://" + listener.Addr().String(), listener: listener, target: target, open: map[net.Conn]bool{}}
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
	to, err := net.Dial("tcp", p.target)
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
	_, _ = io.Copy(from, to)
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
