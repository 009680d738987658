//! Subscriptions: a cursor with a filter, owned by one consumer.
//!
//! A subscription is in one of seven phases ([`SubscriptionPhase`](state::SubscriptionPhase)): it waits for the listing, for a
//! revision, or for the revision of its start; it delivers the initial state, the log, or the difference after a loss; or it
//! has ended. A poll loads the bound of what it reads once ([`Frontier`](frontier::Frontier)), asks the phase for a batch, and
//! moves the cursor no further than that head. The subscription holds no pin between polls; it keeps a count on the segment
//! of its cursor while it reads, and drops that when it waits.
//!
//! Each file uses only files above it:
//!
//! | file | what |
//! | --- | --- |
//! | `options` | what a program may ask for |
//! | `cursor`, `frontier` | the cursor, which alone moves; the bound of one call |
//! | `loss` | why a poll cannot continue |
//! | `delivered` | the keys that were delivered |
//! | `initial`, `catch_up`, `future`, `start` | the phases with a state of their own |
//! | `path` | scan or chain |
//! | `state` | the phase, and what else only the consumer uses between two calls |
//! | `awake` | the subscription during a call of its consumer |
//! | `traverse` | the one traversal of a filtered subscription: position, rollback point, loss, delivered keys |
//! | `view`, `scan`, `chain`, `live` | the live phase: a view of the log, a scan, the chain of a bucket |
//! | `transitions` | from one phase to the next |
//! | `poll`, `sleep`, `wait` | a poll; what wakes it; how a thread or task waits |
//! | `closer`, `handle`, `stats`, `builder` | what programs see |
//!
//! Other threads see it as a [`Consumer`](crate::cache::Consumer) of its cache. docs/internals/subscription.md says where
//! each part of its state is stored, and what an idle one costs.

#![deny(unsafe_code)]

mod awake;
mod builder;
mod catch_up;
mod chain;
mod closer;
mod cursor;
mod delivered;
mod frontier;
mod future;
mod handle;
mod initial;
mod live;
mod loss;
mod options;
mod path;
mod poll;
mod scan;
mod sleep;
mod start;
mod state;
mod stats;
mod transitions;
mod traverse;
mod view;
mod wait;

pub use builder::SubscribeBuilder;
pub use closer::Closer;
pub use handle::Subscription;
pub use options::{OnLag, Start};
pub use stats::SubscriptionStats;

#[cfg(all(test, not(loom)))]
mod tests;
