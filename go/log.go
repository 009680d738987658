package watchcore

// #include "abi.h"
// #include <errno.h>
// #include <stdint.h>
// #include <sys/socket.h>
// #include <sys/uio.h>
//
// // The argument of the library's log function: the socket for messages, and how many were lost.
// struct wc_log {
//     int fd;
//     uint64_t lost;
// };
//
// // The longest message that is not cut.
// enum { WC_LOG_BYTES = 16384 };
//
// // Runs on any thread of the library or of a caller: it neither waits nor calls Go.
// static void wc_log_send(void *context, uint32_t level, const char *message, size_t length)
// {
//     struct wc_log *log = context;
//     struct iovec parts[2] = {
//         { &level, sizeof level },
//         { (void *)(uintptr_t)message, length < WC_LOG_BYTES ? length : WC_LOG_BYTES },
//     };
//     struct msghdr packet = { 0 };
//     int kept = errno;
//     packet.msg_iov = parts;
//     packet.msg_iovlen = 2;
//     if (sendmsg(log->fd, &packet, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
//         __atomic_fetch_add(&log->lost, 1, __ATOMIC_RELAXED);
//     }
//     errno = kept;
// }
//
// static watchcore_error *wc_log_set(struct wc_log *log, uint32_t level)
// {
//     WC_RETURN(watchcore_log_set(log == NULL ? NULL : wc_log_send, log, level, &error));
// }
//
// static uint64_t wc_log_lost(struct wc_log *log)
// {
//     return __atomic_exchange_n(&log->lost, 0, __ATOMIC_RELAXED);
// }
// #cgo nocallback wc_log_set
// #cgo nocallback wc_log_lost
// #cgo noescape wc_log_send
// #cgo nocallback wc_log_send
import "C"

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/watchcore/watchcore/go/internal/goroutine"
)

// LevelTrace is the level of the library's most detailed messages; its other levels are those of slog.
const LevelTrace = slog.LevelDebug - 4

// levels maps the library's level numbers to levels of slog; 0 is off.
var levels = [...]slog.Level{
	C.WATCHCORE_LOG_ERROR: slog.LevelError,
	C.WATCHCORE_LOG_WARN:  slog.LevelWarn,
	C.WATCHCORE_LOG_INFO:  slog.LevelInfo,
	C.WATCHCORE_LOG_DEBUG: slog.LevelDebug,
	C.WATCHCORE_LOG_TRACE: LevelTrace,
}

// logging is how the process logs the library's messages: the logger that was set, and the bridge
// to it, which exists while the process has users. The lock of the process protects it. Under that
// lock no code of the program is called, and no handler is waited for: a handler may make a cache.
type logging struct {
	logger *slog.Logger
	most   C.uint32_t // the library's level of the most detailed messages that the logger accepts
	chosen bool       // SetLogger was called

	bridge *bridge // to the logger; nil: none
	open   bool    // the library sends to the bridge; otherwise the bridge ends after its last message, unless it is opened again before
}

// bridge passes the library's messages to a logger, on its own goroutine.
type bridge struct {
	process   *process
	c         *C.struct_wc_log // its descriptor is closed under the lock of the process, its memory freed by the goroutine
	in        int              // the descriptor of file
	file      *os.File
	logger    *slog.Logger
	ended     chan struct{} // closed when the goroutine has ended
	goroutine atomic.Uint64 // the goroutine's id
}

// SetLogger sets the logger for the library's messages, of all caches of the process: server
// problems, the reasons of resyncs, panics in the program's code, batches that were never released.
// nil is slog.Default() at the time of each message, which is also the default if SetLogger is
// never called. slog.New(slog.DiscardHandler) disables logging.
//
// The library does not make messages of levels that the handler has disabled when SetLogger is
// called: after a change of its level, call SetLogger again. The handler is called on one
// goroutine, message by message in order, and never delays the library: messages that arrive while
// too many wait are lost, and one warning says how many. A message is cut at 16 KiB. If a handler
// ends its goroutine, as runtime.Goexit and a test's FailNow do, the next message comes on another
// goroutine; a handler that panics ends the program, as on any goroutine. The goroutine exists
// while there is a cache: it ends, after the last message, when the last cache is closed. A thread
// of the library logs that a subscription was closed for its lag after the subscription itself has
// the error, so this message may be lost if the last cache is closed at the same time.
//
// When SetLogger returns, the former logger has received all earlier messages and is not called any
// more. So its handler cannot call SetLogger itself (ErrBusy), nor Shutdown; it may call everything
// else. The error is ErrUnsupported if the process collects the library's messages in another way.
func SetLogger(logger *slog.Logger) error {
	p := &theProcess
	if p.isHandler() {
		return newError(ErrBusy, "SetLogger was called by the log handler: it would wait for itself. Call it outside of the handler")
	}
	most := mostOf(logger)
	p.mu.Lock()
	before, err := p.log.set(p, logger, most)
	p.mu.Unlock()
	if before != nil {
		<-before.ended
	}
	return err
}

// mostOf returns the library's level of the most detailed messages that a logger accepts.
func mostOf(logger *slog.Logger) C.uint32_t {
	for level := C.uint32_t(C.WATCHCORE_LOG_TRACE); level > C.WATCHCORE_LOG_OFF; level-- {
		if orDefault(logger).Enabled(context.Background(), levels[level]) {
			return level
		}
	}
	return C.WATCHCORE_LOG_OFF
}

