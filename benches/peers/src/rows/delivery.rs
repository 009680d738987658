//! Rows about watchers: what an event costs them, the publisher and the memory, and how soon it is there.

use super::Contestant;
use crate::load::{self, Object, Scattered};
use crate::measure::{Measured, allocated, distribution, repeat};
use crate::watchers::channels::{Crossbeam, Publisher as Channels, Tokio};
use crate::watchers::watchcore::{Publisher as Watchcore, SharingPublisher, in_set, poll_window};
use crate::watchers::{Interest, Stage, Tasks, Threads, WINDOW, Watchers, broadcast, broadcaster};
use std::sync::Arc;

type WatchcoreThreads = Threads<Watchcore>;
type WatchcoreTasks = Tasks<Watchcore>;
type WatchcoreSharing = Tasks<SharingPublisher>;
type BroadcastTasks = Tasks<broadcast::Publisher<Object, 1024>>;
type BroadcasterThreads = Threads<broadcaster::Publisher>;
type BroadcasterTasks = Tasks<broadcaster::Publisher>;
type BroadcasterManyTasks = Tasks<broadcaster::ManyPublisher>;
type SharedTasks = Tasks<broadcast::Publisher<Arc<Object>, { 4 * WINDOW }>>;
type TokioTasks = Tasks<Channels<Tokio>>;
type CrossbeamThreads = Threads<Channels<Crossbeam>>;

const THREADS: &str = "a thread for each watcher";
const TASKS: &str = "a task for each watcher, all tasks on one thread";
const TRUSTED: &str = "a task for each watcher, all tasks on one thread; the cache trusts their wakers";
const TASKS_MAP: &str = "a channel and a task for each watcher, the channels in a hash map by key and namespace";
const KEEPS_NOTHING: &str = "the same hash map; an event that is for nobody is copied, and dropped";
const THREADS_MAP: &str = "a channel and a thread for each watcher, the channels in a hash map by key";
const SHARED: &str = "objects in an Arc; a task for each watcher, all tasks on one thread; it waits for nobody";
const IN_SET: &str = "subscriptions in one wake set, without a task or thread of their own";

pub const CONTESTANTS: &[Contestant] = &[
    Contestant::new("deliver", "watchcore, threads", THREADS, deliver::<WatchcoreThreads>).up_to(MANY_THREADS),
    Contestant::new("deliver", "watchcore, tasks", TRUSTED, deliver::<WatchcoreTasks>),
    Contestant::new("deliver", "tokio broadcast", TASKS, deliver::<BroadcastTasks>),
    Contestant::new("deliver", "tokio mpsc", TASKS, deliver::<TokioTasks>),
    Contestant::new("deliver", "crossbeam", THREADS, deliver::<CrossbeamThreads>).up_to(MANY_THREADS),
    Contestant::new("broadcast", "watchcore, threads", THREADS, deliver::<BroadcasterThreads>).up_to(MANY_THREADS),
    Contestant::new("broadcast", "watchcore, tasks", TASKS, deliver::<BroadcasterTasks>),
    Contestant::new("broadcast", "watchcore, tasks, many at once", TASKS, deliver::<BroadcasterManyTasks>),
    Contestant::new("broadcast", "tokio broadcast", SHARED, deliver::<SharedTasks>),
    Contestant::new("poll", "watchcore", "", |batch| poll(poll_window(batch))),
    Contestant::new("publish", "watchcore, tasks", TRUSTED, publish::<WatchcoreTasks>),
    Contestant::new("publish-shared", "watchcore, tasks", TRUSTED, publish::<WatchcoreSharing>),
    Contestant::new("publish", "tokio mpsc", KEEPS_NOTHING, publish::<TokioTasks>),
    Contestant::new("selective-key", "watchcore, tasks", TRUSTED, selective_key::<WatchcoreTasks>),
    Contestant::new("selective-key", "tokio mpsc", TASKS_MAP, selective_key::<TokioTasks>),
    Contestant::new("selective-namespace", "watchcore, tasks", TRUSTED, selective_namespace::<WatchcoreTasks>),
    Contestant::new("selective-namespace", "tokio mpsc", TASKS_MAP, selective_namespace::<TokioTasks>),
    Contestant::new("selective-cold", "watchcore, tasks", TRUSTED, selective_cold::<WatchcoreTasks>),
    Contestant::new("selective-cold", "tokio mpsc", TASKS_MAP, selective_cold::<TokioTasks>),
    Contestant::new("publish-cold", "watchcore, tasks", TRUSTED, publish_cold::<WatchcoreTasks>),
    Contestant::new("publish-cold", "tokio mpsc", KEEPS_NOTHING, publish_cold::<TokioTasks>),
    Contestant::new("wake", "watchcore, threads", THREADS, wake::<WatchcoreThreads>),
    Contestant::new("wake", "watchcore, tasks", TRUSTED, wake::<WatchcoreTasks>),
    Contestant::new("wake", "tokio broadcast", TASKS, wake::<BroadcastTasks>).up_to(1),
    Contestant::new("wake", "tokio mpsc", TASKS_MAP, wake::<TokioTasks>),
    Contestant::new("wake", "crossbeam", THREADS_MAP, wake::<CrossbeamThreads>),
    Contestant::new("bytes-subscription", "watchcore, wake set", IN_SET, bytes_in_set),
    Contestant::new("bytes-subscription", "watchcore, tasks", "with its task", bytes_of::<WatchcoreTasks>),
    Contestant::new("bytes-subscription", "tokio broadcast", "with its task", bytes_of::<BroadcastTasks>),
    Contestant::new("bytes-subscription", "tokio mpsc", "with its task", bytes_of::<TokioTasks>),
];

