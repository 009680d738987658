//! Retention tokens: one token keeps its segment and every later one.

#![forbid(unsafe_code)]

use crate::log::segment::SegmentRef;
use crate::reclaim;
use crate::sync::{Arc, Relaxed, into_inner};
// Statistics carry no order: std's also under loom.
use std::sync::atomic::AtomicU64 as Count;
use std::sync::{Arc as Shared, Mutex as Lock, OnceLock};
use std::time::Instant;

/// Bytes that one job frees: as much as the reclaimer takes without a pause.
const PIECE: usize = 1 << 20;

/// A token: owns its segment and, once it exists, the next token.
pub(crate) struct RetentionNode {
    pub(super) segment: SegmentRef,
    pub(super) next: OnceLock<RetentionToken>,
    pub(super) age: Shared<Age>,
    pub(super) ages: Shared<Ages>,
}

/// A count on a token; the last one is released on the reclaimer, and what it alone kept piece by piece.
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

/// The clock of the log's times, in milliseconds of its life.
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
        let Some(token) = self.0.take().and_then(into_inner) else { return };
        if reclaim::on_reclaimer() {
            release(token);
        } else {
            // How many follow is known only on the way.
            reclaim::free(token.segment.bytes(), Box::new(move || release(token)));
        }
    }
}

/// On the reclaimer: frees a token that nobody has any more, and what it alone kept.
fn release(mut token: RetentionNode) {
    let next = token.next.take();
    drop(token);
    free_chain(next);
}

/// Frees a chain of tokens, which may be as long as the writer's whole life. In pieces, each after what others have retired
/// meanwhile: no writer waits for all of it, and each sees what waits.
fn free_chain(mut next: Option<RetentionToken>) {
    let (mut piece, mut bytes) = (Vec::new(), 0);
    while let Some(mut token) = next.as_mut().and_then(|token| token.0.take()).and_then(into_inner) {
        next = token.next.take();
        bytes += token.segment.bytes();
        piece.push(token);
        if bytes >= PIECE {
            break;
        }
    }
    if !piece.is_empty() {
        let free = move || {
            // Oldest first.
            drop(piece);
            free_chain(next);
        };
        reclaim::free(bytes, Box::new(free));
    }
}

impl Drop for RetentionNode {
    fn drop(&mut self) {
        if let Some(next) = self.age.next.get() {
            *self.ages.oldest() = next.clone();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Cache, Change, Read};
    use std::sync::OnceLock as Once;
    use std::time::Duration;

    static DROPS: Count = Count::new(0);
    /// How many values were dropped when somebody else's job was served, and what waited then.
    static BETWEEN: Once<(u64, u64)> = Once::new();

    /// A value whose drop gives the reclaimer another job, once.
    struct Gives;
    impl Drop for Gives {
        fn drop(&mut self) {
            if DROPS.fetch_add(1, Relaxed) == 0 {
                let looks = || BETWEEN.set((DROPS.load(Relaxed), reclaim::held_bytes())).unwrap();
                reclaim::free(0, Box::new(looks));
            }
        }
    }

    /// A reader lets go of all that was written since it came: what others retire meanwhile is not behind all of it, and
    /// writers see what waits.
    #[test]
    fn long_chain_is_freed_in_pieces() {
        const MANY: u64 = 4 * (PIECE as u64 >> 10);
        let builder = Cache::builder("/").segment_slots(4).capacity(128).decoder(|_, _| Ok::<_, String>(Gives));
        let cache = builder.build().unwrap();
        let mut writer = cache.writer().unwrap();
        writer.apply(1, [Change::put("/a", "")]).unwrap();
        let snapshot = cache.snapshot().unwrap();
        let value = [7; 1 << 10];
        for revision in 2..=MANY {
            writer.apply(revision, [Change::put("/a", &value)]).unwrap();
            cache.get("/a", Read::Any).unwrap().kv.unwrap().decoded::<Gives>().unwrap();
        }
        assert!(reclaim::quiesce(Duration::from_secs(30)));
        assert_eq!(DROPS.load(Relaxed), 0, "the snapshot keeps them all");
        drop((writer, snapshot));
        assert!(reclaim::quiesce(Duration::from_secs(30)));
        let (drops, waits) = BETWEEN.get().unwrap();
        assert!(DROPS.load(Relaxed) > 3 * MANY / 4, "{DROPS:?}");
        assert!(*drops < MANY / 2, "another job was served after {drops} of {MANY}");
        assert!(*waits >= PIECE as u64, "{waits} bytes waited, and the chain has four pieces");
    }
}
