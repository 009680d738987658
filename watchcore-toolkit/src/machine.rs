//! The state machine of the reflector and of the retrying watch decides what to do next; it neither
//! calls a source nor reads a clock.
//!
//! The table of its states, inputs and actions is in docs/internals/toolkit.md, "List, watch,
//! resume"; the classes of errors are in docs/TOOLKIT.md, "Lists, watches and errors". A driver
//! ([`Reflector`](crate::Reflector), [`RetryWatch`](crate::RetryWatch)) starts with [`Input::Due`],
//! executes each [`Command`], and reports its result as the next [`Input`].

#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;

use crate::event::Status;
use std::time::{Duration, Instant};
use watchcore::{Backoff, Error};

/// A watch that ended within this time and delivered nothing new is a fruitless attempt.
const SHORT: Duration = Duration::from_secs(1);

/// A list after a 410, or after fruitless attempts of a relay, comes at once if none came so within this time.
const RELIST_CALM: Duration = Duration::from_secs(30);

/// This number of fruitless attempts in a row leads to a list: whatever prevents the source from
/// continuing, the state is then known again, so no error leaves it stale for ever.
const MOST: u32 = 3;

/// The meaning of an error for the requested revision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// 410: the revision has left the source's window, so no watch can start there.
    Gone,
    /// 429, 503, and no answer in time: says nothing about the revision. The machine repeats the request later.
    Busy,
    /// Any other 5xx: the server or a gateway has failed, and another watch may succeed. 504 may
    /// also mean that the revision has not been reached yet, as after a restored backup.
    Failed,
    /// 401, 403.
    Refused,
    /// Everything else: the request or the stream is invalid, and repeating it does not help.
    Wrong,
}

impl Status {
    fn verdict(&self) -> Verdict {
        match self.code() {
            410 => Verdict::Gone,
            429 | 503 => Verdict::Busy,
            401 | 403 => Verdict::Refused,
            500..=599 => Verdict::Failed,
            _ => Verdict::Wrong,
        }
    }

    /// Whether repeating the request cannot succeed: the cache is closed, or broken for good.
    fn is_fatal(&self) -> bool {
        self.error().is_some_and(Error::is_fatal)
    }

    /// Whether a list at a revision failed because the source does not have that revision, any more or yet.
    fn lacks_revision(&self) -> bool {
        matches!(self.code(), 410 | 504)
    }
}

/// A report of the driver.
#[derive(Debug)]
pub(crate) enum Input {
    /// The wait is over; always the first input.
    Due,
    /// The source opened a watch.
    Opened,
    /// The whole state came, by a list or by a watch, and was stored.
    Synced,
    /// The watch delivered a newer revision than was known when it was requested.
    Newer,
    /// The list, the request for a watch, or the watch has failed.
    Failed(Status),
    /// A page other than the first is gone, the pages do not end, or they belong to several revisions.
    BrokenPages(Status),
    /// The watch delivered an event without a revision, from which it cannot be resumed.
    Unplaced(Status),
    /// The watch has ended without an error.
    Ended,
    /// The watch has ended inside a revision or a state, or the source returned no watch.
    Cut(Status),
    /// The watch has ended, and all its revisions were below the known one.
    WentBack(Status),
}

/// The next operation of the driver.
#[derive(PartialEq, Debug)]
pub(crate) enum Command {
    /// Report the error, wait if there is a delay, and report Due.
    Wait(Option<Duration>, Option<Status>),
    /// Send the request to the source.
    Try(Attempt),
    /// Read the initial state up to its end mark.
    Gather,
    /// Read events.
    Read,
    /// Deliver the error to the consumer, and end.
    End(Status),
}

/// A request to the source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attempt {
    /// A list: of the newest state, or of one not older than the known one; in one page, or in several.
    List { newest: bool, whole: bool },
    /// A watch that starts with the state: any state, or one not older than the known one.
    ReadState { any: bool },
    /// A watch after the resume point.
    Watch,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Waiting(Attempt),
    /// A request is being answered, or a state is being read.
    Asking(Attempt),
    Watching,
    Ended,
}

/// The purpose for which the source is followed.
#[derive(Debug)]
pub(crate) enum Policy {
    /// Fills a cache: never ends, waits by a backoff, and reads states by watches if it is
    /// configured so and the source can.
    Mirror { backoff: Backoff, by_watch: bool },
    /// Serves one consumer: ends with an error that repeating the request cannot mend, and keeps a
    /// minimum distance between the starts of attempts.
    Relay { distance: Duration, has_lister: bool },
}

