//! The options of a feeder, and their checks.

use super::range::KeyRange;
use super::tls::{Credentials, Tls};
use etcd_client::ConnectOptions;
use http::Uri;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use watchcore::{Closer, Code, Error, MAX_REVISION, Result, Subscription, Writer};

/// The longest message that is accepted before fragments are asked for.
const MESSAGE_LIMIT: usize = 64 << 20;

/// The interval of audits: for a cache of 300 MB, etcd sends some 80 kB a second on average, and a difference that
/// appears without a reconnect is found within the hour.
const AUDIT_INTERVAL: Duration = Duration::from_secs(3600);

/// Longer durations are cut to this one. Sums and small multiples of it can be added to any clock reading, so no
/// arithmetic of the feeder overflows, whatever was configured.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// A name, and a password that is never printed.
#[derive(Clone)]
pub(super) struct User {
    pub(super) name: String,
    password: String,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "User({:?}, ***)", self.name)
    }
}

/// The options of a [`Feeder`](crate::Feeder); [`FeederBuilder::start`] starts it.
///
/// A duration above one year, such as `Duration::MAX`, counts as one year.
///
/// ```no_run
/// use std::time::Duration;
/// use watchcore_etcd::Feeder;
///
/// # let cache = watchcore::Cache::builder("/registry/").build()?;
/// let feeder = Feeder::new(["http://127.0.0.1:2379"])
///     .backoff(Duration::from_millis(50), Duration::from_secs(10))
///     .follow_compaction(Duration::from_secs(60))
///     .start(cache.writer()?)?;
/// # drop(feeder);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a feeder runs only after start()"]
pub struct FeederBuilder {
    options: Options,
    pace: Option<Closer>,
}

#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) endpoints: Vec<String>,
    pub(super) user: Option<User>,
    tls: Option<Tls>,
    /// The certificates of `https` endpoints, once the options are checked; `None`: all endpoints are `http`.
    pub(super) credentials: Option<Arc<Credentials>>,
    pub(super) start_revision: Option<u64>,
    /// How many revisions below the newest one the first listing is; 0: at the newest.
    pub(super) history: u64,
    pub(super) only_key: Option<Vec<u8>>,
    pub(super) stop_after_listing: bool,
    /// The most keys of a page, if pages were asked for.
    pub(super) page_size: Option<i64>,
    pub(super) too_far_behind: u64,
    pub(super) progress_interval: Duration,
    pub(super) progress_requests: bool,
    pub(super) dial_timeout: Duration,
    pub(super) request_timeout: Duration,
    pub(super) backoff_first: Duration,
    pub(super) backoff_most: Duration,
    pub(super) refused_retry: Duration,
    pub(super) message_limit: usize,
    /// How often etcd's compacted revision is queried; `None`: never.
    pub(super) follow_compaction: Option<Duration>,
    /// How often the cache is audited; `None`: never.
    pub(super) audit_interval: Option<Duration>,
}

/// Checked options, with the values that depend on the cache.
pub(super) struct Config {
    pub(super) options: Options,
    pub(super) range: KeyRange,
    pub(super) pace: Option<Closer>,
}

impl fmt::Debug for FeederBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FeederBuilder").field("options", &self.options).finish_non_exhaustive()
    }
}

impl FeederBuilder {
    pub(super) fn new(endpoints: Vec<String>) -> FeederBuilder {
        let options = Options {
            endpoints,
            user: None,
            tls: None,
            credentials: None,
            start_revision: None,
            history: 0,
            only_key: None,
            stop_after_listing: false,
            page_size: None,
            too_far_behind: 20_000,
            progress_interval: Duration::from_secs(1),
            progress_requests: true,
            dial_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            backoff_first: Duration::from_millis(50),
            backoff_most: Duration::from_secs(10),
            refused_retry: Duration::from_secs(30),
            message_limit: MESSAGE_LIMIT,
            follow_compaction: None,
            audit_interval: Some(AUDIT_INTERVAL),
        };
        FeederBuilder { options, pace: None }
    }

