//! A writer that moves on while a start in the future looks for its first event.

use crate::sync::hooked;
use crate::{Cache, Change, Event, OnLag, Start, Writer};

fn write(writer: &mut Writer, revisions: impl IntoIterator<Item = u64>) {
    for revision in revisions {
        writer.apply(revision, [Change::put("/k", &revision.to_string())]).unwrap();
    }
}

/// The segment that ends at or below the asked revision leaves between the search and the look at it: nothing above
/// the revision has left with it, so nothing is lost.
#[test]
fn segment_that_leaves_during_the_search_is_no_loss() {
    for policy in [OnLag::Stop, OnLag::SkipToOldest, OnLag::Resnapshot, OnLag::Conflate] {
        let cache = Cache::builder("/").segment_slots(16).capacity(128).build().unwrap();
        let mut writer = cache.writer().unwrap();
        write(&mut writer, [1]);
        let mut one = cache.subscribe(Start::After(40)).on_lag(policy).open().unwrap();
        // Two segments end with 32, no revision lies between, and the third begins with 41.
        write(&mut writer, (2..=32).chain(41..=60));
        let (before, mut rest) = (cache.oldest(), Some((writer, 61..=153)));
        let evict = move |step: &'static str| {
            if step == "segment found"
                && let Some((mut writer, revisions)) = rest.take()
            {
                write(&mut writer, revisions);
            }
        };
        let batch = hooked(evict, || one.poll(5)).unwrap_or_else(|error| panic!("{policy}: {error}"));
        assert_eq!((before, cache.oldest(), cache.position().revision), (1, 33, 153), "both segments have left");
        assert_eq!(batch.into_iter().map(Event::revision).collect::<Vec<_>>(), [41, 42, 43, 44, 45], "{policy}");
        assert_eq!((batch.position().revision, one.stats().lagged), (45, 0), "{policy}");
    }
}
