//! The live demonstration: a real etcd feeds a Rust, a C and a Go program and is killed in the middle; none of them
//! misses or repeats a change.
//!
//! `make demo` builds and starts this program; `scripts/demo.sh` has the steps.
#![forbid(unsafe_code)]

mod check;
mod consumer;
mod hash;
mod load;
#[path = "../../../tests/support/ports.rs"]
mod ports;
mod server;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use check::Difference;
use consumer::Consumer;
use load::Outcome;
use server::{Cleanup, Server};

/// A real etcd feeds a Rust, a C and a Go program through a crash.
#[derive(Parser)]
struct Arguments {
    /// The etcd program
    #[arg(long)]
    etcd: PathBuf,
    /// The command line of the library, which is the Rust consumer
    #[arg(long)]
    watchcore: PathBuf,
    /// The C consumer
    #[arg(long)]
    c: PathBuf,
    /// The Go consumer
    #[arg(long)]
    go: PathBuf,
    #[arg(long, default_value_t = 10_000)]
    objects: u64,
    #[arg(long, default_value_t = 50_000)]
    changes: u64,
    /// drop, drop-c, drop-go: the Rust, C or Go consumer skips one event
    #[arg(long, default_value = "")]
    fault: Fault,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Fault {
    #[value(name = "")]
    None,
    Drop,
    DropC,
    DropGo,
}

/// How long the consumers may take to get ready, and to finish after the last write.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// How long etcd stays down.
const AWAY: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let cleanup = Cleanup::default();
    let interrupted = Arc::new(AtomicBool::new(false));
    if let Err(error) = sweep_on_signals(&cleanup, &interrupted) {
        eprintln!("demo failed: cannot listen for signals: {error}");
        return ExitCode::FAILURE;
    }
    let begin = Instant::now();
    let outcome = run(&arguments, &cleanup);
    while interrupted.load(Ordering::SeqCst) {
        // The step failed because the demo is being ended; wait for that.
        std::thread::park();
    }
    cleanup.run();
    let seconds = begin.elapsed().as_secs_f64();
    match outcome {
        Ok(verdict) => {
            println!("{} ({seconds:.1} s)", verdict.line);
            if verdict.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            println!("demo failed: {error} ({seconds:.1} s)");
            ExitCode::FAILURE
        }
    }
}

fn sweep_on_signals(cleanup: &Cleanup, interrupted: &Arc<AtomicBool>) -> std::io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let (cleanup, interrupted) = (cleanup.clone(), Arc::clone(interrupted));
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            interrupted.store(true, Ordering::SeqCst);
            cleanup.run();
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

struct Verdict {
    passed: bool,
    line: String,
}

/// A progress bar on a terminal, lines elsewhere.
struct Progress(ProgressBar);

impl Progress {
    fn new(length: u64) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(length), target);
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} {msg}") {
            bar.set_style(style);
        }
        Progress(bar)
    }

    fn say(&self, text: &str) {
        if self.0.is_hidden() {
            let _ = writeln!(std::io::stderr(), "{text}");
        } else {
            self.0.println(text);
        }
    }
}

