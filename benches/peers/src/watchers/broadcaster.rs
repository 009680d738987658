//! The toolkit's Broadcaster: objects that the program makes and shares.

use super::{Asynchronous, Blocking, Fanout, Interest, all, read};
use crate::load::Object;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use watchcore_toolkit::{Action, BroadcastEvent, BroadcastWatch, Broadcaster, WatchEvent, WatchExt, WhenFull};

/// As far as a watcher may be behind.
const QUEUE: usize = super::WINDOW;

pub struct Publisher {
    broadcaster: Broadcaster<Object>,
    revision: u64,
}

impl Fanout for Publisher {
    type Receiver = BroadcastWatch<Object>;

    fn open(interests: &[Interest]) -> (Publisher, Vec<BroadcastWatch<Object>>) {
        all(interests);
        let broadcaster = Broadcaster::new(QUEUE, WhenFull::Wait).expect("a broadcaster");
        let watches = interests.iter().map(|_| broadcaster.watch().expect("opens")).collect();
        (Publisher { broadcaster, revision: 0 }, watches)
    }

    fn publish(&mut self, key: &str, value: &[u8]) {
        self.revision += 1;
        let object = Object::new(self.revision, key.as_bytes(), value);
        self.broadcaster.action(Action::Modified, object).expect("publishes");
    }
}

/// The same, whose watchers take many events at once where they stand in the log.
pub struct ManyPublisher(Publisher);

pub struct Many(BroadcastWatch<Object>);

impl Fanout for ManyPublisher {
    type Receiver = Many;

    fn open(interests: &[Interest]) -> (ManyPublisher, Vec<Many>) {
        let (publisher, watches) = Publisher::open(interests);
        (ManyPublisher(publisher), watches.into_iter().map(Many).collect())
    }

    fn publish(&mut self, key: &str, value: &[u8]) {
        self.0.publish(key, value);
    }
}

impl Asynchronous for Many {
    async fn take(&mut self) -> u64 {
        let visit = |event: BroadcastEvent<'_, Object>| {
            assert_eq!(event.lost, 0);
            read(event.object);
        };
        self.0.next_many(2 * QUEUE, visit).await as u64
    }
}

fn seen(event: Option<WatchEvent<watchcore_toolkit::Object<Object>>>) {
    let event = event.expect("goes on");
    assert_eq!(event.lost, 0);
    read(event.object().expect("an object"));
}

impl Blocking for BroadcastWatch<Object> {
    fn take(&mut self) -> u64 {
        seen(self.recv(Duration::MAX).expect("waits without end"));
        let mut events = 1;
        while let Poll::Ready(event) = self.try_recv() {
            seen(event);
            events += 1;
        }
        events
    }
}

impl Asynchronous for BroadcastWatch<Object> {
    async fn take(&mut self) -> u64 {
        let mut events = 0;
        poll_fn(|context| {
            use futures_core::Stream;
            loop {
                match Pin::new(&mut *self).poll_next(context) {
                    Poll::Ready(event) => seen(event),
                    Poll::Pending if events == 0 => return Poll::Pending,
                    Poll::Pending => return Poll::Ready(()),
                }
                events += 1;
            }
        })
        .await;
        events
    }
}
