//! The keyed store: the ordered index of slots, and the writer's hash.
//!
//! The life of a key: its first put makes a slot, which the writer's table owns, and adds it to the index. Later
//! changes store a newer version into the slot and touch neither. A delete leaves a tombstone in the queue; when that
//! delete has left the log, the key is purged: out of the table and the index, and its slot goes to the newest segment,
//! which frees it. What that costs, with an example in numbers: `docs/internals/store.md`.
//!
//! | file | what |
//! | --- | --- |
//! | `tree`, `root` | the persistent ordered set, and the index that is published |
//! | `table` | the writer's hash, which grows by steps |
//! | `queue` | the tombstones, in the order of their events |

pub(crate) mod queue;
pub(crate) mod root;
pub(crate) mod table;
pub(crate) mod tree;
