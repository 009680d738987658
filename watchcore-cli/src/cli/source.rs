//! A cache that is fed from etcd, and the wait for its first listing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::access::Access;
use super::exit::{Failure, Stop};
use super::options::Options;
use super::progress::Waiting;
use super::signals::Interrupt;
use watchcore::{Attribute, Cache, Code, Labels, State, Want};
use watchcore_etcd::{Feeder, FeederBuilder, Tls};

/// How long commands other than `watch` try to reach etcd.
const REACH_LIMIT: Duration = Duration::from_secs(10);
/// How long a command waits for a revision that etcd does not have yet.
pub(crate) const FUTURE_LIMIT: Duration = Duration::from_secs(3);
/// How often the state is checked while there is no listing.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The time limit of a command, and the failure when it passes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Option<Instant>,
    /// The value of `--timeout`: when it passes, the exit code is 4, whatever the command was doing.
    asked: Option<Duration>,
}

impl Deadline {
    /// The limit of `--timeout`, or none.
    pub(crate) fn of(options: &Options) -> Deadline {
        Deadline::after(options.timeout)
    }

    pub(crate) fn after(asked: Option<Duration>) -> Deadline {
        Deadline { at: asked.and_then(|length| Instant::now().checked_add(length)), asked }
    }

    /// The time left, at most `most`.
    pub(crate) fn left(&self, most: Duration) -> Duration {
        match self.at {
            Some(at) => at.saturating_duration_since(Instant::now()).min(most),
            None => most,
        }
    }

    /// How long to wait for a single step: the rest of `--timeout`, or `usual` without it.
    pub(crate) fn step_limit(&self, usual: Duration) -> Duration {
        self.left(self.asked.unwrap_or(usual))
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.at.is_some_and(|at| at <= Instant::now())
    }

    /// The failure when the limit has passed.
    pub(crate) fn failure(&self, what: &str) -> Failure {
        self.failure_because(what, "")
    }

    /// The failure when the limit has passed, with the known cause.
    fn failure_because(&self, what: &str, reason: &str) -> Failure {
        let length = self.asked.unwrap_or_default();
        let message = format!("{what} within {length:?}{reason}. Give it longer with --timeout, or look with -v");
        Failure::new(Code::Timeout, message)
    }
}

/// Measures how long etcd has sent nothing: a long listing does not count as out of reach.
#[derive(Clone, Copy, Debug)]
struct Silence {
    pages: u64,
    since: Instant,
}

impl Silence {
    fn new(now: Instant) -> Silence {
        Silence { pages: 0, since: now }
    }

    /// How long etcd has sent nothing, if that is too long. `pages` of the listing have come so far.
    fn lost(&mut self, pages: u64, now: Instant) -> Option<Duration> {
        if pages != self.pages {
            *self = Silence { pages, since: now };
        }
        Some(now.saturating_duration_since(self.since)).filter(|silence| *silence >= REACH_LIMIT)
    }
}

/// A cache and its feeder.
pub(crate) struct Source {
    pub(crate) cache: Cache,
    pub(crate) feeder: Arc<Feeder>,
    endpoints: String,
    /// The option or variable that named the endpoints.
    origin: &'static str,
}

/// A cache that is not fed yet and so not ready: a subscription that sets the feeder's pace must be opened first, and
/// begins with the first listing.
pub(crate) fn cache(options: &Options, prefix: &[u8]) -> Result<Cache, Stop> {
    let mut builder = Cache::builder(prefix).capacity(options.capacity).expect_load(true);
    if let Some(pointer) = &options.attributes.labels {
        builder = builder.labels(Labels::json(pointer)?);
    }
    for (name, pointer) in &options.attributes.fields {
        builder = builder.field(Attribute::json(name, pointer)?);
    }
    Ok(builder.build()?)
}

/// Refuses a revision that no cache reaches, before etcd is asked for it.
///
/// # Errors
/// FUTURE_REVISION, with the library's message.
pub(crate) fn reachable(cache: &Cache, revision: u64) -> Result<(), Stop> {
    cache.waiter(Want::Revision(revision)).map(drop).map_err(Stop::from)
}

/// Configures a feeder from the options.
pub(crate) fn feeder(access: &Access) -> Result<FeederBuilder, Stop> {
    let mut builder = Feeder::new(access.endpoints.iter().cloned());
    if let Some((name, password)) = &access.user {
        builder = builder.user(name, password);
    }
    if access.cacert.is_some() || access.cert_and_key.is_some() {
        let mut tls = Tls::new();
        if let Some(path) = &access.cacert {
            tls = tls.ca_file(path);
        }
        if let Some((certificate, key)) = &access.cert_and_key {
            tls = tls.client_files(certificate, key);
        }
        builder = builder.tls(tls);
    }
    Ok(builder)
}

