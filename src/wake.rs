//! Waking: the waiters of a cache, and the one notifier thread of the process.
//!
//! The writer pays a fence and a load per revision while nobody waits; else it raises `pending` and
//! wakes the notifier, never a consumer. The notifier reads the log like any reader, evaluates each
//! distinct filter of the parked subscriptions once an event, and wakes only who has something.
//!
//! `waiting` is a count that each waiter raises and lowers itself (a flag reset by somebody else
//! loses wake-ups). The notifier never writes a consumer's cursor: it stores where the match is in
//! the waiter's entry, and the consumer takes that over when it unregisters.
//!
//! | writer, notifier | waiter | order |
//! | --- | --- | --- |
//! | head or progress or state; fence; `waiting.load` | `waiting.fetch_add`; fence; look at head, progress, state | SeqCst fences: one of the two sees the other |
//! | `pending.swap(true)`; notifier: `pending.swap(false)`, then look | | AcqRel: no lost wake-up |
//! | tag on the set's list, then `armed.swap(false)`, raise the descriptor if it was true | drain, `armed.swap(true)`, fence, look at the list | AcqRel swaps |
//!
//! Close of one subscription and of a member does not go through the notifier: it locks the table,
//! as consumers do. The writer never takes that lock (I6).

#![forbid(unsafe_code)]

mod set;
mod waker;

pub(crate) use set::SetShared;
pub use set::WakeSet;
pub(crate) use waker::{Parker, Waker};

use crate::data::event::{Event, Kind};
use crate::filter::matcher::Matcher;
use crate::filter::matcher::matches_for_notifier;
use crate::log::buckets::{Bucket, Request, Router};
use crate::position::Position;
use crate::sync::{AcqRel, AtomicBool, AtomicUsize, Mutex, Relaxed, SeqCst, fence, lock, ord};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// What a waiter waits for.
#[derive(Clone, Debug)]
pub(crate) enum Want {
    /// An event behind the cursor that passes. With a request, it becomes a `Chain` when the writer
    /// has answered.
    Event { matcher: Arc<Matcher>, cursor: u64, request: Option<Arc<Request>> },
    /// The same, of one bucket whose events are all linked from the cursor on.
    Chain { matcher: Arc<Matcher>, cursor: u64, bucket: Arc<Bucket> },
    /// The cache to reach a revision.
    Revision(u64),
    /// The same, or to be in another epoch.
    RevisionIn(Position),
    /// The first listing.
    Ready,
    /// A consistent read: the ticket.
    Consistent(u64),
}

struct Entry {
    want: Want,
    waker: Option<Waker>,
    /// Woken at this time, whatever happens.
    deadline: Option<Instant>,
    /// Woken when the position moved beyond this one, not before the time.
    bookmark: Option<(Instant, Position)>,
    resume: Option<u64>,
    /// When it was woken.
    woken: Option<Instant>,
    /// Counted in `Hub::waiting`: the writer asks for a look after every revision.
    counted: bool,
}

struct Group {
    scanned_to: u64,
    members: HashSet<u64>,
}

#[derive(Default)]
struct Table {
    next: u64,
    entries: HashMap<u64, Entry>,
    groups: HashMap<Arc<Matcher>, Group>,
    /// Waiters by bucket, and how far its events were looked at.
    chains: HashMap<u64, Vec<u64>>,
    chained_to: u64,
    /// Members of groups whose request for a bucket was not answered yet.
    asking: HashSet<u64>,
    /// Entries that are looked at one by one: no events wanted, a bookmark, or a deadline.
    others: BTreeSet<u64>,
}

/// What the notifier and the waiters ask of a cache.
pub(crate) trait Watched: Send + Sync {
    /// (position, head, closed) now; progress is loaded before head.
    fn glance(&self) -> Glance;
    /// The first event in [from, head) that passes; `Err` where `from` has left the window.
    fn first_match(&self, matcher: &Matcher, from: u64, head: u64) -> std::result::Result<Option<u64>, ()>;
    /// Every event in [from, head) with its buckets; `Err` as above.
    fn visit_buckets(
        &self,
        from: u64,
        head: u64,
        each: &mut dyn FnMut(&Event, &mut dyn Iterator<Item = u64>),
    ) -> std::result::Result<(), ()>;
    /// The newest resync mark; to be asked after `glance`.
    fn newest_mark(&self) -> u64;
    /// Closes the subscriptions that are too far behind; when to look again.
    fn keep_limits(&self) -> Option<Instant>;
    fn hub(&self) -> &Hub;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Glance {
    pub(crate) position: Position,
    pub(crate) head: u64,
    pub(crate) ready: bool,
    /// The source failed before the first listing: no wait for the cache goes on.
    pub(crate) failed: bool,
    pub(crate) closed: bool,
    /// Consistent reads served up to this ticket.
    pub(crate) consistent: u64,
}

impl Want {
    fn is_event(&self) -> bool {
        matches!(self, Want::Event { .. } | Want::Chain { .. })
    }

