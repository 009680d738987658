//! The only callback: a log function for the whole process.
//!
//! # In the header: Log messages
//!
//! Without a log function the library writes nothing, anywhere. The exception is a panic inside the library, with or
//! without a log function: Rust's runtime writes it to standard error.

use super::contract::frame;
use super::error::{invalid, panic_text, unsupported, watchcore_error};
use super::handle::check_process;
use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use tracing::subscriber::Interest;
use watchcore::{Code, Error, Result};

/// No message at all.
pub const WATCHCORE_LOG_OFF: u32 = 0;
/// A failure.
pub const WATCHCORE_LOG_ERROR: u32 = 1;
/// A problem that needs attention.
pub const WATCHCORE_LOG_WARN: u32 = 2;
/// Events that a person wants to know of.
pub const WATCHCORE_LOG_INFO: u32 = 3;
/// Single steps.
pub const WATCHCORE_LOG_DEBUG: u32 = 4;
/// Everything.
pub const WATCHCORE_LOG_TRACE: u32 = 5;

/// Receives a message: `length` bytes of UTF-8, not NUL-terminated, valid during the call. It is called on any thread
/// of the library or of the caller, on several at once; it must not call the library and must return soon. It must
/// return normally: an exception (in C++), longjmp or pthread_exit out of it ends the process. A panic (in Rust) is
/// caught by the library. The thread that it runs on is not cancelled meanwhile.
pub type watchcore_log_function =
    Option<unsafe extern "C-unwind" fn(context: *mut c_void, level: u32, message: *const c_char, length: usize)>;

/// Sets the process's log function, for messages up to `level` (WATCHCORE_LOG_...); NULL or OFF removes it.
/// When this returns, the previous function is not called any more: its `context` may be freed. Blocks while
/// a call of the previous function is running. Any thread, many at once.
/// Codes: INVALID_ARGUMENT, BUSY (called from inside the log function), UNSUPPORTED (the process collects the
/// library's messages by Rust's `tracing` already).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_log_set(
    function: watchcore_log_function,
    context: *mut c_void,
    level: u32,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_log_set, error, { set(function, context, level) })
}

struct Sink {
    level: u32,
    function: unsafe extern "C-unwind" fn(*mut c_void, u32, *const c_char, usize),
    context: *mut c_void,
}

// SAFETY: the contract of `watchcore_log_set` allows calling the function with its context on any thread.
unsafe impl Send for Sink {}
// SAFETY: the contract of `watchcore_log_set` allows calling the function on several threads at once.
unsafe impl Sync for Sink {}

/// Read-locked while a message is delivered, so that replacing the function waits for it.
static SINK: RwLock<Option<Sink>> = RwLock::new(None);
/// A copy of the sink's level, stored with it, so that a message below the level takes no lock.
static LEVEL: AtomicU32 = AtomicU32::new(WATCHCORE_LOG_OFF);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside the log function.
pub(super) fn is_inside() -> bool {
    INSIDE.get()
}

fn set(function: watchcore_log_function, context: *mut c_void, level: u32) -> Result<()> {
    if level > WATCHCORE_LOG_TRACE {
        return Err(invalid(format!("level is {level}. Give one of WATCHCORE_LOG_OFF to _TRACE.")));
    }
    if INSIDE.get() {
        return Err(Error::new(
            Code::Busy,
            "watchcore_log_set was called by the log function itself. Call it outside of that function.",
        ));
    }
    check_process()?;
    let sink = function.filter(|_| level != WATCHCORE_LOG_OFF).map(|function| Sink { level, function, context });
    if sink.is_some() {
        install()?;
    }
    replace(sink);
    Ok(())
}

/// Replaces the sink. Only this function does, so that level and function always change together, under one lock.
fn replace(sink: Option<Sink>) {
    let mut now = SINK.write().unwrap_or_else(PoisonError::into_inner);
    // Relaxed: a reader of the level checks it again under the lock.
    LEVEL.store(sink.as_ref().map_or(WATCHCORE_LOG_OFF, |sink| sink.level), Ordering::Relaxed);
    *now = sink;
}

