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
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"unsafe"
)

// LogLevel is how much a message matters.
type LogLevel uint32

const (
	LogOff   LogLevel = C.WATCHCORE_LOG_OFF   // no message at all
	LogError LogLevel = C.WATCHCORE_LOG_ERROR // something failed
	LogWarn  LogLevel = C.WATCHCORE_LOG_WARN  // something is not as it should be
	LogInfo  LogLevel = C.WATCHCORE_LOG_INFO  // what a person wants to know
	LogDebug LogLevel = C.WATCHCORE_LOG_DEBUG // single steps
	LogTrace LogLevel = C.WATCHCORE_LOG_TRACE // everything
)

// String is the level's name, such as "Warn".
func (l LogLevel) String() string {
	if l <= LogTrace {
		return [...]string{"Off", "Error", "Warn", "Info", "Debug", "Trace"}[l]
	}
	return "LogLevel(" + strconv.FormatUint(uint64(l), 10) + ")"
}

// logger is what SetLog set.
type logger struct {
	c     *C.struct_wc_log
	ended chan struct{}
}

var logging struct {
	sync.Mutex
	now *logger
}

// SetLog hands out the messages of the library, of all caches of the process, up
// to a level; nil or LogOff takes the function away. It is called on one goroutine,
// message by message in their order, and never holds the library up: what comes
// while too many wait is lost, and one message of LogWarn says how many. A message
// is cut at 16 KiB.
//
// When SetLog returns, the function given before has seen all that was said until
// then and is not called any more. So it must not call SetLog itself.
// ErrUnsupported where the process collects the library's messages in another way.
func SetLog(level LogLevel, log func(level LogLevel, message string)) error {
	logging.Lock()
	defer logging.Unlock()
	var next *logger
	if log != nil && level != LogOff {
		var err error
		if next, err = newLogger(log); err != nil {
			return err
		}
	}
	var to *C.struct_wc_log
	if next != nil {
		to = next.c
	}
	if err := failed(C.wc_log_set(to, C.uint32_t(level))); err != nil {
		next.end()
		return err
	}
	logging.now.end()
	logging.now = next
	return nil
}

func newLogger(log func(LogLevel, string)) (*logger, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, newError(ErrResourceExhausted, "set the log function: no pair of sockets: %v. Close descriptors, or raise their limit", err)
	}
	// The same on every machine: some hundred messages.
	_ = syscall.SetsockoptInt(pair[1], syscall.SOL_SOCKET, syscall.SO_SNDBUF, 128<<10)
	l := &logger{c: (*C.struct_wc_log)(C.calloc(1, C.sizeof_struct_wc_log)), ended: make(chan struct{})}
	l.c.fd = C.int(pair[1])
	go l.run(os.NewFile(uintptr(pair[0]), "watchcore-log"), log)
	return l, nil
}

// run ends when the other side is closed and all is read.
func (l *logger) run(file *os.File, log func(LogLevel, string)) {
	defer close(l.ended)
	defer file.Close()
	packet := make([]byte, 4+C.WC_LOG_BYTES)
	for {
		n, err := file.Read(packet)
		if lost := uint64(C.wc_log_lost(l.c)); lost > 0 {
			log(LogWarn, fmt.Sprintf("%d messages came faster than they were taken, and are lost", lost))
		}
		if err != nil || n < 4 {
			return
		}
		log(LogLevel(binary.NativeEndian.Uint32(packet)), string(packet[4:n]))
	}
}

// end waits until the function has seen the last message. Nobody sends any more.
func (l *logger) end() {
	if l == nil {
		return
	}
	syscall.Close(int(l.c.fd))
	<-l.ended
	C.free(unsafe.Pointer(l.c))
}
