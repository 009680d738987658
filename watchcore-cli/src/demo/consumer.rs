//! The three consumers, as child processes: the command line, whose JSON lines are read here, and the C and Go
//! programs, which report their own counts.
//!
//! A program reports, one line each: `{"ready":REVISION}` at the end
//! of its initial state, `REVISION HASH` for every event, and at the last key
//! `{"start":…,"events":…,"hash":"…","state":"…","objects":…,"resyncs":…}`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::Value;

use crate::check::History;
use crate::hash::{self, Fnv};
use crate::load::{LAST, Outcome, PREFIX};
use crate::server::Cleanup;

/// The observable progress of a running consumer.
#[derive(Default)]
struct Seen {
    ready: AtomicBool,
    events: AtomicU64,
    done: AtomicBool,
}

pub(crate) struct Consumer {
    pub(crate) name: &'static str,
    seen: Arc<Seen>,
    reader: JoinHandle<Outcome<History>>,
    /// The command line's standard error; its last line is the summary.
    words: Option<JoinHandle<String>>,
    cleanup: Cleanup,
}

/// The command line: `watchcore watch`.
pub(crate) fn command_line(program: &Path, endpoint: &str, drop: Option<u64>, cleanup: &Cleanup) -> Outcome<Consumer> {
    let mut command = Command::new(program);
    command.args(["watch", "--etcd", endpoint, "--prefix", PREFIX, "--start", "state", "--format", "json"]);
    command.stderr(Stdio::piped());
    start("rust", command, cleanup, move |lines, seen| Follower::new(drop).follow(lines, seen))
}

/// Starts a program that reports its own counts.
pub(crate) fn program(
    name: &'static str,
    program: &Path,
    endpoint: &str,
    drop: Option<u64>,
    cleanup: &Cleanup,
) -> Outcome<Consumer> {
    let mut command = Command::new(program);
    command.args([endpoint, PREFIX, LAST]);
    if let Some(number) = drop {
        command.arg(number.to_string());
    }
    start(name, command, cleanup, follow_reports)
}

fn start(
    name: &'static str,
    mut command: Command,
    cleanup: &Cleanup,
    follow: impl FnOnce(&mut dyn BufRead, &Seen) -> Outcome<History> + Send + 'static,
) -> Outcome<Consumer> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    cleanup.spawn(name, &mut command).map_err(|error| error.to_string())?;
    let pipes = cleanup.with(name, |child: &mut Child| (child.stdout.take(), child.stderr.take()));
    let Some((Some(stdout), stderr)) = pipes else { return Err(format!("{name} has no standard output")) };
    let seen = Arc::new(Seen::default());
    let shown = Arc::clone(&seen);
    let reader = std::thread::spawn(move || follow(&mut BufReader::new(stdout), &shown));
    let words = stderr.map(|mut stderr| {
        std::thread::spawn(move || {
            let mut words = String::new();
            let _ = stderr.read_to_string(&mut words);
            words
        })
    });
    Ok(Consumer { name, seen, reader, words, cleanup: cleanup.clone() })
}

impl Consumer {
    pub(crate) fn is_ready(&self) -> bool {
        self.seen.ready.load(Ordering::Acquire)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.seen.done.load(Ordering::Acquire)
    }

    pub(crate) fn events(&self) -> u64 {
        self.seen.events.load(Ordering::Relaxed)
    }

    /// Whether the consumer has stopped reading, successfully or not.
    pub(crate) fn has_ended(&self) -> bool {
        self.reader.is_finished()
    }

    /// Ends the process, if it does not do so itself, and returns what it saw.
    pub(crate) fn finish(self) -> Outcome<History> {
        let is_command_line = self.words.is_some();
        if is_command_line && let Some(pid) = self.cleanup.with(self.name, |child| child.id()) {
            let sent = Command::new("sh").args(["-c", "kill -TERM \"$0\"", &pid.to_string()]).status();
            sent.map_err(|error| format!("{}: sending SIGTERM: {error}", self.name))?;
        }
        let status = self.wait()?;
        let history = self.reader.join().map_err(|_| format!("{}: the reader panicked", self.name))?;
        let words = self.words.map(|words| words.join().unwrap_or_default()).unwrap_or_default();
        let mut history = history.map_err(|error| format!("{}: {error} {words}", self.name))?;
        if is_command_line {
            let summary = words.lines().find(|line| line.starts_with("summary: "));
            let summary = summary.ok_or_else(|| format!("{}: no summary in: {words}", self.name))?;
            if status.code() != Some(143) {
                return Err(format!("{}: {status} instead of exit code 143: {words}", self.name));
            }
            history.resyncs += count_of(summary, "resyncs=") + count_of(summary, "lagged=");
        } else if !status.success() {
            return Err(format!("{}: {status}", self.name));
        }
        Ok(history)
    }

