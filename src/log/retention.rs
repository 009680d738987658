//! Retention tokens: one token keeps its segment and every later one.

#![forbid(unsafe_code)]

use crate::log::segment::SegmentRef;
use crate::reclaim;
use crate::sync::{Arc, Relaxed, into_inner};
// Statistics carry no order: std's also under loom.
use std::sync::atomic::AtomicU64 as Count;
use std::sync::{Arc as Shared, Mutex as Lock, OnceLock};
use std::time::Instant;

/// A token: owns its segment and, once it exists, the next token.
pub(crate) struct RetentionNode {
    pub(super) segment: SegmentRef,
    pub(super) next: OnceLock<RetentionToken>,
    pub(super) age: Shared<Age>,
    pub(super) ages: Shared<Ages>,
}

/// A count on a token; the last one is released on the reclaimer, in a loop.
#[derive(Clone)]
pub(crate) struct RetentionToken(Option<Arc<RetentionNode>>);

/// The age of the snapshots of a token, for the statistics.
#[derive(Default)]
pub(super) struct Age {
    /// Snapshots that have it, and when (ms of the log's life) the first of them was taken.
    pub(super) snapshots: Count,
    pub(super) since: Count,
    pub(super) next: OnceLock<Shared<Age>>,
}

/// What the log's times are read from, in milliseconds of its life.
#[derive(Clone)]
pub(crate) enum LogClock {
    Since(Instant),
    /// Set by a test.
    Given(Shared<Count>),
}

impl LogClock {
    pub(crate) fn now(&self) -> u64 {
        match self {
            LogClock::Since(birth) => u64::try_from(birth.elapsed().as_millis()).unwrap_or(u64::MAX),
            LogClock::Given(now) => now.load(Relaxed),
        }
    }
}

/// The age of the oldest living token: tokens die in their order.
pub(super) struct Ages {
    pub(super) oldest: Lock<Shared<Age>>,
    clock: LogClock,
}

impl Ages {
    pub(super) fn new(first: Shared<Age>, clock: LogClock) -> Shared<Ages> {
        Shared::new(Ages { oldest: Lock::new(first), clock })
    }

    pub(super) fn oldest(&self) -> std::sync::MutexGuard<'_, Shared<Age>> {
        self.oldest.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.now()
    }
}

impl RetentionToken {
    pub(super) fn new(segment: SegmentRef, ages: Shared<Ages>) -> RetentionToken {
        RetentionToken(Some(Arc::new(RetentionNode { segment, next: OnceLock::new(), age: Shared::default(), ages })))
    }

    /// The first one of a ring.
    pub(super) fn first(segment: SegmentRef, clock: LogClock) -> RetentionToken {
        let age = Shared::<Age>::default();
        let ages = Ages::new(age.clone(), clock);
        RetentionToken(Some(Arc::new(RetentionNode { segment, next: OnceLock::new(), age, ages })))
    }

    pub(super) fn token(&self) -> &RetentionNode {
        self.0.as_deref().expect("taken only by drop")
    }

    pub(crate) fn segment(&self) -> &SegmentRef {
        &self.token().segment
    }

    /// Links the token of the next segment: this token keeps that one, too.
    pub(super) fn link(&self, next: RetentionToken) {
        let _ = self.token().age.next.set(next.token().age.clone());
        let _ = self.token().next.set(next);
    }

    /// A snapshot takes it. Statistics: Relaxed.
    pub(crate) fn enter(&self) {
        let token = self.token();
        if token.age.snapshots.fetch_add(1, Relaxed) == 0 {
            token.age.since.store(token.ages.now(), Relaxed);
        }
    }

    /// The snapshot is dropped.
    pub(crate) fn leave(&self) {
        self.token().age.snapshots.fetch_sub(1, Relaxed);
    }
}

impl Drop for RetentionToken {
    fn drop(&mut self) {
        let Some(mut token) = self.0.take().and_then(into_inner) else { return };
        // Of the first; how many follow is known only on the way.
        let bytes = token.segment.bytes();
        let mut release = move || {
            // A loop: a chain of tokens may be as long as the writer's whole life.
            while let Some(mut next) = token.next.take() {
                match next.0.take().and_then(into_inner) {
                    Some(last) => token = last,
                    None => break,
                }
            }
        };
        if reclaim::on_reclaimer() { release() } else { reclaim::free(bytes, Box::new(release)) }
    }
}

impl Drop for RetentionNode {
    fn drop(&mut self) {
        if let Some(next) = self.age.next.get() {
            *self.ages.oldest() = next.clone();
        }
    }
}