/// More watchers than this nobody would give a thread each.
const MANY_THREADS: usize = 1000;

fn everything(watchers: usize) -> Vec<Interest> {
    vec![Interest::Everything; watchers]
}

/// Windows of events, each event for every watcher; all watchers sleep before each window.
fn deliver<W: Watchers>(watchers: usize) -> Measured {
    let mut stage = Stage::<W>::open(load::keys(WINDOW), &everything(watchers), watchers as u64);
    repeat(|section| {
        (0..WINDOW).for_each(|at| stage.publish(at));
        stage.settle_in(section);
        (WINDOW * watchers) as u64
    })
}

/// A window that is published already, read by one watcher.
fn poll(mut read: impl FnMut() -> u64) -> Measured {
    repeat(|_| read())
}

/// Events that interest none of the sleeping watchers.
fn publish<W: Watchers>(watchers: usize) -> Measured {
    const OBJECTS: usize = 1000;
    let interests: Vec<Interest> = (0..watchers).map(Interest::Nothing).collect();
    let mut stage = Stage::<W>::open(load::keys(OBJECTS), &interests, 0);
    repeat(|_| {
        (0..OBJECTS).for_each(|at| stage.publish(at));
        OBJECTS as u64
    })
}

fn selective_key<W: Watchers>(watchers: usize) -> Measured {
    let interests: Vec<Interest> = (0..watchers).map(Interest::Key).collect();
    selective::<W>(load::keys(watchers), &interests)
}

fn selective_namespace<W: Watchers>(watchers: usize) -> Measured {
    let interests: Vec<Interest> = (0..watchers).map(Interest::Namespace).collect();
    selective::<W>((0..watchers).map(|number| load::key(number * load::NAMESPACE)).collect(), &interests)
}

/// Windows of events, each for one sleeping watcher, each for another.
fn selective<W: Watchers>(keys: Vec<String>, interests: &[Interest]) -> Measured {
    let mut order = Scattered::below(keys.len());
    let mut stage = Stage::<W>::open(keys, interests, 1);
    repeat(|section| {
        (0..WINDOW).for_each(|_| stage.publish(order.next()));
        stage.settle_in(section);
        WINDOW as u64
    })
}

/// Watchers of a key each come at once and find events from the first moment on, each four of them.
fn selective_cold<W: Watchers>(watchers: usize) -> Measured {
    let interests: Vec<Interest> = (0..watchers).map(Interest::Key).collect();
    cold::<W>(load::keys(watchers), &interests, 1, EVENTS_OF_EACH * watchers)
}

/// As many events beside watchers that came at once, none of which they interest.
fn publish_cold<W: Watchers>(watchers: usize) -> Measured {
    let interests: Vec<Interest> = (0..watchers).map(Interest::Nothing).collect();
    cold::<W>(load::keys(1000), &interests, 0, EVENTS_OF_EACH * watchers)
}

const EVENTS_OF_EACH: usize = 4;

/// From before the first watcher came until all events were taken.
fn cold<W: Watchers>(keys: Vec<String>, interests: &[Interest], takers: u64, events: usize) -> Measured {
    let mut order = Scattered::below(keys.len());
    let (mut stage, mut section) = Stage::<W>::open_cold(keys, interests, takers);
    (0..events).for_each(|_| stage.publish(order.next()));
    if takers > 0 {
        stage.settle_in(&mut section);
    }
    section.end(events as u64)
}

/// From before a publish until the watcher has read the event: one alone, or one of many that want a key each.
fn wake<W: Watchers>(watchers: usize) -> Measured {
    /// Each takes somewhat more than half a millisecond, most of it sleep.
    const SAMPLES_A_MILLISECOND: u128 = 4;
    let alone = [Interest::Everything];
    let interests: Vec<Interest> = match watchers {
        1 => alone.to_vec(),
        many => (0..many).map(Interest::Key).collect(),
    };
    let mut order = Scattered::below(watchers);
    let mut stage = Stage::<W>::open(load::keys(watchers), &interests, 1);
    let samples = (crate::measure::at_least().as_millis() * SAMPLES_A_MILLISECOND) as usize;
    let sample = |_| {
        let begun = stage.seen.now();
        stage.publish(order.next());
        stage.settle();
        (stage.seen.last() - begun) as f64
    };
    distribution((0..samples).map(sample).collect())
}

/// What opened watchers that sleep take of the allocator, each.
fn bytes_of<W: Watchers>(watchers: usize) -> Measured {
    let interests = everything(watchers);
    let before = allocated();
    let stage = Stage::<W>::open_new(load::keys(1), &interests, watchers as u64);
    let bytes = allocated().saturating_sub(before);
    drop(stage);
    Measured::plain(bytes as f64 / watchers as f64, watchers as u64)
}

fn bytes_in_set(watchers: usize) -> Measured {
    let interests = everything(watchers);
    let before = allocated();
    let set = in_set(&interests);
    let bytes = allocated().saturating_sub(before);
    drop(set);
    Measured::plain(bytes as f64 / watchers as f64, watchers as u64)
}
