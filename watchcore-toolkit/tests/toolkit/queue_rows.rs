//! The words of a queue and of a limiter, for the rows of contract/toolkit/.

use crate::contract::{duration, line, number};
use crate::script::Woken;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use watchcore_toolkit::{
    Clock, ExponentialLimiter, LongestDelay, ManualClock, RateLimiter, TokenBucket, WorkItem, WorkQueue,
};

/// `keys FIRST MOST` and `tokens RATE BURST`, in the order in which they stand.
fn limiter(mut words: &[&str]) -> LongestDelay<String> {
    let mut all: Vec<Box<dyn RateLimiter<String>>> = Vec::new();
    while let [kind, one, other, rest @ ..] = words {
        all.push(match *kind {
            "keys" => Box::new(ExponentialLimiter::new(duration(one), duration(other))),
            "tokens" => Box::new(TokenBucket::new(one.parse().expect("a rate"), number(other) as u32)),
            other => panic!("{other} is no limiter"),
        });
        words = rest;
    }
    LongestDelay::new(all)
}

/// A row that asks a limiter.
pub(crate) struct LimiterRow {
    limiter: LongestDelay<String>,
    clock: ManualClock,
}

impl LimiterRow {
    pub(crate) fn new(options: &[&str]) -> LimiterRow {
        LimiterRow { limiter: limiter(options), clock: ManualClock::new() }
    }

    pub(crate) fn run(&mut self, word: &str, rest: &[&str]) -> Vec<String> {
        let key = rest[0].to_owned();
        match word {
            "delay" => return line(format!("{}ms", self.limiter.delay(&key, self.clock.now()).as_millis())),
            "failures" => return line(self.limiter.requeues(&key)),
            "forget" => self.limiter.forget(&key),
            "advance" => self.clock.advance(duration(rest[0])),
            _ => panic!("{word} is no word of a limiter"),
        }
        Vec::new()
    }
}

/// A limiter that panics where it is asked for one key.
struct Broken {
    limiter: LongestDelay<String>,
    key: String,
}

impl RateLimiter<String> for Broken {
    fn delay(&self, key: &String, now: Instant) -> Duration {
        assert_ne!(*key, self.key, "as the row says");
        self.limiter.delay(key, now)
    }

    fn forget(&self, key: &String) {
        assert_ne!(*key, self.key, "as the row says");
        self.limiter.forget(key);
    }

    fn requeues(&self, key: &String) -> u32 {
        self.limiter.requeues(key)
    }
}

/// A wait that is polled at its beginning, and then only where it was woken: a lost wake-up shows.
struct Waiting<T> {
    wait: Pin<Box<dyn Future<Output = T>>>,
    woken: Arc<Woken>,
    /// How often it had been woken when it was polled last.
    seen: Option<usize>,
}

impl<T> Waiting<T> {
    fn new(wait: impl Future<Output = T> + 'static) -> Waiting<T> {
        Waiting { wait: Box::pin(wait), woken: Arc::default(), seen: None }
    }

    fn is_woken(&self) -> bool {
        self.seen != Some(self.woken.count())
    }