/// Registers the process's collector, once.
fn install() -> Result<()> {
    static DONE: Mutex<bool> = Mutex::new(false);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !*done {
        tracing::subscriber::set_global_default(Collector).map_err(|_| {
            unsupported(
                "the process has a collector of Rust's tracing already, which gets the messages. Set no log function.",
            )
        })?;
        *done = true;
    }
    Ok(())
}

fn number(level: &tracing::Level) -> u32 {
    match *level {
        tracing::Level::ERROR => WATCHCORE_LOG_ERROR,
        tracing::Level::WARN => WATCHCORE_LOG_WARN,
        tracing::Level::INFO => WATCHCORE_LOG_INFO,
        tracing::Level::DEBUG => WATCHCORE_LOG_DEBUG,
        _ => WATCHCORE_LOG_TRACE,
    }
}

/// The crates of the library.
const OWN: [&str; 2] = ["watchcore", "watchcore_etcd"];

/// Collects the library's own messages, not those of the crates beneath it.
struct Collector;

fn is_own(metadata: &tracing::Metadata<'_>) -> bool {
    metadata.is_event() && metadata.target().split("::").next().is_some_and(|name| OWN.contains(&name))
}

impl tracing::Subscriber for Collector {
    /// The interest that is cached per call site: never for other crates. For the library's own it is "sometimes", so
    /// that the level is checked for each message: a cached answer could outlast a change of the level.
    fn register_callsite(&self, metadata: &'static tracing::Metadata<'static>) -> Interest {
        if is_own(metadata) { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        number(metadata.level()) <= LEVEL.load(Ordering::Relaxed) && is_own(metadata)
    }

    fn event(&self, event: &tracing::Event<'_>) {
        if INSIDE.get() {
            return;
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        let level = number(event.metadata().level());
        let sink = SINK.read().unwrap_or_else(PoisonError::into_inner);
        // The sink may have been replaced since the message passed `enabled`.
        if let Some(sink) = sink.as_ref().filter(|sink| level <= sink.level) {
            INSIDE.set(true);
            // The function is foreign: an unwind out of it must not reach the code that logged the message.
            let called = catch_unwind(AssertUnwindSafe(|| {
                // SAFETY: the contract of `watchcore_log_set`: the function may be called until it is replaced, and
                // replacing waits for this lock.
                unsafe { (sink.function)(sink.context, level, text.0.as_ptr().cast(), text.0.len()) }
            }));
            if let Err(payload) = called {
                panic_text(payload);
            }
            INSIDE.set(false);
        }
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Access to the log function for unit tests, one test at a time.
#[cfg(all(test, not(loom)))]
pub(super) mod testing {
    use super::*;

    type Function = unsafe extern "C-unwind" fn(*mut c_void, u32, *const c_char, usize);

    /// Runs `body` with a log function for the messages of this thread.
    pub(crate) fn with_function(function: Function, context: *mut c_void, level: u32, body: impl FnOnce()) {
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        set_function(function, context, level);
        tracing::subscriber::with_default(Collector, body);
        replace(None);
    }

    /// Called in `body`: sets another function.
    pub(crate) fn set_function(function: Function, context: *mut c_void, level: u32) {
        replace(Some(Sink { level, function, context }));
    }

    /// Called in `body`: whether the level is that of the function, and stays so while the lock keeps the function from
    /// changing.
    pub(crate) fn level_is_the_functions(looks: usize) -> bool {
        let sink = SINK.read().unwrap_or_else(PoisonError::into_inner);
        let level = sink.as_ref().map_or(WATCHCORE_LOG_OFF, |sink| sink.level);
        (0..looks).all(|_| {
            std::thread::yield_now();
            LEVEL.load(Ordering::Relaxed) == level
        })
    }
}

/// A message as "message, name=value, ...".
struct Text(String);

impl tracing::field::Visit for Text {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        use std::fmt::Write;
        let _ = if field.name() == "message" {
            let message = format!("{value:?}");
            let rest = std::mem::replace(&mut self.0, message);
            write!(self.0, "{rest}")
        } else {
            write!(self.0, ", {}={value:?}", field.name())
        };
    }

    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}