    fn holds(&self, now: &Glance, cache: &dyn Watched) -> bool {
        match self {
            Want::Event { cursor, .. } => now.head != *cursor,
            // After head: what lies below it in this bucket is not above its newest. At the same head
            // there is nothing to hand out yet: whoever publishes sees that somebody waits.
            Want::Chain { cursor, bucket, .. } => {
                now.head > *cursor && (bucket.newest() >= *cursor || cache.newest_mark() >= *cursor)
            }
            _ if now.failed => true,
            Want::Revision(revision) => now.ready && now.position.revision >= *revision,
            Want::RevisionIn(Position { epoch, revision }) => {
                now.ready && (now.position.revision >= *revision || now.position.epoch != *epoch)
            }
            Want::Ready => now.ready,
            Want::Consistent(ticket) => now.consistent >= *ticket,
        }
    }
}

/// The waiters of one cache.
#[derive(Default)]
pub(crate) struct Hub {
    waiting: AtomicUsizeDefault,
    pending: AtomicBoolDefault,
    table: Mutex<Table>,
    lapped: std::sync::atomic::AtomicU64,
}

struct AtomicUsizeDefault(AtomicUsize);
struct AtomicBoolDefault(AtomicBool);
impl Default for AtomicUsizeDefault {
    fn default() -> Self {
        AtomicUsizeDefault(AtomicUsize::new(0))
    }
}
impl Default for AtomicBoolDefault {
    fn default() -> Self {
        AtomicBoolDefault(AtomicBool::new(false))
    }
}

/// A registration; to be given back by [`Hub::unregister`].
#[derive(Debug)]
pub(crate) struct Ticket(u64);

/// How a registered waiter stands.
pub(crate) enum Rest {
    /// It has everything, and sleeps.
    Parked,
    /// Woken then, for the event at `resume` (0: for something else).
    Woken { at: Instant, resume: u64 },
}

/// Whether a waker was woken before its registration was taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    Yes,
    No,
}

impl Hub {
    /// Registers a waiter, then looks. `Err(())`: what it wants holds already, nothing is registered.
    pub(crate) fn register(
        &self,
        cache: &dyn Watched,
        want: Want,
        waker: Waker,
        deadline: Option<Instant>,
        bookmark: Option<(Instant, Position)>,
    ) -> std::result::Result<Ticket, Told> {
        // What lies below is seen by the look at the end.
        let head = if matches!(want, Want::Chain { .. }) { cache.glance().head } else { 0 };
        let id = {
            let mut table = lock(&self.table);
            let id = table.next;
            table.next += 1;
            // Raised by the waiter itself, before the fence. Partner: the load in `published`.
            match &want {
                Want::Event { matcher, cursor, request } => {
                    let group = table.groups.entry(matcher.clone());
                    group.or_insert_with(|| Group { scanned_to: *cursor, members: HashSet::new() }).members.insert(id);
                    if request.is_some() {
                        table.asking.insert(id);
                    }
                }
                Want::Chain { bucket, .. } => {
                    table.join_chain(bucket, head, id);
                    bucket.raise();
                }
                _ => {}
            }
            // A bookmark is due when the position moved, whatever moved it.
            let counted = !matches!(want, Want::Chain { .. }) || bookmark.is_some();
            if counted {
                self.waiting.0.fetch_add(1, Relaxed);
            }
            if deadline.is_some() || bookmark.is_some() || !want.is_event() {
                table.others.insert(id);
            }
            let entry = Entry {
                want: want.clone(),
                waker: Some(waker),
                deadline,
                bookmark,
                resume: None,
                woken: None,
                counted,
            };
            table.entries.insert(id, entry);
            id
        };
        fence(ord!(RegisterFence, SeqCst));
        let now = cache.glance();
        if want.holds(&now, cache) || now.closed {
            let told = self.silence(&Ticket(id));
            self.unregister(&Ticket(id));
            return Err(told);
        }
        Ok(Ticket(id))
    }

