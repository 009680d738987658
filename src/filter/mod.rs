//! Which events concern whom: ranges, selectors, compiled filters, declared indexes.

pub(crate) mod indexes;
pub(crate) mod matcher;
pub(crate) mod range;
pub(crate) mod selector;
