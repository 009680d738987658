use super::*;
use std::task::Waker;
use watchcore::{Cache, Change, Start};

/// Each event as one frame of its key.
struct Keys;

impl Framing for Keys {
    fn event(&mut self, event: &Event, out: &mut Vec<Frame>) -> bool {
        out.push(Frame::new(64, |bytes| bytes.extend_from_slice(event.key())));
        true
    }

    fn failed(&mut self, _: &Error, _: &mut Vec<Frame>) {}

    fn deadline(&mut self, _: Position, _: &mut Vec<Frame>) {}
}

/// A client that never reads has its transport hold what one poll gave, and the stream what is left of the batch.
#[test]
fn a_piece_of_the_state_is_held_and_not_all_of_it() {
    let cache = Cache::builder("/").build().unwrap();
    let changes: Vec<String> = (0..1000).map(|at| format!("/{at:04}")).collect();
    cache.writer().unwrap().apply(1, changes.iter().map(|key| Change::put(key, "x"))).unwrap();
    let place = OpenWatches::new(1, 1).admit(None).unwrap();
    let subscription = cache.subscribe(Start::State).open().unwrap();
    let mut stream = WatchStream::new(subscription, Keys, None, place);
    let context = &mut Context::from_waker(Waker::noop());
    let mut framed = 0;
    while framed < 1001 {
        let mut out = Vec::new();
        assert_eq!(stream.poll_frames(context, &mut out), Poll::Ready(Progress::More));
        assert!(stream.batch.len() <= PIECE_FRAMES, "{} events of the state are held", stream.batch.len());
        framed += out.len();
    }
    assert_eq!((framed, stream.poll_frames(context, &mut Vec::new())), (1001, Poll::Pending));
}