// set replaces the logger of the process. set returns the bridge to the former one; the caller must
// wait for its end without the lock.
func (l *logging) set(p *process, logger *slog.Logger, most C.uint32_t) (before *bridge, err error) {
	// A bridge is made even without users, so that an error is returned here and not by the next New.
	next, err := newBridge(p, logger, most)
	if err != nil {
		return nil, err
	}
	if before = l.bridge; before != nil {
		before.close()
	}
	*l = logging{logger: logger, most: most, chosen: true, bridge: next, open: next != nil}
	if p.users == 0 {
		l.stop()
	}
	return before, nil
}

// begin is called for the first user. most is the level of slog.Default(), which is used if the program has
// set no logger: errors should be visible, but if logging is impossible the cache works without it.
func (l *logging) begin(p *process, most C.uint32_t) error {
	if !l.chosen {
		l.most = most
	}
	var err error
	if l.bridge == nil {
		l.bridge, err = newBridge(p, l.logger, l.most)
	} else {
		err = failed(C.wc_log_set(l.bridge.c, l.most))
	}
	l.open = err == nil && l.bridge != nil
	if l.chosen {
		return err
	}
	return nil
}

// stop makes the bridge end after the messages that were sent.
func (l *logging) stop() {
	if !l.open {
		return
	}
	l.open = false
	if e := C.wc_log_set(nil, C.WATCHCORE_LOG_OFF); e != nil {
		taken(e) // a forked child, in which no thread would send
	}
	// A packet too short for a message wakes the goroutine, which then sees that nothing is left. If the socket is
	// full, the goroutine checks after the last message anyway.
	_, _ = syscall.Write(int(l.bridge.c.fd), []byte{0})
}

// send sends a message of this package.
func (l *logging) send(level slog.Level, message string) {
	if !l.open || level < levels[l.most] {
		return
	}
	number := C.uint32_t(C.WATCHCORE_LOG_ERROR)
	for levels[number] > level {
		number++
	}
	C.wc_log_send(unsafe.Pointer(l.bridge.c), number, characters(message), C.size_t(len(message)))
}

func orDefault(logger *slog.Logger) *slog.Logger {
	if logger == nil {
		return slog.Default()
	}
	return logger
}

// newBridge makes the library send messages up to a level to a logger, and none to the former
// bridge. OFF makes no bridge.
func newBridge(p *process, logger *slog.Logger, most C.uint32_t) (*bridge, error) {
	if most == C.WATCHCORE_LOG_OFF {
		return nil, failed(C.wc_log_set(nil, most))
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, newError(ErrResourceExhausted, "set the logger: no pair of sockets: %v. Close descriptors, or raise their limit", err)
	}
	// A fixed buffer size holds about a hundred messages on every machine.
	_ = syscall.SetsockoptInt(pair[1], syscall.SOL_SOCKET, syscall.SO_SNDBUF, 128<<10)
	b := &bridge{
		process: p,
		c:       (*C.struct_wc_log)(C.calloc(1, C.sizeof_struct_wc_log)),
		in:      pair[0],
		file:    os.NewFile(uintptr(pair[0]), "watchcore-log"),
		logger:  logger,
		ended:   make(chan struct{}),
	}
	b.c.fd = C.int(pair[1])
	if err := failed(C.wc_log_set(b.c, most)); err != nil {
		b.close()
		b.file.Close()
		C.free(unsafe.Pointer(b.c))
		return nil, err
	}
	p.started(b)
	go b.run()
	return b, nil
}

// close closes the sending side, to which the library sends no more. The goroutine ends after the
// last message.
func (b *bridge) close() { syscall.Close(int(b.c.fd)) }

func (b *bridge) over() <-chan struct{} { return b.ended }

// run ends when the other side is closed and all is read. If the handler ends the goroutine,
// another one continues after that message.
func (b *bridge) run() {
	through := false
	defer func() {
		if !through {
			go b.run()
			return
		}
		b.file.Close()
		C.free(unsafe.Pointer(b.c))
		b.process.ended(b)
		close(b.ended)
	}()
	b.goroutine.Store(goroutine.ID())
	packet := make([]byte, 4+C.WC_LOG_BYTES)
	say := func(level slog.Level, message string) {
		orDefault(b.logger).Log(context.Background(), level, "watchcore: "+message)
	}
	for !through {
		n, err := b.file.Read(packet)
		if err == nil && n >= 4 {
			level := min(binary.NativeEndian.Uint32(packet), C.WATCHCORE_LOG_TRACE)
			say(levels[level], string(packet[4:n]))
		}
		// The count of lost messages follows the message: if the handler ended the goroutine here
		// first, the message would be lost without being counted.
		if lost := uint64(C.wc_log_lost(b.c)); lost > 0 {
			say(slog.LevelWarn, fmt.Sprintf("%d messages came faster than they were taken, and are lost", lost))
		}
		through = err != nil || b.drained()
	}
}

// drained reports whether nothing is sent any more and nothing is left. If so, the bridge cannot be
// opened again.
func (b *bridge) drained() bool {
	b.process.mu.Lock()
	defer b.process.mu.Unlock()
	l := &b.process.log
	if l.open || l.bridge != b { // the bridge of a replaced logger ends at the end of the file instead
		return false
	}
	if _, _, err := syscall.Recvfrom(b.in, make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT); err == nil {
		return false
	}
	l.bridge = nil
	b.close()
	return true
}
