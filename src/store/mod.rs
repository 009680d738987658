//! The keyed store: the ordered index of slots, and the table that finds one by its key.
//!
//! The life of a key: its first put makes a slot, which the writer's table owns, and adds it to the index. Later
//! changes store a newer version into the slot and touch neither. A delete leaves a tombstone in the queue; when that
//! delete has left the log, the key is purged: out of the table and the index, and its slot goes to the newest segment,
//! which frees it. `docs/internals/store.md` has the costs, with an example in numbers.
//!
//! | file | what |
//! | --- | --- |
//! | `tree`, `root` | the persistent ordered set, and the index that is published |
//! | `table` | the table of slots, a hash that grows by steps: one thread changes it, any number read |
//! | `hash` | the keyed hash of keys |
//! | `queue` | the tombstones, in the order of their events |
//! | `key_set` | keys that somebody remembers, by counts on their slots |

pub(crate) mod hash;
pub(crate) mod key_set;
pub(crate) mod queue;
pub(crate) mod root;
pub(crate) mod table;
pub(crate) mod tree;
