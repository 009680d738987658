//! Reports sessions to the cache's status, the feeder's last error and the log.

use super::config::Config;
use super::connect::Header;
use super::counters::increment;
use super::failure::{Class, Failure};
use super::server_text;
use super::shared::Shared;
use super::version::too_old;
use crate::log::log;
use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use watchcore::{Error, SourceReport, SourceState, Writer};

/// The shortest interval between two reports while only events come.
const INTERVAL: Duration = Duration::from_millis(100);
/// At most this many different failures in a row are recorded as logged.
const LOGGED_MOST: usize = 64;
/// The longest message that is accepted, whatever a server's limit is.
pub(super) const LONGEST_MESSAGE: usize = 1 << 30;

/// Reports for one feeder, across its sessions.
pub(super) struct Reporter<'a> {
    config: &'a Config,
    writer: &'a RefCell<Writer>,
    shared: &'a Shared,
    report: SourceReport,
    reported: Instant,
    /// The newest revision of etcd as last reported: a single wrong header counts only until the next one.
    newest_seen: u64,
    /// Endpoints that have answered, so they speak HTTP/2 without TLS or with it, as configured.
    answered: HashSet<String>,
    /// The old server version that was last warned of.
    warned_of: Option<String>,
    /// Failures that were logged since the feeder last followed etcd: a repetition is logged at debug level.
    logged: HashSet<String>,
}

