//! Items that only the packages of this repository need beyond the public API. They are no part of the promised API: any
//! version may change or remove them.
//!
//! - The C ABI (`watchcore-capi`) reads the memory behind batches and key-values as plain words, and a few limits.
//! - The feeder (`watchcore-etcd`) counts the threads of its runtime, and logs through [`report`].
//! - Tests and benchmarks, which are crates of their own, set what no program has to set ([`TestBuilder`]), and wait until
//!   memory is freed ([`quiesce`]).

pub use crate::attribute::encode::MAX_FIELDS;
pub use crate::attribute::protobuf::MAX_DEPTH as MAX_PROTOBUF_PATH;
pub use crate::batch::RawBatch;
pub use crate::filter::indexes::MOST as MAX_INDEXES;
pub use crate::foreign::report;
#[cfg(not(loom))]
pub use crate::sys::{feeder_thread_began, feeder_thread_ended};

use crate::attribute::declared::{Attribute, Labels};
use crate::attribute::schema::Schema;
use crate::batch::Batch;
use crate::cache::{self, Builder};
use crate::data::event::LogEvent;
use crate::data::key_value::KeyValue;
use crate::error::Result;
use crate::filter::selector;
use crate::position::Position;
use crate::read::Waiter;
#[cfg(not(loom))]
use crate::reclaim;
use crate::subscription::Subscription;
use crate::wake::WakeSet;
use std::ffi::c_void;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Offsets in an event: revision, sequence, kind, flags, key-value, previous key-value and, of a resync mark, from, epoch
/// and reason.
pub const EVENT_OFFSETS: [usize; 9] = [
    offset_of!(LogEvent, revision),
    offset_of!(LogEvent, sequence),
    offset_of!(LogEvent, kind),
    offset_of!(LogEvent, flags),
    offset_of!(LogEvent, kv),
    offset_of!(LogEvent, prev),
    offset_of!(LogEvent, from),
    offset_of!(LogEvent, epoch),
    offset_of!(LogEvent, reason),
];

/// The parts of a batch: its owner word is released through [`release_batch`].
pub fn batch_into_parts(batch: Batch) -> RawBatch {
    batch.into_raw_parts()
}

/// Releases what an owner word stands for.
///
/// # Safety
/// `owner` is of a [`RawBatch`], and is released once.
pub unsafe fn release_batch(owner: usize) {
    // SAFETY: I9: the owner word has the batch's count, and this call alone releases it (`# Safety`).
    unsafe { RawBatch::release(owner) }
}

/// The address of the head that C reads; the count goes with it.
pub fn key_value_into_raw(kv: KeyValue) -> *const c_void {
    kv.into_raw()
}

/// The address of the head that C reads.
pub fn key_value_as_raw(kv: &KeyValue) -> *const c_void {
    kv.as_raw()
}

/// Takes back what [`key_value_into_raw`] gave away.
///
/// # Safety
/// Once per `key_value_into_raw`, with what it returned.
pub unsafe fn key_value_from_raw(pointer: *const c_void) -> Option<KeyValue> {
    // SAFETY: I9: `key_value_into_raw` gave this count away, and nobody else takes it back (`# Safety`).
    unsafe { KeyValue::from_raw(pointer) }
}

/// Adds a subscription to a wake set and arms it. `rests`: see [`poll`].
pub fn add_armed(set: &WakeSet, subscription: &mut Subscription, tag: u64, rests: impl Fn()) -> Result<()> {
    rests();
    set.add(subscription, tag)?;
    subscription.arm().map(drop)
}

/// Adds a waiter to a set, and arms it.
pub fn add_waiter_armed(set: &WakeSet, waiter: &mut Waiter, tag: u64, rests: impl Fn()) -> Result<()> {
    rests();
    set.add_waiter(waiter, tag)?;
    waiter.arm().map(drop)
}

/// The tag of a member that is ready; `None`: none is, and the set is armed. The member is listed again by the [`poll`]
/// that follows, where there is more.
pub fn next_ready(set: &WakeSet) -> Option<u64> {
    set.next()
}

/// The poll of C, with a maximum above 0. A member of a wake set is armed afterwards, or listed if there is more. `rests`
/// is called before the member can be found in its set again: another thread may take its tag from then on, and poll it.
#[inline]
pub fn poll(subscription: &mut Subscription, max: usize, rests: impl Fn()) -> Result<Batch> {
    subscription.poll_for_loop(max, rests)
}

/// The wait of C: it leaves a member of a wake set armed, or listed.
pub fn wait(subscription: &mut Subscription, timeout: Duration, rests: impl Fn()) -> Result<bool> {
    subscription.wait_for_loop(timeout, rests)
}

/// [`poll`] of a waiter.
pub fn poll_waiter(waiter: &mut Waiter, rests: impl Fn()) -> Result<Option<Position>> {
    waiter.poll_for_loop(rests)
}

/// The index of the bucket that a subscription reads, if it reads one.
pub fn index_name(subscription: &Subscription) -> Option<&str> {
    subscription.index_name()
}

/// Options of a cache for tests.
pub trait TestBuilder: Sized {
    /// Sets the number of events per segment of the log, a power of two. With few of them, a short test overtakes readers.
    fn segment_slots(self, slots: u64) -> Self;

    /// Replaces the clock of the log by this number of milliseconds, which the test advances.
    fn log_clock(self, now: Arc<AtomicU64>) -> Self;
}

impl TestBuilder for Builder {
    fn segment_slots(self, slots: u64) -> Builder {
        Builder::segment_slots(self, slots)
    }

    fn log_clock(self, now: Arc<AtomicU64>) -> Builder {
        Builder::log_clock(self, now)
    }
}

/// Blocks until everything that was retired is freed. Returns false if that takes longer than `bound`.
#[cfg(not(loom))]
pub fn quiesce(bound: Duration) -> bool {
    reclaim::quiesce(bound)
}

/// Returns the number of caches of this process whose memory is not all freed.
pub fn living_caches() -> usize {
    cache::living()
}

/// Returns the function that extracts the attributes of a key and its value into a buffer, for benchmarks.
#[allow(clippy::type_complexity)]
pub fn extraction(
    fields: Vec<Attribute>,
    labels: Option<Labels>,
) -> Result<impl Fn(&[u8], &[u8], &mut Vec<u8>) -> u64> {
    let schema = Schema::new(fields, labels)?;
    Ok(move |key: &[u8], value: &[u8], out: &mut Vec<u8>| schema.extract(key, value, out))
}

/// Returns the function that evaluates a label selector on extracted attributes, for benchmarks.
pub fn label_selector(text: &str) -> Result<impl Fn(&[u8]) -> bool> {
    selector::label_selector(text)
}