    /// Takes the waker back, so that it is not woken any more; says whether it was.
    pub(crate) fn silence(&self, ticket: &Ticket) -> Told {
        let waker = lock(&self.table).entries.get_mut(&ticket.0).and_then(|entry| entry.waker.take());
        if waker.is_some() { Told::No } else { Told::Yes }
    }

    /// Ends a registration; the cursor from which the consumer goes on, if the notifier moved it.
    pub(crate) fn unregister(&self, ticket: &Ticket) -> Option<u64> {
        // Dropped outside the lock: a waker and a predicate are foreign code.
        let entry;
        let mut table = lock(&self.table);
        entry = table.entries.remove(&ticket.0)?;
        table.others.remove(&ticket.0);
        if entry.counted {
            self.waiting.0.fetch_sub(1, Relaxed);
        }
        match &entry.want {
            Want::Event { matcher, cursor, .. } => {
                table.asking.remove(&ticket.0);
                let mut scanned = None;
                if let Some(group) = table.groups.get_mut(matcher) {
                    if group.members.remove(&ticket.0) {
                        scanned = Some(group.scanned_to);
                    }
                    if group.members.is_empty() {
                        table.groups.remove(matcher);
                    }
                }
                entry.resume.or(scanned).map(|to| to.max(*cursor))
            }
            Want::Chain { cursor, bucket, .. } => {
                bucket.lower();
                let looked = table.leave_chain(bucket, ticket.0).then_some(table.chained_to);
                entry.resume.or(looked).map(|to| to.max(*cursor))
            }
            _ => None,
        }
    }

    /// How a waiter stands; `None`: it is not registered.
    pub(crate) fn rest(&self, ticket: u64) -> Option<Rest> {
        let table = lock(&self.table);
        let entry = table.entries.get(&ticket)?;
        Some(match entry.woken {
            None => Rest::Parked,
            Some(at) => Rest::Woken { at, resume: entry.resume.unwrap_or(0) },
        })
    }

    /// Wakes one waiter now (its subscription or waiter was closed).
    pub(crate) fn wake_one(&self, ticket: u64) {
        let mut woken = Vec::new();
        if let Some(entry) = lock(&self.table).entries.get_mut(&ticket) {
            call(&mut woken, entry);
        }
        woken.into_iter().for_each(Waker::wake);
    }