impl<'a> Reporter<'a> {
    pub(super) fn new(config: &'a Config, writer: &'a RefCell<Writer>, shared: &'a Shared) -> Reporter<'a> {
        Reporter {
            config,
            writer,
            shared,
            report: SourceReport::default(),
            reported: Instant::now(),
            newest_seen: 0,
            answered: HashSet::new(),
            warned_of: None,
            logged: HashSet::new(),
        }
    }

    pub(super) fn newest_seen(&self) -> u64 {
        self.newest_seen
    }

    /// Records etcd's newest revision, as a header named it. The status shows it at intervals, not with each message.
    pub(super) fn record_newest(&mut self, revision: u64) {
        if revision > 0 {
            self.newest_seen = revision;
        }
        if self.reported.elapsed() >= INTERVAL {
            self.report();
        }
    }

    /// Records that a session is connected.
    pub(super) fn connected(&mut self, url: &str, version: Option<&str>) {
        self.report.endpoint = url.to_owned();
        if !self.answered.contains(url) {
            self.answered.insert(url.to_owned());
        }
        let Some(version) = version.map(server_text::version) else { return };
        let version = version.as_str();
        if let Some(minimum) = too_old(version)
            && self.warned_of.as_deref() != Some(version)
        {
            log!(
                warn,
                endpoint = url,
                version,
                minimum,
                "this etcd is known to lose watch events; upgrade it to the minimum of its line"
            );
            self.warned_of = Some(version.to_owned());
        }
        self.report.server_version = version.to_owned();
    }

    /// Reports the cluster before a listing is published: the listing's continue tokens carry it.
    pub(super) fn listing(&mut self, header: &Header) {
        if header.cluster != 0 {
            self.report.cluster_id = header.cluster;
        }
        self.report.member_id = header.member;
        self.report();
    }

    /// Records that the listing was published; etcd is at `newest`.
    pub(super) fn listed(&mut self, newest: u64) {
        self.newest_seen = newest;
        self.report();
    }

    /// Records that a watch was confirmed.
    pub(super) fn opened(&mut self) {
        let before = self.shared.counts.connects.fetch_add(1, Relaxed);
        if before > 0 {
            increment(&self.shared.counts.reconnects);
        }
    }

    /// Records that events are applied again.
    pub(super) fn following(&mut self) {
        let is_news = !self.logged.is_empty();
        self.succeeded();
        // Logged after the state is set, so that a reader of the log finds the new state in the status.
        if is_news {
            log!(info, endpoint = self.report.endpoint, "following etcd again");
        }
    }

    /// Records that a session reached its purpose: its watch follows, or the listing that was asked for is there.
    /// Earlier failures are over.
    pub(super) fn succeeded(&mut self) {
        self.report();
        self.shared.set_error(None);
        self.writer.borrow_mut().set_state(SourceState::Fresh);
        self.logged.clear();
    }

    fn report(&mut self) {
        self.reported = Instant::now();
        let counters = &self.shared.counts;
        self.report.connects = counters.connects.load(Relaxed);
        self.report.reconnects = counters.reconnects.load(Relaxed);
        self.report.resyncs = counters.read().resyncs();
        self.report.etcd_revision = self.newest_seen;
        if let Some(credentials) = &self.config.options.credentials {
            let (reloads, failures) = credentials.counts();
            counters.certificate_reloads.store(reloads, Relaxed);
            counters.certificate_failures.store(failures, Relaxed);
            self.shared.certificate_expires.store(credentials.expires().unwrap_or(0), Relaxed);
        }
        self.report.warning = self.warning();
        self.writer.borrow_mut().set_report(self.report.clone());
    }

    /// Problems that a person has to correct although etcd is followed.
    fn warning(&self) -> String {
        let certificates = self.config.options.credentials.as_ref().and_then(|credentials| credentials.warning());
        let progress = self.shared.progress.are_missing().then(|| {
            format!(
                "etcd {} answers no requests for progress: something between drops them, such as etcd's gRPC proxy. Connect to the members themselves",
                self.report.endpoint
            )
        });
        certificates.into_iter().chain(progress).collect::<Vec<_>>().join("; ")
    }

    /// Updates the status after a change that came with no message.
    pub(super) fn changed(&mut self) {
        self.report();
    }

    /// Records that a session failed at `url`; the next begins after `delay`. `is_fatal`: only the user can correct
    /// it.
    pub(super) fn failed(&mut self, failure: &Failure, url: &str, delay: Duration, is_fatal: bool) {
        let text = self.describe(failure, url);
        // A fatal failure ends the waits, and perhaps the program with them, so it is logged before the state is set.
        // Any other failure is logged after it, so that a reader of the log finds the state in the status.
        if is_fatal {
            self.log(failure, &text, url, delay, is_fatal);
        }
        let error = Error::new(failure.code(), text.clone());
        let error = match (failure.class, self.config.options.start_revision) {
            // etcd still has the state at the compacted revision, and every change after it.
            (Class::Compacted(kept), Some(asked)) => {
                error.with_asked(asked).with_oldest(if kept > 0 { kept + 1 } else { 0 })
            }
            (Class::Future, Some(asked)) => error.with_asked(asked).with_current(self.newest_seen),
            _ => error,
        };
        self.shared.set_error(Some(error.clone()));
        // Counted after the error is set, so that a reader who sees the count finds the error.
        increment(&self.shared.counts.failures);
        self.report.endpoint = url.to_owned();
        self.report();
        let state = if is_fatal { SourceState::Failed(error) } else { SourceState::Stale(error) };
        self.writer.borrow_mut().set_state(state);
        if !is_fatal {
            self.log(failure, &text, url, delay, is_fatal);
        }
    }

    /// Logs a failure; repetitions are logged at debug level until the feeder follows etcd again.
    fn log(&mut self, failure: &Failure, text: &str, url: &str, delay: Duration, is_fatal: bool) {
        // With a compacted start revision there is no listing yet, so every read and wait returns this failure: the
        // program that asked for the revision reports it.
        if let Class::Compacted(_) = failure.class {
            log!(info, endpoint = url, ?delay, "{text}");
            return;
        }
        if self.logged.len() >= LOGGED_MOST {
            self.logged.clear();
        }
        let same = failure.kind.map_or(text.to_owned(), |kind| format!("{url}: {kind}"));
        if !self.logged.insert(same) {
            log!(debug, endpoint = url, ?delay, "again: {text}");
        } else if is_fatal || failure.class == Class::Broken {
            log!(error, endpoint = url, ?delay, "{text}");
        } else {
            log!(warn, endpoint = url, ?delay, "{text}");
        }
    }

    /// Says what happened, what is still true, and what to do next.
    fn describe(&self, failure: &Failure, url: &str) -> String {
        // The cache's refusals are whole sentences.
        let text = failure.text().trim_end_matches('.');
        let options = &self.config.options;
        let every = options.refused_retry.as_secs_f64();
        let user = options.user.as_ref().map(|user| user.name.as_str());
        match (failure.class, user) {
            (Class::Denied, user) => {
                let range = &self.config.range;
                let who = user.map_or("a client without a user".to_owned(), |user| format!("the user {user:?}"));
                format!(
                    "etcd {url} refused {who}: permission denied on range {range}. \
                     Grant read access; retrying every {every} s."
                )
            }
            (Class::Credentials, Some(user)) => {
                format!(
                    "etcd {url} refused the user {user:?}: {text}. Check name and password; retrying every {every} s."
                )
            }
            (Class::Credentials, None) => {
                format!("etcd {url} asks for a user: {text}. Give name and password; retrying every {every} s.")
            }
            (Class::Refused, _) => format!("etcd {url}: {text}. Correct it; retrying every {every} s."),
            (Class::TooLarge(_), _) => format!(
                "etcd {url}: {text}. The cache cannot take messages above {LONGEST_MESSAGE} bytes; write smaller values."
            ),
            (Class::Compacted(_) | Class::Future, _) => format!("{text}."),
            (Class::Broken, _) => format!("integrity: etcd {url}: {text}; listing again."),
            _ if url.starts_with("http://") && !self.answered.contains(url) && failure.may_want_tls() => {
                format!("etcd {url}: {text}. If it speaks TLS there, write https://; trying again.")
            }
            _ => format!("etcd {url}: {text}; trying again."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Feeder;
    use crate::range::KeyRange;
    use std::sync::atomic::AtomicU64;
    use std::sync::{Arc, Mutex};
    use watchcore::Cache;

    /// A log subscriber that calls a function with the level of each line of its thread.
    struct Lines<F>(F);

    impl<F: Fn(tracing::Level) + Send + Sync + 'static> tracing::Subscriber for Lines<F> {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() <= tracing::Level::INFO
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            self.0(*event.metadata().level());
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    fn config() -> Config {
        let options = super::super::config::Options::for_tests(Feeder::new(["http://127.0.0.1:1"]));
        Config { options, range: KeyRange::of_prefix(b"/"), pace: None }
    }

    #[test]
    fn who_reads_the_log_finds_the_state() {
        let config = config();
        let cache = Cache::builder("/").build().unwrap();
        let writer = RefCell::new(cache.writer().unwrap());
        let shared = Shared::default();
        let mut reporter = Reporter::new(&config, &writer, &shared);
        let states = Arc::new(Mutex::new(Vec::new()));
        let at_each_line = {
            let (cache, states) = (cache.clone(), states.clone());
            Lines(move |_| states.lock().unwrap().push(cache.status().state.name()))
        };
        tracing::subscriber::with_default(at_each_line, || {
            reporter.failed(&Failure::new(Class::Future, "not reached"), "http://a:1", Duration::ZERO, false);
            reporter.following();
        });
        assert_eq!(*states.lock().unwrap(), ["Stale", "Ready"]);
    }

    #[test]
    fn a_failure_is_logged_once() {
        let config = config();
        let cache = Cache::builder("/").build().unwrap();
        let writer = RefCell::new(cache.writer().unwrap());
        let shared = Shared::default();
        let mut reporter = Reporter::new(&config, &writer, &shared);
        let loud = Arc::new(AtomicU64::new(0));
        let of_lines = loud.clone();
        let counts = Lines(move |level| {
            of_lines.fetch_add(u64::from(level <= tracing::Level::WARN), Relaxed);
        });
        tracing::subscriber::with_default(counts, || {
            let failure = Failure::new(Class::Future, "revision 9 is not reached");
            for delay in 0..8 {
                reporter.failed(&failure, "http://a:1", Duration::from_millis(delay), false);
            }
            assert_eq!(loud.load(Relaxed), 1, "eight times the same");
            reporter.failed(&Failure::new(Class::Denied, "denied"), "http://a:1", Duration::ZERO, true);
            reporter.failed(&Failure::new(Class::Compacted(5), "compacted"), "http://a:1", Duration::ZERO, true);
            reporter.failed(&failure, "http://a:1", Duration::ZERO, false);
            assert_eq!(loud.load(Relaxed), 2, "another one, and one that its asker reports");
            reporter.following();
            reporter.failed(&failure, "http://a:1", Duration::ZERO, false);
            assert_eq!(loud.load(Relaxed), 3, "it is news again");
            for tenths in 30..40 {
                let silence = Failure::timeout("the watch", f64::from(tenths) / 10.0);
                reporter.failed(&silence, "http://a:1", Duration::ZERO, false);
            }
            assert_eq!(loud.load(Relaxed), 4, "the same silence, each a little longer");
        });
        assert_eq!(shared.counts.read().failures, 22);
        assert_eq!(cache.status().last_error.unwrap().code(), watchcore::Code::Unavailable);
    }

    /// A header within a tenth of a second of the last report does not update the status, but an applied event does.
    #[test]
    fn etcd_is_never_below_the_cache() {
        let config = config();
        let cache = Cache::builder("/").build().unwrap();
        let writer = RefCell::new(cache.writer().unwrap());
        let shared = Shared::default();
        let mut reporter = Reporter::new(&config, &writer, &shared);
        let header = Header { revision: 10, cluster: 1, member: 1 };
        reporter.record_newest(10);
        reporter.listing(&header);
        reporter.record_newest(11);
        writer.borrow_mut().apply(11, [watchcore::Change::put("/a", "")]).unwrap();
        let status = cache.status();
        assert_eq!((status.source.etcd_revision, status.position.revision), (11, 11));
    }
}
