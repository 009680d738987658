//! Watchers that see every event: the log, a cursor for each watcher, and a list of those that sleep.
//!
//! What is in it: a publish writes its event (see [`super::ring`]), then reads one word that says whether a watcher
//! sleeps. It takes the whole list of sleepers at once and wakes the first, which wakes the next, and so on: for tasks
//! of one thread that is one call of the system. A watcher reads the head, the revision and the address of the key of
//! each event, puts itself on the list, and reads the head once more. Why a library has to pay at least that: an event
//! may not wait for the next one, so each publish finds out whether a watcher sleeps, and each watcher that sleeps is
//! woken.
//!
//! In rows of windows a thread that has read everything yields its processor once before it sleeps. Where the system
//! woke it on the processor of the publisher, it took the publisher's turn after the first event of a window; without
//! the yield it sleeps then, and is woken for each event of the window. Where single events are waited for there is no
//! yield: a thread that waits for its next turn is taken by an idle processor, and the next wake-up has to go there.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | `publish`: head, fence, list | `Cursor::poll`: list, fence, head | SeqCst: one of both sees the other's store |
//! | `Seat::sleep`, onto the list | `publish`, swap of the list | Release / Acquire: next and waker of the seat |
//! | `call`, store of `called` | `Cursor::poll`, its load | Release / Acquire: the seat is off the list |

use super::memory::{Link, made};
use super::ring::Ring;
use super::thread::wait;
use crate::watchers::{Asynchronous, Blocking, Fanout, Interest};
use std::future::poll_fn;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Poll, Waker};

/// Where a watcher sleeps: two watchers never share a line.
#[derive(Default)]
#[repr(align(64))]
struct Seat {
    waker: OnceLock<Waker>,
    /// It is off the list, and must wake the next.
    called: AtomicBool,
    next: Link<Seat>,
}

/// What publisher and watchers share.
struct Shared {
    ring: &'static Ring,
    /// The watcher that fell asleep last.
    sleepers: Link<Seat>,
}

impl Shared {
    /// Puts a seat onto the list.
    fn sleep(&self, seat: &'static Seat) {
        let mut last = self.sleepers.get(Ordering::Relaxed);
        loop {
            seat.next.set(last, Ordering::Relaxed);
            // Release: the publisher that takes the list sees `next` and the waker. Partner: the swap in `publish`.
            match self.sleepers.replace(last, seat) {
                Ok(()) => return,
                Err(found) => last = found,
            }
        }
    }
}

/// Wakes the first of a list that only the caller has.
fn call(first: Option<&'static Seat>) {
    if let Some(seat) = first {
        // Release: it owns its seat again. Partner: the load in `Cursor::poll`.
        seat.called.store(true, Ordering::Release);
        seat.waker.get().expect("it had one before it slept").wake_by_ref();
    }
}

/// `YIELDS`: its watchers yield once before they sleep.
pub struct Publisher<const YIELDS: bool>(&'static Shared);

/// A watcher's side.
pub struct Cursor {
    shared: &'static Shared,
    seat: &'static Seat,
    /// Whether the seat is on a list.
    listed: bool,
    next: u64,
    /// Whether its thread yields before it sleeps.
    yields: bool,
    /// Among tasks the first yields for all, as they share a thread.
    first: bool,
    /// Whether something was read since the last yield.
    fresh: bool,
    /// It watches a key that is never published, and sleeps without end.
    idle: bool,
}

impl<const YIELDS: bool> Fanout for Publisher<YIELDS> {
    type Receiver = Cursor;

    fn open(interests: &[Interest]) -> (Self, Vec<Cursor>) {
        let shared = Box::leak(Box::new(Shared { ring: Ring::made(), sleepers: Link::default() }));
        let seats: &[Seat] = made(interests.len());
        let cursor = |(number, seat)| {
            let idle = matches!(interests[number], Interest::Nothing(_));
            assert!(idle || interests[number] == Interest::Everything, "it has no filter");
            Cursor { shared, seat, listed: false, next: 0, yields: YIELDS, first: number == 0, fresh: false, idle }
        };
        (Publisher(shared), seats.iter().enumerate().map(cursor).collect())
    }

    fn publish(&mut self, key: &str, value: &[u8]) {
        let Publisher(Shared { ring, sleepers }) = self;
        ring.publish(key, value);
        // The head before the list; partner: the fence in `Cursor::poll`.
        fence(Ordering::SeqCst);
        if sleepers.get(Ordering::Relaxed).is_some() {
            // Acquire: the seats of the list. Partner: the replacement in `Shared::sleep`.
            call(sleepers.swap(None, Ordering::Acquire));
        }
    }
}

impl Cursor {
    fn poll(&mut self, context: &mut Context, yields: bool) -> Poll<u64> {
        // Acquire: the seat is off the list, and `next` stays. Partner: the store in `call`.
        if self.listed && self.seat.called.load(Ordering::Acquire) {
            self.seat.called.store(false, Ordering::Relaxed);
            self.listed = false;
            call(self.seat.next.get(Ordering::Relaxed));
        }
        if let Some(events) = self.read() {
            return Poll::Ready(events);
        }
        if yields && std::mem::take(&mut self.fresh) {
            std::thread::yield_now();
        }
        if !self.listed && !self.idle {
            // A task has one waker, and a thread, too.
            self.seat.waker.get_or_init(|| context.waker().clone());
            self.shared.sleep(self.seat);
            self.listed = true;
            // The list before the head; partner: the fence in `publish`.
            fence(Ordering::SeqCst);
        }
        self.read().map_or(Poll::Pending, Poll::Ready)
    }

    /// Reads what is there, and says how many events that were.
    fn read(&mut self) -> Option<u64> {
        let head = self.shared.ring.head();
        if self.idle || head == self.next {
            return None;
        }
        self.shared.ring.read(self.next, head);
        self.fresh = true;
        Some(head - std::mem::replace(&mut self.next, head))
    }
}

impl Blocking for Cursor {
    fn take(&mut self) -> u64 {
        wait(|context| self.poll(context, self.yields))
    }
}

impl Asynchronous for Cursor {
    async fn take(&mut self) -> u64 {
        poll_fn(|context| self.poll(context, self.yields && self.first)).await
    }
}