    /// The writer's half, after its stores: a fence and a load while nobody waits.
    #[inline]
    pub(crate) fn published<W: Watched + 'static>(&self, cache: &Arc<W>) {
        fence(ord!(PublishFence, SeqCst));
        // Partner: `waiting.fetch_add`, fence, look in `register`.
        if self.waiting.0.load(Relaxed) != 0 {
            self.notify(cache);
        }
    }

    /// As [`Hub::published`], after events: who waits for one bucket is asked there.
    #[inline]
    pub(crate) fn published_events<W: Watched + 'static>(&self, cache: &Arc<W>, router: &Router) {
        fence(ord!(PublishFence, SeqCst));
        // Partner: `waiting.fetch_add` or `Bucket::raise`, fence, look in `register`.
        if self.waiting.0.load(Relaxed) != 0 || router.is_awaited() {
            self.notify(cache);
        }
    }

    /// Wakes the notifier for this cache, once until it has looked.
    #[cold]
    pub(crate) fn notify<W: Watched + 'static>(&self, cache: &Arc<W>) {
        if !self.pending.0.swap(true, AcqRel) {
            notifier::push(cache.clone());
        }
    }

    /// The highest revision that somebody waits for, 0 for none. Takes the waiters' lock: for
    /// feeders between two applies.
    pub(crate) fn highest_revision_wanted(&self) -> u64 {
        let table = lock(&self.table);
        let wanted = table.others.iter().filter_map(|id| match table.entries.get(id)?.want {
            Want::Revision(revision) | Want::RevisionIn(Position { revision, .. }) => Some(revision),
            _ => None,
        });
        wanted.max().unwrap_or(0)
    }

    /// Waiters that have been registered and not given back.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.table).entries.len()
    }

    /// How often a parked subscription lagged because the notifier itself was lapped.
    pub(crate) fn lapped(&self) -> u64 {
        self.lapped.load(Relaxed)
    }

    /// One look of the notifier; returns when it wants to look again.
    pub(crate) fn pass(&self, cache: &dyn Watched) -> Option<Instant> {
        let mut woken = Vec::new();
        let again = loop {
            // The swap comes before the look. Partner: the swap in `notify`.
            self.pending.0.swap(false, ord!(NotifierPending, AcqRel));
            let mut table = lock(&self.table);
            let now = cache.glance();
            let mut moved = false;
            if now.closed {
                table.entries.values_mut().for_each(|entry| call(&mut woken, entry));
            } else {
                self.scan(&mut table, cache, now.head, &mut woken);
                self.follow_chains(&mut table, cache, now.head, &mut woken);
                moved = self.hand_to_buckets(&mut table, now.head);
            }
            let again = look_at_others(&mut table, &now, cache, &mut woken);
            drop(table);
            if !moved {
                break again;
            }
            // They wait at their buckets now. Partner: the fence in `published_events`: what was
            // published before is seen by the next look, what comes after sees them.
            fence(ord!(HandOver, SeqCst));
        };
        woken.into_iter().for_each(Waker::wake);
        let limits = cache.keep_limits();
        again.into_iter().chain(limits).min()
    }

    /// Looks at the buckets of each new event, not at each waiter.
    fn follow_chains(&self, table: &mut Table, cache: &dyn Watched, head: u64, woken: &mut Vec<Waker>) {
        if table.chains.is_empty() || table.chained_to >= head {
            return;
        }
        let Table { chains, entries, chained_to, .. } = table;
        let visited = cache.visit_buckets(*chained_to, head, &mut |event, buckets| {
            let mut wake = |members: &mut Vec<u64>| {
                // Equal filters are evaluated once an event.
                let mut last: Option<(Arc<Matcher>, bool)> = None;
                members.retain(|id| {
                    let Some(entry) = entries.get_mut(id) else { return false };
                    let Want::Chain { matcher, cursor, .. } = &entry.want else { return false };
                    let matches = match &last {
                        Some((known, matches)) if known == matcher => *matches,
                        _ => matches_for_notifier(matcher, event),
                    };
                    last = Some((matcher.clone(), matches));
                    if *cursor > event.sequence() || !matches {
                        return true;
                    }
                    entry.resume = Some(event.sequence());
                    call(woken, entry);
                    false
                });
            };
            if event.kind() == Kind::Resync {
                chains.values_mut().for_each(wake);
            } else {
                buckets.for_each(|id| {
                    if let Some(members) = chains.get_mut(&id) {
                        wake(members);
                    }
                });
            }
        });
        if visited.is_err() {
            // Lapped, perhaps by events of buckets that nobody waits for. After head: what lies below it
            // shows in a bucket's newest. Who has something looks for himself, from his own cursor.
            let mark = cache.newest_mark();
            let mut any = false;
            chains.values_mut().for_each(|members| {
                members.retain(|id| {
                    let Some(entry) = entries.get_mut(id) else { return false };
                    let Want::Chain { cursor, bucket, .. } = &entry.want else { return false };
                    if bucket.newest() < *cursor && mark < *cursor {
                        return true;
                    }
                    any = true;
                    call(woken, entry);
                    false
                });
            });
            self.lapped.fetch_add(u64::from(any), Relaxed);
        }
        *chained_to = head;
        chains.retain(|_, members| !members.is_empty());
    }

    /// Members of groups that have looked at everything below head, and whose bucket is there by now,
    /// wait at that. True: there were some.
    fn hand_to_buckets(&self, table: &mut Table, head: u64) -> bool {
        let mut moved = false;
        let asking: Vec<u64> = table.asking.iter().copied().collect();
        for id in asking {
            let Some(entry) = table.entries.get_mut(&id) else { continue };
            let Want::Event { matcher, request: Some(request), cursor } = &entry.want else { continue };
            let Some(answer) = request.answer() else { continue };
            let (matcher, cursor) = (matcher.clone(), *cursor);
            // Answered for a revision that is still to come: with the next look.
            if answer.as_ref().is_some_and(|bucket| bucket.boundary() > head) {
                continue;
            }
            let bucket = answer.clone().filter(|_| entry.waker.is_some());
            table.asking.remove(&id);
            let Some(bucket) = bucket else { continue };
            let Some(group) = table.groups.get_mut(&matcher) else { continue };
            if !group.members.remove(&id) {
                continue;
            }
            if group.members.is_empty() {
                table.groups.remove(&matcher);
            }
            // Raised there before it is lowered here.
            bucket.raise();
            let cursor = cursor.max(head);
            table.join_chain(&bucket, head, id);
            if let Some(entry) = table.entries.get_mut(&id) {
                if entry.counted && entry.bookmark.is_none() {
                    entry.counted = false;
                    self.waiting.0.fetch_sub(1, Relaxed);
                }
                entry.want = Want::Chain { matcher, cursor, bucket };
            }
            moved = true;
        }
        moved
    }

    fn scan(&self, table: &mut Table, cache: &dyn Watched, head: u64, woken: &mut Vec<Waker>) {
        let Table { groups, entries, .. } = table;
        for (matcher, group) in groups.iter_mut() {
            while group.scanned_to < head && !group.members.is_empty() {
                match cache.first_match(matcher, group.scanned_to, head) {
                    Ok(None) => group.scanned_to = head,
                    Ok(Some(at)) => {
                        group.scanned_to = at + 1;
                        group.members.retain(|id| {
                            let Some(entry) = entries.get_mut(id) else { return false };
                            if matches!(entry.want, Want::Event { cursor, .. } if cursor > at) {
                                return true;
                            }
                            entry.resume = Some(at);
                            call(woken, entry);
                            false
                        });
                    }
                    Err(()) => {
                        // Lapped: everybody looks for himself, from his own cursor.
                        self.lapped.fetch_add(1, Relaxed);
                        group.scanned_to = head;
                        for id in group.members.drain() {
                            if let Some(entry) = entries.get_mut(&id) {
                                call(woken, entry);
                            }
                        }
                    }
                }
            }
        }
        groups.retain(|_, group| !group.members.is_empty());
    }
}

