//! The parts of the command line.

mod access;
mod bench;
mod completions;
mod diff;
mod examples;
mod exit;
mod hint;
mod json;
mod log;
mod manual;
mod memory;
mod options;
mod output;
mod pipe;
mod progress;
mod read;

mod serve;
mod signals;
mod source;
mod status;
mod stderr;
mod text;
mod tour;
mod values;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use exit::{Failure, Stop};
use options::{Options, Task};
use output::Output;
use signals::Interrupt;
use stderr::say;
use watchcore::Code;

pub(crate) fn main() -> ExitCode {
    let options = options::of_process();
    let prepared = stderr::start().and_then(|()| {
        log::to_stderr(options.verbosity, options.log.as_deref());
        Interrupt::listen()
    });
    let prepared = prepared.and_then(|interrupt| Ok((interrupt, Output::standard(&options)?)));
    let (interrupt, mut out) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            say(&format!("error: cannot listen for signals or use the standard outputs: {error}"));
            stderr::drain(Duration::MAX);
            return exit::ERROR.into();
        }
    };
    // A server prints no data and must survive a closed standard output. Its time limit begins when it listens.
    if !matches!(options.task, Task::Serve(_)) {
        // If the thread cannot be started, the command still checks its deadline itself.
        let _ = options.timeout.map(|timeout| interrupt.limit(timeout));
        let hung_up = interrupt.clone();
        pipe::when_its_reader_goes(move || hung_up.hang_up());
    }
    let ended = run(&options, &interrupt, &mut out);
    let code = finish(ended, &interrupt, &mut out);
    // After a signal, a reader of standard error that has stopped may delay the exit for a moment only.
    stderr::drain(interrupt.signal().map_or(Duration::MAX, |_| signals::FLUSH_LIMIT));
    code.into()
}

fn run(options: &Options, interrupt: &Interrupt, out: &mut Output) -> Result<(), Stop> {
    match options.task {
        Task::Watch(ref watch) => watch::run(watch, options, interrupt, out),
        Task::List { .. } => read::list(options, interrupt, out),
        Task::Get { .. } => read::get(options, interrupt, out),
        Task::Count { .. } => read::count(options, interrupt, out),
        Task::Diff { .. } => diff::run(options, interrupt, out),
        Task::Status => status::run(options, interrupt, out),
        Task::Serve(ref serve) => serve::run(serve, options, interrupt),
        Task::Bench { .. } => bench::run(options, interrupt, out),
        Task::Demo => tour::run(options, interrupt, out),
        Task::Completions(shell) => completions::run(shell, out),
        Task::Manual(ref directory) => manual::run(directory),
    }
}

/// Reports how the command ended, and returns the exit code.
fn finish(ended: Result<(), Stop>, interrupt: &Interrupt, out: &mut Output) -> u8 {
    let stop = match ended {
        Ok(()) => {
            interrupt.print_last_words();
            return exit::DONE;
        }
        // A wait that a signal ended is no failure.
        Err(Stop::Failure(failure)) if interrupt.signal().is_some() && failure.code == Code::Closed => {
            Stop::Interrupted
        }
        Err(stop) => stop,
    };
    match stop {
        Stop::Interrupted if interrupt.has_hung_up() => {
            interrupt.clear_last_words();
            exit::DONE
        }
        Stop::Failure(failure) => report(&failure, interrupt, out),
        Stop::ClosedPipe => {
            interrupt.clear_last_words();
            exit::DONE
        }
        Stop::Interrupted => {
            let _ = out.flush();
            interrupt.print_last_words();
            interrupt.signal().map_or(exit::ERROR, exit::of_signal)
        }
    }
}

fn report(failure: &Failure, interrupt: &Interrupt, out: &mut Output) -> u8 {
    if let Err(Stop::ClosedPipe) = out.error(failure) {
        interrupt.clear_last_words();
        return exit::DONE;
    }
    if interrupt.claim_explanation() {
        say(&format!("error: {}", failure.message));
    }
    if failure.exit() == exit::USAGE {
        interrupt.clear_last_words();
    }
    interrupt.print_last_words();
    failure.exit()
}
