//! The states of a watch, and how long it may be silent in each before it counts as dead.

use super::config::Options;
use std::time::Duration;
use tokio::time::Instant;

/// A shorter silence never counts as a dead server.
const SHORTEST_SILENCE: Duration = Duration::from_secs(1);
/// A server that catches up may be busy fragmenting and sending.
const CATCHING_UP_SILENCE: Duration = Duration::from_secs(30);
const LONGEST_SILENCE: Duration = Duration::from_secs(600);
/// A watch this many revisions behind the store's newest is catching up.
const CATCHING_UP: u64 = 1000;

/// The phase of a watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WatchState {
    /// Requested, but not confirmed by etcd.
    Opening,
    /// Below its member's revision at the opening, inside a fragmented message, or far behind etcd. Until etcd has
    /// delivered the backlog, it answers no progress request.
    CatchingUp,
    /// etcd has not reached the watch's first revision. Until it has, it answers no progress request, so a liveness
    /// read has to show that it lives.
    Mute,
    /// Near etcd's newest revision.
    Synced,
}

/// The observations of a running watch.
pub(super) struct WatchHealth {
    /// The first revision that was asked for.
    from: u64,
    /// The newest revision of the watch's member at its confirmation; `None`: not confirmed.
    opened_at: Option<u64>,
    /// When the last message of the server was handled.
    heard: Instant,
    /// When the first request after that message was sent that a living server answers. Opening the watch is one.
    asked: Option<Instant>,
    /// The newest revision of the store as last reported: a single wrong header counts only until the next one.
    newest: u64,
}

impl WatchHealth {
    pub(super) fn new(from: u64, now: Instant) -> WatchHealth {
        WatchHealth { from, opened_at: None, heard: now, asked: Some(now), newest: 0 }
    }

    pub(super) fn from(&self) -> u64 {
        self.from
    }

    /// Records that etcd confirmed the watch, on a member whose store is at `newest`.
    pub(super) fn created(&mut self, newest: u64) {
        self.opened_at = Some(newest);
        self.record_newest(newest);
    }

    /// Records the store's newest revision.
    pub(super) fn record_newest(&mut self, newest: u64) {
        if newest > 0 {
            self.newest = newest;
        }
    }

    /// Records that a message was handled. Before the watch is confirmed, no message counts, because none shows that
    /// there is a watch.
    pub(super) fn heard_at(&mut self, now: Instant) {
        if self.opened_at.is_some() {
            (self.heard, self.asked) = (now, None);
        }
    }

    /// Records that a request was sent that a living server answers.
    pub(super) fn asked_at(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
    }

    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    /// When a watch in this state has been silent for too long. Silence before the first request does not count: this
    /// thread itself may have been stalled, and have sent none.
    pub(super) fn silence_due(&self, state: WatchState, options: &Options, silences: u32) -> Option<Instant> {
        let limit = state.silence_limit(options, silences)?;
        let usual = if state == WatchState::Opening { Duration::ZERO } else { options.progress_interval };
        Some((self.heard + limit).max(self.asked? + limit.saturating_sub(usual)))
    }

    /// The state of a watch that is complete up to `point`.
    pub(super) fn state(&self, point: u64, is_inside_fragments: bool) -> WatchState {
        let Some(opened_at) = self.opened_at else { return WatchState::Opening };
        if is_inside_fragments || point < opened_at || self.newest > point.saturating_add(CATCHING_UP) {
            WatchState::CatchingUp
        } else if self.newest < self.from {
            WatchState::Mute
        } else {
            WatchState::Synced
        }
    }
}

/// How long etcd may be silent before the cache counts as Stale.
pub(super) fn silence(options: &Options) -> Duration {
    (options.progress_interval * 3).max(SHORTEST_SILENCE)
}

