//! A `watchcore watch`, and its lines as rows print them.
//!
//! The process does not say that there is no more for now. Each asks for bookmarks: one of the revision that etcd has now
//! stands behind all events up to it, so a step that takes what there is reads up to it. Where everything up to that revision
//! is there already, no line may follow, and one that did come is printed.

use crate::lines::{self, text, whole};
use crate::place::{Place, Printed, Question, line, until};
use crate::run::{Heard, Running};
use crate::words::number;
use serde_json::Value;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

/// A process that watches.
pub(crate) struct Stream {
    /// `None`: it has ended.
    running: Option<Running>,
    /// Lines that were read while it was opened.
    arrived: VecDeque<Value>,
    /// Lines that a wait has found, and whether they are of the initial state.
    ahead: VecDeque<(Value, bool)>,
    /// Up to where everything was printed.
    pub(crate) position: u64,
    /// The number of the history that the last RESYNC line named, in the row; the process counts from its own start.
    pub(crate) history: u64,
    /// That of its start.
    first: u64,
    is_initial: bool,
    bookmarks: bool,
    /// The revision that its start names.
    asked: Option<u64>,
}

/// A line that a step prints, or why there is none.
enum News {
    Line(Value, bool),
    Nothing,
    Refused(String),
    Closed,
}

impl Stream {
    /// Starts it, and returns when its start is fixed: it follows etcd, or waits for a revision to come.
    pub(crate) fn open(place: &Place, history: u64, words: &[String]) -> Printed<Stream> {
        let (start, asked, options) = match &*words[0] {
            start @ ("now" | "state") => (start.to_owned(), None, &words[1..]),
            start @ ("after" | "state-at-least") => {
                let revision: u64 = number(&words[1]);
                (format!("{start}:{}", revision + 1), Some(revision), &words[2..])
            }
            start => panic!("this face has no start {start}"),
        };
        let question = Question::of(options);
        let mut more = ["--bookmarks", "--timeout", "60s", "--start", &start].map(OsString::from).to_vec();
        if let Some(key) = &question.key {
            more.extend(["--key".into(), OsString::from_vec(key.clone())]);
        }
        let before = place.etcd.waits();
        let mut stream = Stream {
            running: Some(place.start("watch", &more, &question)),
            arrived: VecDeque::new(),
            ahead: VecDeque::new(),
            position: if words[0] == "after" { asked.unwrap_or_default() } else { 0 },
            history,
            first: history,
            is_initial: words[0].starts_with("state"),
            bookmarks: question.bookmarks,
            asked,
        };
        let is_now = words[0] == "now";
        until("its start", || {
            stream.has_ended() || place.etcd.waits() > before && !(is_now && stream.arrived.is_empty())
        });
        if stream.arrived.back().is_some_and(|line| line["type"] == "ERROR") {
            let error = stream.arrived.pop_back().expect("just seen");
            return Err(stream.refusal(place, &error));
        }
        if stream.running.is_none() {
            return Err("INVALID_ARGUMENT".to_owned());
        }
        if is_now {
            let mark = stream.arrived.pop_front().expect("just seen");
            assert_eq!(mark["type"], "BOOKMARK", "`now` begins with the revision that it begins after");
            stream.position = whole(&mark, "revision");
        }
        Ok(stream)
    }

    /// Whether nothing follows what has arrived. It takes in what has.
    fn has_ended(&mut self) -> bool {
        loop {
            match self.running.as_mut().map_or(Heard::End, Running::heard) {
                Heard::Line(text) => self.arrived.push_back(line(&text)),
                Heard::Nothing => return false,
                Heard::End => {
                    let is_error = self.arrived.back().is_some_and(|line| line["type"] == "ERROR");
                    if !is_error && let Some(running) = self.running.take() {
                        running.end().is(2);
                    }
                    return true;
                }
            }
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.running.is_some()
    }

    /// Ends it as a user does.
    pub(crate) fn close(&mut self) {
        if let Some(running) = self.running.take() {
            running.signal("TERM");
            running.end().is(143).summary();
        }
    }

    fn refusal(&mut self, place: &Place, error: &Value) -> String {
        let ended = self.running.take().expect("it printed a line").end();
        ended.summary();
        place.refusal(error, ended, self.asked)
    }

    /// Whether everything that etcd has now was printed, or its start waits for a revision that etcd does not have.
    fn has_all(&self, now: (u64, u64)) -> bool {
        match self.is_initial {
            true => self.asked > Some(now.1),
            false => self.history == now.0 && self.position >= now.1,
        }
    }

    /// The next line that a step prints.
    fn news(&mut self, place: &Place, now: (u64, u64)) -> News {
        if let Some((line, is_initial)) = self.ahead.pop_front() {
            return News::Line(line, is_initial);
        }
        loop {
            let has_all = self.has_all(now);
            let Some(running) = &mut self.running else { return News::Closed };
            let next = match self.arrived.pop_front() {
                Some(next) => next,
                None => match if has_all { running.heard() } else { running.next().map_or(Heard::End, Heard::Line) } {
                    Heard::Line(text) => line(&text),
                    Heard::Nothing => return News::Nothing,
                    Heard::End => panic!("it ended: {:?}", self.running.take().expect("just heard").end()),
                },
            };
            let is_initial = self.is_initial;
            match text(&next, "type") {
                "ERROR" => return News::Refused(self.refusal(place, &next)),
                "BOOKMARK" => {
                    (self.is_initial, self.position) = (false, whole(&next, "revision"));
                    // Where many revisions come together, one in between may be due.
                    let is_last = self.bookmarks && self.has_all(now);
                    if next["initial_state_end"] != true && !is_last {
                        continue;
                    }
                }
                "RESYNC" if text(&next, "phase") == "end" => {
                    self.history = self.first + whole(&next, "epoch") - 1;
                    self.position = whole(&next, "to");
                }
                _ => {}
            }
            return News::Line(next, is_initial);
        }
    }

    /// Whether a poll would print something.
    pub(crate) fn wait(&mut self, place: &Place, now: (u64, u64)) -> &'static str {
        match self.news(place, now) {
            News::Line(line, is_initial) => {
                self.ahead.push_back((line, is_initial));
                "ready"
            }
            News::Nothing => "nothing",
            News::Closed => "CLOSED",
            News::Refused(refusal) => panic!("this face has no wait that ends in {refusal}"),
        }
    }

    /// What there is, as lines of a row. A poll takes so many, and ends with the initial state.
    pub(crate) fn take(
        &mut self,
        place: &Place,
        now: (u64, u64),
        is_poll: bool,
        most: usize,
        full: bool,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        while lines.len() < most {
            match self.news(place, now) {
                News::Nothing => break,
                News::Line(line, is_initial) => {
                    lines.push(lines::event(&line, is_initial, full));
                    if is_poll && line["initial_state_end"] == true {
                        break;
                    }
                }
                News::Refused(refusal) => {
                    lines.push(refusal);
                    break;
                }
                News::Closed => {
                    if lines.is_empty() || !is_poll {
                        lines.push("CLOSED".to_owned());
                    }
                    break;
                }
            }
        }
        lines
    }
}
