//! Functions that the C ABI (the crate `watchcore-capi`) alone needs beyond the public API: the memory behind batches and
//! key-values as plain words, and a few limits. They are no part of the promised API.

pub use crate::attribute::protobuf::MAX_DEPTH as MAX_PROTOBUF_PATH;
pub use crate::attribute::schema::MAX_FIELDS;
pub use crate::batch::RawBatch;
pub use crate::filter::indexes::MOST as MAX_INDEXES;

use crate::batch::Batch;
use crate::data::event::LogEvent;
use crate::data::key_value::KeyValue;
use crate::error::Result;
use crate::position::Position;
use crate::read::Waiter;
use crate::subscription::Subscription;
use crate::wake::WakeSet;
use std::ffi::c_void;
use std::mem::offset_of;
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
    // SAFETY: the caller's promise is that of `release`.
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
    // SAFETY: the caller's promise is that of `from_raw`.
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