impl WatchState {
    /// How long a watch in this state may be silent, after `silences` silences in a row. Without progress requests
    /// only keep-alive detects a dead server.
    fn silence_limit(self, options: &Options, silences: u32) -> Option<Duration> {
        if self == WatchState::Opening {
            return Some(options.request_timeout);
        }
        if !options.progress_requests {
            return None;
        }
        let limit = silence(options);
        if self != WatchState::CatchingUp {
            return Some(limit);
        }
        // The limit doubles each time: otherwise a server that needs longer would be given up forever.
        let widened = CATCHING_UP_SILENCE.max(limit) * 2u32.pow(silences.min(8));
        Some(widened.min(LONGEST_SILENCE.max(limit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Feeder;

    fn limit(interval: u64, state: WatchState, silences: u32) -> Option<u64> {
        let options = Options::for_tests(Feeder::new(["a"]).progress_interval(Duration::from_millis(interval)));
        state.silence_limit(&options, silences).map(|limit| limit.as_millis() as u64)
    }

    #[test]
    fn three_silent_periods_are_the_limit() {
        assert_eq!(limit(1000, WatchState::Synced, 0), Some(3000));
        assert_eq!(limit(1000, WatchState::Mute, 5), Some(3000), "silences widen nothing once it is up to date");
        assert_eq!(limit(10, WatchState::Synced, 0), Some(1000), "no shorter one is taken for a dead server");
    }

    #[test]
    fn the_limit_widens_while_catching_up() {
        let widened: Vec<_> =
            (0..7).map(|silences| limit(1000, WatchState::CatchingUp, silences).unwrap() / 1000).collect();
        assert_eq!(widened, [30, 60, 120, 240, 480, 600, 600]);
        assert_eq!(limit(60_000, WatchState::CatchingUp, 0), Some(180_000));
        assert_eq!(limit(1000, WatchState::CatchingUp, u32::MAX), Some(600_000));
        assert_eq!(limit(600_000, WatchState::CatchingUp, 0), Some(1_800_000), "never shorter than else");
    }

    #[test]
    fn without_requests_silence_says_nothing() {
        let options = Options::for_tests(Feeder::new(["a"]).progress_requests(false));
        let limit = |state: WatchState| state.silence_limit(&options, 9);
        assert_eq!([WatchState::Synced, WatchState::Mute, WatchState::CatchingUp].map(limit), [None; 3]);
        assert_eq!(limit(WatchState::Opening), Some(options.request_timeout));
    }

    #[test]
    fn silence_follows_a_question() {
        let options = Options::for_tests(Feeder::new(["a"]));
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut health = WatchHealth::new(11, start);
        let due = |health: &WatchHealth, state| health.silence_due(state, &options, 0).map(|due| due - start);
        assert_eq!(due(&health, WatchState::Opening), Some(options.request_timeout), "the watch is a question");
        health.created(10);
        health.heard_at(start + second);
        assert_eq!(due(&health, WatchState::Synced), None, "whoever asked nothing has nothing to wait for");
        health.asked_at(start + 2 * second);
        assert_eq!(due(&health, WatchState::Synced), Some(4 * second), "three periods after the last sign");
        health.asked_at(start + 3 * second);
        assert_eq!(due(&health, WatchState::Mute), Some(4 * second), "the first question counts");
        // The thread was stalled for a minute.
        health.heard_at(start + 5 * second);
        health.asked_at(start + 65 * second);
        assert_eq!(due(&health, WatchState::Mute), Some(67 * second));
    }

    #[test]
    fn the_states_of_a_watch() {
        let mut health = WatchHealth::new(11, Instant::now());
        assert_eq!(health.state(10, false), WatchState::Opening);
        health.created(10);
        assert_eq!(health.state(10, false), WatchState::Mute, "the store has nothing to deliver yet");
        health.record_newest(11);
        assert_eq!(health.state(10, false), WatchState::Synced);
        assert_eq!(health.state(10, true), WatchState::CatchingUp);
        health.record_newest(1011);
        assert_eq!(health.state(10, false), WatchState::CatchingUp);
        assert_eq!(health.state(11, false), WatchState::Synced);
    }

    /// A few revisions may be many megabytes, also of other ranges. A busy server was given up after three intervals
    /// in the middle of them, and began again at the same place for each new watch, forever.
    #[test]
    fn watch_catches_up_to_where_it_was_opened() {
        let mut health = WatchHealth::new(11, Instant::now());
        health.created(12);
        assert_eq!(health.state(10, false), WatchState::CatchingUp);
        assert_eq!(health.state(11, false), WatchState::CatchingUp);
        assert_eq!(health.state(12, false), WatchState::Synced);
        health.record_newest(13);
        assert_eq!(health.state(12, false), WatchState::Synced, "this one came since");
    }

    /// Other messages do not confirm the watch, so it is given up in spite of them.
    #[test]
    fn an_unconfirmed_watch_is_given_up() {
        let now = Instant::now();
        let options = Options::for_tests(Feeder::new(["a"]));
        let mut health = WatchHealth::new(11, now);
        health.heard_at(now + options.request_timeout / 2);
        let due = health.silence_due(health.state(10, false), &options, 0);
        assert_eq!(due, Some(now + options.request_timeout));
    }
}