    /// Name and password. They are sent to etcd and printed nowhere. If etcd has authentication switched off, they
    /// are not used.
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.options.user = Some(User { name: name.into(), password: password.into() });
        self
    }

    /// Uses TLS with these certificates. All endpoints are then `https`. Endpoints written as `https` need this
    /// option only if the system's authorities do not know etcd's, or if etcd asks for a client certificate.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.options.tls = Some(tls);
        self
    }

    /// Lists at this revision instead of the newest one, and fills the log with etcd's own history from there on.
    /// Works for revisions that etcd has not compacted. 0 is the newest.
    pub fn start_revision(mut self, revision: u64) -> Self {
        self.options.start_revision = (revision > 0).then_some(revision);
        self
    }

    /// Lists this many revisions below the newest one, or at the oldest that etcd still has, and fills the log with
    /// the revisions after it: a client that was at one of them before the program began resumes there, and need not
    /// read the state again. 0, the default, lists the newest. The cache is Ready once that history is replayed, so a
    /// reader without a revision never sees the older state. [`FeederBuilder::start_revision`] takes precedence, and
    /// a feeder that stops after its listing lists the newest.
    pub fn history(mut self, revisions: u64) -> Self {
        self.options.history = revisions;
        self
    }

    /// Asks etcd only for this key, not for the whole prefix of the cache: enough for a user who may read nothing
    /// else. All other keys are then absent from the cache, whatever etcd holds.
    pub fn only_key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.options.only_key = Some(key.as_ref().to_vec());
        self
    }

    /// Lists once and does not watch: the cache stays at that revision, and etcd gets no more requests. So consistent
    /// revisions and requested resyncs never complete, nor does a start at a later revision.
    pub fn stop_after_listing(mut self, stop: bool) -> Self {
        self.options.stop_after_listing = stop;
        self
    }

    /// During the replay of [`FeederBuilder::start_revision`], the feeder stays at most half a window ahead of this
    /// subscription, so that the subscription sees all of a history longer than the window. Open it before the feeder
    /// starts, on a cache built with `expect_load`.
    pub fn pace(mut self, subscription: &Subscription) -> Self {
        self.pace = Some(subscription.closer());
        self
    }

    /// Lists in pages of at most this many keys. By default a listing is one stream, which etcd cuts into messages of
    /// some 1.5 MB. If a server before 3.7 or a proxy has no streams, the listing comes in pages sized by bytes: some
    /// 32 MiB, at most half of `message_limit`. etcd counts the rest of the range for each page, so short pages make
    /// a listing of many keys slow.
    pub fn page_size(mut self, keys: u64) -> Self {
        // A number that does not fit etcd's request means all keys.
        self.options.page_size = Some(i64::try_from(keys).unwrap_or(i64::MAX));
        self
    }

    /// After a disconnect, a gap of more than this many revisions is listed, not replayed (default 20,000).
    pub fn too_far_behind(mut self, revisions: u64) -> Self {
        self.options.too_far_behind = revisions;
        self
    }

    /// How long the watch may be silent before progress is requested (default 1 s). After three such intervals of
    /// silence it is opened again on another endpoint.
    pub fn progress_interval(mut self, interval: Duration) -> Self {
        self.options.progress_interval = interval;
        self
    }

    /// Whether an idle watch requests progress (default true). Without it the position follows etcd's own
    /// notifications (every ten minutes), and only keep-alive detects a silent member.
    ///
    /// While a caller waits for a revision that the cache has not reached, the watch requests progress in any case:
    /// at once, then after 100, 200, 400 and 800 ms, then once a second until the revision comes or the caller gives
    /// up.
    pub fn progress_requests(mut self, on: bool) -> Self {
        self.options.progress_requests = on;
        self
    }

    /// How long a connection may take (default 5 s).
    pub fn dial_timeout(mut self, timeout: Duration) -> Self {
        self.options.dial_timeout = timeout;
        self
    }

    /// How long a request may take (default 10 s; a page of a listing six times that).
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.options.request_timeout = timeout;
        self
    }

    /// The first and the longest ceiling of the delay between tries (default 50 ms and 10 s). Neither may be 0: a
    /// server that refuses connections would be asked without a pause.
    pub fn backoff(mut self, first: Duration, most: Duration) -> Self {
        self.options.backoff_first = first;
        self.options.backoff_most = most;
        self
    }

    /// How often a refusal (permission, password) is tried again (default 30 s).
    pub fn refused_retry(mut self, interval: Duration) -> Self {
        self.options.refused_retry = interval;
        self
    }

    /// The longest message accepted before the watch is opened again with fragments (default 64 MiB). Pages of a
    /// listing have at most half of it, except one of a single key.
    pub fn message_limit(mut self, bytes: usize) -> Self {
        self.options.message_limit = bytes;
        self
    }

    /// Asks etcd at this interval (15 s is a good one) whether the oldest revision of the window still exists; if it
    /// was compacted, the cache compacts to the same revision. Off by default.
    ///
    /// Each query is one count on the connection for reads. It never makes etcd read history.
    pub fn follow_compaction(mut self, interval: Duration) -> Self {
        self.options.follow_compaction = Some(interval);
        self
    }

    /// How often the whole cache is compared with etcd (default 1 h), besides once after each reconnect;
    /// `Duration::ZERO`: never.
    ///
    /// An audit reads the range in pages of at most 1000 keys and 1 MiB, some 2 MiB a second, and rests four times as
    /// long as etcd took for a page. It finds differences that no event reveals: an etcd that was filled again with
    /// the same keys and other values, a member that lost data, a bug. If a key differs twice, the cache is listed
    /// again as of another history (`HistoryReset`), and the log names the key. [`Counters`](crate::Counters) count
    /// audits and differences.
    pub fn audit_interval(mut self, interval: Duration) -> Self {
        self.options.audit_interval = Some(interval).filter(|interval| !interval.is_zero());
        self
    }

    /// The checked options, for the cache of `writer`.
    pub(super) fn config(self, writer: &Writer) -> Result<Config> {
        let options = self.options.checked()?;
        let range = match &options.only_key {
            None => KeyRange::of_prefix(writer.prefix()),
            Some(key) if !key.is_empty() && key.starts_with(writer.prefix()) => KeyRange::of_key(key),
            Some(key) => {
                return Err(invalid(format!(
                    "the feeder was asked for the key \"{}\" alone, which is not in the cache's prefix \"{}\". Name a key of the prefix in full",
                    key.escape_ascii(),
                    writer.prefix().escape_ascii()
                )));
            }
        };
        if self.pace.as_ref().is_some_and(|pace| !pace.is_of(writer)) {
            return Err(invalid(
                "the feeder was asked to keep pace with a subscription of another cache. Give one of the cache that it fills",
            ));
        }
        Ok(Config { options, range, pace: self.pace })
    }
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(Code::InvalidArgument, text)
}