    fn wait(&self) -> Outcome<ExitStatus> {
        let begin = Instant::now();
        loop {
            match self.cleanup.with(self.name, Child::try_wait) {
                Some(Ok(Some(status))) => return Ok(status),
                Some(Ok(None)) if begin.elapsed() < Duration::from_secs(10) => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => return Err(format!("{} does not end", self.name)),
            }
        }
    }
}

fn count_of(summary: &str, name: &str) -> u64 {
    let word = summary.split(' ').find_map(|word| word.strip_prefix(name));
    word.and_then(|number| number.parse().ok()).unwrap_or(u64::MAX)
}

/// Reads the JSON lines of `watchcore watch` and keeps the state they describe.
struct Follower {
    history: History,
    running: Fnv,
    state: HashMap<Vec<u8>, u64>,
    /// The number of the event that is skipped as a fault.
    drop: Option<u64>,
    number: u64,
}

impl Follower {
    fn new(drop: Option<u64>) -> Follower {
        let running = Fnv::default();
        let history = History { hash: running.0, ..History::default() };
        Follower { history, running, state: HashMap::new(), drop, number: 0 }
    }

    fn follow(mut self, lines: &mut dyn BufRead, seen: &Seen) -> Outcome<History> {
        let mut line = String::new();
        loop {
            line.clear();
            if lines.read_line(&mut line).map_err(|error| error.to_string())? == 0 {
                break;
            }
            let value: Value = serde_json::from_str(&line).map_err(|error| format!("{error} in {line}"))?;
            self.take(&value, seen).map_err(|error| format!("{error} in {line}"))?;
        }
        if !seen.done.load(Ordering::Acquire) {
            return Err("it ended before the last key".to_owned());
        }
        self.history.state = self.state.values().fold(0, |sum: u64, object| sum.wrapping_add(*object));
        self.history.objects = self.state.len() as u64;
        Ok(self.history)
    }

    fn take(&mut self, line: &Value, seen: &Seen) -> Outcome<()> {
        let kind = match line["type"].as_str().unwrap_or_default() {
            "ADDED" => hash::ADDED,
            "MODIFIED" => hash::MODIFIED,
            "DELETED" => hash::DELETED,
            "BOOKMARK" => {
                self.history.start = number(line, "revision")?;
                seen.ready.store(line["initial_state_end"] == true, Ordering::Release);
                return Ok(());
            }
            "RESYNC" => {
                self.history.resyncs += u64::from(line["phase"] == "begin");
                return Ok(());
            }
            other => return Err(format!("an unexpected {other}")),
        };
        let revision = number(line, "revision")?;
        let key = bytes(line, "key")?.ok_or("no key")?;
        let value = bytes(line, "value")?;
        if seen.ready.load(Ordering::Acquire) {
            self.number += 1;
            if self.drop == Some(self.number) {
                return Ok(());
            }
            self.history.add(&mut self.running, revision, kind, &key, value.as_deref());
            seen.events.store(self.number, Ordering::Relaxed);
        }
        let last = key == LAST.as_bytes();
        match value {
            Some(value) => {
                let object = hash::of_object(number(line, "mod_revision")?, &key, &value);
                self.state.insert(key, object);
            }
            None => {
                self.state.remove(&key);
            }
        }
        if last {
            seen.done.store(true, Ordering::Release);
        }
        Ok(())
    }
}

fn number(line: &Value, name: &str) -> Outcome<u64> {
    line[name].as_u64().ok_or_else(|| format!("no {name}"))
}

fn bytes(line: &Value, name: &str) -> Outcome<Option<Vec<u8>>> {
    if let Some(text) = line[name].as_str() {
        return Ok(Some(text.as_bytes().to_vec()));
    }
    match line[format!("{name}_base64")].as_str() {
        Some(text) => match base64::engine::general_purpose::STANDARD.decode(text) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) => Err(error.to_string()),
        },
        None => Ok(None),
    }
}

/// Reads the reports of a program that counts for itself.
fn follow_reports(lines: &mut dyn BufRead, seen: &Seen) -> Outcome<History> {
    let mut history = History::default();
    let mut line = String::new();
    loop {
        line.clear();
        if lines.read_line(&mut line).map_err(|error| error.to_string())? == 0 {
            return Err("it ended before the last key".to_owned());
        }
        if !line.starts_with('{') {
            let (revision, hash) = line.trim_end().split_once(' ').ok_or_else(|| format!("cannot read {line:?}"))?;
            let revision = revision.parse().map_err(|_| format!("cannot read {line:?}"))?;
            history.events.push((revision, hexadecimal(hash)?));
            seen.events.store(history.events.len() as u64, Ordering::Relaxed);
            continue;
        }
        let report: Value = serde_json::from_str(&line).map_err(|error| format!("{error} in {line}"))?;
        if report.get("ready").is_some() {
            history.start = number(&report, "ready")?;
            seen.ready.store(true, Ordering::Release);
            continue;
        }
        if number(&report, "start")? != history.start || number(&report, "events")? != history.events.len() as u64 {
            return Err(format!("the report does not fit what it said before: {line}"));
        }
        history.hash = hexadecimal(report["hash"].as_str().unwrap_or_default())?;
        history.state = hexadecimal(report["state"].as_str().unwrap_or_default())?;
        history.objects = number(&report, "objects")?;
        history.resyncs = number(&report, "resyncs")?;
        seen.done.store(true, Ordering::Release);
        return Ok(history);
    }
}

