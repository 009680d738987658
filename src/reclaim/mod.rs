//! Deferred freeing: grace periods, and the one thread that frees (I6).
//!
//! Two questions are kept apart. *When may it be freed?* When no reader that could have loaded the
//! pointer is still pinned. *Who frees?* The thread `watchcore-free`: neither the writer nor a consumer pays
//! for freeing what the cache had. The memory of a subscription (a `KeySet`, with the blocks of purged slots that only
//! it still had) is freed where the subscription drops it, also inside a poll; after a shutdown the thread that
//! releases something frees it.
//!
//! The life of what is replaced: the writer unlinks it ([`Published::replace`] swaps the pointer), then
//! pushes it on the reclaimer's inbox ([`retire`]); it takes no pin and walks no threads. The reclaimer
//! takes the inbox, pins, and defers one closure for the whole batch; that closure runs on whatever
//! thread pins next, and only pushes the batch on a second inbox. The reclaimer drops what it finds there.
//! A last count that readers reach by no pointer ([`free`]) leaves the grace period out.
//! `docs/internals/reclamation.md` argues the order, and says what the bound is and who waits for it.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | `Published::replace` swaps the pointer | `Published::load` | Release / Acquire |
//! | unlinking, then the push of `retire` | the reclaimer's take, then its pin | Release / Acquire, see `sync::Inbox` |
//! | `Worker::wake` after a push | the thread rests or ends, or who stands in leaves; then a load of the count of what was retired, or a look at the inbox | AcqRel, see `worker::duty`: one of the two sees the other |

#[cfg(not(loom))]
mod epoch;
mod job;
#[cfg(loom)]
mod loom_twin;

#[cfg(loom)]
pub(crate) use crate::sync::Track;
#[cfg(not(loom))]
pub(crate) use epoch::{
    Allowance, Backpressure, Guard, free, held_bytes, on_reclaimer, pin, progressed, quiesce, retire, start, worker,
};
#[cfg(all(test, not(loom)))]
pub(crate) use epoch::{WORK, is_pinned};
#[cfg(loom)]
pub(crate) use loom_twin::{
    Allowance, Backpressure, Guard, begin, boxed, bury, collect, free, held_bytes, on_reclaimer, pin, progressed, read,
    retire, unboxed,
};

pub(crate) use job::Job;

use crate::heap::{HeapArc, Memory};
#[cfg(loom)]
use crate::sync::weak::{self, Site};
use crate::sync::{Acquire, AtomicPtr, Release, ord};

impl Job {
    /// Releases a count.
    fn of<T: Send + Sync + 'static>(value: HeapArc<T>) -> Job {
        Job::Release(value.into_raw().cast(), |place| {
            // SAFETY: the count that `of` gave away; a job is run once.
            release(unsafe { HeapArc::<T>::from_raw(place.cast()) });
        })
    }
}

/// A pointer that is replaced as a whole, and that any reader follows under a pin.
///
/// The replaced value is retired. The writer that replaces needs no pin, and none to read the value that it
/// has published: it keeps a count of its own.
pub(crate) struct Published<T: Send + Sync + 'static> {
    /// From `HeapArc::into_raw`: one count is this object's.
    pointer: AtomicPtr<T>,
}

impl<T: Send + Sync + 'static> Published<T> {
    pub(crate) fn new(value: HeapArc<T>) -> Published<T> {
        Published { pointer: AtomicPtr::new(into_raw(value)) }
    }

    /// The value now. Acquire: partner of the swap in [`Published::replace`].
    #[inline]
    pub(crate) fn load<'g>(&self, _pin: &'g Guard) -> &'g T {
        let place = self.pointer.load(ord!(Load<T>, Acquire));
        #[cfg(loom)]
        loom_twin::read(place as usize);
        // SAFETY: I4, I9: never null, and the count of a replaced value is released only after every
        // pin that could have loaded it has gone; the reference does not outlive the pin.
        unsafe { &*place }
    }

    /// Publishes a new value and retires the old one, which gives `bytes` free.
    pub(crate) fn replace(&self, value: HeapArc<T>, bytes: usize, memory: &mut impl Memory) {
        let place = into_raw(value);
        #[cfg(loom)]
        if weak::is(Site::PushEarly) {
            let old = self.pointer.load(Acquire);
            // SAFETY: a twin that must fail: still reachable here.
            let old = unsafe { HeapArc::from_raw(old) };
            retire(bytes, Job::of(old), memory);
            self.pointer.store(place, Release);
            return;
        }
        // Release: partner of the load above. It comes before the push in `retire`.
        let old = self.pointer.swap(place, ord!(Replace<T>, Release));
        // SAFETY: the pointer came from `into_raw` and left the only place that had this count.
        let old = unsafe { HeapArc::from_raw(old) };
        retire(bytes, Job::of(old), memory);
    }
}

impl<T: Send + Sync + 'static> Drop for Published<T> {
    fn drop(&mut self) {
        let pointer = self.pointer.load(Acquire);
        // SAFETY: the last owner is here, nobody can load it any more.
        let value = unsafe { HeapArc::from_raw(pointer) };
        if on_reclaimer() { release(value) } else { free(0, Job::of(value)) }
    }
}

fn into_raw<T>(value: HeapArc<T>) -> *mut T {
    let place = value.into_raw();
    #[cfg(loom)]
    loom_twin::boxed(place as usize);
    place
}

fn release<T>(value: HeapArc<T>) {
    #[cfg(loom)]
    loom_twin::unboxed(value.address());
    drop(value);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::heap::System;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    struct Noisy(Arc<AtomicUsize>);
    impl Drop for Noisy {
        fn drop(&mut self) {
            assert!(on_reclaimer());
            self.0.fetch_add(1, Release);
        }
    }

    #[test]
    fn replaced_values_are_dropped_on_the_reclaimer() {
        let drops = Arc::new(AtomicUsize::new(0));
        let published = Published::new(HeapArc::new(Noisy(drops.clone()), &mut System));
        for _ in 0..100 {
            published.replace(HeapArc::new(Noisy(drops.clone()), &mut System), 1, &mut System);
        }
        assert!(quiesce(Duration::from_secs(30)));
        assert_eq!(drops.load(Acquire), 100);
        drop(published);
        assert!(quiesce(Duration::from_secs(30)));
        assert_eq!(drops.load(Acquire), 101);
    }

    #[test]
    fn a_pin_keeps_what_it_loaded() {
        let drops = Arc::new(AtomicUsize::new(0));
        let published = Published::new(HeapArc::new(Noisy(drops.clone()), &mut System));
        let guard = pin();
        let _held = published.load(&guard);
        published.replace(HeapArc::new(Noisy(drops.clone()), &mut System), 1, &mut System);
        assert!(!quiesce(Duration::from_millis(30)));
        assert_eq!(drops.load(Acquire), 0);
        drop(guard);
        assert!(quiesce(Duration::from_secs(30)));
        assert_eq!(drops.load(Acquire), 1);
    }

    #[test]
    fn a_pin_delays_no_writer() {
        let (done, freed) = std::sync::mpsc::channel();
        let guard = pin();
        // More than any bound.
        retire(1 << 40, Box::new(move || done.send(()).unwrap()), &mut System);
        Backpressure::default().wait_for_room();
        assert!(freed.try_recv().is_err(), "what the pin may have loaded is there");
        drop(guard);
        assert!(quiesce(Duration::from_secs(30)));
        freed.try_recv().unwrap();
    }
}
