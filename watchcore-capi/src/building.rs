//! Patterns that programs build on the interface; the library has no code for them.
//!
//! # In the header: Building upon it
//!
//! Broadcasters and informers need no functions beyond those above. Two programs show them in full:
//! examples/broadcaster.c and examples/informer.c.
//!
//! Broadcast  An embedded cache with one key. Publishing is watchcore_writer_apply with the next revision. A watcher is
//!            a subscription with START_NOW (only later events) or START_AFTER (with history, as far back as the log
//!            goes). The shutdown is watchcore_cache_free: every watcher gets the events published before, then CLOSED.
//!            A watcher that drops events when it falls behind has ON_LAG_SKIP_TO_OLDEST, and its LAGGED has the lost
//!            range. If the publisher must wait for a watcher, the program compares the published revision with that of
//!            the last event that the watcher has handled; watchcore_subscription_lag is no measure for that, because a
//!            sleeping subscription counts as having everything until it is woken.
//! Informer   Each handler has its own subscription with ON_LAG_RESNAPSHOT, run by a thread or by a wake set. It keeps the
//!            last key-value that it was given of each key, so that an update has its old value, and a deletion its last
//!            one, even after a loss: the difference itself has only the present value. It is synced when it has handled
//!            the event with FLAG_INITIAL_STATE_END. A lister is watchcore_cache_get and watchcore_cache_list; several
//!            informers at one revision are one snapshot; "read your own writes" is watchcore_cache_wait_until. To remove
//!            a handler: watchcore_subscription_close, and, once its thread has left the callback and read CLOSED,
//!            watchcore_subscription_free.
//! Until      A subscription with START_STATE, polled until an event meets the condition. The event's revision is the one
//!            at which the condition held.