/// The state machine, described in the [module](self)'s documentation.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) policy: Policy,
    state: State,
    /// Attempts in a row without a newer revision.
    fruitless: u32,
    /// The present watch has delivered a newer revision.
    is_newer: bool,
    /// The source lacks the revision of the resume point: lists request the newest state until one succeeds.
    wants_newest: bool,
    /// A state was stored: later states must not be older.
    has_state: bool,
    /// When the last watch was requested, or the state with which it starts was complete.
    opened_at: Option<Instant>,
    listed_at: Option<Instant>,
    /// When a 410 last led to a list of a mirror.
    relisted_at: Option<Instant>,
}

impl Machine {
    /// Makes a machine that starts with a list of any state.
    pub(crate) fn new(policy: Policy) -> Machine {
        let newest = matches!(policy, Policy::Relay { .. });
        Machine {
            policy,
            state: State::Waiting(Attempt::List { newest, whole: false }),
            fruitless: 0,
            is_newer: false,
            wants_newest: newest,
            has_state: false,
            opened_at: None,
            listed_at: None,
            relisted_at: None,
        }
    }

    /// Changes the first attempt.
    pub(crate) fn starting_with(self, first: Attempt) -> Machine {
        Machine { state: State::Waiting(first), ..self }
    }

    /// Takes an input, and returns the next command.
    pub(crate) fn step(&mut self, now: Instant, input: Input) -> Command {
        use Attempt::{List, ReadState, Watch};
        use State::{Asking, Waiting, Watching};
        match (self.state, input) {
            (Waiting(attempt), Input::Due) => self.ask(now, attempt),
            (Asking(List { .. }), Input::Synced) => {
                self.synced();
                self.at_once(Watch, None)
            }
            (Asking(List { newest, whole: false }), Input::BrokenPages(status)) => {
                self.at_once(List { newest, whole: true }, Some(status))
            }
            (Asking(List { newest, whole }), Input::BrokenPages(status) | Input::Failed(status)) => {
                self.list_failed(now, newest, whole, status)
            }
            (Asking(ReadState { .. }), Input::Opened) => Command::Gather,
            (Asking(ReadState { .. }), Input::Synced) => {
                self.synced();
                self.ask(now, Watch);
                self.read()
            }
            (Asking(ReadState { any }), Input::Failed(status)) => self.state_failed(now, any, status),
            (Asking(ReadState { .. }), Input::Cut(status)) => self.pause(now, self.relist(), Some(status)),
            (Asking(Watch), Input::Opened) => self.read(),
            (Watching, Input::Newer) => {
                (self.fruitless, self.is_newer) = (0, true);
                Command::Read
            }
            (Watching, Input::Unplaced(status)) => match self.policy {
                Policy::Mirror { .. } => self.pause(now, self.relist(), Some(status)),
                Policy::Relay { .. } => self.end(status),
            },
            (Asking(Watch) | Watching, Input::Failed(status)) => self.watch_failed(now, status),
            (Asking(Watch) | Watching, input) => self.watch_ended(now, input),
            (state, input) => unreachable!("{input:?} in the state {state:?}"),
        }
    }

    fn ask(&mut self, now: Instant, attempt: Attempt) -> Command {
        match attempt {
            Attempt::List { .. } => self.listed_at = Some(now),
            _ => (self.opened_at, self.is_newer) = (Some(now), false),
        }
        self.state = State::Asking(attempt);
        Command::Try(attempt)
    }

    fn read(&mut self) -> Command {
        self.state = State::Watching;
        Command::Read
    }

    fn end(&mut self, status: Status) -> Command {
        self.state = State::Ended;
        Command::End(status)
    }

    fn synced(&mut self) {
        (self.fruitless, self.has_state) = (0, true);
        self.wants_newest = matches!(self.policy, Policy::Relay { .. });
    }

    fn at_once(&mut self, attempt: Attempt, status: Option<Status>) -> Command {
        self.state = State::Waiting(attempt);
        Command::Wait(None, status)
    }

    /// Makes the attempt after the backoff, or when its distance is kept; after an error, not before its Retry-After.
    fn pause(&mut self, now: Instant, attempt: Attempt, status: Option<Status>) -> Command {
        self.state = State::Waiting(attempt);
        let least = status.as_ref().and_then(Status::retry_after).unwrap_or_default();
        let delay = match &mut self.policy {
            Policy::Mirror { backoff, .. } => backoff.next_delay(now, least),
            Policy::Relay { distance, .. } => {
                let began = if attempt == Attempt::Watch { self.opened_at } else { self.listed_at };
                distance.saturating_sub(since(began, now)).max(least)
            }
        };
        Command::Wait(Some(delay), status)
    }

    /// How to read the state again.
    fn relist(&self) -> Attempt {
        match self.policy {
            Policy::Mirror { by_watch: true, .. } => Attempt::ReadState { any: self.wants_newest || !self.has_state },
            _ => self.list(),
        }
    }

