//! Time limits of connections: a connection that makes no progress within the limit of its state is cut off.
//!
//! Each connection is in a [`State`], with a number that counts its progress. A task inspects all connections a few
//! times per second: while state and number are the same as before, time runs. So connections need no timers of their
//! own, and requests arm, reset and cancel none; progress is counted where it happens, in [`Activity`].
//!
//! | state | progress | limit | then |
//! | --- | --- | --- | --- |
//! | TLS handshake | completion | `handshake_timeout` | cut off |
//! | head of a request, from its first byte; of the first one, from the accept | a complete head | `header_timeout` | cut off |
//! | client has not taken all that it was answered, watches included | a byte taken | `stall` | cut off |
//! | answer is being made; watch has nothing to send | | none | |
//! | between two requests | a request | `idle`; without an authenticated user `idle_unknown` | told to close |
//! | told to close; beyond the limit of connections | | 2 s | cut off |
//!
//! A connection older than `connection_age` is told to close too: HTTP/2 at once, by GOAWAY, and HTTP/1.1 with its next
//! answer. Answers that have begun are sent whole.

use crate::clients::{Activity, ClientPermit, State};
use crate::counters::{Counters, Reason};
use crate::limits::Limits;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a connection may take to close after it was told to.
const CLOSE_TIME: Duration = Duration::from_secs(2);

/// Bounds on the time between two inspections of all connections.
const TICKS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// Number of connections inspected before the task yields.
const PORTION: usize = 1024;

/// All connections of a server.
pub(super) struct Clock {
    limits: Arc<Limits>,
    counters: Arc<Counters>,
    all: Mutex<All>,
    emptied: Notify,
}

#[derive(Default)]
struct All {
    next: u64,
    connections: HashMap<u64, TimedConnection>,
}

/// A connection, as it was at the last inspection.
struct TimedConnection {
    activity: Arc<Activity>,
    address: SocketAddr,
    /// When it reaches its maximum age.
    until: Option<Instant>,
    /// Whether it is beyond the limit of connections, and so gets little time for its one request.
    spare: bool,
    state: (State, u64),
    since: Instant,
}

/// The registration of a connection, with its permit. It lives as long as the socket, also after an upgrade.
pub(super) struct Connection {
    clock: Arc<Clock>,
    number: u64,
    activity: Arc<Activity>,
    _permit: Option<ClientPermit>,
}

impl Connection {
    pub(super) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.clock.counters.disconnect();
        let mut all = self.clock.lock();
        all.connections.remove(&self.number);
        let is_none = all.connections.is_empty();
        drop(all);
        if is_none {
            self.clock.emptied.notify_waiters();
        }
    }
}

impl Clock {
    pub(super) fn new(limits: Arc<Limits>, counters: Arc<Counters>) -> Arc<Clock> {
        Arc::new(Clock { limits, counters, all: Mutex::default(), emptied: Notify::new() })
    }

    /// Registers a connection; one without a permit is beyond the limit.
    pub(super) fn enter(
        self: &Arc<Self>,
        address: SocketAddr,
        permit: Option<ClientPermit>,
        handshaking: bool,
    ) -> Connection {
        let activity = Arc::new(Activity::default());
        activity.set_handshaking(handshaking);
        let now = Instant::now();
        // Varied by a tenth, so that connections that began together do not end together. An age beyond the range of
        // the clock is never reached.
        let age = self.limits.connection_age.checked_mul(9 + fastrand::u32(0..3)).map(|age| age / 10);
        let until = age.and_then(|age| now.checked_add(age));
        let (state, spare) = (activity.state(), permit.is_none());
        let watched = TimedConnection { activity: activity.clone(), address, until, spare, state, since: now };
        let mut all = self.lock();
        let number = all.next;
        all.next += 1;
        all.connections.insert(number, watched);
        drop(all);
        self.counters.connect();
        Connection { clock: self.clone(), number, activity, _permit: permit }
    }

