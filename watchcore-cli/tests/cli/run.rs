//! Running the built command line: output, exit code, signals, each with a deadline.
#![allow(dead_code)] // each test binary uses its own part

use std::io::{BufRead, BufReader, PipeReader, Read, pipe};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than anything here should take on a loaded machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// The words of a command with its endpoint, in JSON.
pub(crate) fn words<'a>(endpoint: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut words = more.to_vec();
    words.extend(["--etcd", endpoint, "--format", "json"]);
    words
}

#[track_caller]
pub(crate) fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|_| panic!("{line} is no JSON"))
}

/// A command line that was run to its end.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) time: Duration,
}

impl Ended {
    pub(crate) fn lines(&self) -> Vec<&str> {
        self.out.lines().collect()
    }

    /// The last line of standard output, which is an ERROR with this code.
    #[track_caller]
    pub(crate) fn error(&self, code: &str) -> Value {
        let last = self.out.lines().last().unwrap_or_else(|| panic!("no ERROR line: {self:?}"));
        let error: Value = serde_json::from_str(last).unwrap_or_else(|_| panic!("{last:?} is no JSON: {self:?}"));
        assert_eq!((error["type"].as_str(), error["code"].as_str()), (Some("ERROR"), Some(code)), "{self:?}");
        assert!(last.starts_with(&format!("{{\"type\":\"ERROR\",\"code\":\"{code}\",\"message\":\"")), "{last}");
        let message = error["message"].as_str().unwrap_or_default();
        assert!(self.err.contains(&format!("error: {message}")), "the same stands on standard error: {self:?}");
        error
    }

    #[track_caller]
    pub(crate) fn is(self, code: i32) -> Ended {
        assert_eq!(self.code, Some(code), "{self:#?}");
        if matches!(code, 1 | 3..=5) {
            let errors = self.err.lines().filter(|line| line.starts_with("error: ")).count();
            assert_eq!(errors, 1, "one line says what was wrong: {self:#?}");
        }
        self
    }

    /// The summary, which is the last line on standard error, by name.
    #[track_caller]
    pub(crate) fn summary(&self) -> Vec<(String, f64)> {
        let last = self.err.lines().last().unwrap_or_default();
        let rest = last.strip_prefix("summary: ").unwrap_or_else(|| panic!("no summary at the end: {self:#?}"));
        let fields: Vec<(String, f64)> = rest
            .split(' ')
            .map(|field| {
                let (name, number) = field.split_once('=').unwrap_or_else(|| panic!("{rest}"));
                (name.to_owned(), number.parse().unwrap_or_else(|_| panic!("{rest}")))
            })
            .collect();
        let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["events", "seconds", "events_per_second", "resyncs", "lagged", "reconnects"]);
        assert_eq!(self.err.matches("summary: ").count(), 1, "once: {self:#?}");
        fields
    }

    #[track_caller]
    pub(crate) fn summed(&self, name: &str) -> u64 {
        let summary = self.summary();
        summary.iter().find(|(known, _)| known == name).map_or(u64::MAX, |(_, number)| *number as u64)
    }
}

/// A command line with nothing of ours in its environment.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_watchcore"));
    let own = |name: &str| ["WATCHCORE_", "ETCDCTL_"].iter().any(|prefix| name.starts_with(prefix));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(own) {
            command.env_remove(name);
        }
    }
    command.args(arguments).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// Runs it to its end.
#[track_caller]
pub(crate) fn run(arguments: &[&str]) -> Ended {
    Running::start(command(arguments)).end()
}

/// What there is on standard output.
pub(crate) enum Heard {
    Line(String),
    Nothing,
    End,
}

/// A command line at work.
pub(crate) struct Running {
    child: Child,
    begin: Instant,
    out: Option<Receiver<String>>,
    err: Option<JoinHandle<String>>,
}