impl Table {
    fn join_chain(&mut self, bucket: &Bucket, head: u64, id: u64) {
        if self.chains.is_empty() {
            self.chained_to = head;
        }
        self.chains.entry(bucket.id()).or_default().push(id);
    }

    /// True: it was still there, so it was not woken for an event.
    fn leave_chain(&mut self, bucket: &Bucket, id: u64) -> bool {
        let Some(members) = self.chains.get_mut(&bucket.id()) else { return false };
        let Some(at) = members.iter().position(|member| *member == id) else { return false };
        members.swap_remove(at);
        if members.is_empty() {
            self.chains.remove(&bucket.id());
        }
        true
    }
}

/// Takes the waker of an entry. Members are listed here, under the table's lock, so that whoever
/// finds his waker taken finds his tag listed; foreign code is called outside.
fn call(woken: &mut Vec<Waker>, entry: &mut Entry) {
    entry.woken.get_or_insert_with(Instant::now);
    match entry.waker.take() {
        Some(Waker::Member(set, tag)) => set.list(tag),
        other => woken.extend(other),
    }
}

/// Waiters that do not wait for events, deadlines and due bookmarks.
fn look_at_others(table: &mut Table, now: &Glance, cache: &dyn Watched, woken: &mut Vec<Waker>) -> Option<Instant> {
    let clock = Instant::now();
    let mut again: Option<Instant> = None;
    let mut later = |at: Instant| again = Some(again.map_or(at, |before: Instant| before.min(at)));
    for id in &table.others {
        let Some(entry) = table.entries.get_mut(id) else { continue };
        if entry.waker.is_none() {
            continue;
        }
        let mut wake = !entry.want.is_event() && entry.want.holds(now, cache);
        if let Some(at) = entry.deadline {
            if at <= clock { wake = true } else { later(at) }
        }
        if let Some((at, shown)) = entry.bookmark
            && now.position > shown
        {
            if at <= clock { wake = true } else { later(at) }
        }
        if wake {
            call(woken, entry);
        }
    }
    again
}

/// The notifier thread of the process.
#[cfg(not(loom))]
mod notifier {
    use super::{Hub, Watched};
    use crate::sync::lock;
    use std::panic::AssertUnwindSafe;
    use std::panic::catch_unwind;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::AcqRel;
    use std::sync::{Arc, Mutex, OnceLock, mpsc};
    use std::thread::Thread;
    use std::time::Instant;