impl Options {
    fn checked(mut self) -> Result<Options> {
        if self.endpoints.is_empty() {
            return Err(invalid("a feeder needs at least one endpoint, such as http://127.0.0.1:2379"));
        }
        let secure = self.tls.is_some() || self.endpoints.iter().any(|url| url.starts_with("https://"));
        if secure {
            let tls = self.tls.clone().unwrap_or_default();
            self.credentials = Some(Arc::new(Credentials::new(tls)?));
        }
        let given = self.tls.is_some();
        let urls =
            self.endpoints.iter().enumerate().map(|(i, url)| normal_url(i, url, self.credentials.as_deref(), given));
        self.endpoints = urls.collect::<Result<Vec<String>>>()?;
        if let Some(keys) = self.page_size.filter(|keys| *keys < 1) {
            return Err(invalid(format!("a listing by pages of {keys} keys: give at least 1")));
        }
        if let Some(revision) = self.start_revision.filter(|revision| *revision > MAX_REVISION) {
            return Err(invalid(format!("a start at revision {revision}: the largest revision is {MAX_REVISION}")));
        }
        if self.message_limit == 0 {
            return Err(invalid("a limit of 0 bytes for messages: give at least the longest message expected"));
        }
        for (name, duration) in [
            ("the progress interval", self.progress_interval),
            ("the dial timeout", self.dial_timeout),
            ("the request timeout", self.request_timeout),
            ("the first delay between tries", self.backoff_first),
            ("the longest delay between tries", self.backoff_most),
            ("the pause after a refusal", self.refused_retry),
            ("the interval of questions for compaction", self.follow_compaction.unwrap_or(Duration::MAX)),
        ] {
            if duration.is_zero() {
                return Err(invalid(format!("{name} is 0; give a duration above it")));
            }
        }
        self.bound_durations();
        Ok(self)
    }

