//! Opens subscriptions.

#![forbid(unsafe_code)]

use super::handle::Subscription;
use super::loss::Halt;
use super::options::{Delivery, OnLag, Start, StartOptions};
use super::path::BucketState;
use super::start::AwaitsListing;
use super::state::{Bookmarks, ConsumerState, Flag, SubscriptionPhase};
use crate::cache::{Cache, Consumer, ConsumerRef, MaxLag};
use crate::data::event::Kind;
use crate::error::{Result, say};
use crate::filter::matcher::Matcher;
use crate::filter::range::{Filter, Range};
use crate::position::Position;
use crate::read::DEFAULT_WAIT;
use crate::wake::FilterCode;
use std::time::Duration;

/// Options of a subscription; see [`Cache::subscribe`].
///
/// Restrictions (`filter`, `key`, `prefix`, `path`, `range`, `labels`, `fields`, `types`) add up: each narrows the ones
/// before. Of every other option the last call counts.
///
/// ```
/// use watchcore::{Cache, Change, Kind, Start};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// let mut deletions = cache.subscribe(Start::Now).prefix("/mine/").types(&[Kind::Deleted]).open()?;
/// writer.apply(1, [Change::put("/mine/a", "1"), Change::put("/other", "1")])?;
/// writer.apply(2, [Change::delete("/mine/a"), Change::delete("/other")])?;
/// let batch = deletions.poll(10)?;
/// assert_eq!((batch.len(), batch.events()[0].key()), (1, &b"/mine/a"[..]));
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is subscribed before `open`"]
pub struct SubscribeBuilder {
    cache: Cache,
    start: StartOptions,
    how: Delivery,
    max_lag: MaxLag,
    filter: Filter,
    raw: bool,
    bookmarks: bool,
    bookmark_interval: Duration,
    name: String,
}

impl Cache {
    /// Options of a new subscription that begins at `start`. Nothing happens before [`SubscribeBuilder::open`], and any
    /// number of subscriptions may be open.
    pub fn subscribe(&self, start: Start) -> SubscribeBuilder {
        SubscribeBuilder {
            cache: self.clone(),
            start: StartOptions { start, timeout: DEFAULT_WAIT, batch_bytes: usize::MAX },
            how: Delivery { whole_revisions: false, stop_on_resync: false, on_lag: OnLag::Stop },
            max_lag: MaxLag { events: u64::MAX, age: Duration::MAX },
            filter: Filter::any(),
            raw: false,
            bookmarks: false,
            bookmark_interval: Duration::from_secs(1),
            name: String::new(),
        }
    }
}

