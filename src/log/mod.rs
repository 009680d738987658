//! The log: a ring of segments, atomically indexed.

pub(crate) mod buckets;
pub(crate) mod epochs;
pub(crate) mod retention;
pub(crate) mod ring;
pub(crate) mod segment;
pub(crate) mod summaries;
pub(crate) mod writer;
