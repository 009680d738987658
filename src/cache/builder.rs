//! The options of a new cache.

#![forbid(unsafe_code)]

use super::Cache;
use super::core::Core;
use super::gauges::{ConsumerGauges, Gauges};
use super::registry::Registry;
use super::shared::{Inner, NOT_READY, READY, SizeLimits};
use crate::attribute::declared::{Attribute, Labels};
use crate::attribute::schema::Schema;
use crate::data::decoded::Decoder;
use crate::error::{DebugBytes, Result, say};
use crate::filter::indexes::{Index, Indexes};
use crate::heap::HeapArc;
use crate::log::buckets::{Requests, Router};
use crate::log::epochs::Epochs;
use crate::log::retention::LogClock;
use crate::log::segment::own_bytes;
use crate::log::writer::{RingWriter, WindowLimits};
#[cfg(not(loom))]
use crate::reclaim;
use crate::reclaim::{Allowance, Published};
use crate::sync::{AtomicBool, AtomicU32, Mutex};
#[cfg(not(loom))]
use crate::wake::{self, FilterCode};
use crate::worker::Need;
use crossbeam_utils::CachePadded;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

/// Options of a new cache. Each field, index and the labels are declared once; of every other option the last call counts.
///
/// ```
/// use watchcore::{Attribute, Cache, Change, Filter, Index, Labels, Range, Read, ReadOptions};
///
/// let cache = Cache::builder("/registry/pods/")
///     .name("pods")
///     .capacity(16_384)
///     .labels(Labels::json("/metadata/labels")?)
///     .field(Attribute::json("spec.nodeName", "/spec/nodeName")?)
///     .index(Index::field("spec.nodeName"))
///     .build()?;
/// cache.writer()?.apply(1, [Change::put("/registry/pods/a", r#"{"spec":{"nodeName":"n1"}}"#)])?;
///
/// let of_n1 = ReadOptions::new(Read::Any).filter(Filter::any().fields("spec.nodeName=n1")?);
/// assert_eq!(cache.count_with(&Range::all(), &of_n1)?.count, 1);
/// assert!(Cache::builder("/").capacity(1).build().is_err(), "too small to be a window");
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "no cache is made before `build`"]
pub struct Builder {
    prefix: Vec<u8>,
    capacity: usize,
    capacity_bytes: u64,
    limits: SizeLimits,
    expect_load: bool,
    name: String,
    segment_slots: Option<u64>,
    keep: Option<(usize, Duration)>,
    clock: Option<Arc<AtomicU64>>,
    fields: Vec<Attribute>,
    labels: Vec<Labels>,
    indexes: Vec<Index>,
    max_buckets: usize,
    decoder: Option<Decoder>,
    trusts_wakers: bool,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("name", &self.name)
            .field("prefix", &DebugBytes(&self.prefix))
            .field("capacity", &self.capacity)
            .field("capacity_bytes", &self.capacity_bytes)
            .field("limits", &self.limits)
            .field("fields", &self.fields)
            .field("labels", &self.labels)
            .field("indexes", &self.indexes)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for SizeLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "key {}, value {}", self.key, self.value)
    }
}

impl Cache {
    /// Options of a new cache that holds the keys which start with `prefix` (empty: all keys).
    pub fn builder(prefix: impl AsRef<[u8]>) -> Builder {
        Builder::new(prefix.as_ref().to_vec())
    }
}

impl Builder {
    fn new(prefix: Vec<u8>) -> Builder {
        Builder {
            prefix,
            capacity: 65_536,
            capacity_bytes: 256 << 20,
            limits: SizeLimits { key: 64 << 10, value: 16 << 20 },
            expect_load: false,
            name: String::new(),
            segment_slots: None,
            keep: None,
            clock: None,
            fields: Vec::new(),
            labels: Vec::new(),
            indexes: Vec::new(),
            max_buckets: 65_536,
            decoder: None,
            trusts_wakers: false,
        }
    }

