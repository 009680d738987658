//! Progress indicators on standard error, only if that is a terminal.

use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A wait shorter than this shows no indicator.
const MOMENT: Duration = Duration::from_millis(500);

/// The indicator on the terminal now, which a log line must not overwrite.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

fn target() -> ProgressDrawTarget {
    // A terminal that cannot move its cursor would fill up with copies of the line.
    let moves = std::env::var_os("TERM").is_some_and(|name| !name.is_empty() && name != "dumb");
    let draws = moves && std::io::stderr().is_terminal();
    if draws { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

/// A wait of unknown length. Its indicator appears after a moment and is removed on drop.
pub(crate) struct Waiting {
    message: String,
    since: Instant,
    shown: bool,
}

impl Waiting {
    pub(crate) fn new(message: String) -> Waiting {
        Waiting { message, since: Instant::now(), shown: false }
    }

    /// Shows the indicator if the wait has lasted for a moment.
    pub(crate) fn tick(&mut self) {
        if self.shown || self.since.elapsed() < MOMENT {
            return;
        }
        self.shown = true;
        let spinner = ProgressBar::with_draw_target(None, target());
        if spinner.is_hidden() {
            return;
        }
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            spinner.set_style(style.tick_chars("-\\|/ "));
        }
        spinner.set_message(self.message.clone());
        spinner.enable_steady_tick(Duration::from_millis(120));
        *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(spinner);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.shown
            && let Some(spinner) = SHOWN.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            spinner.finish_and_clear();
        }
    }
}

/// Writes to the terminal with the indicator removed meanwhile.
pub(crate) fn aside<T>(write: impl FnOnce() -> T) -> T {
    let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    match &*shown {
        Some(spinner) => spinner.suspend(write),
        None => write(),
    }
}

/// A progress bar for a known number of steps.
pub(crate) fn bar(message: &str, length: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), target());
    if let Ok(style) = ProgressStyle::with_template("{msg:>10} {wide_bar} {human_pos}/{human_len} {eta}") {
        bar.set_style(style);
    }
    bar.set_message(message.to_owned());
    bar
}
