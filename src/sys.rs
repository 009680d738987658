//! The operating system's part of the core: a thread with all signals blocked, and a descriptor that becomes readable
//! (an eventfd on Linux, a pipe elsewhere).

#[cfg(not(loom))]
use crate::sync::{Acquire, Relaxed, Release};
use std::io;
#[cfg(not(loom))]
use std::os::fd::BorrowedFd;
#[cfg(not(loom))]
use std::sync::atomic::AtomicUsize;
#[cfg(not(loom))]
use std::thread::JoinHandle;

/// Monotonic time in nanoseconds since the first call in this process: it fits an atomic word.
pub(crate) mod clock {
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};

    fn base() -> Instant {
        static BASE: OnceLock<Instant> = OnceLock::new();
        *BASE.get_or_init(Instant::now)
    }

    /// The time of now: read as a number, which spares the arithmetic of `Instant`.
    #[cfg(all(any(target_os = "linux", target_os = "android"), not(loom)))]
    #[inline]
    pub(crate) fn now() -> u64 {
        monotonic(libc::CLOCK_MONOTONIC).saturating_sub(origin()) + ahead()
    }

    /// Some milliseconds after now at most, for a fraction of the price where the system has such a clock; and not before now,
    /// but where a tick of the system's is late: so nothing may rest on that.
    #[cfg(all(any(target_os = "linux", target_os = "android"), not(loom)))]
    #[inline]
    pub(crate) fn soon() -> u64 {
        /// Nanoseconds from one time of that clock to the next, where the tick comes in time.
        const TICK: u64 = 10_000_000;
        (monotonic(libc::CLOCK_MONOTONIC_COARSE) + TICK).saturating_sub(origin()) + ahead()
    }

    /// The base by the clocks of the system, of which `Instant` is one.
    #[cfg(all(any(target_os = "linux", target_os = "android"), not(loom)))]
    #[inline]
    fn origin() -> u64 {
        static ORIGIN: OnceLock<u64> = OnceLock::new();
        // The origin is ahead by the time between the two calls.
        *ORIGIN.get_or_init(|| monotonic(libc::CLOCK_MONOTONIC).saturating_sub(of(Instant::now())))
    }

    #[cfg(all(any(target_os = "linux", target_os = "android"), not(loom)))]
    #[inline]
    fn monotonic(clock: libc::clockid_t) -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: one timespec of this frame to write.
        unsafe { libc::clock_gettime(clock, &raw mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    #[cfg(any(loom, not(any(target_os = "linux", target_os = "android"))))]
    pub(crate) fn now() -> u64 {
        of(Instant::now()) + ahead()
    }

    #[cfg(any(loom, not(any(target_os = "linux", target_os = "android"))))]
    pub(crate) fn soon() -> u64 {
        now()
    }

    /// The time of an instant; one before the base counts as the base.
    pub(crate) fn of(instant: Instant) -> u64 {
        u64::try_from(instant.saturating_duration_since(base()).as_nanos()).unwrap_or(u64::MAX - 1)
    }

    pub(crate) fn instant(time: u64) -> Instant {
        base().checked_add(Duration::from_nanos(time)).unwrap_or_else(Instant::now)
    }

    /// How long ago a time was.
    pub(crate) fn since(time: u64) -> Duration {
        Duration::from_nanos(now().saturating_sub(time))
    }

    /// How far the clock of this thread is ahead: in tests.
    #[cfg(not(all(test, not(loom))))]
    #[inline(always)]
    fn ahead() -> u64 {
        0
    }

    #[cfg(all(test, not(loom)))]
    fn ahead() -> u64 {
        AHEAD.get()
    }

    #[cfg(all(test, not(loom)))]
    thread_local! {
        static AHEAD: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    /// Time that a test lets pass, for its own thread alone, until this is dropped.
    #[cfg(all(test, not(loom)))]
    pub(crate) struct TestTime;

    #[cfg(all(test, not(loom)))]
    impl TestTime {
        pub(crate) fn pass(&self, time: Duration) {
            AHEAD.set(AHEAD.get() + time.as_nanos() as u64);
        }
    }

    #[cfg(all(test, not(loom)))]
    impl Drop for TestTime {
        fn drop(&mut self) {
            AHEAD.set(0);
        }
    }
}

#[cfg(not(loom))]
thread_local! {
    static OWN_THREAD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether the library has started this thread.
#[cfg(not(loom))]
pub(crate) fn is_own_thread() -> bool {
    OWN_THREAD.get()
}

/// Threads of feeders, and those that their runtimes start.
#[cfg(not(loom))]
static OTHERS: AtomicUsize = AtomicUsize::new(0);

/// How many threads there are beside those that a process has once.
#[cfg(not(loom))]
pub(crate) fn other_threads() -> usize {
    OTHERS.load(Acquire)
}

/// A thread of a feeder's runtime begins: `shutdown` waits for its end.
#[cfg(not(loom))]
pub fn feeder_thread_began() {
    OTHERS.fetch_add(1, Relaxed);
}

/// The last that such a thread does.
#[cfg(not(loom))]
pub fn feeder_thread_ended() {
    // Release: partner of the load in `other_threads`.
    OTHERS.fetch_sub(1, Release);
}

/// Starts a named thread with all signals blocked.
#[cfg(not(loom))]
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let body = move || {
        OWN_THREAD.set(true);
        body();
    };
    with_signals_blocked(|| std::thread::Builder::new().name(name.into()).spawn(body))
        .inspect_err(|error| tracing::error!(name, %error, "the thread did not start"))
}

/// Starts the thread of a feeder: named, and with all signals blocked, so that the program's own threads
/// get what is sent to the process.
///
/// # Errors
/// The system's, where it starts no thread.
#[cfg(not(loom))]
pub fn spawn_feeder(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            feeder_thread_ended();
        }
    }
    feeder_thread_began();
    let end = End;
    spawn(name, move || {
        let _end = end;
        body();
    })
}

