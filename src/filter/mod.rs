//! Which events a reader gets: ranges, selectors, compiled filters, declared indexes.
//!
//! A user builds a filter from a range, selectors and predicates (`range`, `selector`). When a subscription opens or a
//! read begins, it is bound to what its cache declares (`matcher`): names become numbers of fields, and what is not
//! declared is refused. `canonical` gives a compiled filter an identity that outlives the process. `indexes` says which bucket holds all events that a compiled filter can let pass.

mod canonical;
pub(crate) mod indexes;
pub(crate) mod matcher;
pub(crate) mod range;
pub(crate) mod selector;
