package watchcore

// #include "abi.h"
// #include <errno.h>
// #include <stdint.h>
// #include <sys/socket.h>
// #include <sys/uio.h>
//
// // What the library's log function is given: where messages go, and how many did not.
// struct wc_log {
//     int fd;
//     uint64_t lost;
// };
//
// // The longest message that is kept whole.
// enum { WC_LOG_BYTES = 16384 };
//
// // On any thread of the library or of a caller: it neither waits nor calls Go.
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

	"watchcore/internal/goroutine"
)

// LevelTrace is the level of the library's most detailed messages; the others have the
// levels of slog.
const LevelTrace = slog.LevelDebug - 4

// levels is the library's levels, by its numbers; 0 is off.
var levels = [...]slog.Level{
	C.WATCHCORE_LOG_ERROR: slog.LevelError,
	C.WATCHCORE_LOG_WARN:  slog.LevelWarn,
	C.WATCHCORE_LOG_INFO:  slog.LevelInfo,
	C.WATCHCORE_LOG_DEBUG: slog.LevelDebug,
	C.WATCHCORE_LOG_TRACE: LevelTrace,
}

// logging is how the process's messages are handed out: the logger that was set, and the bridge to it, which is
// there while the process has users. It is used with the lock of the process. No code of the program is called
// with that lock, and no handler waited for: a handler may make a cache.
type logging struct {
	logger *slog.Logger
	most   C.uint32_t // the library's level of the most that the logger takes
	chosen bool       // SetLogger was called

	bridge *bridge // to the logger; nil: there is none
	open   bool    // messages are sent to the bridge; otherwise it ends behind the last one, or is opened again before
}

// bridge hands the library's messages to a logger, from a goroutine of its own.
type bridge struct {
	process   *process
	c         *C.struct_wc_log // its descriptor is closed under the lock of the process, its memory freed by the goroutine
	in        int              // the descriptor of file
	file      *os.File
	logger    *slog.Logger
	ended     chan struct{} // closed at the end
	goroutine atomic.Uint64 // its number
}

// SetLogger says where the messages of the library go, those of all caches of the
// process: what is wrong with a server, why a history was replaced, a panic in foreign
// code, a batch that was never released. nil is slog.Default(), as it is when a message comes; that is also where they go
// when SetLogger is never called. slog.New(slog.DiscardHandler) switches them off.
//
// What the handler has not enabled when SetLogger is called is not made at all: after a
// change of its level, call SetLogger again. The handler is called on one goroutine,
// message by message in their order, and never holds the library up: what comes while
// too many wait is lost, and one warning says how many. A message is cut at 16 KiB. A
// handler that ends its goroutine, as runtime.Goexit and a test's FailNow do, is called on another one
// with the next message; one that panics ends the program, as on any goroutine. The goroutine is there while
// there is a cache: it ends, behind the last message, with the last one that is closed. A thread of the library says
// that a subscription was closed for its lag after the subscription is told: beside the close of the last cache this
// message may be lost.
//
// When SetLogger returns, the logger given before has seen all that was said until then
// and is not called any more. So its handler cannot call SetLogger itself (ErrBusy); it may call
// everything else but Shutdown. It is ErrUnsupported where the process collects the library's messages
// in another way.
func SetLogger(logger *slog.Logger) error {
	p := &theProcess
	if p.isHandler() {
		return newError(ErrBusy, "SetLogger was called by the log handler: it would wait for itself. Call it elsewhere")
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

// mostOf is the library's level of the most that a logger takes.
func mostOf(logger *slog.Logger) C.uint32_t {
	for level := C.uint32_t(C.WATCHCORE_LOG_TRACE); level > C.WATCHCORE_LOG_OFF; level-- {
		if orDefault(logger).Enabled(context.Background(), levels[level]) {
			return level
		}
	}
	return C.WATCHCORE_LOG_OFF
}

// set makes another logger the process's. It returns the bridge to the one before, for whose end the caller has
// to wait without the lock.
func (l *logging) set(p *process, logger *slog.Logger, most C.uint32_t) (before *bridge, err error) {
	// Also without users: that it is not possible is said here, and not with the next cache.
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

// begin is called with the first user. most is that of slog.Default(), where the messages go that nobody has
// chosen a logger for: what goes wrong should be seen, and where it cannot be had the program goes on without.
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

// stop lets the bridge end behind what was said.
func (l *logging) stop() {
	if !l.open {
		return
	}
	l.open = false
	if e := C.wc_log_set(nil, C.WATCHCORE_LOG_OFF); e != nil {
		taken(e) // that of a forked child, which has no thread that would send
	}
	// A packet that is no message: whoever reads it, or the last one where there is no room for it, looks whether
	// anything is left.
	_, _ = syscall.Write(int(l.bridge.c.fd), []byte{0})
}

// send says a message of the package's own.
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

// newBridge lets messages up to a level go to a logger, and none to the bridge that was there. OFF is no bridge.
func newBridge(p *process, logger *slog.Logger, most C.uint32_t) (*bridge, error) {
	if most == C.WATCHCORE_LOG_OFF {
		return nil, failed(C.wc_log_set(nil, most))
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, newError(ErrResourceExhausted, "set the logger: no pair of sockets: %v. Close descriptors, or raise their limit", err)
	}
	// The same on every machine: some hundred messages.
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

// close ends what is sent, of a bridge to which the library sends no more. The goroutine ends behind the last message.
func (b *bridge) close() { syscall.Close(int(b.c.fd)) }

func (b *bridge) over() <-chan struct{} { return b.ended }

// run ends when the other side is closed and all is read. Where the handler ends the goroutine another one goes on
// behind that message.
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
		// Behind the message, which would be lost with a handler that ends here, and not be counted.
		if lost := uint64(C.wc_log_lost(b.c)); lost > 0 {
			say(slog.LevelWarn, fmt.Sprintf("%d messages came faster than they were taken, and are lost", lost))
		}
		through = err != nil || b.drained()
	}
}

// drained says whether nobody sends any more and nothing is left, and lets nobody open the bridge again then.
func (b *bridge) drained() bool {
	b.process.mu.Lock()
	defer b.process.mu.Unlock()
	l := &b.process.log
	if l.open || l.bridge != b { // of a logger that was replaced the end of the file says so
		return false
	}
	if _, _, err := syscall.Recvfrom(b.in, make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT); err == nil {
		return false
	}
	l.bridge = nil
	b.close()
	return true
}
