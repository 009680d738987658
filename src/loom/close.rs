//! Closing: of a cache and of one subscription, against publication, polls and waits.
//!
//! | row | test `loom_...` | weakened in the twins |
//! | --- | --- | --- |
//! | closed, one word with head | `close_against_poll` | head store; head load |
//! | closed, and publication | `close_against_publish` | step: published without asking whether the log was closed |
//! | closed, of one subscription | `closer_against_poll` | end swap; end load |
//! | closed, and the wait | `closer_against_wait` | end load; the closer's fence |
//! | closed, and the sleep | `closer_against_sleep` | the sleeper's fence; the closer's fence; the claim |

use super::*;

/// Polls twice: an event, nothing, or CLOSED once the event was delivered.
fn poll_to_the_end(subscription: &mut Subscription) {
    let mut seen = 0;
    for _ in 0..2 {
        match subscription.poll(8) {
            Ok(batch) => seen += batch.len(),
            Err(error) => assert!(error.code() == Code::Closed && seen == 1, "closed before the last event"),
        }
    }
}

/// Row "closed": events published before the close are delivered before CLOSED. A third thread closes, because the
/// writer's fence would order its own close.
fn close_against_poll(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = follow(&cache);
        let closing = Local::new(cache.clone());
        let closing = thread::spawn(move || {
            if closing.position().revision == 1 {
                closing.close();
            }
            closing
        });
        race(writer, |writer| put(writer, 1, &["/a"]), move || poll_to_the_end(&mut subscription));
        drop(closing.join());
    });
}

proof!(
    close_against_poll, loom_close_against_poll,
    loom_close_against_poll_weak_head: Head => "Causality violation",
    loom_close_against_poll_weak_load: HeadLoad => "Causality violation",
);

/// Row "closed": close and publication have one order. A revision that `apply` has published is delivered; one that it
/// refuses is never seen; no event follows CLOSED.
fn close_against_publish(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let mut subscription = follow(&cache);
        let closing = thread::spawn(move || {
            cache.close();
            cache
        });
        let writing = thread::spawn(move || {
            let applied = writer.apply(1, [Change::put("/a", "1")]).is_ok();
            (writer, applied)
        });
        let (mut seen, mut closed) = (0, false);
        let mut poll = || match subscription.poll(8) {
            Ok(batch) => {
                assert!(batch.is_empty() || !closed, "an event follows CLOSED");
                seen += read(&batch).len();
            }
            Err(_) => closed = true,
        };
        poll();
        poll();
        let (writer, applied) = writing.join().unwrap();
        drop((closing.join().unwrap(), writer));
        poll();
        poll();
        assert!(closed && seen == usize::from(applied), "an event follows CLOSED");
    });
}

proof!(
    close_against_publish, loom_close_against_publish,
    loom_close_against_publish_blind: BlindPublish => "an event follows CLOSED",
);

/// Row "closed", for one subscription: its end covers every event that its closer saw.
fn closer_against_poll(weakened: Weak) {
    LONG.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = follow(&cache);
        let (closer, seen) = (Local::new(subscription.closer()), Local::new(cache.clone()));
        let closing = thread::spawn(move || {
            if seen.position().revision == 1 {
                closer.close();
            }
            (closer, seen)
        });
        race(writer, |writer| put(writer, 1, &["/a"]), move || poll_to_the_end(&mut subscription));
        drop(closing.join());
    });
}

proof!(
    closer_against_poll, loom_closer_against_poll,
    loom_closer_against_poll_weak_end: End => "closed before the last event",
    loom_closer_against_poll_weak_load: EndLoad => "closed before the last event",
);

/// Close of one subscription against its wait: the wait ends, and earlier events are delivered.
fn closer_against_wait(weakened: Weak) {
    LONG.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = follow(&cache);
        let closer = Local::new(subscription.closer());
        let write = move |writer: &mut Writer| {
            put(writer, 1, &["/a"]);
            closer.close();
            notifier::step();
        };
        race(writer, write, move || {
            let mut seen = 0;
            while subscription.wait(EVER).is_ok() {
                seen += subscription.poll(8).unwrap().len();
            }
            assert_eq!(seen, 1, "closed before the last event");
        });
    });
}

proof!(
    closer_against_wait, loom_closer_against_wait,
    loom_closer_against_wait_weak_load: EndLoad => "closed before the last event",
    loom_closer_against_wait_weak_fence: CloserFence => "deadlock",
);

/// Close of one subscription against its sleep, which nothing else could end.
fn closer_against_sleep(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = follow(&cache);
        let closer = Local::new(subscription.closer());
        race(
            writer,
            move |_| closer.close(),
            move || {
                assert!(subscription.wait(EVER).is_err(), "an event of a closed subscription");
            },
        );
    });
}

proof!(
    closer_against_sleep, loom_closer_against_sleep,
    loom_closer_against_sleep_weak_waiter: RegisterFence => "deadlock",
    loom_closer_against_sleep_weak_closer: CloserFence => "deadlock",
    loom_closer_against_sleep_weak_claim: Claim => "Causality violation",
);
