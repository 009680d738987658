use super::*;
use crate::clients::ClientId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use watchcore::{Cache, Change, Filter, Start, SubscribeBuilder};

/// Frames each event as its key and value; after this many events, frames nothing.
struct Keys(usize);

impl Framing for Keys {
    fn event(&mut self, event: &Event, out: &mut Vec<Frame>) -> bool {
        if let Some(left) = self.0.checked_sub(1) {
            self.0 = left;
            out.push(Frame::new(64, |bytes| {
                bytes.extend_from_slice(event.key());
                bytes.extend_from_slice(event.value().unwrap_or_default());
            }));
        }
        true
    }

    fn failed(&mut self, _: &Error, _: &mut Vec<Frame>) {}

    fn deadline(&mut self, _: Position, _: &mut Vec<Frame>) {}

    fn bookmark(&mut self, position: Position, out: &mut Vec<Frame>) {
        out.push(Frame::new(64, |bytes| bytes.extend_from_slice(format!("@{}", position.revision).as_bytes())));
    }
}

/// An idle or busy watch is never silent for longer than half a minute, and gets its bookmark each interval;
/// keep-alives do not count as events.
#[tokio::test(start_paused = true)]
async fn silence_ends_and_bookmarks_come_in_time() {
    for keep_alives in [true, false] {
        let cache = Cache::builder("/").build().unwrap();
        let mut writer = cache.writer().unwrap();
        writer.apply(1, [Change::put("/a", "1")]).unwrap();
        let mut stream = stream(cache.subscribe(Start::Now)).heartbeat(&cache, Duration::from_secs(60));
        if !keep_alives {
            stream = stream.without_keep_alives();
        }
        let begin = Instant::now();
        let mut next = async || {
            let mut out = Vec::new();
            let progress = std::future::poll_fn(|context| stream.poll_frames(context, &mut out)).await;
            assert_eq!(progress, Progress::More);
            (
                begin.elapsed().as_secs(),
                out.iter().map(|frame| String::from_utf8(frame.payload().to_vec()).unwrap()).collect::<String>(),
            )
        };
        let mut told = Vec::new();
        while told.last().is_none_or(|(at, _)| *at < 120) {
            told.push(next().await);
        }
        let expected: &[(u64, &str)] = match keep_alives {
            true => &[(30, " "), (60, "@1"), (90, " "), (120, "@1")],
            false => &[(60, "@1"), (120, "@1")],
        };
        assert!(told.iter().map(|(at, text)| (*at, text.as_str())).eq(expected.iter().copied()), "{told:?}");
        // With an event each 20 s there is no long silence, and the bookmark still comes.
        let mut told = Vec::new();
        for revision in 2..=5 {
            tokio::time::advance(Duration::from_secs(20)).await;
            writer.apply(revision, [Change::put("/a", "x")]).unwrap();
            told.push(next().await.1);
        }
        assert_eq!(told, ["/ax", "/ax", "/ax@4", "/ax"], "the bookmark stands behind what was there before it");
    }
}

/// A client that never reads holds one piece, and no snapshot or page of the cache.
#[tokio::test]
async fn a_piece_of_the_state_is_held_and_not_all_of_it() {
    for (objects, length) in [(1000, 1), (100, 5000), (3, 100_000)] {
        let cache = Cache::builder("/").build().unwrap();
        let (keys, value) = (keys(objects), vec![b'x'; length]);
        cache.writer().unwrap().apply(1, keys.iter().map(|key| Change::put(key, &value))).unwrap();
        let mut stream = stream(cache.subscribe(Start::State));
        let context = &mut Context::from_waker(Waker::noop());
        let mut framed = 0;
        while framed <= objects {
            let mut out = Vec::new();
            let progress = stream.poll_frames(context, &mut out);
            if !out.is_empty() {
                assert_eq!(progress, Poll::Ready(Progress::More));
                let bytes = out.iter().map(|frame| frame.payload().len()).sum::<usize>();
                // The mark that ends the initial state has neither key nor value.
                let shown = out.iter().filter(|frame| !frame.payload().is_empty()).count();
                assert!(shown <= 1 || out.len() <= PIECE_FRAMES && bytes <= PIECE_BYTES, "{bytes} bytes");
            }
            let stats = cache.stats();
            assert_eq!((stats.snapshots, stats.pages), (0, 0), "{framed} of {objects}");
            framed += out.len();
        }
        assert_eq!((framed, stream.poll_frames(context, &mut Vec::new())), (objects + 1, Poll::Pending));
    }
}

/// A watch that shows little of a large state yields while it visits the state.
#[tokio::test]
async fn state_is_looked_through_in_turns() {
    let cache = Cache::builder("/").build().unwrap();
    let keys = keys(10_000);
    cache.writer().unwrap().apply(1, keys.iter().map(|key| Change::put(key, "x"))).unwrap();
    let wanted =
        |length: usize| Filter::any().predicate(move |kv| kv.value().is_some_and(|value| value.len() == length));
    // Either the filter or the framing shows nothing.
    for (filter, framing) in [(wanted(2), Keys(usize::MAX)), (wanted(1), Keys(0))] {
        let subscription = cache.subscribe(Start::State).filter(filter);
        let mut stream = framed_by(subscription, framing);
        let woken = Arc::new(Woken::default());
        let waker = woken.clone().into();
        let mut turns = 0;
        loop {
            let mut out = Vec::new();
            let progress = stream.poll_frames(&mut Context::from_waker(&waker), &mut out);
            if !woken.0.swap(false, Ordering::Relaxed) {
                assert!(out.len() <= 1, "the mark that ends the state");
                break;
            }
            assert!(progress.is_pending() && out.is_empty());
            turns += 1;
        }
        assert!(turns >= 9, "{turns} turns");
    }
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("/{at:05}")).collect()
}

fn framed_by(subscription: SubscribeBuilder, framing: Keys) -> WatchStream {
    let permit = OpenWatches::new(1, 1, Duration::MAX).admit(&ClientId::Unknown, None).unwrap();
    WatchStream::new(subscription.initial_batch_bytes(PIECE_BYTES).open().unwrap(), framing, None, permit)
}

fn stream(subscription: SubscribeBuilder) -> WatchStream {
    framed_by(subscription, Keys(usize::MAX))
}

#[derive(Default)]
struct Woken(AtomicBool);
impl std::task::Wake for Woken {
    fn wake(self: Arc<Woken>) {
        self.0.store(true, Ordering::Relaxed);
    }
}
