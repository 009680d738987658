//! The log: a ring of segments, atomically indexed.

pub(crate) mod history;
pub(crate) mod ring;
pub(crate) mod segment;