    /// Inspects all connections periodically, for as long as this is polled.
    pub(super) async fn run(&self) {
        let limits = &self.limits;
        let shortest =
            [limits.header_timeout, limits.handshake_timeout, limits.stall, limits.idle, limits.idle_unknown];
        let tick = shortest.into_iter().min().unwrap_or_default() / 8;
        let mut ticks = tokio::time::interval(tick.clamp(TICKS[0], TICKS[1]));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.inspect_all().await;
        }
    }

    /// Inspects each connection once.
    async fn inspect_all(&self) {
        let numbers: Vec<u64> = self.lock().connections.keys().copied().collect();
        for portion in numbers.chunks(PORTION) {
            let now = Instant::now();
            {
                let mut all = self.lock();
                for number in portion {
                    if let Some(connection) = all.connections.get_mut(number) {
                        self.inspect(connection, now);
                    }
                }
            }
            tokio::task::yield_now().await;
        }
    }

    fn inspect(&self, connection: &mut TimedConnection, now: Instant) {
        if connection.until.is_some_and(|until| until <= now) {
            connection.until = None;
            connection.activity.reached_max_age();
        }
        let state = connection.activity.state();
        if state != connection.state {
            (connection.state, connection.since) = (state, now);
            return;
        }
        let limits = &self.limits;
        let (limit, reason) = match state.0 {
            State::Answering => return,
            State::Handshake => (limits.handshake_timeout, Some(Reason::handshake_timeout)),
            State::Head => (limits.header_timeout, Some(Reason::header_timeout)),
            State::Taking => (limits.stall, Some(Reason::stall)),
            State::Idle { known: true } => (limits.idle, None),
            State::Idle { known: false } => (limits.idle.min(limits.idle_unknown), None),
            State::Closing => (CLOSE_TIME, None),
        };
        let limit = if connection.spare { limit.min(CLOSE_TIME) } else { limit };
        if now.duration_since(connection.since) < limit {
            return;
        }
        connection.since = now;
        if let Some(reason) = reason {
            self.counters.refused(reason);
        }
        if state.0 == State::Taking {
            let address = connection.address;
            tracing::info!(target: "watchcore_http", %address, ?limit, "a connection is cut off: its client does not read the answer");
        }
        match state.0 {
            State::Idle { .. } => connection.activity.close(),
            _ => connection.activity.cut(),
        }
    }

    /// Returns the number of connections.
    pub(super) fn count(&self) -> usize {
        self.lock().connections.len()
    }

    /// Waits until there are no connections.
    pub(super) async fn none(&self) {
        loop {
            let none = self.emptied.notified();
            if self.count() == 0 {
                return;
            }
            none.await;
        }
    }

    /// Tells each connection to close after the answers that it has begun.
    pub(super) fn close_all(&self) {
        self.each(Activity::close);
    }

    /// Cuts off each connection.
    pub(super) fn cut_all(&self) {
        self.each(Activity::cut);
    }

    fn each(&self, tell: impl Fn(&Activity)) {
        // Outside the lock: a connection may end at once, which takes the lock.
        let all: Vec<_> = self.lock().connections.values().map(|connection| connection.activity.clone()).collect();
        all.iter().for_each(|activity| tell(activity));
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        // A panic cannot leave half a change: no code below this lock panics between two related writes.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::{ClientId, ClientPermits, Holder as _};

    const HEAD: Duration = Duration::from_secs(10);
    const IDLE: Duration = Duration::from_secs(120);
    const UNKNOWN: Duration = Duration::from_secs(15);
    const STALL: Duration = Duration::from_secs(60);

    /// Returns an HTTP/1.1 connection under a running clock.
    fn connection() -> (Arc<Clock>, Connection) {
        let mut limits = Limits::default();
        (limits.header_timeout, limits.idle, limits.idle_unknown, limits.stall) = (HEAD, IDLE, UNKNOWN, STALL);
        limits.connection_age = Duration::from_secs(36_000);
        let clock = Clock::new(Arc::new(limits), Arc::default());
        let permit = ClientPermits::new(1).acquire(&ClientId::Unknown).ok();
        let connection = clock.enter("127.0.0.1:1".parse().unwrap(), permit, false);
        connection.activity().set_http1();
        let running = clock.clone();
        tokio::spawn(async move { running.run().await });
        (clock, connection)
    }

    async fn is_cut_within(activity: &Activity, time: Duration) -> bool {
        tokio::time::timeout(time, activity.is_cut()).await.is_ok()
    }

    async fn closes_within(activity: &Activity, time: Duration) -> bool {
        tokio::time::timeout(time, activity.closes()).await.is_ok()
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// The paused time advances only while the test waits.
    #[tokio::test(start_paused = true)]
    async fn each_state_has_its_time() {
        let (_clock, connection) = connection();
        let activity = connection.activity();
        assert!(!is_cut_within(activity, HEAD - SECOND).await);
        let answering = activity.answer();
        assert!(!is_cut_within(activity, IDLE * 10).await, "an answer takes as long as it takes");
        drop(answering);
        activity.is_known();
        assert!(!closes_within(activity, IDLE - SECOND).await, "the time of a head is not that between two");
        activity.received();
        assert!(!is_cut_within(activity, HEAD - SECOND).await, "from the first byte on");
        assert!(is_cut_within(activity, SECOND * 4).await);
        drop(activity.answer());
        assert!(closes_within(activity, IDLE + SECOND * 4).await);
        assert!(is_cut_within(activity, CLOSE_TIME + SECOND * 4).await);
    }

    /// Each request restarts the time, even if all inspections see the same state.
    #[tokio::test(start_paused = true)]
    async fn connection_that_asks_is_not_idle() {
        let (_clock, connection) = connection();
        let activity = connection.activity();
        for _ in 0..100 {
            drop(activity.answer());
            assert!(!closes_within(activity, UNKNOWN - SECOND * 3).await);
        }
        assert!(closes_within(activity, UNKNOWN).await, "an unknown client has less time");
    }

    /// A client that takes a byte now and then continues; one that takes nothing is cut off, even if it sends requests.
    #[tokio::test(start_paused = true)]
    async fn client_that_takes_nothing_is_cut() {
        for holds in
            [|activity: &Arc<Activity>| activity.added(10_000), |activity: &Arc<Activity>| activity.set_unpolled(true)]
        {
            let (_clock, connection) = connection();
            let activity = connection.activity();
            let _answering = activity.answer();
            holds(activity);
            for _ in 0..100 {
                activity.took(1);
                assert!(!is_cut_within(activity, STALL - SECOND * 3).await);
            }
            activity.took(1);
            for _ in 0..5 {
                drop(activity.answer());
                assert!(!is_cut_within(activity, STALL / 6).await);
            }
            assert!(is_cut_within(activity, STALL / 6 + SECOND * 4).await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn old_connection_is_told_to_close() {
        let (_clock, connection) = connection();
        let activity = connection.activity();
        let answering = activity.answer();
        tokio::time::sleep(SECOND * 32_000).await;
        assert!(!activity.is_last());
        tokio::time::sleep(SECOND * 8_000).await;
        assert!(activity.is_last() && !closes_within(activity, SECOND).await, "HTTP/1.1 says so with its next answer");
        activity.close();
        assert!(!is_cut_within(activity, IDLE * 10).await, "its answer is sent whole");
        drop(answering);
        assert!(is_cut_within(activity, CLOSE_TIME + SECOND * 4).await);
    }

    #[tokio::test]
    async fn connection_counts_until_it_is_dropped() {
        let (clock, connection) = connection();
        assert_eq!(clock.count(), 1);
        let waiting = tokio::spawn({
            let clock = clock.clone();
            async move { clock.none().await }
        });
        tokio::task::yield_now().await;
        drop(connection);
        tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("none is left").unwrap();
    }
}
