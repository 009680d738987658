//! What is built upon the interface: nothing of it is code of this library.
//!
//! # In the header: Building upon it
//!
//! What authors of bindings are asked for next needs nothing beyond the functions above. Two programs show it
//! whole: examples/broadcaster.c and examples/informer.c.
//!
//! Broadcast  An embedded cache with one key. Publishing is watchcore_writer_apply with the next revision, a
//!            watcher a subscription with START_NOW (exactly what follows) or START_AFTER (with history, as long
//!            as the log has it), the shutdown watchcore_cache_free: everybody gets what was published before,
//!            then CLOSED. A watcher that drops what it has no place for has ON_LAG_SKIP_TO_OLDEST, and its LAGGED
//!            has the range that it lost. For one that the publisher is to wait for, the program compares the
//!            revision that it publishes with that of the last event which the watcher has taken.
//!            watchcore_subscription_lag is no measure for that: who sleeps counts as having everything until it
//!            is woken.
//! Informer   A handler is a subscription of its own with ON_LAG_RESNAPSHOT, run by one thread or by a wake set.
//!            It keeps what it was given of each key. So an update has its old value and a deletion its last one
//!            also where the window has left the handler behind: then the present value is all that the difference
//!            has. It is synced when the event with FLAG_INITIAL_STATE_END was handled. A lister is
//!            watchcore_cache_get and watchcore_cache_list, several informers at one revision are one snapshot,
//!            "read your own writes" is watchcore_cache_wait_until. To remove a handler:
//!            watchcore_subscription_close, and once its thread has come out of the callback and read CLOSED,
//!            watchcore_subscription_free.
//! Until      A subscription with START_STATE, polled until an event is the one. Its revision is that at which it
//!            held.
