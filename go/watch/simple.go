package watch

import "sync"

// emptyWatch has no events.
type emptyWatch[T any] chan Event[T]

// NewEmptyWatch returns a watch that has already ended. Stop does nothing.
func NewEmptyWatch[T any]() Interface[T] {
	c := make(chan Event[T])
	close(c)
	return emptyWatch[T](c)
}

func (w emptyWatch[T]) Stop()                       {}
func (w emptyWatch[T]) ResultChan() <-chan Event[T] { return w }

// ProxyWatcher makes a watch of a channel to which the program sends. Stop closes StopChan, so that
// the sender can see it; the sender closes the channel.
type ProxyWatcher[T any] struct {
	results chan Event[T]
	stopped chan struct{}
	once    sync.Once
}

// NewProxyWatcher makes a ProxyWatcher.
func NewProxyWatcher[T any](ch chan Event[T]) *ProxyWatcher[T] {
	return &ProxyWatcher[T]{results: ch, stopped: make(chan struct{})}
}

// Stop closes StopChan. Stop may be called any number of times.
func (p *ProxyWatcher[T]) Stop() { p.once.Do(func() { close(p.stopped) }) }

// Stopping reports whether Stop was called.
func (p *ProxyWatcher[T]) Stopping() bool {
	select {
	case <-p.stopped:
		return true
	default:
		return false
	}
}

// ResultChan returns the channel that NewProxyWatcher was given.
func (p *ProxyWatcher[T]) ResultChan() <-chan Event[T] { return p.results }

// StopChan returns a channel that Stop closes.
func (p *ProxyWatcher[T]) StopChan() <-chan struct{} { return p.stopped }

// MockWatcher is a watch made of two functions. A nil StopFunc does nothing; a nil ResultChanFunc
// is an ended watch.
type MockWatcher[T any] struct {
	StopFunc       func()
	ResultChanFunc func() <-chan Event[T]
}

// Stop calls StopFunc.
func (m MockWatcher[T]) Stop() {
	if m.StopFunc != nil {
		m.StopFunc()
	}
}

// ResultChan calls ResultChanFunc.
func (m MockWatcher[T]) ResultChan() <-chan Event[T] {
	if m.ResultChanFunc == nil {
		return NewEmptyWatch[T]().ResultChan()
	}
	return m.ResultChanFunc()
}
