//! watchcore: a cursor for each watcher.

use super::{Asynchronous, Blocking, Fanout, Interest};
use crate::load;
use futures_core::Stream;
use std::pin::Pin;
use std::sync::Arc;
use watchcore::{Batch, Cache, Change, Index, Start, SubscribeBuilder, Subscription, WakeSet, Writer};

/// As many events as `Subscription::next` takes at once.
const BATCH: usize = 1024;

pub struct Publisher {
    writer: Writer,
    revision: u64,
}

impl Publisher {
    /// A cache with the indexes that these watchers can use, and its writer.
    fn cache(interests: &[Interest]) -> (Cache, Publisher) {
        let mut builder = Cache::builder("/");
        let mut declared = [false; 2];
        for interest in interests {
            let (at, index) = match interest {
                Interest::Everything => continue,
                Interest::Key(_) | Interest::Nothing(_) => (0, Index::key()),
                Interest::Namespace(_) => (1, Index::prefix(3)),
            };
            if !std::mem::replace(&mut declared[at], true) {
                builder = builder.index(index);
            }
        }
        let cache = builder.trust_wakers(true).build().expect("a cache");
        let writer = cache.writer().expect("is free");
        (cache, Publisher { writer, revision: 0 })
    }
}

fn subscribe(cache: &Cache, interest: Interest) -> SubscribeBuilder {
    let all = cache.subscribe(Start::Now);
    match interest {
        Interest::Everything => all,
        Interest::Key(number) => all.key(load::key(number)),
        Interest::Namespace(number) => all.prefix(load::namespace(number)),
        Interest::Nothing(number) => all.key(format!("/registry/never/{number:06}")),
    }
}

impl Publisher {
    /// More events than the log holds, of keys that nobody watches.
    fn fill_log(&mut self) {
        const OBJECTS: u64 = 1000;
        let keys: Vec<String> = (0..OBJECTS).map(|number| format!("/registry/before/{number:06}")).collect();
        (0..load::FILLS_A_LOG).for_each(|at| self.publish(&keys[(at % OBJECTS) as usize], &load::VALUE));
    }

    fn subscribed((cache, publisher): (Cache, Publisher), interests: &[Interest]) -> (Publisher, Vec<Subscription>) {
        let open = |interest: &Interest| subscribe(&cache, *interest).open().expect("opens");
        (publisher, interests.iter().map(open).collect())
    }
}

impl Fanout for Publisher {
    type Receiver = Subscription;

    fn open(interests: &[Interest]) -> (Publisher, Vec<Subscription>) {
        Publisher::subscribed(Publisher::cache(interests), interests)
    }

    fn open_worn(interests: &[Interest], opens: impl FnOnce()) -> (Publisher, Vec<Subscription>) {
        let (cache, mut publisher) = Publisher::cache(interests);
        publisher.fill_log();
        opens();
        Publisher::subscribed((cache, publisher), interests)
    }

    /// The writer answers a bounded number of requests for a bucket with each revision.
    fn warm_up(&mut self, subscriptions: usize) {
        for _ in 0..subscriptions / 256 + 1 {
            self.publish("/outside", &[]);
        }
    }

    fn publish(&mut self, key: &str, value: &[u8]) {
        self.revision += 1;
        self.writer.apply(self.revision, [Change::put(key, value)]).expect("applies");
    }
}

/// The same, with values that are shared and not copied: as many as there are objects, used in turn.
pub struct SharingPublisher {
    publisher: Publisher,
    values: Vec<Arc<[u8]>>,
}

impl From<Publisher> for SharingPublisher {
    fn from(publisher: Publisher) -> SharingPublisher {
        SharingPublisher { publisher, values: (0..1000).map(|_| Arc::from(&load::VALUE[..])).collect() }
    }
}

impl Fanout for SharingPublisher {
    type Receiver = Subscription;

    fn open(interests: &[Interest]) -> (SharingPublisher, Vec<Subscription>) {
        let (publisher, subscriptions) = Publisher::open(interests);
        (publisher.into(), subscriptions)
    }

    fn open_worn(interests: &[Interest], opens: impl FnOnce()) -> (SharingPublisher, Vec<Subscription>) {
        let (publisher, subscriptions) = Publisher::open_worn(interests, opens);
        (publisher.into(), subscriptions)
    }

    fn warm_up(&mut self, subscriptions: usize) {
        self.publisher.warm_up(subscriptions);
    }

    fn publish(&mut self, key: &str, value: &[u8]) {
        let Publisher { writer, revision } = &mut self.publisher;
        *revision += 1;
        let shared = &self.values[*revision as usize % self.values.len()];
        assert_eq!(value.len(), shared.len(), "all values of a row are the same");
        writer.apply(*revision, [Change::put_shared(key, shared)]).expect("applies");
    }
}

/// Reads the head of every event.
fn read(batch: &Batch) -> u64 {
    for event in batch {
        std::hint::black_box(event.revision().wrapping_add(event.key().as_ptr() as u64));
    }
    batch.len() as u64
}

impl Blocking for Subscription {
    fn take(&mut self) -> u64 {
        read(&self.next_batch().expect("goes on").expect("is open"))
    }
}

impl Asynchronous for Subscription {
    async fn take(&mut self) -> u64 {
        let batch = std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await;
        read(&batch.expect("is open").expect("goes on"))
    }
}

/// Subscriptions that sleep as members of one wake set, with everything that they need.
pub fn in_set(interests: &[Interest]) -> impl Sized {
    let (publisher, mut members) = Publisher::open(interests);
    let set = WakeSet::new().expect("a wake set");
    for (tag, member) in members.iter_mut().enumerate() {
        set.add(member, tag as u64).expect("joins");
        assert!(member.poll(BATCH).expect("polls").is_empty(), "nothing was published since it was opened");
        assert!(!member.arm().expect("arms"), "it sleeps");
    }
    (publisher, set, members)
}

/// A window of 1024 events, and what reads it once in such batches and says how many they were.
pub fn poll_window(batch: usize) -> impl FnMut() -> u64 {
    const EVENTS: u64 = 1024;
    let (cache, mut publisher) = Publisher::cache(&[]);
    load::keys(EVENTS as usize).iter().for_each(|key| publisher.publish(key, &load::VALUE));
    move || {
        // Keeps the writer.
        let start = Start::After(publisher.revision - EVENTS);
        let mut subscription = cache.subscribe(start).open().expect("opens");
        let mut events = 0;
        loop {
            match read(&subscription.poll(batch).expect("polls")) {
                0 => return events,
                some => events += some,
            }
        }
    }
}