fn run(arguments: &Arguments, cleanup: &Cleanup) -> Outcome<Verdict> {
    let progress = Progress::new(arguments.objects + arguments.changes);
    let server = Server::launch(&arguments.etcd, cleanup).map_err(|error| error.to_string())?;
    let endpoint = server.endpoint();

    progress.say(&format!("etcd runs; loading {} objects", arguments.objects));
    let done = AtomicU64::new(0);
    let runtime = load::runtime()?;
    runtime.block_on(load::objects(&endpoint, arguments.objects, &done))?;
    progress.0.set_position(arguments.objects);

    progress.say("starting three consumers: Rust (the command line), C, Go");
    // The skipped event is in the middle.
    let dropped = |fault| (arguments.fault == fault).then_some(arguments.changes / 3);
    let consumers = [
        consumer::command_line(&arguments.watchcore, &endpoint, dropped(Fault::Drop), cleanup)?,
        consumer::program("c", &arguments.c, &endpoint, dropped(Fault::DropC), cleanup)?,
        consumer::program("go", &arguments.go, &endpoint, dropped(Fault::DropGo), cleanup)?,
    ];
    wait("the consumers do not get ready", &consumers, Consumer::is_ready, || {})?;

    progress.say(&format!("writing {} changes: puts, deletes, transactions, leases", arguments.changes));
    write(arguments, &server, &endpoint, &progress)?;
    let end = runtime.block_on(load::last(&endpoint))?;
    progress.0.set_position(arguments.objects + arguments.changes);
    wait("the consumers do not see the last change", &consumers, Consumer::is_done, || {
        progress.0.set_message(counts(&consumers));
    })?;

    progress.say(&format!("comparing with etcd's own watch and list, up to revision {end}"));
    let mut passed = true;
    let mut lines = Vec::new();
    let mut events = 0;
    let mut objects = 0;
    for consumer in consumers {
        let name = consumer.name;
        let history = consumer.finish()?;
        let etcd = runtime.block_on(check::from_etcd(&endpoint, history.start, end))?;
        let difference = Difference::of(&history, &etcd);
        passed &= difference.is_none() && etcd.events.len() as u64 >= arguments.changes;
        lines.push(format!("{name}: {} events, {difference}", history.events.len()));
        (events, objects) = (etcd.events.len(), etcd.objects);
    }
    progress.0.finish_and_clear();
    let line = if passed {
        format!(
            "demo passed: rust, c and go each got all {events} events in etcd's order through a kill -9 of etcd: \
             lost 0, duplicated 0, resyncs 0; their states equal etcd's {objects} objects at revision {end}"
        )
    } else {
        format!("demo failed: {}; etcd has {events} events and {objects} objects at revision {end}", lines.join("; "))
    };
    Ok(Verdict { passed, line })
}

/// Writes the changes, and kills etcd in the middle.
fn write(arguments: &Arguments, server: &Server, endpoint: &str, progress: &Progress) -> Outcome<()> {
    let done = Arc::new(AtomicU64::new(0));
    let writers = {
        let (done, endpoint) = (Arc::clone(&done), endpoint.to_owned());
        let (objects, changes) = (arguments.objects, arguments.changes);
        std::thread::spawn(move || load::runtime()?.block_on(load::changes(&endpoint, objects, changes, &done)))
    };
    let mut crashed = false;
    while !writers.is_finished() {
        let written = done.load(Ordering::Relaxed);
        progress.0.set_position(arguments.objects + written.min(arguments.changes));
        if !crashed && written >= arguments.changes / 2 {
            crashed = true;
            progress.say("kill -9 of etcd");
            server.kill();
            std::thread::sleep(AWAY);
            server.start().map_err(|error| error.to_string())?;
            progress.say("etcd runs again");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    writers.join().map_err(|_| "the writers panicked".to_owned())??;
    if crashed { Ok(()) } else { Err("the writing was over before the crash".to_owned()) }
}

fn counts(consumers: &[Consumer]) -> String {
    let counts: Vec<String> =
        consumers.iter().map(|consumer| format!("{} {}", consumer.name, consumer.events())).collect();
    counts.join(", ")
}

/// Waits until `reached` is true for each consumer.
fn wait(
    late: &str,
    consumers: &[Consumer],
    reached: impl Fn(&Consumer) -> bool,
    mut meanwhile: impl FnMut(),
) -> Outcome<()> {
    let begin = Instant::now();
    loop {
        if consumers.iter().all(&reached) {
            return Ok(());
        }
        let ended = consumers.iter().find(|consumer| consumer.has_ended() && !reached(consumer));
        if ended.is_some() || begin.elapsed() > WAIT_LIMIT {
            let waiting: Vec<&str> = consumers.iter().filter(|one| !reached(one)).map(|one| one.name).collect();
            let how = if ended.is_some() { "one has ended" } else { "too slow" };
            return Err(format!("{late} ({how}): {}; events: {}", waiting.join(", "), counts(consumers)));
        }
        meanwhile();
        std::thread::sleep(Duration::from_millis(10));
    }
}
