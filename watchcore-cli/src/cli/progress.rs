//! Progress on standard error, only where that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal as _;
use std::time::Duration;

fn target() -> ProgressDrawTarget {
    // One that cannot move its cursor would fill up with copies of the line.
    let moves = std::env::var_os("TERM").is_some_and(|name| !name.is_empty() && name != "dumb");
    let draws = moves && std::io::stderr().is_terminal();
    if draws { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

/// Something of unknown length. It appears after a moment only.
pub(crate) fn spinner(message: &str) -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, target());
    spinner.set_message(message.to_owned());
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}

/// Something that is counted.
pub(crate) fn bar(message: &str, length: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), target());
    if let Ok(style) = ProgressStyle::with_template("{msg:>10} {wide_bar} {human_pos}/{human_len} {eta}") {
        bar.set_style(style);
    }
    bar.set_message(message.to_owned());
    bar
}
