//! Watchers of a key or a namespace each: the log, and a box for one event for each watcher.
//!
//! What is in it: a publish writes its event (see [`super::ring`]), takes the watcher's number out of the key's digits,
//! puts the event's address into the box of that watcher and wakes it. A watcher takes the event and reads its revision
//! and the address of its key. Why a library has to pay at least that: each event is for another watcher that sleeps,
//! so each event touches that watcher's memory on both sides and wakes it. No hash, no filter, no queue: a box that is
//! still full ends the run. In rows of windows the watcher that takes the last event that is there yields its processor
//! once, for the reason that [`super::everybody`] gives.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | `publish`: box, fence, waker | `Mailbox::poll`: waker, fence, box | SeqCst: one of both sees the other's store |
//! | `publish`, swap of the box | `Mailbox::poll`, its swap | Release / Acquire: the line, and that the box is empty |

use super::memory::{Line, Link, made};
use super::ring::{self, Ring};
use super::thread::wait;
use crate::load::{NAMESPACE, PREFIX};
use crate::watchers::{Asynchronous, Blocking, Fanout, Interest};
use std::future::poll_fn;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::task::{Context, Poll, Waker};

/// Where one watcher gets its event: two watchers never share a line.
#[derive(Default)]
#[repr(align(64))]
struct Seat {
    event: Link<Line>,
    waker: OnceLock<Waker>,
}

/// `YIELDS`: the watcher that takes the last event yields.
pub struct Publisher<const YIELDS: bool> {
    ring: &'static Ring,
    seats: &'static [Seat],
    /// Objects for each watcher: one, or a namespace.
    each: usize,
}

/// A watcher's side.
pub struct Mailbox {
    seat: &'static Seat,
    ring: &'static Ring,
    /// How many events all watchers have taken.
    taken: &'static AtomicU64,
    yields: bool,
    /// Whether it took an event, and has not found its box empty since.
    fresh: bool,
}

impl<const YIELDS: bool> Fanout for Publisher<YIELDS> {
    type Receiver = Mailbox;

    /// The watchers want the keys, or the namespaces, from 0 on.
    fn open(interests: &[Interest]) -> (Self, Vec<Mailbox>) {
        let seats: &[Seat] = made(interests.len());
        let each = if interests[0] == Interest::Key(0) { 1 } else { NAMESPACE };
        let wanted = |number| if each == 1 { Interest::Key(number) } else { Interest::Namespace(number) };
        assert!(interests.iter().enumerate().all(|(number, one)| *one == wanted(number)), "each wants its own");
        let (ring, taken) = (Ring::made(), &made::<AtomicU64>(1)[0]);
        let mailbox = |seat| Mailbox { seat, ring, taken, yields: YIELDS, fresh: false };
        (Publisher { ring, seats, each }, seats.iter().map(mailbox).collect())
    }

    fn publish(&mut self, key: &str, value: &[u8]) {
        let line = self.ring.publish(key, value);
        let seat = &self.seats[object(key.as_bytes()) / self.each];
        // Release: the line. Acquire: the watcher is done with the box. Partner of both: the swap in `Mailbox::poll`.
        let before = seat.event.swap(Some(line), Ordering::AcqRel);
        assert!(before.is_none(), "the watcher has taken the event before");
        // The box before the waker; partner: the fence in `Mailbox::poll`.
        fence(Ordering::SeqCst);
        if let Some(waker) = seat.waker.get() {
            waker.wake_by_ref();
        }
    }
}

/// The number of an object: what [`crate::load::key`] makes a key of.
fn object(key: &[u8]) -> usize {
    const NAMESPACE_AT: usize = PREFIX.len() + "namespace-".len();
    const NAME_AT: usize = NAMESPACE_AT + 4 + "/p-".len();
    let digits =
        |from: usize, to: usize| key[from..to].iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0'));
    digits(NAMESPACE_AT, NAMESPACE_AT + 4) * NAMESPACE + digits(NAME_AT, NAME_AT + 5)
}

impl Mailbox {
    fn poll(&mut self, context: &mut Context) -> Poll<u64> {
        let seat = self.seat;
        if seat.waker.get().is_none() {
            // A task has one waker, and a thread, too.
            seat.waker.get_or_init(|| context.waker().clone());
            // The waker before the box; partner: the fence in `publish`.
            fence(Ordering::SeqCst);
        }
        if seat.event.get(Ordering::Relaxed).is_none() {
            let fresh = std::mem::take(&mut self.fresh);
            if self.yields && fresh && self.taken.load(Ordering::Relaxed) == self.ring.head() {
                std::thread::yield_now();
            }
            return Poll::Pending;
        }
        // Acquire: the line. Release: the box is free. Partner of both: the swap in `publish`.
        ring::read(seat.event.swap(None, Ordering::AcqRel).expect("only this watcher takes it"));
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.fresh = true;
        Poll::Ready(1)
    }
}

impl Blocking for Mailbox {
    fn take(&mut self) -> u64 {
        wait(|context| self.poll(context))
    }
}

impl Asynchronous for Mailbox {
    async fn take(&mut self) -> u64 {
        poll_fn(|context| self.poll(context)).await
    }
}