    fn poll(&mut self) -> Poll<T> {
        if !self.is_woken() {
            return Poll::Pending;
        }
        self.seen = Some(self.woken.count());
        let waker = Waker::from(Arc::clone(&self.woken));
        self.wait.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

/// A row that works at a queue.
pub(crate) struct QueueRow {
    queue: WorkQueue<String>,
    clock: Arc<ManualClock>,
    /// The key for which the limiter panics.
    broken: String,
    taken: Vec<WorkItem<String>>,
    waiting: BTreeMap<String, Waiting<Option<WorkItem<String>>>>,
    /// What the waiting workers have got since the last `got`; `None`: the end.
    got: Vec<Option<String>>,
    /// `None` again when it is over.
    drain: Option<Waiting<()>>,
}

impl QueueRow {
    pub(crate) fn new(options: &[&str]) -> QueueRow {
        let (options, broken) = match options {
            [before @ .., "broken", key] => (before, (*key).to_owned()),
            _ => (options, String::new()),
        };
        let [first, most, rate, burst] = options else { panic!("run queue FIRST MOST RATE BURST") };
        let limiter = Broken { limiter: limiter(&["keys", first, most, "tokens", rate, burst]), key: broken.clone() };
        let clock = Arc::new(ManualClock::new());
        let queue = WorkQueue::builder().clock(clock.clone()).limiter(limiter).build();
        QueueRow { queue, clock, broken, taken: Vec::new(), waiting: BTreeMap::new(), got: Vec::new(), drain: None }
    }

    pub(crate) fn run(&mut self, word: &str, rest: &[&str]) -> Vec<String> {
        match word {
            "take" | "done" | "fail" | "panic" | "wait" | "cancel" | "got" | "waiting" => self.work(word, rest),
            "drain" | "drained" | "shutdown" => self.end(word, rest),
            _ => self.add_or_count(word, rest),
        }
    }

    fn add_or_count(&mut self, word: &str, rest: &[&str]) -> Vec<String> {
        let queue = &self.queue;
        let key = || rest[0].to_owned();
        match word {
            "add" => queue.add(key()),
            "limited" => queue.add_rate_limited(key()),
            "after" => queue.add_after(key(), duration(rest[1])),
            "forget" => queue.forget(&key()),
            "advance" => self.clock.advance(duration(rest[0])),
            "timers" => assert_eq!(self.clock.sleepers() as u64, number(rest[0]), "timers"),
            "ready" => return line(queue.len()),
            "processing" => return line(queue.stats().processing),
            "delayed" => return line(queue.stats().delayed),
            "added" => return line(queue.stats().added),
            "retries" => return line(queue.stats().retries),
            "failures" => return line(queue.requeues(&key())),
            _ => panic!("{word} is no word of a queue"),
        }
        Vec::new()
    }

    /// The words of workers.
    fn work(&mut self, word: &str, rest: &[&str]) -> Vec<String> {
        match word {
            "take" => {
                let item = match self.queue.try_get() {
                    Poll::Ready(Some(item)) => item,
                    Poll::Ready(None) => return line("end"),
                    Poll::Pending => return line("nothing"),
                };
                let printed = line(&*item);
                self.taken.push(item);
                return printed;
            }
            "done" => drop(self.held(rest[0])),
            "fail" => self.held(rest[0]).into_iter().for_each(|item| {
                // The panic of the limiter is the worker's.
                let panicked = catch_unwind(AssertUnwindSafe(|| item.retry())).is_err();
                assert_eq!(panicked, rest[0] == self.broken, "whether the limiter panicked");
            }),
            "panic" => self.held(rest[0]).into_iter().for_each(|item| {
                let panicked = catch_unwind(AssertUnwindSafe(move || {
                    let _item = item;
                    panic!("as the row says");
                }));
                assert!(panicked.is_err());
            }),
            "wait" => {
                let queue = self.queue.clone();
                let mut waiting = Waiting::new(async move { queue.next().await });
                match waiting.poll() {
                    Poll::Ready(item) => self.get(item),
                    Poll::Pending => drop(self.waiting.insert(rest[0].to_owned(), waiting)),
                }
            }
            "cancel" => drop(self.waiting.remove(rest[0])),
            "got" => {
                self.settle();
                self.got.sort_by_key(|got| (got.is_none(), got.clone()));
                let got = self.got.drain(..).map(|got| got.unwrap_or_else(|| "end".to_owned()));
                return line(got.collect::<Vec<_>>().join(" "));
            }
            _ => {
                self.settle();
                return line(self.waiting.len());
            }
        }
        Vec::new()
    }

    /// The words of an end.
    fn end(&mut self, word: &str, rest: &[&str]) -> Vec<String> {
        match (word, rest) {
            ("shutdown", _) => drop(self.queue.shut_down()),
            ("drain", ["now"]) => {
                let message = self.queue.shut_down_with_drain(Duration::ZERO).unwrap_err().message().to_owned();
                let before = |what: &str| {
                    let at = message.find(what).unwrap_or_else(|| panic!("{message} says nothing of {what}"));
                    message[..at].rsplit(' ').next().unwrap_or_default().to_owned()
                };
                return line(format!("{} processing {} ready", before(" keys are being"), before(" wait")));
            }
            ("drain", _) => {
                let queue = self.queue.clone();
                self.drain = Some(Waiting::new(async move { queue.drain().await }));
                self.is_drained();
            }
            _ => return line(if self.is_drained() { "yes" } else { "no" }),
        }
        Vec::new()
    }

    fn is_drained(&mut self) -> bool {
        if self.drain.as_mut().is_some_and(|drain| drain.poll().is_ready()) {
            self.drain = None;
        }
        self.drain.is_none()
    }

    /// The item of a key that somebody has, if that is so.
    fn held(&mut self, key: &str) -> Option<WorkItem<String>> {
        let at = self.taken.iter().position(|item| **item == key)?;
        Some(self.taken.remove(at))
    }

    fn get(&mut self, item: Option<WorkItem<String>>) {
        self.got.push(item.as_ref().map(|item| (**item).clone()));
        self.taken.extend(item);
    }

    /// Polls the workers that were woken, until none is.
    fn settle(&mut self) {
        loop {
            let woken = self.waiting.iter().find(|(_, waiting)| waiting.is_woken());
            let Some(name) = woken.map(|(name, _)| name.clone()) else { return };
            let mut waiting = self.waiting.remove(&name).expect("it was there");
            match waiting.poll() {
                Poll::Ready(item) => self.get(item),
                Poll::Pending => drop(self.waiting.insert(name, waiting)),
            }
        }
    }
}