/// Runs `body` with all signals blocked; a thread started inside inherits that for its life.
#[cfg(all(miri, not(loom)))]
pub(crate) fn with_signals_blocked<T>(body: impl FnOnce() -> T) -> T {
    // There are none.
    body()
}

/// Runs `body` with all signals blocked; a thread started inside inherits that for its life.
#[cfg(not(any(loom, miri)))]
pub(crate) fn with_signals_blocked<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are plain memory of this frame; the calls have no other effect than the
    // mask of this thread, which is put back.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let result = body();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

/// A descriptor that is readable after [`Signal::raise`] until [`Signal::drain`].
///
/// Non-blocking and close-on-exec. The last owner closes the descriptor when it is dropped, so that a late raise
/// never writes to a descriptor that has been opened for something else under the same number.
#[cfg(not(loom))]
pub(crate) struct Signal {
    read: i32,
    write: i32,
}

#[cfg(all(any(target_os = "linux", target_os = "android"), not(any(loom, watchcore_pipe))))]
impl Signal {
    pub(crate) fn new() -> io::Result<Signal> {
        // SAFETY: no pointers are involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Signal { read: fd, write: fd }) }
    }
}

#[cfg(not(any(loom, all(any(target_os = "linux", target_os = "android"), not(watchcore_pipe)))))]
impl Signal {
    pub(crate) fn new() -> io::Result<Signal> {
        let mut ends = [0i32; 2];
        // SAFETY: `ends` has room for the two numbers; the other calls take numbers only.
        unsafe {
            if libc::pipe(ends.as_mut_ptr()) < 0 {
                return Err(io::Error::last_os_error());
            }
            for end in ends {
                libc::fcntl(end, libc::F_SETFD, libc::FD_CLOEXEC);
                libc::fcntl(end, libc::F_SETFL, libc::O_NONBLOCK);
            }
        }
        Ok(Signal { read: ends[0], write: ends[1] })
    }
}

#[cfg(not(loom))]
impl Signal {
    pub(crate) fn fd(&self) -> i32 {
        self.read
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it is open, and is closed by the drop of what is borrowed here.
        unsafe { BorrowedFd::borrow_raw(self.read) }
    }

    pub(crate) fn raise(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: 8 readable bytes; a full pipe or counter is readable already, so the result is
        // of no interest.
        unsafe { libc::write(self.write, one.as_ptr().cast(), one.len()) };
    }

    /// True: it was readable.
    pub(crate) fn drain(&self) -> bool {
        let mut room = [0u8; 64];
        let mut drained = false;
        loop {
            // SAFETY: 64 writable bytes; the descriptor does not block.
            let read = unsafe { libc::read(self.read, room.as_mut_ptr().cast(), room.len()) };
            drained |= read > 0;
            if read != room.len() as isize {
                return drained;
            }
        }
    }

    /// Blocks until readable, at most `milliseconds` (-1: for ever). True when readable.
    pub(crate) fn wait(&self, milliseconds: i32) -> bool {
        let mut poll = libc::pollfd { fd: self.read, events: libc::POLLIN, revents: 0 };
        // SAFETY: the count 1 is that of the entries at this address, which this frame owns.
        unsafe { libc::poll(&mut poll, 1, milliseconds) > 0 }
    }
}

#[cfg(not(loom))]
impl Drop for Signal {
    fn drop(&mut self) {
        // SAFETY: this is the last owner of both numbers.
        unsafe {
            libc::close(self.read);
            if self.write != self.read {
                libc::close(self.write);
            }
        }
    }
}

/// The signal for loom: one word. Waiting does not block.
#[cfg(loom)]
pub(crate) struct Signal(crate::sync::AtomicBool);

#[cfg(loom)]
impl Signal {
    pub(crate) fn new() -> io::Result<Signal> {
        Ok(Signal(crate::sync::AtomicBool::new(false)))
    }

    pub(crate) fn fd(&self) -> i32 {
        -1
    }

    pub(crate) fn raise(&self) {
        self.0.swap(true, crate::sync::AcqRel);
    }

    pub(crate) fn drain(&self) -> bool {
        self.0.swap(false, crate::sync::AcqRel)
    }

    pub(crate) fn wait(&self, _milliseconds: i32) -> bool {
        self.0.load(crate::sync::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no poll")]
    fn raised_until_drained() {
        let signal = Signal::new().unwrap();
        assert!(!signal.wait(0));
        signal.raise();
        signal.raise();
        assert!(signal.wait(0));
        signal.drain();
        assert!(!signal.wait(0));
    }
}
