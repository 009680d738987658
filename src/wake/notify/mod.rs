//! Who wakes: the hubs at which a writer publishes, and the threads that do the passes which it leaves to them.
//!
//! | file | what |
//! | --- | --- |
//! | `pass_lock` | the lock of a pass, with the calls that are pending |
//! | `burst` | a guess how fast events come |
//! | `notifier` | the threads that do the passes |
//! | `hub` | the waiters of a cache with their tables: the calls and passes of one notifier |

pub(crate) mod burst;
pub(crate) mod hub;
pub(crate) mod notifier;
mod pass_lock;
