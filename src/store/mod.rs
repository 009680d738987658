//! The keyed store: versions, slots, the ordered index, and views of them.

pub(crate) mod index;
pub(crate) mod snapshot;
pub(crate) mod tree;
pub(crate) mod version;