fn hexadecimal(text: &str) -> Outcome<u64> {
    u64::from_str_radix(text, 16).map_err(|_| format!("{text:?} is no hexadecimal number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = concat!(
        "{\"type\":\"ADDED\",\"revision\":3,\"key\":\"/demo/a\",\"value\":\"1\",\"create_revision\":3,\"mod_revision\":3,\"version\":1}\n",
        "{\"type\":\"BOOKMARK\",\"revision\":5,\"initial_state_end\":true}\n",
        "{\"type\":\"MODIFIED\",\"revision\":6,\"key\":\"/demo/a\",\"value_base64\":\"/wA=\",\"prev_value\":\"1\",\"create_revision\":3,\"mod_revision\":6,\"version\":2}\n",
        "{\"type\":\"ADDED\",\"revision\":7,\"key\":\"/demo/b\",\"value\":\"\",\"create_revision\":7,\"mod_revision\":7,\"version\":1}\n",
        "{\"type\":\"DELETED\",\"revision\":8,\"key\":\"/demo/b\",\"prev_value\":\"\",\"create_revision\":7,\"mod_revision\":7,\"version\":1}\n",
        "{\"type\":\"ADDED\",\"revision\":9,\"key\":\"/demo/~last\",\"value\":\"x\",\"create_revision\":9,\"mod_revision\":9,\"version\":1}\n",
    );

    fn expected() -> History {
        let mut running = Fnv::default();
        let mut history = History { start: 5, ..History::default() };
        history.add(&mut running, 6, hash::MODIFIED, b"/demo/a", Some(b"\xff\0"));
        history.add(&mut running, 7, hash::ADDED, b"/demo/b", Some(b""));
        history.add(&mut running, 8, hash::DELETED, b"/demo/b", None);
        history.add(&mut running, 9, hash::ADDED, LAST.as_bytes(), Some(b"x"));
        history.objects = 2;
        history.state =
            hash::of_object(6, b"/demo/a", b"\xff\0").wrapping_add(hash::of_object(9, LAST.as_bytes(), b"x"));
        history
    }

    #[test]
    fn the_command_line_is_read() {
        let seen = Seen::default();
        let history = Follower::new(None).follow(&mut LINES.as_bytes(), &seen).unwrap();
        assert_eq!(history, expected());
        assert!(seen.ready.load(Ordering::Acquire) && seen.done.load(Ordering::Acquire));
    }

    #[test]
    fn a_dropped_event_is_missing() {
        let history = Follower::new(Some(2)).follow(&mut LINES.as_bytes(), &Seen::default()).unwrap();
        assert_eq!(history.events.len(), 3);
        assert_ne!(history.hash, expected().hash);
    }

    #[test]
    fn an_early_end_is_an_error() {
        let short = &LINES[..LINES.len() / 2];
        let short = &short[..=short.rfind('\n').unwrap()];
        assert!(Follower::new(None).follow(&mut short.as_bytes(), &Seen::default()).is_err());
        assert!(follow_reports(&mut "{\"ready\":5}\n".as_bytes(), &Seen::default()).is_err());
    }

    #[test]
    fn reports_are_read() {
        let is = expected();
        let mut text = "{\"ready\":5}\n".to_owned();
        for (revision, hash) in &is.events {
            text += &format!("{revision} {hash:016x}\n");
        }
        text += &format!(
            "{{\"start\":5,\"events\":4,\"hash\":\"{:016x}\",\"state\":\"{:016x}\",\"objects\":2,\"resyncs\":0}}\n",
            is.hash, is.state
        );
        assert_eq!(follow_reports(&mut text.as_bytes(), &Seen::default()).unwrap(), is);
        let false_count = text.replace("\"events\":4", "\"events\":5");
        assert!(follow_reports(&mut false_count.as_bytes(), &Seen::default()).is_err());
    }

    #[test]
    fn the_summary_is_read() {
        let summary = "summary: events=5 seconds=1.0 events_per_second=5 resyncs=2 lagged=0 reconnects=1";
        assert_eq!(count_of(summary, "resyncs="), 2);
        assert_eq!(count_of(summary, "lagged="), 0);
        assert_eq!(count_of("summary:", "resyncs="), u64::MAX, "what is missing is never taken for none");
    }
}
