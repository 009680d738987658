//! The log: a reader's view below the head while the writer publishes, opens segments and replaces the history.
//!
//! | row | test `loom_...` | weakened in the twins |
//! | --- | --- | --- |
//! | event, prev, links; head | `publish_against_poll` | head store; head load |
//! | head (I2) | `revision_is_whole` | head store |
//! | directory entry | `entry_of_a_newer_lap` | entry store; entry load |
//! | directory | `growing_directory_against_list`, `_against_poll` | directory swap; directory load |
//! | progress | `progress_against_head` | progress store; progress load |
//! | the epochs, published as the root is | `resync_against_position` | epochs swap |
//! | oldest, of a reset | `reset_against_exact` | the store of oldest |

use super::*;

/// Rows "event, prev, links" and "head": every event below head is complete.
fn publish_against_poll(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = follow(&cache);
        let write = |writer: &mut Writer| {
            put(writer, 1, &["/a"]);
            put(writer, 2, &["/a"]);
        };
        let (_writer, (mut subscription, mut seen)) = race(writer, write, move || {
            let seen = read(&subscription.poll(8).unwrap());
            (subscription, seen)
        });
        seen.extend(read(&subscription.poll(8).unwrap()));
        assert_eq!(seen, [1, 2]);
    });
}

proof!(
    publish_against_poll, loom_publish_against_poll,
    loom_publish_against_poll_weak_head: Head => "Causality violation",
    loom_publish_against_poll_weak_load: HeadLoad => "Causality violation",
);

/// Row "head": a revision appears whole (I2), also where it straddles segments.
fn revision_is_whole(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(2, 4);
        put(&mut writer, 1, &["/a"]);
        let mut subscription = follow(&cache);
        race(
            writer,
            |writer| put(writer, 2, &["/a", "/b"]),
            move || {
                let first = subscription.poll(8).unwrap();
                if !first.is_empty() {
                    assert!(first.continues() && read(&first) == [2] && first.position().revision == 1);
                    let second = subscription.poll(8).unwrap();
                    assert!(read(&second) == [2] && second.position().revision == 2, "half a revision");
                }
            },
        );
    });
}

proof!(
    revision_is_whole, loom_revision_is_whole,
    loom_revision_is_whole_weak_head: Head => "Causality violation",
);

/// Row "directory entry": the base of a newer lap is complete.
fn entry_of_a_newer_lap(weakened: Weak) {
    UNCLAIMED.deep().run(weakened, || {
        let (cache, mut writer) = cache(1, 2);
        let mut subscription = follow(&cache);
        put(&mut writer, 1, &["/a"]);
        put(&mut writer, 2, &["/a"]);
        race(
            writer,
            |writer| put(writer, 3, &["/a"]),
            move || match subscription.poll(8) {
                Ok(batch) => assert_eq!(read(&batch), [1]),
                Err(error) => assert_eq!(error.code(), Code::Lagged),
            },
        );
    });
}

proof!(
    entry_of_a_newer_lap, loom_entry_of_a_newer_lap,
    loom_entry_of_a_newer_lap_weak_entry: Entry => "Causality violation",
    loom_entry_of_a_newer_lap_weak_load: EntryLoad => "Causality violation",
);

/// A revision longer than the ring is written, while a reader does `reads`.
fn while_the_directory_grows<T: 'static>(reads: impl FnOnce(Local<Cache>, Local<Subscription>) -> T + 'static) {
    let (cache, mut writer) = cache(1, 2);
    let subscription = follow(&cache);
    put(&mut writer, 1, &["/a"]);
    race(writer, |writer| put(writer, 2, &["/a", "/b", "/c"]), move || reads(cache, subscription));
}

/// Row "directory": a longer directory, published meanwhile, is complete where a list reads its position in the log.
fn growing_directory_against_list(weakened: Weak) {
    PLAIN.run(weakened, || {
        while_the_directory_grows(|cache, subscription| {
            let page = cache.list(&Range::all(), Read::Any, 0).unwrap();
            assert!(matches!((page.revision(), page.len()), (1, 1) | (2, 3)));
            (cache, subscription)
        });
    });
}

proof!(
    growing_directory_against_list, loom_growing_directory_against_list,
    loom_growing_directory_against_list_weak_directory: Replace "Directory" => "Causality violation",
    loom_growing_directory_against_list_weak_load: Load "Directory" => "Causality violation",
);

/// Row "directory": for a poll at the oldest event the growth is no lap.
fn growing_directory_against_poll(weakened: Weak) {
    UNCLAIMED_LONG.run(weakened, || {
        while_the_directory_grows(|cache, mut subscription| {
            assert_eq!(read(&subscription.poll(8).unwrap()), [1]);
            cache
        });
    });
}

proof!(
    growing_directory_against_poll, loom_growing_directory_against_poll,
    loom_growing_directory_against_poll_weak_directory: Replace "Directory" => "Causality violation",
    loom_growing_directory_against_poll_weak_load: Load "Directory" => "Causality violation",
);

/// Row "progress": no bookmark is above the delivered events.
fn progress_against_head(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = follow(&cache);
        let write = |writer: &mut Writer| {
            put(writer, 1, &["/a"]);
            writer.progress(5).unwrap();
        };
        race(writer, write, move || {
            let batch = subscription.poll(8).unwrap();
            let moved = batch.position().revision > 0;
            assert_eq!(moved, !batch.is_empty(), "a position beyond an event that was not handed out");
        });
    });
}

proof!(
    progress_against_head, loom_progress_against_head,
    loom_progress_against_head_weak_progress: Progress => "a position beyond an event",
    loom_progress_against_head_weak_load: ProgressLoad => "a position beyond an event",
);

/// Row "root, table, directory, token" (the epochs are published like them): a position is of one
/// history, and never goes back (I7).
fn resync_against_position(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        put(&mut writer, 5, &["/a"]);
        let before = cache.position();
        let write = |writer: &mut Writer| {
            writer.resync(3, [], ResyncReason::Requested).unwrap();
        };
        race(writer, write, move || {
            let (first, second) = (cache.position(), cache.position());
            for position in [first, second] {
                let turned = position.epoch == before.epoch + 1;
                assert_eq!(position.revision, if turned { 3 } else { 5 });
            }
            assert!(first <= second);
            cache
        });
    });
}

proof!(
    resync_against_position, loom_resync_against_position,
    loom_resync_against_position_weak_history: Replace "Epochs" => "Causality violation",
);

/// Row "oldest, of a reset": a reader below it reads the history before, a reader above it the new one.
fn reset_against_exact(weakened: Weak) {
    UNCLAIMED.deep().run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        put(&mut writer, 5, &["/a"]);
        let before = cache.position();
        let write = |writer: &mut Writer| {
            writer.resync(9, [], ResyncReason::HistoryReset).unwrap();
        };
        race(writer, write, move || {
            let answer = cache.get("/a", Read::ExactIn(before));
            match answer {
                Ok(answer) => assert_eq!(answer.kv.unwrap().mod_revision(), 5),
                Err(error) => {
                    assert_eq!(error.code(), Code::Compacted);
                    assert_ne!(cache.position().epoch, before.epoch, "compacted by a reset that is not there");
                }
            }
            let oldest = cache.oldest();
            assert!(oldest == 1 || oldest == 10);
            cache
        });
    });
}

proof!(
    reset_against_exact, loom_reset_against_exact,
    loom_reset_against_exact_weak_oldest: Oldest => "compacted by a reset that is not there",
);
