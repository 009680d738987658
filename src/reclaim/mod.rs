//! Deferred freeing: an own epoch collector and the one thread that frees (I6).
//!
//! Two questions are kept apart. *When may it be freed?* When no reader that could have loaded the
//! pointer is still pinned: the collector answers, and what it runs (on whatever thread pins next)
//! only pushes on a list. *Who frees?* Always the thread `watchcore-free`: neither the writer nor a
//! consumer pays for freeing, and a big drop never happens inside somebody's poll.
//!
//! The collector is our own, never crossbeam's default one: any crate's forgotten guard would stop
//! our reclamation.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | `Published::replace` swaps the pointer | `Published::load` | Release / Acquire |
//! | `List::push` CAS | `List::take` swap | Release / Acquire |
//! | `asleep.swap(false)` after a push | `asleep.swap(true)`, then a look at the list | AcqRel: one of the two sees the other |

#[cfg(not(loom))]
use crate::sync::{AcqRel, Relaxed};
use crate::sync::{Acquire, AtomicPtr, Release, ord};

/// Something to be done on the reclaimer thread.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

#[cfg(not(loom))]
mod epoch;
#[cfg(loom)]
mod loom_twin;

#[cfg(not(loom))]
pub(crate) use epoch::{Guard, free, on_reclaimer, pin, quiesce, retire};
#[cfg(loom)]
pub(crate) use loom_twin::{Guard, Track, begin, boxed, bury, collect, free, on_reclaimer, pin, read, retire, unboxed};

/// A pointer that one writer replaces and any reader follows under a pin.
///
/// What was replaced is dropped on the reclaimer after the grace period.
pub(crate) struct Published<T: Send + Sync + 'static> {
    pointer: AtomicPtr<T>,
}

impl<T: Send + Sync + 'static> Published<T> {
    pub(crate) fn new(value: T) -> Published<T> {
        let place = Box::into_raw(Box::new(value));
        #[cfg(loom)]
        loom_twin::boxed(place as usize);
        Published { pointer: AtomicPtr::new(place) }
    }

    /// The value now. Acquire: partner of the swap in [`Published::replace`].
    #[inline]
    pub(crate) fn load<'g>(&self, _pin: &'g Guard) -> &'g T {
        let place = self.pointer.load(ord!(Load<T>, Acquire));
        #[cfg(loom)]
        loom_twin::read(place as usize);
        // SAFETY: I4, I9: never null, and a replaced value is dropped only after every pin that
        // could have loaded it has gone; the reference does not outlive the pin.
        unsafe { &*place }
    }

    /// Publishes a new value and retires the old one.
    pub(crate) fn replace(&self, value: Box<T>, pin: &Guard) {
        // Release: partner of the load above.
        let place = Box::into_raw(value);
        #[cfg(loom)]
        loom_twin::boxed(place as usize);
        let old = self.pointer.swap(place, ord!(Replace<T>, Release));
        // SAFETY: it came from a box and left the only place that had it.
        let old = unsafe { Box::from_raw(old) };
        retire(pin, Box::new(move || unbox(old)));
    }
}

impl<T: Send + Sync + 'static> Drop for Published<T> {
    fn drop(&mut self) {
        let pointer = self.pointer.load(Acquire);
        // SAFETY: the last owner is here, nobody can load it any more.
        let value = unsafe { Box::from_raw(pointer) };
        if on_reclaimer() { unbox(value) } else { free(Box::new(move || unbox(value))) }
    }
}

fn unbox<T>(value: Box<T>) {
    #[cfg(loom)]
    loom_twin::unboxed(&raw const *value as usize);
    drop(value);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
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
        let published = Published::new(Noisy(drops.clone()));
        for _ in 0..100 {
            published.replace(Box::new(Noisy(drops.clone())), &pin());
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
        let published = Published::new(Noisy(drops.clone()));
        let guard = pin();
        let _held = published.load(&guard);
        published.replace(Box::new(Noisy(drops.clone())), &pin());
        assert!(!quiesce(Duration::from_millis(30)));
        assert_eq!(drops.load(Acquire), 0);
        drop(guard);
        assert!(quiesce(Duration::from_secs(30)));
        assert_eq!(drops.load(Acquire), 1);
    }
}
