//! What a reflector and a retrying watch do next: one machine, which neither asks a source nor looks at a clock.
//!
//! Its table of states, inputs and actions is in docs/internals/toolkit.md, "List, watch, resume"; the classes of errors are in
//! docs/TOOLKIT.md, "Lists, watches and errors". A driver ([`Reflector`](crate::Reflector), [`RetryWatch`](crate::RetryWatch))
//! begins with [`Input::Due`], does each [`Command`], and says as the next [`Input`] what came of it.

#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;

use crate::event::Status;
use std::time::{Duration, Instant};
use watchcore::{Backoff, Error};

/// A watch that ended earlier and brought nothing new is a fruitless attempt.
const SHORT: Duration = Duration::from_secs(1);

/// A list after a 410, or after fruitless attempts of a relay, comes at once where none came so for this long.
const RELIST_CALM: Duration = Duration::from_secs(30);

/// How many fruitless attempts in a row lead to a list: whatever keeps the source from going on, the state is known again, and
/// no error leaves it stale for ever.
const MOST: u32 = 3;

/// What an error says about the revision that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// 410: the revision has left the source's window, so no watch from it can be opened.
    Gone,
    /// 429, 503, and no answer in time: nothing about the revision. The same request is made again later.
    Busy,
    /// Any other 5xx: the server or a gateway has failed, and another watch may succeed. 504 also says that the revision is
    /// not there yet, as after a restored backup.
    Failed,
    /// 401, 403.
    Refused,
    /// Everything else: the request or the stream is wrong, and repeating it does not help.
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

    /// Whether asking again cannot mend it: a cache that is closed, or broken for good.
    fn is_fatal(&self) -> bool {
        self.error().is_some_and(Error::is_fatal)
    }

    /// Whether a list at a revision failed because the source does not have that revision: not any more, or not yet.
    fn lacks_revision(&self) -> bool {
        matches!(self.code(), 410 | 504)
    }
}

/// What the driver says.
#[derive(Debug)]
pub(crate) enum Input {
    /// The wait is over; the first input of all.
    Due,
    /// The source gave a watch.
    Opened,
    /// The whole state came, by a list or by a watch, and was taken.
    Synced,
    /// The watch brought a newer revision than was known when it was asked for.
    Newer,
    /// The list, the request for a watch, or the watch has failed.
    Failed(Status),
    /// A page that is not the first is gone, or the pages have no end, or are of several revisions.
    BrokenPages(Status),
    /// The watch brought an event without a revision, behind which it cannot be resumed.
    Unplaced(Status),
    /// The watch has ended without an error.
    Ended,
    /// The watch has ended inside a revision or a state, or the source answered without a watch.
    Cut(Status),
    /// The watch has ended, and all that it said lies below what was known.
    WentBack(Status),
}

/// What the driver is to do next.
#[derive(PartialEq, Debug)]
pub(crate) enum Command {
    /// Report the error, sleep where there is a delay, and say Due.
    Wait(Option<Duration>, Option<Status>),
    /// Ask the source.
    Try(Attempt),
    /// Read the initial state up to its mark.
    Gather,
    /// Read events.
    Read,
    /// Give the error to the consumer, and end.
    End(Status),
}

/// What the source is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attempt {
    /// A list: of the newest state, or of one not older than what is known; in one page, or in several.
    List { newest: bool, whole: bool },
    /// A watch that begins with the state: any, or one not older than what is known.
    ReadState { any: bool },
    /// A watch behind the resume point.
    Watch,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Waiting(Attempt),
    /// The source was asked. A state is read, or a request for a watch is not answered yet.
    Asking(Attempt),
    Watching,
    Ended,
}

/// For whom the source is followed.
#[derive(Debug)]
pub(crate) enum Policy {
    /// A cache: never ends, pauses by a backoff, reads states by watches where it is told to and the source can.
    Mirror { backoff: Backoff, by_watch: bool },
    /// One consumer: ends with what asking again cannot mend, and keeps a distance between the beginnings of attempts.
    Relay { distance: Duration, has_lister: bool },
}

/// The machine. See the [module](self).
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) policy: Policy,
    state: State,
    /// Attempts in a row that brought no newer revision.
    fruitless: u32,
    /// The present watch has brought one.
    is_newer: bool,
    /// The source lacks the revision behind which it would be resumed: lists ask for the newest until one succeeds.
    wants_newest: bool,
    /// A state was taken: later ones are not older.
    has_state: bool,
    /// When the last watch was asked for, or the state that it begins with was whole.
    opened_at: Option<Instant>,
    listed_at: Option<Instant>,
    /// When a 410 was the last to lead to a list of a mirror.
    relisted_at: Option<Instant>,
}

impl Machine {
    /// One that begins with a list of any state, unless something else is said.
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

    /// The same, and it begins with this.
    pub(crate) fn starting_with(self, first: Attempt) -> Machine {
        Machine { state: State::Waiting(first), ..self }
    }

    /// Takes an input, and says what follows.
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

    /// The attempt after the backoff, or when its distance is kept; behind an error not before its Retry-After.
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

    /// How the state is read again.
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
            // Also 504, which the newest state cannot have said of a revision.
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

    /// The watch has ended without an error.
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

    /// The source does not have what follows the resume point.
    fn gone(&mut self, now: Instant, status: Status) -> Command {
        let attempt = self.relist();
        match self.policy {
            Policy::Relay { has_lister: false, .. } => self.end(status),
            Policy::Relay { .. } => self.pause(now, attempt, Some(status)),
            Policy::Mirror { .. } if since(self.relisted_at, now) >= RELIST_CALM => {
                self.relisted_at = Some(now);
                self.at_once(attempt, Some(status))
            }
            // A source that says so of what it has just listed would be listed without a pause.
            Policy::Mirror { .. } => {
                let action = self.pause(now, attempt, Some(status));
                if let Command::Wait(Some(delay), _) = &action {
                    self.relisted_at = now.checked_add(*delay);
                }
                action
            }
        }
    }

    /// A watch has brought nothing new.
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

    /// Counts one more. True: a list is due.
    fn one_more_fruitless(&mut self) -> bool {
        self.fruitless = self.fruitless.saturating_add(1);
        self.fruitless >= MOST
    }
}

/// For how long; without a beginning, for ever.
fn since(began: Option<Instant>, now: Instant) -> Duration {
    began.map_or(Duration::MAX, |began| now.saturating_duration_since(began))
}
