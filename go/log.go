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
import "C"

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"unsafe"
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

// logging is how the process's messages are handed out now. No code of the program is called
// with the lock, and no handler waited for: a handler may make a cache.
var logging struct {
	sync.Mutex
	now    *bridge
	chosen bool // SetLogger was called, or what it does by default has been done
}

// bridge hands the library's messages to a logger.
type bridge struct {
	c     *C.struct_wc_log
	ended chan struct{}
}

// SetLogger says where the messages of the library go, those of all caches of the
// process: what is wrong with a server, why a history was replaced, a panic in foreign
// code. nil is slog.Default(), as it is when a message comes; that is also where they go
// when SetLogger is never called. slog.New(slog.DiscardHandler) switches them off.
//
// What the handler has not enabled when SetLogger is called is not made at all: after a
// change of its level, call SetLogger again. The handler is called on one goroutine,
// message by message in their order, and never holds the library up: what comes while
// too many wait is lost, and one warning says how many. A message is cut at 16 KiB. A
// handler that ends its goroutine, as runtime.Goexit and a test's FailNow do, is called on another one
// with the next message; one that panics ends the program, as on any goroutine.
//
// When SetLogger returns, the logger given before has seen all that was said until then
// and is not called any more. So its handler must not call SetLogger itself; it may call
// everything else. It is ErrUnsupported where the process collects the library's messages
// in another way.
func SetLogger(logger *slog.Logger) error {
	most := mostOf(logger)
	logging.Lock()
	unused, err := setLogger(logger, most)
	logging.Unlock()
	unused.end()
	return err
}

// logToDefault is called before there is a cache: what goes wrong should be seen. Where
// it cannot be had the program goes on without.
func logToDefault() {
	most := mostOf(nil)
	var unused *bridge
	logging.Lock()
	if !logging.chosen {
		unused, _ = setLogger(nil, most)
	}
	logging.Unlock()
	unused.end()
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

// setLogger is called with the lock. It returns what is used no longer, which the caller has
// to end without it.
func setLogger(logger *slog.Logger, most C.uint32_t) (unused *bridge, err error) {
	logging.chosen = true
	var next *bridge
	var to *C.struct_wc_log
	if most != C.WATCHCORE_LOG_OFF {
		if next, err = newBridge(logger); err != nil {
			return nil, err
		}
		to = next.c
	}
	if err := failed(C.wc_log_set(to, most)); err != nil {
		return next, err
	}
	unused, logging.now = logging.now, next
	return unused, nil
}

func orDefault(logger *slog.Logger) *slog.Logger {
	if logger == nil {
		return slog.Default()
	}
	return logger
}

func newBridge(logger *slog.Logger) (*bridge, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, newError(ErrResourceExhausted, "set the logger: no pair of sockets: %v. Close descriptors, or raise their limit", err)
	}
	// The same on every machine: some hundred messages.
	_ = syscall.SetsockoptInt(pair[1], syscall.SOL_SOCKET, syscall.SO_SNDBUF, 128<<10)
	b := &bridge{c: (*C.struct_wc_log)(C.calloc(1, C.sizeof_struct_wc_log)), ended: make(chan struct{})}
	b.c.fd = C.int(pair[1])
	go b.run(os.NewFile(uintptr(pair[0]), "watchcore-log"), logger)
	return b, nil
}

// run ends when the other side is closed and all is read. Where the handler ends the goroutine another one goes on
// behind that message.
func (b *bridge) run(file *os.File, logger *slog.Logger) {
	read := false
	defer func() {
		if !read {
			go b.run(file, logger)
			return
		}
		file.Close()
		close(b.ended)
	}()
	packet := make([]byte, 4+C.WC_LOG_BYTES)
	say := func(level slog.Level, message string) {
		orDefault(logger).Log(context.Background(), level, "watchcore: "+message)
	}
	for !read {
		n, err := file.Read(packet)
		if read = err != nil || n < 4; !read {
			level := min(binary.NativeEndian.Uint32(packet), C.WATCHCORE_LOG_TRACE)
			say(levels[level], string(packet[4:n]))
		}
		// Behind the message, which would be lost with a handler that ends here, and not be counted.
		if lost := uint64(C.wc_log_lost(b.c)); lost > 0 {
			say(slog.LevelWarn, fmt.Sprintf("%d messages came faster than they were taken, and are lost", lost))
		}
	}
}

// end waits until the logger has seen the last message. Nobody sends any more.
func (b *bridge) end() {
	if b == nil {
		return
	}
	syscall.Close(int(b.c.fd))
	<-b.ended
	C.free(unsafe.Pointer(b.c))
}