impl SubscribeBuilder {
    /// A name for people (default: none): in [`Cache::subscriptions`], in its errors and log lines. It need
    /// not be unique. Its bytes count as the subscription's memory.
    ///
    /// ```
    /// use watchcore::{Cache, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut billing = cache.subscribe(Start::Now).name("billing").open()?;
    /// cache.close();
    /// assert!(billing.poll(10).unwrap_err().message().starts_with("subscription \"billing\":"));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> SubscribeBuilder {
        self.name = name.into();
        self
    }

    /// Only events that this filter passes, in addition to the restrictions before.
    pub fn filter(mut self, filter: Filter) -> SubscribeBuilder {
        self.filter = self.filter.and(filter);
        self
    }

    /// Only this key.
    pub fn key(self, key: impl AsRef<[u8]>) -> SubscribeBuilder {
        self.range(Range::key(key))
    }

    /// Only keys that start with these bytes.
    pub fn prefix(self, prefix: impl AsRef<[u8]>) -> SubscribeBuilder {
        self.range(Range::prefix(prefix))
    }

    /// Only this path and what lies below it: `/a/foo` does not match `/a/foobar`.
    pub fn path(self, path: impl AsRef<[u8]>) -> SubscribeBuilder {
        self.range(Range::path(path))
    }

    /// Only keys of this range.
    pub fn range(mut self, range: Range) -> SubscribeBuilder {
        self.filter.range = self.filter.range.and(&range);
        self
    }

    /// Only objects that a label selector selects: see [`Filter::labels`].
    pub fn labels(mut self, selector: impl AsRef<[u8]>) -> Result<SubscribeBuilder> {
        self.filter = self.filter.labels(selector)?;
        Ok(self)
    }

    /// Only objects that a field selector selects: see [`Filter::fields`].
    /// For this subscription an object that changes so that it is selected is Added, and one that is no longer selected
    /// is Deleted. [`SubscribeBuilder::labels`] and [`Filter::predicate`] decide the kinds in the same way.
    ///
    /// ```
    /// use watchcore::{Attribute, Cache, Change, Kind, Start};
    ///
    /// let cache = Cache::builder("/").field(Attribute::json("node", "/node")?).build()?;
    /// let mut writer = cache.writer()?;
    /// let mut on_a = cache.subscribe(Start::Now).fields("node=a")?.open()?;
    /// writer.apply(1, [Change::put("/pod", r#"{"node":"b"}"#)])?;
    /// writer.apply(2, [Change::put("/pod", r#"{"node":"a"}"#)])?;
    /// writer.apply(3, [Change::put("/pod", r#"{"node":"b"}"#)])?;
    /// let batch = on_a.poll(10)?;
    /// let seen: Vec<_> = batch.events().iter().map(|event| (event.revision(), event.kind())).collect();
    /// assert_eq!(seen, [(2, Kind::Added), (3, Kind::Deleted)], "it came to node a, and left it");
    /// assert_eq!((batch.events()[1].value(), batch.events()[1].prev_value()), (None, Some(&br#"{"node":"a"}"#[..])));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn fields(mut self, selector: impl AsRef<[u8]>) -> Result<SubscribeBuilder> {
        self.filter = self.filter.fields(selector)?;
        Ok(self)
    }

    /// Only these kinds of changes, in addition to the restrictions before: see [`Filter::types`].
    ///
    /// ```
    /// use watchcore::{Cache, Change, Kind, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// writer.apply(1, [Change::put("/a", "1")])?;
    /// let mut modified = cache.subscribe(Start::State).types(&[Kind::Modified]).open()?;
    /// writer.apply(2, [Change::put("/a", "2")])?;
    /// let state = modified.poll(10)?;
    /// assert!(state.len() == 1 && state.events()[0].ends_initial_state(), "an object of the state is Added");
    /// assert_eq!(modified.poll(10)?.events()[0].revision(), 2);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn types(mut self, kinds: &[Kind]) -> SubscribeBuilder {
        self.filter = self.filter.types(kinds);
        self
    }

    /// Shows etcd's PUT and DELETE instead of Added, Modified and Deleted.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Kind, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// let mut raw = cache.subscribe(Start::Now).raw_types(true).open()?;
    /// writer.apply(1, [Change::put("/a", "1")])?;
    /// writer.apply(2, [Change::put("/a", "2")])?;
    /// writer.apply(3, [Change::delete("/a")])?;
    /// let kinds: Vec<Kind> = raw.poll(10)?.events().iter().map(|event| event.kind()).collect();
    /// assert_eq!(kinds, [Kind::Put, Kind::Put, Kind::Delete]);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn raw_types(mut self, raw: bool) -> SubscribeBuilder {
        self.raw = raw;
        self
    }

    /// Asks for bookmarks when there is nothing else and the position moved. A bookmark says that everything up to its
    /// revision was delivered: for consumers that save their position, and whose filter passes little. Default: none
    /// but the one that ends an initial state, which always comes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use watchcore::{Cache, Change, Kind, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut quiet = cache.subscribe(Start::Now).key("/a").bookmarks(true).bookmark_interval(Duration::ZERO).open()?;
    /// cache.writer()?.apply(7, [Change::put("/b", "1")])?;
    /// assert!(quiet.wait(Duration::from_secs(30))?, "a bookmark ends a wait");
    /// let batch = quiet.poll(10)?;
    /// assert_eq!((batch.events()[0].kind(), batch.events()[0].revision()), (Kind::Bookmark, 7));
    /// assert!(quiet.poll(10)?.is_empty(), "none before the position moves again");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn bookmarks(mut self, bookmarks: bool) -> SubscribeBuilder {
        self.bookmarks = bookmarks;
        self
    }

    /// At most one bookmark per interval (default 1 s).
    pub fn bookmark_interval(mut self, interval: Duration) -> SubscribeBuilder {
        self.bookmark_interval = interval;
        self
    }

    /// Batches never end inside a revision, also where that is longer than the asked maximum.
    /// Such a batch keeps all of the log in which its revision lies. The initial state is still cut at the maximum.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut whole = cache.subscribe(Start::Now).whole_revisions(true).open()?;
    /// let mut parts = cache.subscribe(Start::Now).open()?;
    /// cache.writer()?.apply(1, [Change::put("/a", "1"), Change::put("/b", "1"), Change::put("/c", "1")])?;
    /// let (all, first) = (whole.poll(1)?, parts.poll(1)?);
    /// assert_eq!((all.len(), all.continues()), (3, false));
    /// assert_eq!((first.len(), first.continues()), (1, true));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn whole_revisions(mut self, whole: bool) -> SubscribeBuilder {
        self.how.whole_revisions = whole;
        self
    }

    /// How long `StateAtLeast` waits (default 3 s).
    ///
    /// ```
    /// use std::time::Duration;
    /// use watchcore::{Cache, Change, Code, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let start = |timeout| cache.subscribe(Start::StateAtLeast(8)).start_timeout(timeout).open();
    /// let (mut patient, mut hasty) = (start(Duration::from_secs(60))?, start(Duration::ZERO)?); // neither call waits
    /// assert!(patient.poll(10)?.is_empty());
    /// assert_eq!(hasty.poll(10).unwrap_err().code(), Code::FutureRevision);
    /// cache.writer()?.apply(8, [Change::put("/a", "1")])?;
    /// assert_eq!(patient.poll(10)?.len(), 2, "the state, and its end");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn start_timeout(mut self, timeout: Duration) -> SubscribeBuilder {
        self.start.timeout = timeout;
        self
    }

    /// Cuts the initial state into batches of at most `bytes` bytes of keys and values, or of one object; 0 (the default)
    /// is no limit. For a consumer that passes each batch on before it takes the next and keeps none, as a batch of that
    /// state keeps the log. A poll looks at 1024 keys then; if none of them passes, its batch is empty and
    /// [`Batch::continues`](crate::Batch::continues): poll again.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// cache.writer()?.apply(1, [Change::put("/a", "1"), Change::put("/b", "2")])?;
    /// let mut one = cache.subscribe(Start::State).initial_batch_bytes(3).open()?;
    /// let lengths = [one.poll(64)?.len(), one.poll(64)?.len()];
    /// assert_eq!(lengths, [1, 2], "the second one with the mark that ends the state");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn initial_batch_bytes(mut self, bytes: usize) -> SubscribeBuilder {
        self.start.batch_bytes = if bytes == 0 { usize::MAX } else { bytes };
        self
    }

    /// Ends with RESYNCED at a resync, instead of handing out its marks and difference.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Code, ResyncReason, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// let mut strict = cache.subscribe(Start::Now).stop_on_resync(true).open()?;
    /// writer.apply(5, [Change::put("/a", "1")])?;
    /// writer.resync(9, [], ResyncReason::Compacted)?;
    /// assert_eq!(strict.poll(10)?.len(), 1, "what was before the resync");
    /// assert_eq!(strict.poll(10).unwrap_err().code(), Code::Resynced); // then CLOSED
    /// assert_eq!(strict.position().revision, 5);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn stop_on_resync(mut self, stop: bool) -> SubscribeBuilder {
        self.how.stop_on_resync = stop;
        self
    }

    /// The policy after a loss of events (default: [`OnLag::Stop`]).
    ///
    /// ```
    /// use watchcore::{Cache, Change, Code, Kind, OnLag, Start};
    ///
    /// let cache = Cache::builder("/").capacity(128).build()?;
    /// let mut writer = cache.writer()?;
    /// let start = |policy| cache.subscribe(Start::State).on_lag(policy).open();
    /// let (mut resnapshot, mut conflate) = (start(OnLag::Resnapshot)?, start(OnLag::Conflate)?);
    /// assert!(resnapshot.poll(10)?.len() == 1 && conflate.poll(10)?.len() == 1, "the end of the empty state");
    /// for revision in 1..=1000 {
    ///     writer.apply(revision, [Change::put("/a", "1")])?;
    /// }
    /// assert_eq!(resnapshot.poll(10).unwrap_err().code(), Code::Lagged);
    /// let kinds: Vec<Kind> = resnapshot.poll(10)?.events().iter().map(|event| event.kind()).collect();
    /// assert_eq!(kinds, [Kind::Resync, Kind::Added, Kind::Resync], "the difference from the empty state");
    /// let latest = conflate.poll(10)?; // no error: 1000 changes became one
    /// assert_eq!((latest.len(), latest.events()[0].kind(), latest.events()[0].revision()), (1, Kind::Added, 1000));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn on_lag(mut self, policy: OnLag) -> SubscribeBuilder {
        self.how.on_lag = policy;
        self
    }

    /// Ends the subscription with LAGGED, whatever its policy, once it is more than this many events behind; 0 (the
    /// default) is no limit. Each poll that finds events checks the limit, and the notifier does four times a second. A
    /// wait does not check it, but ends when the check has closed the subscription.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Code, OnLag, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut slow = cache.subscribe(Start::Now).on_lag(OnLag::Conflate).max_lag_events(2).open()?;
    /// cache.writer()?.apply(1, [Change::put("/a", "1"), Change::put("/b", "1"), Change::put("/c", "1")])?;
    /// let error = slow.poll(10).unwrap_err();
    /// assert_eq!(error.code(), Code::Lagged); // whatever the policy; then CLOSED
    /// // The log still has the events here, so another subscription can take them.
    /// let mut next = cache.subscribe(Start::AfterIn(error.position())).open()?;
    /// assert_eq!(next.poll(10)?.len(), 3);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn max_lag_events(mut self, events: u64) -> SubscribeBuilder {
        self.max_lag.events = if events == 0 { u64::MAX } else { events };
        self
    }

    /// Ends the subscription with LAGGED, whatever its policy, once it has been behind for this long
    /// ([`Lag::age`](crate::Lag::age)); zero (the default) is no limit. Each poll that finds events checks the limit, and
    /// the notifier does four times a second. A consumer that has taken everything is not behind, however long the next
    /// event takes to come; nor is one that waits for its start.
    pub fn max_lag_age(mut self, age: Duration) -> SubscribeBuilder {
        self.max_lag.age = if age.is_zero() { Duration::MAX } else { age };
        self
    }

    /// Opens it. Its start is fixed when this returns; never blocks. O(1), but O(matching keys) where the policy
    /// records delivered keys and the start is not a state.
    ///
    /// CLOSED; INVALID_ARGUMENT where the filter names undeclared attributes, or where its range lies outside the
    /// cache's prefix or is reversed; FUTURE_REVISION above [`MAX_REVISION`](crate::MAX_REVISION); COMPACTED.
    ///
    /// ```
    /// use watchcore::{Cache, Code, Start};
    ///
    /// let cache = Cache::builder("/registry/").build()?;
    /// let outside = cache.subscribe(Start::Now).prefix("/other/").open();
    /// assert_eq!(outside.unwrap_err().code(), Code::InvalidArgument);
    /// let undeclared = cache.subscribe(Start::Now).fields("spec.nodeName=a")?.open();
    /// assert_eq!(undeclared.unwrap_err().code(), Code::InvalidArgument);
    /// assert!(cache.subscribe(Start::After(100)).open()?.poll(10)?.is_empty(), "a revision to come is waited for");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn open(mut self) -> Result<Subscription> {
        let name = std::mem::take(&mut self.name);
        self.open_as(&name).map_err(|error| error.of_subscription(&name))
    }

    fn open_as(self, name: &str) -> Result<Subscription> {
        let inner = self.cache.inner.clone();
        if inner.is_closing() {
            return Err(say::closed("subscribe"));
        }
        if let Start::After(revision)
        | Start::Within(revision)
        | Start::StateAtLeast(revision)
        | Start::AfterIn(Position { revision, .. }) = self.start.start
        {
            say::check_asked("subscribe at", revision, || inner.position().revision)?;
        }
        let matcher = inner.share(Matcher::new(&self.filter, self.raw, &inner.prefix, &inner.schema)?);
        if FilterCode::of(&matcher) == FilterCode::Foreign {
            #[cfg(not(loom))]
            crate::wake::start(FilterCode::Foreign)
                .map_err(|error| say::no_thread("subscribe with a predicate", FilterCode::Foreign.thread(), &error))?;
        }
        let shared = ConsumerRef::new(Consumer::of(&inner, matcher, self.max_lag, name));
        let mut state = ConsumerState::new(self.how, shared.matcher.passes_all());
        if self.bookmarks {
            state.rare().bookmarks = Some(Box::new(Bookmarks::new(self.bookmark_interval)));
        }
        if let Some(name) = inner.indexes.bucket_of(&shared.matcher) {
            let matcher = &shared.matcher;
            state.set(Flag::WholeBucket, inner.indexes.bucket_passes(matcher) && !matcher.is_raw());
            state.rare().path.bucket = BucketState::Asked(inner.requests.ask(name));
        }
        let mut subscription = Subscription { shared, state };
        // Counted before anything can fail, because the drop of the subscription subtracts it.
        let ready = inner.count_subscription();
        inner.keep_open();
        subscription.state.set(Flag::KeepsOpen, true);
        subscription.awake(|awake| {
            if !ready {
                let phase = SubscriptionPhase::AwaitsListing(Box::new(AwaitsListing(self.start)));
                awake.state.enter(phase);
                return Ok(());
            }
            awake.begin(&self.start).map_err(|halt| match halt {
                Halt::Over(error) => error,
                Halt::Lost(loss) => loss.error(awake.position()),
            })
        })?;
        subscription.state.slot = inner.registry.enter(subscription.shared.clone());
        if subscription.shared.is_limited() {
            // The notifier checks the limits four times a second from now on.
            inner.hubs.of(FilterCode::Own).notify(&inner);
        }
        Ok(subscription)
    }
}
