//! What the C ABI (the crate `watchcore-capi`) needs beyond the public API, and nobody else: the memory
//! behind batches and key-values as plain words, and a few limits. No part of the API that is promised.

pub use crate::attribute::protobuf::MAX_DEPTH as MAX_PROTOBUF_PATH;
pub use crate::attribute::schema::MAX_FIELDS;
pub use crate::batch::RawBatch;
pub use crate::filter::indexes::MOST as MAX_INDEXES;

use crate::batch::Batch;
use crate::data::event::LogEvent;
use crate::data::key_value::KeyValue;
use crate::subscription::Subscription;
use std::ffi::c_void;
use std::mem::offset_of;

/// Where an event has its revision, sequence, kind, flags, key-value, previous key-value and what a resync
/// mark has: from, epoch, reason.
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

/// The index of the bucket that a subscription reads, if it reads one.
pub fn index_name(subscription: &Subscription) -> Option<&str> {
    subscription.index_name()
}
