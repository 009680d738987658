//! SIGINT and SIGTERM: the first asks the command to end, and forces the end if the command is stuck (for example in a
//! pipe that nobody reads); the second forces it at once. The time limit forces it too.
//!
//! A forced end does not wait for the actions of the first signal, and only for a moment for the reader of standard
//! error.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGPIPE, SIGTERM};
use signal_hook::iterator::Signals;

use super::{exit, stderr};

type Action = Box<dyn FnOnce() + Send>;

/// How long a command may take to end by itself.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a command may take to end after its time limit, which it checks itself between two steps.
const OVERTIME: Duration = Duration::from_secs(5);
/// How long a forced end may wait for standard error to be written.
pub(crate) const FLUSH_LIMIT: Duration = Duration::from_millis(500);

struct Shared {
    signal: AtomicI32,
    end_timeout: Mutex<Duration>,
    on_signal: Mutex<Vec<Action>>,
    last_words: Mutex<Option<Action>>,
    /// Whether the reason for the end was already claimed by a thread that prints it.
    explained: AtomicBool,
}

impl Default for Shared {
    fn default() -> Shared {
        Shared {
            signal: AtomicI32::new(0),
            end_timeout: Mutex::new(END_TIMEOUT),
            on_signal: Mutex::default(),
            last_words: Mutex::default(),
            explained: AtomicBool::new(false),
        }
    }
}

/// Whether a signal came, and the actions to run then.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<Shared>);

impl Interrupt {
    /// Listens for signals until the process ends.
    pub(crate) fn listen() -> std::io::Result<Interrupt> {
        let interrupt = Interrupt::default();
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let listener = interrupt.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                if listener.record(signal) {
                    let interrupt = listener.clone();
                    std::thread::spawn(move || {
                        std::thread::sleep(interrupt.end_timeout());
                        interrupt.force(exit::of_signal(signal));
                    });
                    listener.run_actions();
                } else {
                    listener.force(exit::of_signal(signal));
                }
            }
        })?;
        Ok(interrupt)
    }

    /// Records the first signal; false if another came before.
    fn record(&self, signal: i32) -> bool {
        self.0.signal.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Runs the registered actions.
    fn run_actions(&self) {
        let actions = std::mem::take(&mut *self.0.on_signal.lock().unwrap_or_else(PoisonError::into_inner));
        for action in actions {
            action();
        }
    }

    /// Sets how long the command may take to end by itself, if not the default.
    pub(crate) fn set_end_timeout(&self, timeout: Duration) {
        *self.0.end_timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    pub(crate) fn end_timeout(&self) -> Duration {
        *self.0.end_timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn force(&self, code: u8) -> ! {
        self.print_last_words();
        stderr::drain(FLUSH_LIMIT);
        std::process::exit(code.into())
    }

    /// Forces the end if the command has not ended some time after `timeout`: a thread that is stuck in a write or in a
    /// long step checks no deadline.
    pub(crate) fn limit(&self, timeout: Duration) -> std::io::Result<()> {
        let interrupt = self.clone();
        let late = move || {
            std::thread::sleep(timeout);
            std::thread::sleep(interrupt.end_timeout().max(OVERTIME));
            if interrupt.claim_explanation() {
                stderr::say(&format!(
                    "error: it did not end within {timeout:?}: nobody takes what it prints, or a step takes too long. Read its output, or give it longer with --timeout"
                ));
            }
            interrupt.force(exit::TIMEOUT)
        };
        std::thread::Builder::new().name("timeout".to_owned()).spawn(late).map(drop)
    }

    /// Whether the caller is the first to report why the command ends, so that only one line does.
    pub(crate) fn claim_explanation(&self) -> bool {
        !self.0.explained.swap(true, Ordering::SeqCst)
    }

    /// Ends the command, as a signal does, because the reader of standard output has gone.
    pub(crate) fn hang_up(&self) {
        if self.record(SIGPIPE) {
            self.run_actions();
        }
    }

    /// Whether the reader of standard output went before any signal came.
    pub(crate) fn has_hung_up(&self) -> bool {
        self.signal() == Some(SIGPIPE)
    }

    /// The signal that came, if one did.
    pub(crate) fn signal(&self) -> Option<i32> {
        match self.0.signal.load(Ordering::SeqCst) {
            0 => None,
            signal => Some(signal),
        }
    }

    /// Runs `action` at the first signal, or at once if that has already come.
    pub(crate) fn on_signal(&self, action: impl FnOnce() + Send + 'static) {
        self.0.on_signal.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(action));
        if self.signal().is_some() {
            self.run_actions();
        }
    }

    /// Sets the final output of the process, printed however it ends.
    pub(crate) fn set_last_words(&self, words: impl FnOnce() + Send + 'static) {
        *self.0.last_words.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(words));
    }

    /// Prints the final output, once. The lock is held meanwhile, so that no other thread ends the process in between;
    /// it is held only briefly, because printing waits for no reader.
    pub(crate) fn print_last_words(&self) {
        let mut words = self.0.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(words) = words.take() {
            words();
        }
    }

    /// Drops the final output.
    pub(crate) fn clear_last_words(&self) {
        *self.0.last_words.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn counter(interrupt: &Interrupt) -> Arc<AtomicUsize> {
        let count = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&count);
        interrupt.on_signal(move || {
            seen.fetch_add(1, Ordering::SeqCst);
        });
        count
    }

    #[test]
    fn the_first_signal_runs_the_actions_once() {
        let interrupt = Interrupt::default();
        let before = counter(&interrupt);
        assert_eq!((interrupt.signal(), before.load(Ordering::SeqCst)), (None, 0));
        assert!(interrupt.record(2));
        assert!(!interrupt.record(15), "a second signal is not the first");
        interrupt.run_actions();
        assert_eq!((interrupt.signal(), before.load(Ordering::SeqCst)), (Some(2), 1));
        assert_eq!(counter(&interrupt).load(Ordering::SeqCst), 1, "an action that comes late runs at once");
    }

    #[test]
    fn last_words_are_said_once() {
        let interrupt = Interrupt::default();
        let said = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&said);
        interrupt.set_last_words(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        interrupt.print_last_words();
        interrupt.print_last_words();
        assert_eq!(said.load(Ordering::SeqCst), 1);
        let count = Arc::clone(&said);
        interrupt.set_last_words(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        interrupt.clear_last_words();
        interrupt.print_last_words();
        assert_eq!(said.load(Ordering::SeqCst), 1);
    }
}