    /// The most events that the log holds (default 65,536; at least 128). The guaranteed window is 7/8 of it less one
    /// segment, unless [`Builder::capacity_bytes`] or [`Builder::keep`] asks for less.
    /// A larger log lets readers fall further behind, and resume from longer ago. Keys that do not change take no place
    /// in it.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Code, Start};
    ///
    /// let cache = Cache::builder("/").capacity(1024).build()?;
    /// let mut writer = cache.writer()?;
    /// for revision in 1..=5000 {
    ///     writer.apply(revision, [Change::put("/a", "1")])?;
    /// }
    /// assert!((3977..=4233).contains(&cache.oldest()), "the last 768 to 1024 events");
    /// assert!(cache.subscribe(Start::After(cache.oldest() - 1)).open().is_ok());
    /// assert_eq!(cache.subscribe(Start::After(1)).open().unwrap_err().code(), Code::Compacted);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn capacity(mut self, events: usize) -> Builder {
        self.capacity = events;
        self
    }

    /// The most bytes that the log holds beside the live keys (default 256 MiB; at least 64 KiB). Counted is all memory
    /// that is freed with its segments: the segments, replaced values (with their decoded values, if decoded by then),
    /// resyncs, and deleted keys until their deletes have left. A revision that is larger is held whole until it leaves.
    /// Not counted are the tombstones of deletes that have left ([`crate::Stats::tombstone_bytes`]), which each change
    /// purges, at most two at a time.
    ///
    /// ```
    /// use watchcore::{Cache, Change};
    ///
    /// let cache = Cache::builder("/").capacity_bytes(1 << 20).build()?;
    /// let mut writer = cache.writer()?;
    /// for revision in 1..=1000 {
    ///     writer.apply(revision, [Change::put("/a", &[0u8; 10_000])])?;
    /// }
    /// assert!(cache.stats().window_bytes <= 1 << 20);
    /// assert!(cache.oldest() > 800, "some hundred values of 10 KB fit, though the log may hold 65,536 events");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn capacity_bytes(mut self, bytes: u64) -> Builder {
        self.capacity_bytes = bytes;
        self
    }

    /// Sizes the window by age: events older than `age` are evicted early while at least `events` remain; up to the
    /// capacity the window holds at least the events of the last `age`. It grows and shrinks by whole segments, at each
    /// write (progress is one). Unset, the window stays as large as the capacity allows.
    ///
    /// ```
    /// # use std::time::Duration;
    /// // At least 1000 events, and all of the last 75 seconds if they are no more than 100,000.
    /// let cache = watchcore::Cache::builder("/").capacity(100_000).keep(1000, Duration::from_secs(75)).build()?;
    /// assert!(cache.stats().window_age < Duration::from_secs(75));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn keep(mut self, events: usize, age: Duration) -> Builder {
        self.keep = Some((events, age));
        self
    }

    /// Replaces the log's clock: see [`crate::raw::TestBuilder`].
    pub(crate) fn log_clock(mut self, now: Arc<AtomicU64>) -> Builder {
        self.clock = Some(now);
        self
    }

    /// Longest key (default 64 KiB).
    pub fn max_key_bytes(mut self, bytes: usize) -> Builder {
        self.limits.key = bytes;
        self
    }

    /// Longest value (default 16 MiB).
    pub fn max_value_bytes(mut self, bytes: usize) -> Builder {
        self.limits.value = bytes;
        self
    }

    /// Makes the cache NOT_READY at first: reads wait for [`crate::Writer::load`]. A feeder's cache always begins so.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Code, Read, Start};
    ///
    /// let cache = Cache::builder("/").expect_load(true).build()?;
    /// let mut writer = cache.writer()?;
    /// let mut early = cache.subscribe(Start::State).open()?; // begins with the listing
    /// assert_eq!(cache.get("/a", Read::Any).unwrap_err().code(), Code::NotReady);
    /// assert_eq!(writer.apply(1, [Change::put("/a", "1")]).unwrap_err().code(), Code::NotReady);
    /// writer.load(7, [])?;
    /// assert!(early.poll(10)?.events()[0].ends_initial_state());
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn expect_load(mut self, expect: bool) -> Builder {
        self.expect_load = expect;
        self
    }

    /// A name for logs and status.
    pub fn name(mut self, name: &str) -> Builder {
        self.name = name.into();
        self
    }

    /// Declares an attribute for field selectors and indexes: extracted once from each value that is
    /// written. An extractor that fails leaves it absent and is counted ([`crate::Stats::extract_failures`]).
    ///
    /// ```
    /// use watchcore::{Attribute, Cache, Change, Start};
    ///
    /// let phase = Attribute::json("status.phase", "/status/phase")?;
    /// let cache = Cache::builder("/").field(phase).build()?;
    /// let mut running = cache.subscribe(Start::Now).fields("status.phase=Running")?.open()?;
    /// let pod = r#"{"status":{"phase":"Running"}}"#;
    /// cache.writer()?.apply(1, [Change::put("/pod", pod), Change::put("/text", "Running")])?;
    /// assert_eq!(running.poll(10)?.len(), 1);
    /// assert_eq!((cache.objects(), cache.stats().extract_failures), (2, 1), "stored, though it is not JSON");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn field(mut self, attribute: Attribute) -> Builder {
        self.fields.push(attribute);
        self
    }

    /// Declares where the labels of a value are, for label selectors and indexes. Labels are declared at most once.
    pub fn labels(mut self, labels: Labels) -> Builder {
        self.labels.push(labels);
        self
    }

    /// Declares an index (at most 8): subscriptions whose filter fits it read only the events of their own bucket.
    /// [`Index`] describes the cost.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Index, Start};
    ///
    /// let cache = Cache::builder("/").index(Index::prefix(1)).build()?;
    /// let mut writer = cache.writer()?;
    /// let mut mine = cache.subscribe(Start::Now).prefix("/mine/").open()?;
    /// writer.apply(1, [Change::put("/mine/a", "1")])?;
    /// mine.poll(10)?; // from here on it reads the bucket
    /// for revision in 2..=1000 {
    ///     writer.apply(revision, [Change::put("/others/a", "1")])?;
    /// }
    /// assert!(mine.poll(10)?.is_empty() && mine.stats().looked_at < 10);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn index(mut self, index: Index) -> Builder {
        self.indexes.push(index);
        self
    }

    /// The most buckets of all indexes together (default 65,536); subscriptions beyond them scan. Unused buckets are
    /// evicted.
    pub fn max_buckets(mut self, buckets: usize) -> Builder {
        self.max_buckets = buckets;
        self
    }

    /// Declares the decoder of values: [`crate::Event::decoded`] calls it at most once a value, on the thread of the
    /// reader that asks first. The decoded value is shared, and dropped on the reclaimer's thread. A decoder must not
    /// decode other values through the cache: a decoder that comes to its own value deadlocks, and so do two threads,
    /// each waiting for the value that the other decodes.
    pub fn decoder<T, E>(mut self, decode: impl Fn(&[u8], &[u8]) -> Result<T, E> + Send + Sync + 'static) -> Builder
    where
        T: Send + Sync + 'static,
        E: std::fmt::Display,
    {
        self.decoder = Some(Decoder::new(decode, |_| 0));
        self
    }

    /// [`Builder::decoder`], with the bytes that a decoded value holds beyond its own struct: for
    /// [`crate::Stats::decoded_bytes`], and for [`Builder::capacity_bytes`], which counts those of values that were
    /// replaced.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Read};
    ///
    /// let decode = |_: &[u8], value: &[u8]| std::str::from_utf8(value).map(str::to_owned);
    /// let cache = Cache::builder("/").sized_decoder(decode, String::capacity).build()?;
    /// cache.writer()?.apply(1, [Change::put("/a", "1")])?;
    /// let kv = cache.get("/a", Read::Any)?.kv.unwrap();
    /// assert_eq!(kv.decoded::<String>()?.unwrap(), "1");
    /// assert_eq!(cache.stats().decoded_values, 1);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn sized_decoder<T, E>(
        mut self,
        decode: impl Fn(&[u8], &[u8]) -> Result<T, E> + Send + Sync + 'static,
        holds: impl Fn(&T) -> usize + Send + Sync + 'static,
    ) -> Builder
    where
        T: Send + Sync + 'static,
        E: std::fmt::Display,
    {
        self.decoder = Some(Decoder::new(decode, holds));
        self
    }

    /// Lets the thread that publishes call the wakers of tasks (default false: the notifier's thread calls them, and a
    /// waker that blocks holds up only wake-ups).
    ///
    /// With it a publish that concerns one to four sleeping tasks wakes them itself, without the detour over the
    /// notifier; where more are concerned, or publishes follow each other within 20 us and the task sleeps on another thread,
    /// the notifier calls them as before.
    /// For executors whose wakers only put the task on a queue, as those of tokio, async-std and smol do. A waker that
    /// blocks, or runs the task, stops the writer meanwhile, a feeder's too, and must not wait for what that writer
    /// publishes next; one that panics is caught and counted on either thread.
    ///
    /// ```
    /// let cache = watchcore::Cache::builder("/").trust_wakers(true).build()?;
    /// # drop(cache);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn trust_wakers(mut self, trust: bool) -> Builder {
        self.trusts_wakers = trust;
        self
    }

    /// Sets the number of events per segment: see [`crate::raw::TestBuilder`].
    pub(crate) fn segment_slots(mut self, slots: u64) -> Builder {
        self.segment_slots = Some(slots);
        self
    }

    /// Makes the cache. INVALID_ARGUMENT where an option is out of its range; RESOURCE_EXHAUSTED where the system starts
    /// no thread: the first cache of a process needs two. An error leaves nothing behind, and a later build tries again.
    pub fn build(self) -> Result<Cache> {
        self.check()?;
        let asked = WindowAsked {
            capacity: self.capacity as u64,
            bytes: self.capacity_bytes,
            keep: self.keep.map(|(events, age)| (u64::try_from(age.as_millis()).unwrap_or(u64::MAX), events as u64)),
            segment_slots: self.segment_slots,
        };
        let need = Need::new();
        ensure_threads()?;
        let birth = u64::from(birth_mark()) << 32;
        let epochs = Epochs::new(birth | 1, 0);
        let schema = Arc::new(Schema::new(self.fields, self.labels.into_iter().next())?);
        let indexes = Arc::new(Indexes::new(&self.indexes, &schema)?);
        let (slots, limits) = asked.window(indexes.width());
        let clock = self.clock.clone().map_or_else(|| LogClock::Since(Instant::now()), LogClock::Given);
        let (ring, ring_writer) = RingWriter::with_ring(slots, limits, clock, epochs, indexes.width(), schema.clone());
        let router = Router::new(indexes.clone(), self.max_buckets);
        let mut core = Core::new(ring_writer, router);
        core.loaded = !self.expect_load;
        let gauges = Gauges {
            window_segments: AtomicU64::new(1),
            window_bytes: AtomicU64::new(core.ring.bytes()),
            window_log_bytes: AtomicU64::new(core.ring.log_bytes()),
            ..Gauges::default()
        };
        let inner = Inner {
            keepers: AtomicUsize::new(0),
            slots: core.slots.pages(),
            heap: core.heap.free_bytes(),
            prefix: self.prefix.into(),
            name: self.name,
            limits: self.limits,
            schema,
            indexes,
            decoder: self.decoder,
            requests: Requests::default(),
            matchers: Mutex::default(),
            registry: Registry::default(),
            ring,
            root: Published::new(HeapArc::default()),
            hubs: CachePadded::default(),
            trusts_wakers: self.trusts_wakers,
            ready: AtomicU32::new(if self.expect_load { NOT_READY } else { READY }),
            broken: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            info: Mutex::default(),
            core: Mutex::new(Some(Box::new(core))),
            gauges: CachePadded::new(gauges),
            consumers: ConsumerGauges::default(),
            asked: AtomicU64::new(0),
            served: AtomicU64::new(0),
            _allowance: Allowance::new(self.capacity_bytes / 8),
            need: Some(need),
        };
        Ok(Cache::new(inner))
    }

    /// INVALID_ARGUMENT where an option is out of its range.
    fn check(&self) -> Result<()> {
        let check = |holds: bool, what: &str| if holds { Ok(()) } else { Err(say::invalid(what.to_string())) };
        check(
            self.prefix.len() <= self.limits.key,
            "the prefix is longer than the longest key: choose a shorter prefix, or let keys be longer",
        )?;
        check(
            (if cfg!(loom) { 2 } else { 128 }..=1 << 32).contains(&self.capacity),
            &format!("capacity {}: it must be 128 to 4294967296 events", self.capacity),
        )?;
        check(
            self.capacity_bytes >= 1 << 16,
            &format!("capacity of {} bytes: it must be at least 65536", self.capacity_bytes),
        )?;
        check(
            (1..=u32::MAX as usize / 2).contains(&self.limits.key),
            "the longest key: it must be 1 to 2147483647 bytes",
        )?;
        check(self.limits.value <= u32::MAX as usize / 2, "the longest value: it must be at most 2147483647 bytes")?;
        check(
            self.keep.is_none_or(|(events, _)| events <= self.capacity),
            "keep: it asks for more events than the capacity. Raise the capacity, or keep fewer.",
        )?;
        check(
            self.labels.len() <= 1,
            "labels: they are declared twice, but a cache reads them from one place of a value. Declare them once.",
        )?;
        check(self.segment_slots.is_none_or(u64::is_power_of_two), "segment_slots: the number must be a power of two")
    }
}

