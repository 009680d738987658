//! The keyed store: the ordered index of slots, and the writer's hash.

pub(crate) mod queue;
pub(crate) mod root;
pub(crate) mod table;
pub(crate) mod tree;