impl Running {
    #[track_caller]
    pub(crate) fn start(mut command: Command) -> Running {
        // Before it runs: on a loaded machine it may have waited for long when `spawn` returns.
        let begin = Instant::now();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command line starts");
        let (sender, receiver) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in stdout.split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
        Running { err: Some(read(child.stderr.take().expect("piped"))), child, begin, out: Some(receiver) }
    }

    /// The lines of standard error come as they are written; none are left for the end.
    #[track_caller]
    pub(crate) fn start_heard(mut command: Command) -> (Running, Receiver<String>) {
        let begin = Instant::now();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command line starts");
        let (sender, heard) = channel();
        let said = BufReader::new(child.stderr.take().expect("piped"));
        let (out, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || said.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| out.send(line)));
        let err = Some(std::thread::spawn(String::new));
        (Running { err, child, begin, out: Some(lines) }, heard)
    }

    /// Standard output is left to the caller.
    #[track_caller]
    pub(crate) fn start_unread(mut command: Command) -> (Running, std::process::ChildStdout) {
        let begin = Instant::now();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command line starts");
        let stdout = child.stdout.take().expect("piped");
        let err = Some(read(child.stderr.take().expect("piped")));
        (Running { err, child, begin, out: None }, stdout)
    }

    /// Both outputs are one pipe, which is left to the caller.
    #[track_caller]
    pub(crate) fn start_joined(mut command: Command) -> (Running, PipeReader) {
        let begin = Instant::now();
        let (ours, theirs) = pipe().expect("a pipe");
        command.stdout(theirs.try_clone().expect("a second descriptor")).stderr(theirs);
        let child = command.spawn().expect("the command line starts");
        let err = Some(std::thread::spawn(String::new));
        (Running { err, child, begin, out: None }, ours)
    }

    /// The next line on standard output.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        self.next().unwrap_or_else(|| {
            let _ = self.child.wait();
            panic!("it ended: {}", self.err.take().expect("once").join().expect("read"))
        })
    }

    /// The same, or `None` at the end.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Option<String> {
        match self.out.as_ref().expect("read here").recv_timeout(TIMEOUT) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => panic!("no line within {TIMEOUT:?}"),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// A line that has come already, if one has.
    pub(crate) fn heard(&mut self) -> Heard {
        match self.out.as_ref().expect("read here").try_recv() {
            Ok(line) => Heard::Line(line),
            Err(TryRecvError::Empty) => Heard::Nothing,
            Err(TryRecvError::Disconnected) => Heard::End,
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// `INT` or `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let script = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &script]).status().expect("sh").success());
    }

    /// Waits for the end; what was not read yet is the output.
    #[track_caller]
    pub(crate) fn end(mut self) -> Ended {
        let mut out = String::new();
        if let Some(receiver) = self.out.take() {
            let deadline = Instant::now() + TIMEOUT;
            loop {
                match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                    Ok(line) => out += &(line + "\n"),
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => panic!("it does not end; so far: {out}"),
                }
            }
        }
        let deadline = Instant::now() + TIMEOUT;
        let code = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status.code();
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        let err = self.err.take().expect("once").join().expect("standard error is read");
        Ended { code, out, err, time: self.begin.elapsed() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = from.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// The member names of a JSON line, in the order in which they stand.
pub(crate) fn members(line: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = line.trim().trim_start_matches('{');
    while let Some(start) = rest.strip_prefix('"') {
        let end = start.find("\":").unwrap_or_else(|| panic!("{line}"));
        names.push(start[..end].to_owned());
        let mut values = serde_json::Deserializer::from_str(&start[end + 2..]).into_iter::<Value>();
        values.next().unwrap_or_else(|| panic!("{line}")).unwrap_or_else(|_| panic!("{line}"));
        rest = start[end + 2 + values.byte_offset()..].trim_start_matches(',');
    }
    names
}

/// An address at which nobody listens.
pub(crate) const NOBODY: &str = "http://127.0.0.1:1";