/// The options that size the log.
struct WindowAsked {
    capacity: u64,
    bytes: u64,
    keep: Option<(u64, u64)>,
    segment_slots: Option<u64>,
}

impl WindowAsked {
    /// The slots of a segment, with `width` links a slot, and the limits of the window. At least eight segments fit, by
    /// events and by bytes, and the arrays of an empty segment take at most a quarter of the bytes at which it closes.
    fn window(&self, width: usize) -> (u64, WindowLimits) {
        let own = |slots: u64| own_bytes(slots as usize, width) as u64;
        let mut slots = (1u64 << (self.capacity / 8).max(16).ilog2()).min(1024);
        while slots > 16 && own(slots) * 4 > self.bytes / 16 {
            slots /= 2;
        }
        let slots = self.segment_slots.unwrap_or(slots);
        // The number of empty segments for which the bytes suffice.
        let fit = (self.bytes / own(slots)).max(8) + 1;
        let segments = match self.segment_slots {
            // As few as hold the events, so that in tests each entry of the directory gets another segment soon.
            Some(_) => (self.capacity / slots).max(2),
            // Full segments have more than 7/8 of their slots used.
            None => self.capacity.saturating_mul(8) / 7 / slots + 2 + 4 * BY_BYTES,
        };
        let limits = WindowLimits {
            events: self.capacity.max(slots * 2),
            segments: segments.min(fit),
            bytes: self.bytes,
            segment_bytes: (self.bytes / BY_BYTES).max(own(slots) * 4),
            keep: self.keep,
        };
        (slots, limits)
    }
}

/// The number of segments, closed by their bytes, that use up the bytes of the window. There may be four times as many:
/// bytes that a delete adds are subtracted from its segment when the key comes back, and at least a quarter of them
/// stays (the replaced value, at least as large as the tombstone, and the slot of the log).
const BY_BYTES: u64 = 64;

/// A random number for the upper half of this cache's epochs: 32 bits, never 0.
fn birth_mark() -> u32 {
    (RandomState::new().hash_one(std::process::id()) as u32).max(1)
}

/// Starts the threads that all caches of the process share, where they do not run yet.
#[cfg(not(loom))]
fn ensure_threads() -> Result<()> {
    reclaim::start().map_err(|error| say::no_thread("build a cache", "watchcore-free", &error))?;
    wake::start(FilterCode::Own).map_err(|error| say::no_thread("build a cache", FilterCode::Own.thread(), &error))
}

/// Models in loom do the work of these threads themselves.
#[cfg(loom)]
fn ensure_threads() -> Result<()> {
    Ok(())
}