    fn list(&self) -> Attempt {
        Attempt::List { newest: self.wants_newest, whole: false }
    }

    fn list_failed(&mut self, now: Instant, newest: bool, whole: bool, status: Status) -> Command {
        let is_relay = matches!(self.policy, Policy::Relay { .. });
        if is_relay && (status.is_fatal() || matches!(status.code(), 401 | 403 | 405)) {
            return self.end(status);
        }
        if !newest && status.lacks_revision() {
            self.wants_newest = true;
            return self.at_once(Attempt::List { newest: true, whole }, Some(status));
        }
        self.pause(now, self.list(), Some(status))
    }

    fn state_failed(&mut self, now: Instant, any: bool, status: Status) -> Command {
        if !any && status.lacks_revision() {
            self.wants_newest = true;
            return self.at_once(Attempt::ReadState { any: true }, Some(status));
        }
        match status.verdict() {
            // This includes 504, which for the newest state cannot refer to a revision.
            Verdict::Failed if self.one_more_fruitless() => {
                self.fruitless = 0;
                self.pause(now, self.list(), Some(status))
            }
            Verdict::Refused | Verdict::Wrong => {
                if let Policy::Mirror { by_watch, .. } = &mut self.policy {
                    *by_watch = false;
                }
                self.at_once(self.list(), Some(status))
            }
            _ => self.pause(now, self.relist(), Some(status)),
        }
    }

    fn watch_failed(&mut self, now: Instant, status: Status) -> Command {
        let is_answer = self.state != State::Watching;
        match (&self.policy, status.verdict()) {
            (Policy::Relay { .. }, _) if status.is_fatal() => self.end(status),
            (Policy::Relay { .. }, Verdict::Refused) if is_answer => self.end(status),
            (_, Verdict::Gone) => self.gone(now, status),
            (_, Verdict::Busy) => self.pause(now, Attempt::Watch, Some(status)),
            (Policy::Mirror { .. }, Verdict::Refused | Verdict::Wrong) => self.pause(now, self.relist(), Some(status)),
            _ => self.fruitless(now, status),
        }
    }

    /// Handles a watch that ended without an error.
    fn watch_ended(&mut self, now: Instant, input: Input) -> Command {
        let is_short = since(self.opened_at, now) < SHORT;
        match input {
            Input::Cut(status) if !self.is_newer => return self.fruitless(now, status),
            Input::Ended | Input::WentBack(_) if is_short && !self.is_newer => {
                return self.fruitless(now, Status::new(503, "the watch ended at once, without a change"));
            }
            Input::WentBack(status) if !self.is_newer => return self.gone(now, status),
            Input::Ended | Input::Cut(_) | Input::WentBack(_) => {}
            input => unreachable!("{input:?} in the state {:?}", self.state),
        }
        self.fruitless = 0;
        match self.policy {
            Policy::Mirror { .. } => self.at_once(Attempt::Watch, None),
            Policy::Relay { .. } => self.pause(now, Attempt::Watch, None),
        }
    }

    /// Handles a source that does not have the history after the resume point.
    fn gone(&mut self, now: Instant, status: Status) -> Command {
        let attempt = self.relist();
        match self.policy {
            Policy::Relay { has_lister: false, .. } => self.end(status),
            Policy::Relay { .. } => self.pause(now, attempt, Some(status)),
            Policy::Mirror { .. } if since(self.relisted_at, now) >= RELIST_CALM => {
                self.relisted_at = Some(now);
                self.at_once(attempt, Some(status))
            }
            // Without a pause, a source that rejects what it has just listed would be listed in a loop.
            Policy::Mirror { .. } => {
                let action = self.pause(now, attempt, Some(status));
                if let Command::Wait(Some(delay), _) = &action {
                    self.relisted_at = now.checked_add(*delay);
                }
                action
            }
        }
    }

    /// Handles a watch that delivered nothing new.
    fn fruitless(&mut self, now: Instant, status: Status) -> Command {
        let may_list = match self.policy {
            Policy::Mirror { .. } => true,
            Policy::Relay { has_lister, .. } => has_lister && since(self.listed_at, now) >= RELIST_CALM,
        };
        let mut attempt = Attempt::Watch;
        if self.one_more_fruitless() && may_list {
            self.fruitless = 0;
            attempt = self.relist();
        }
        self.pause(now, attempt, Some(status))
    }

    /// Counts a fruitless attempt. Returns whether a list is due.
    fn one_more_fruitless(&mut self) -> bool {
        self.fruitless = self.fruitless.saturating_add(1);
        self.fruitless >= MOST
    }
}

/// The time since `began`; infinite if there is none.
fn since(began: Option<Instant>, now: Instant) -> Duration {
    began.map_or(Duration::MAX, |began| now.saturating_duration_since(began))
}