impl Source {
    /// Starts feeding `cache`. A signal closes the cache, so that every wait ends.
    pub(crate) fn start(
        cache: &Cache,
        builder: FeederBuilder,
        access: &Access,
        interrupt: &Interrupt,
    ) -> Result<Source, Stop> {
        let feeder = Arc::new(builder.start(cache.writer()?)?);
        let closing = cache.clone();
        interrupt.on_signal(move || closing.close());
        Ok(Source { cache: cache.clone(), feeder, endpoints: access.endpoints.join(","), origin: access.origin })
    }

    pub(crate) fn is_ready(&self) -> bool {
        !matches!(self.cache.status().state, State::NotReady | State::Failed)
    }

    /// Why no listing will ever come, if that is known.
    pub(crate) fn failure(&self) -> Option<Failure> {
        match self.cache.wait_ready(Duration::ZERO) {
            Err(error) if !matches!(error.code(), Code::NotReady | Code::Timeout | Code::Closed) => Some(error.into()),
            _ => None,
        }
    }

    /// Waits for the first listing, which may be at a revision that etcd has not reached.
    pub(crate) fn wait(&self, deadline: Deadline, revision: Option<u64>, interrupt: &Interrupt) -> Result<(), Stop> {
        let begin = Instant::now();
        let mut silence = Silence::new(begin);
        let mut waiting = Waiting::new(format!("waiting for etcd {}", self.endpoints));
        loop {
            waiting.tick();
            match self.cache.wait_ready(deadline.left(CHECK_INTERVAL)) {
                Ok(()) => break,
                Err(_) if interrupt.signal().is_some() => return Err(Stop::Interrupted),
                Err(error) if matches!(error.code(), Code::NotReady | Code::Timeout) => {}
                Err(error) => return Err(error.into()),
            }
            if let Some(failure) = revision.and_then(|revision| self.future(revision, begin, deadline)) {
                return Err(failure.into());
            }
            if deadline.has_passed() {
                return Err(self.late(deadline, "no listing came").into());
            }
            let lost = silence.lost(self.feeder.counters().pages, Instant::now());
            if let Some(silence) = lost.filter(|_| deadline.asked.is_none()) {
                return Err(self.out_of_reach(silence).into());
            }
        }
        Ok(())
    }

    /// The failure after waiting since `begin` for a revision that a reachable etcd does not have; `None` while it may
    /// still come in time.
    pub(crate) fn future(&self, revision: u64, begin: Instant, deadline: Deadline) -> Option<Failure> {
        let wait_limit = deadline.asked.unwrap_or(FUTURE_LIMIT);
        let over = deadline.has_passed() || (deadline.asked.is_none() && begin.elapsed() >= wait_limit);
        let said = self.feeder.last_error()?;
        if !over || said.code() != Code::FutureRevision {
            return None;
        }
        let reached = match said.current() {
            0 => "has not reached it".to_owned(),
            current => format!("is at {current}"),
        };
        let message = format!(
            "revision {revision} did not come within {wait_limit:?}: etcd {} {reached}. Ask for an earlier one, or wait longer with --timeout",
            self.endpoints
        );
        Some(Failure::new(Code::FutureRevision, message))
    }

    /// Why etcd is not followed now, or empty if it is. The status cannot tell: it keeps the last failure even after
    /// etcd came back.
    fn reason(&self) -> String {
        let said = self.feeder.last_error();
        said.map(|error| format!(": {}", error.message().trim_end_matches('.'))).unwrap_or_default()
    }

    fn out_of_reach(&self, silence: Duration) -> Failure {
        let message = format!(
            "etcd {} (from {}) is out of reach for {} s{}. Check that etcd is up, and name another with --etcd or WATCHCORE_ETCD",
            self.endpoints,
            self.origin,
            silence.as_secs(),
            self.reason()
        );
        Failure::new(Code::Unavailable, message)
    }

    /// The failure at the end of `--timeout`, with the endpoints or the feeder's last error.
    pub(crate) fn late(&self, deadline: Deadline, what: &str) -> Failure {
        match &*self.reason() {
            "" => deadline.failure(&format!("etcd {}: {what}", self.endpoints)),
            reason => deadline.failure_because(what, reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcd_is_out_of_reach_when_nothing_comes_for_10_seconds() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut silence = Silence::new(begin);
        assert_eq!(silence.lost(0, after(9)), None);
        assert_eq!(silence.lost(0, after(10)), Some(REACH_LIMIT));
        assert_eq!(silence.lost(1, after(11)), None, "a page came");
        assert_eq!(silence.lost(2, after(20)), None);
        assert_eq!(silence.lost(2, after(29)), None, "the listing is long, but it continues");
        assert_eq!(silence.lost(2, after(31)), Some(Duration::from_secs(11)));
    }
}
