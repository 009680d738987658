//! Following a watch: applies its events to the cache one by one.

#![forbid(unsafe_code)]

use super::feed::Taken;
use super::status::ReflectorState;
use super::{BUDGET, Outcome, Over, Reflector};
use crate::clock::{Clock, Delay};
use crate::event::{Payload, Status, WatchEvent};
use crate::guarded_source::{guarded_answer, poll_watch};
use crate::machine::Input;
use crate::park::yield_now;
use crate::source::{Entry, ListAt, ListPage, ListRequest, ListerWatcher, SourceFuture};
use crate::watch::Watch;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use watchcore::SourceState;

/// A silent watch is abandoned this long after its time-out.
const MARGIN: Duration = Duration::from_secs(30);
impl<L: ListerWatcher<Watch: Watch<Object = Entry>>> Reflector<L> {
    /// Follows a watch to its end.
    pub(super) async fn follow(&mut self, mut watch: L::Watch, timeout: Duration) -> Outcome<Input> {
        self.enter(ReflectorState::Watching);
        self.feed.writer.set_state(SourceState::Fresh);
        let mut quiet = Silence { since: self.options.clock.now(), most: timeout + MARGIN, delay: None };
        let mut asking = Asking::default();
        let mut events = 0u64;
        let (from, newest) = (self.feed.resume, self.feed.newest());
        // The newest revision that this watch has shown.
        let mut reached = from;
        let failure = loop {
            let event = poll_fn(|context| self.poll_input(&mut watch, &mut asking, &mut quiet, context));
            let Some(event) = event.await? else { break None };
            events += 1;
            reached = reached.max(event.position.revision).max(event.object().map_or(0, |entry| entry.revision));
            if let Some(failure) = self.take(event, from) {
                break Some(failure);
            }
            if events.is_multiple_of(BUDGET) {
                // The source may always be ready, so other tasks get to run here.
                yield_now().await;
            }
        };
        let settled = self.feed.settle();
        self.links.status.update(|all| all.revision = self.feed.newest());
        Ok(match (failure, settled) {
            (Some(failure), _) => failure,
            (None, Err(error)) => Input::Failed(error.into()),
            (None, Ok(true)) => Input::Cut(Status::new(503, "the watch ended inside a revision")),
            // The watch started inside a revision, which should have come again.
            (None, Ok(false)) if reached < newest => Input::WentBack(went_back(newest, reached)),
            (None, Ok(false)) => Input::Ended,
        })
    }

    /// The next event of a watch; `None` if it ended, or has been silent for too long.
    fn poll_input(
        &mut self,
        watch: &mut L::Watch,
        asking: &mut Asking,
        quiet: &mut Silence,
        context: &mut Context<'_>,
    ) -> Poll<Outcome<Option<WatchEvent<Entry>>>> {
        if self.is_over(context) {
            return Poll::Ready(Err(Over));
        }
        self.answer(asking, context);
        if let Poll::Ready(event) = poll_watch(watch, context) {
            quiet.since = self.options.clock.now();
            return Poll::Ready(Ok(event));
        }
        // No further event is available: the collected revision is whole, unless the source has said otherwise.
        if !self.feed.is_incomplete() {
            if let Err(error) = self.feed.flush() {
                return Poll::Ready(Ok(Some(WatchEvent::error(error))));
            }
            self.links.status.update(|all| all.revision = self.feed.newest());
        }
        quiet.poll(&self.options.clock, context).map(|()| Ok(None))
    }

    /// Takes an event of a watch that was opened after `from`; a returned input ends that watch.
    fn take(&mut self, event: WatchEvent<Entry>, from: u64) -> Option<Input> {
        let position = event.position.revision;
        let name = event.name();
        let unplaced = || Some(Input::Unplaced(Status::new(400, format!("an event {name} has no revision"))));
        let taken = match event.payload {
            Payload::Added(entry) | Payload::Modified { new: entry, .. } => self.feed.take(entry, false, position),
            Payload::Deleted(entry) => self.feed.take(entry, true, position),
            Payload::DeletedUnknown(key) => self.feed.take(Entry::new(key, "", 0), true, position),
            // No initial state was requested, so Synced counts as a bookmark if it has a revision.
            Payload::Synced if position == 0 => return None,
            Payload::Bookmark if position == 0 => return unplaced(),
            Payload::Bookmark | Payload::Synced if position < from => {
                return Some(Input::Failed(went_back(from, position)));
            }
            Payload::Bookmark | Payload::Synced => self.feed.progress(position).map(|()| Taken::Gathered),
            Payload::Error(status) => return Some(Input::Failed(status)),
        };
        match taken {
            Ok(Taken::Gathered | Taken::Repeat) => None,
            Ok(Taken::Outside) => {
                self.links.status.update(|all| all.outside += 1);
                None
            }
            Ok(Taken::Misfit) if position == 0 => unplaced(),
            Ok(Taken::Misfit) => Some(Input::Failed(Status::new(
                410,
                format!(
                    "an event {name} at revision {position} does not fit the cache, which stands at {}",
                    self.feed.resume
                ),
            ))),
            Err(error) => Some(Input::Failed(error.into())),
        }
    }

    /// Answers consistent reads of the cache: by the revision of the source's newest state.
    /// Requests that arrive while the source is being asked are answered by the next request to it.
    fn answer(&mut self, asking: &mut Asking, context: &mut Context<'_>) {
        loop {
            if let Some((ticket, page)) = &mut asking.page {
                let Poll::Ready(page) = page.as_mut().poll(context) else { return };
                let ticket = *ticket;
                asking.page = None;
                match page {
                    Ok(page) => self.feed.writer.serve_consistent(ticket, page.position.revision),
                    // The waiting readers have time limits of their own; the source is not asked again for them.
                    Err(status) => {
                        asking.failed = ticket;
                        self.links.status.update(|all| all.last_error = Some(status));
                    }
                }
            }
            match self.feed.writer.demand().consistent {
                ticket if ticket <= asking.failed => return,
                ticket => {
                    let request = ListRequest { at: ListAt::Newest, limit: 1, continue_token: None };
                    let page = guarded_answer("a list of the source", || self.source.list(request));
                    asking.page = Some((ticket, page));
                }
            }
        }
    }
}

/// The error for a server restored from a backup that accepts a watch in its future, on which no
/// event would come until it gets there.
fn went_back(known: u64, reached: u64) -> Status {
    Status::new(410, format!("revision {known} was seen, and the source says that it is at {reached}"))
}

/// The request for the newest revision, for readers that wait for it.
#[derive(Default)]
struct Asking {
    /// The ticket that the request answers.
    page: Option<(u64, SourceFuture<ListPage>)>,
    /// The highest ticket whose request has failed.
    failed: u64,
}

/// Measures how long a watch has been silent.
struct Silence {
    since: Instant,
    most: Duration,
    delay: Option<Delay>,
}

impl Silence {
    /// Ready if the watch has been silent for too long. One delay serves many events: when it is
    /// over, the remaining time is checked.
    fn poll(&mut self, clock: &Arc<dyn Clock>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            // A time beyond the clock's range never comes.
            let Some(over) = self.since.checked_add(self.most) else { return Poll::Pending };
            if over <= clock.now() {
                return Poll::Ready(());
            }
            let delay = self.delay.get_or_insert_with(|| clock.delay_until(over));
            if Pin::new(delay).poll(context).is_pending() {
                return Poll::Pending;
            }
            self.delay = None;
        }
    }
}