    fn bound_durations(&mut self) {
        let all = [
            &mut self.progress_interval,
            &mut self.dial_timeout,
            &mut self.request_timeout,
            &mut self.backoff_first,
            &mut self.backoff_most,
            &mut self.refused_retry,
        ];
        for duration in all.into_iter().chain(&mut self.follow_compaction).chain(&mut self.audit_interval) {
            *duration = (*duration).min(LONGEST);
        }
        self.backoff_most = self.backoff_most.max(self.backoff_first);
    }

    #[cfg(test)]
    pub(super) fn for_tests(builder: FeederBuilder) -> Options {
        builder.options
    }

    /// The client's connection options.
    pub(super) fn connect(&self, with_user: bool) -> ConnectOptions {
        let mut connect = ConnectOptions::new().with_require_leader(true).with_auto_token_refresh(true);
        if let Some(User { name, password }) = self.user.as_ref().filter(|_| with_user) {
            connect = connect.with_user(name, password);
        }
        connect
    }
}

/// What begins the endpoint of a Unix socket; its path follows.
pub(super) const UNIX: &str = "unix://";

/// Completes an endpoint to `http://host:port` or `https://host:port`; that of a Unix socket stays as it is.
fn normal_url(place: usize, given: &str, credentials: Option<&Credentials>, asked: bool) -> Result<String> {
    let (place, secure) = (place + 1, credentials.is_some());
    if given.contains('@') {
        // Not printed, because it may contain a password.
        return Err(invalid(format!("endpoint {place} has a user in it; give name and password by themselves")));
    }
    if let Some(socket) = given.strip_prefix(UNIX) {
        return match secure {
            true => Err(invalid(format!("endpoint {place}, {given:?}, is a Unix socket, but TLS was asked for"))),
            false if socket.is_empty() || socket.contains('\0') => {
                Err(invalid(format!("endpoint {place}, {given:?}, is not of the form unix:///path")))
            }
            false => Ok(given.to_owned()),
        };
    }
    let (scheme, host) = match given.split_once("://") {
        Some((scheme, host)) => (scheme, host),
        None if secure => ("https", given),
        None => ("http", given),
    };
    let host = host.strip_suffix('/').unwrap_or(host);
    match (scheme, secure) {
        ("http", false) | ("https", true) => {}
        ("http", true) => {
            let other = if asked { "TLS was asked for" } else { "another endpoint is https" };
            return Err(invalid(format!("endpoint {place}, {given:?}, is http, but {other}; write https")));
        }
        _ => {
            return Err(invalid(format!("endpoint {place}, {given:?}: the scheme is not http, https or unix")));
        }
    }
    let bad = |c: char| c.is_whitespace() || c.is_control() || "/?#\\\"<>{}|^`".contains(c);
    let port = host.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
    let name = host.strip_suffix(port.unwrap_or("")).unwrap_or(host).trim_end_matches(':');
    if name.is_empty() || host.contains(bad) || port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return Err(invalid(format!("endpoint {place}, {given:?}, is not of the form http://host:port")));
    }
    let url = format!("{scheme}://{host}");
    // Checks that the connection can parse the URL.
    let uri = url.parse::<Uri>().map_err(|error| {
        let text = format!("endpoint {place}, {given:?}, is not of the form http://host:port: {error}");
        invalid(format!("{text}. Give each endpoint by itself, and an IPv6 address in brackets"))
    })?;
    if let Some(credentials) = credentials {
        credentials.server_name(&uri).map_err(|text| invalid(format!("endpoint {place}, {given:?}: {text}")))?;
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(urls: &[&str], tls: bool) -> Result<Vec<String>> {
        let mut builder = FeederBuilder::new(urls.iter().map(|url| url.to_string()).collect());
        if tls {
            builder = builder.tls(Tls::new());
        }
        builder.options.checked().map(|options| options.endpoints)
    }

    #[test]
    fn urls_are_completed() {
        assert_eq!(
            checked(&["a:1", "http://b:2/", "[::1]:3"], false).unwrap(),
            ["http://a:1", "http://b:2", "http://[::1]:3"]
        );
        assert_eq!(checked(&["unix:///tmp/x", "a:1"], false).unwrap(), ["unix:///tmp/x", "http://a:1"]);
        assert_eq!(checked(&["a:1", "https://b"], true).unwrap(), ["https://a:1", "https://b"]);
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_place() {
        for (urls, tls) in [
            (&[][..], false),
            (&["http://a", ""], false),
            (&["https://a", "http://b"], false),
            (&["https://a", "http://b"], true),
            (&["http://a", "unix://"], false),
            (&["https://a", "unix:///tmp/x"], false),
            (&["http://a", "ftp://b"], false),
            (&["http://a", "http://b/path"], false),
            (&["http://a", "http://b:port"], false),
            (&["http://a", "http://b:70000"], false),
            (&["http://a", "http://:1"], false),
            (&["http://a", "::1:2379"], false),
            (&["http://a", "b:1,c:2"], false),
            (&["http://a", "http://größe:2379"], false),
            (&["https://a", "https://b..c:2379"], true),
        ] {
            let error = checked(urls, tls).expect_err(&format!("{urls:?}"));
            assert_eq!(error.code(), Code::InvalidArgument);
            assert!(urls.is_empty() || error.message().contains("endpoint 2"), "{}", error.message());
        }
    }

    #[test]
    fn a_scheme_that_does_not_fit_is_told_what_fits() {
        assert!(checked(&["http://a"], true).unwrap_err().message().contains("write https"));
        let mixed = checked(&["http://a", "https://b"], false).unwrap_err();
        assert!(
            mixed.message().contains("endpoint 1") && mixed.message().contains("another endpoint is https"),
            "{mixed}"
        );
        assert_eq!(checked(&["https://a", "b:1"], false).unwrap(), ["https://a", "https://b:1"]);
    }

    #[test]
    fn passwords_do_not_show() {
        let error = checked(&["http://app:secret@a:1"], false).unwrap_err();
        assert!(!error.message().contains("secret"));
        let builder = FeederBuilder::new(vec!["a".into()]).user("app", "secret");
        let tls = Tls::new().client_pem("c", "secret");
        let shown = format!("{builder:?} {tls:?}");
        assert!(shown.contains("app") && !shown.contains("secret"), "{shown}");
    }

    #[test]
    fn bytes_that_are_no_certificate_are_refused() {
        for tls in [
            Tls::new().ca_pem(""),
            Tls::new().ca_pem("no certificate"),
            Tls::new().ca_pem("-----BEGIN CERTIFICATE-----\nMIIB"),
            Tls::new().client_pem("none", "none"),
            Tls::new().server_name("two words"),
        ] {
            let builder = FeederBuilder::new(vec!["a".into()]).tls(tls.clone());
            assert_eq!(builder.options.checked().unwrap_err().code(), Code::InvalidArgument, "{tls:?}");
        }
        // Files may be created later.
        let later = Tls::new().ca_file("/none").client_files("/none", "/none");
        assert!(FeederBuilder::new(vec!["a".into()]).tls(later).options.checked().is_ok());
    }

    #[test]
    fn one_key_alone_lies_in_the_prefix() {
        for (key, holds) in [("/a/x", true), ("/a/", true), ("/a", false), ("/b/x", false), ("", false)] {
            for prefix in ["/a/", ""] {
                let cache = watchcore::Cache::builder(prefix).expect_load(true).build().unwrap();
                let builder = FeederBuilder::new(vec!["http://127.0.0.1:1".into()]).only_key(key);
                match builder.start(cache.writer().unwrap()) {
                    Ok(_) => assert!(holds || (prefix.is_empty() && !key.is_empty()), "{key:?} in {prefix:?}"),
                    Err(error) => {
                        assert!(key.is_empty() || (!holds && !prefix.is_empty()), "{key:?} in {prefix:?}: {error}");
                        assert_eq!(error.code(), Code::InvalidArgument);
                        assert!(error.message().contains("in full"), "{error}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_holds_unless_told() {
        let Options { page_size, too_far_behind, progress_interval, progress_requests, message_limit, .. } =
            FeederBuilder::new(vec!["a".into()]).options;
        assert_eq!((page_size, too_far_behind), (None, 20_000));
        assert_eq!((progress_interval, progress_requests), (Duration::from_secs(1), true));
        assert_eq!(message_limit, 64 << 20);
        let options = FeederBuilder::new(vec!["a".into()]).options;
        assert_eq!((options.backoff_first, options.backoff_most), (Duration::from_millis(50), Duration::from_secs(10)));
        assert_eq!(
            (options.follow_compaction, options.start_revision, options.stop_after_listing),
            (None, None, false)
        );
    }

    #[test]
    fn zeros_are_refused() {
        let new = || FeederBuilder::new(vec!["a".into()]);
        assert!(new().page_size(0).options.checked().is_err());
        assert!(new().progress_interval(Duration::ZERO).options.checked().is_err());
        assert!(new().message_limit(0).options.checked().is_err());
        let second = Duration::from_secs(1);
        assert!(new().backoff(Duration::ZERO, second).options.checked().is_err());
        assert!(new().backoff(second, Duration::ZERO).options.checked().is_err());
        assert_eq!(new().start_revision(0).options.checked().unwrap().start_revision, None);
    }
    #[test]
    fn endless_durations_are_bounded() {
        let longest = Duration::MAX;
        let builder = FeederBuilder::new(vec!["a".into()])
            .progress_interval(longest)
            .dial_timeout(longest)
            .request_timeout(longest)
            .backoff(longest, longest)
            .refused_retry(longest)
            .follow_compaction(longest)
            .audit_interval(longest);
        let options = builder.options.checked().unwrap();
        // The largest sum and the largest multiple that the feeder computes from them, added to a clock reading.
        let now = tokio::time::Instant::now();
        assert!(now.checked_add(options.dial_timeout + options.request_timeout).is_some());
        assert!(now.checked_add(options.request_timeout * 6).is_some());
        assert!(now.checked_add(options.progress_interval * 3).is_some());
        let mut backoff = crate::backoff::full_jitter(options.backoff_first, options.backoff_most);
        (0..100).for_each(|_| assert!(backoff.next_delay(now.into(), Duration::ZERO) <= LONGEST));
        assert!(crate::backoff::spread(options.refused_retry) <= LONGEST * 2);
        for interval in [options.follow_compaction, options.audit_interval] {
            assert!(interval.is_some_and(|interval| now.checked_add(crate::backoff::spread(interval)).is_some()));
        }
    }

    #[test]
    fn start_revision_is_bounded() {
        let checked = |revision| FeederBuilder::new(vec!["a".into()]).start_revision(revision).options.checked();
        assert_eq!(checked(MAX_REVISION).unwrap().start_revision, Some(MAX_REVISION));
        for revision in [MAX_REVISION + 1, 1 << 63, u64::MAX] {
            assert_eq!(checked(revision).unwrap_err().code(), Code::InvalidArgument);
        }
    }
}