    struct Notifier {
        send: mpsc::Sender<Arc<dyn Watched>>,
        receive: Mutex<Option<mpsc::Receiver<Arc<dyn Watched>>>>,
        thread: OnceLock<Thread>,
        asleep: AtomicBool,
    }

    fn notifier() -> &'static Notifier {
        static GLOBAL: OnceLock<&'static Notifier> = OnceLock::new();
        GLOBAL.get_or_init(|| {
            let (send, receive) = mpsc::channel();
            let this: &'static Notifier = Box::leak(Box::new(Notifier {
                send,
                receive: Mutex::new(Some(receive)),
                thread: OnceLock::new(),
                asleep: AtomicBool::new(false),
            }));
            if let Ok(handle) = crate::sys::spawn("watchcore-wake", move || this.run()) {
                let _ = this.thread.set(handle.thread().clone());
            }
            this
        })
    }

    /// Hands a cache to the notifier: a lock-free send, and a futex only if it sleeps.
    pub(super) fn push(cache: Arc<dyn Watched>) {
        let this = notifier();
        let _ = this.send.send(cache);
        // Partner: `run` raises `asleep`, then looks at the channel.
        if this.asleep.swap(false, AcqRel)
            && let Some(thread) = this.thread.get()
        {
            thread.unpark();
        }
    }

    impl Notifier {
        fn run(&self) {
            let Some(receive) = lock(&self.receive).take() else { return };
            let mut timers: Vec<(Instant, Arc<dyn Watched>)> = Vec::new();
            loop {
                let mut caches: Vec<Arc<dyn Watched>> = receive.try_iter().collect();
                let clock = Instant::now();
                timers.retain(|(at, cache)| {
                    let due = *at <= clock;
                    if due {
                        caches.push(cache.clone());
                    }
                    !due
                });
                if caches.is_empty() {
                    self.sleep(&receive, timers.iter().map(|(at, _)| *at).min(), &mut caches);
                }
                for cache in caches {
                    let hub: &Hub = cache.hub();
                    match catch_unwind(AssertUnwindSafe(|| hub.pass(&*cache))) {
                        Ok(again) => {
                            // What was wanted before holds no more: nobody may be left who wants it.
                            timers.retain(|(_, other)| !Arc::ptr_eq(other, &cache));
                            timers.extend(again.map(|at| (at, cache)));
                        }
                        Err(_) => tracing::error!("the notifier caught a panic and goes on"),
                    }
                }
            }
        }

        fn sleep(
            &self,
            receive: &mpsc::Receiver<Arc<dyn Watched>>,
            until: Option<Instant>,
            caches: &mut Vec<Arc<dyn Watched>>,
        ) {
            self.asleep.swap(true, AcqRel);
            if let Ok(cache) = receive.try_recv() {
                caches.push(cache);
            } else {
                match until {
                    None => std::thread::park(),
                    Some(at) => std::thread::park_timeout(at.saturating_duration_since(Instant::now())),
                }
            }
            self.asleep.swap(false, AcqRel);
        }
    }
}

/// The same for loom: a thread of the model takes the notifier's steps.
#[cfg(loom)]
pub(crate) mod notifier {
    use super::{AcqRel, Arc, AtomicUsize, Watched};
    use std::cell::RefCell;

    thread_local! {
        static HANDED: RefCell<Vec<Arc<dyn Watched>>> = const { RefCell::new(Vec::new()) };
    }

    loom::lazy_static! {
        // The channel: what was sent happens before what receives it.
        static ref CHANNEL: AtomicUsize = AtomicUsize::new(0);
    }

    /// Begins an execution; what a failed one left behind belongs to objects that are gone.
    pub(crate) fn begin() {
        std::mem::forget(HANDED.take());
    }

    pub(super) fn push(cache: Arc<dyn Watched>) {
        CHANNEL.fetch_add(1, AcqRel);
        HANDED.with_borrow_mut(|handed| handed.push(cache));
    }

    /// Looks at the caches that were handed over.
    pub(crate) fn step() {
        CHANNEL.fetch_add(0, AcqRel);
        HANDED.take().into_iter().for_each(|cache| {
            cache.hub().pass(&*cache);
        });
    }
}

impl Ticket {
    pub(crate) fn id(&self) -> u64 {
        self.0
    }
}
