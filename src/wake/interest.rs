//! The interest of a sleeper, which is the thing that it waits for, and when that has come.

#![forbid(unsafe_code)]

use super::group::{FilterGroup, GroupRef};
use super::{CacheFrontier, Watched};
use crate::log::buckets::{Bucket, Request};
use crate::log::ring::LogEnd;
use crate::position::Position;
use std::sync::Arc;

/// The thing that a sleeper waits for.
#[derive(Clone)]
pub(crate) enum Interest {
    /// An event from the cursor on that passes the filter. With a request, the seat moves to the bucket once the writer
    /// has answered.
    Events(GroupRef, Option<Arc<Request>>),
    /// An event of one bucket, whose events are all linked from the cursor on.
    Chain(GroupRef, Arc<Bucket>),
    /// The cache reaches a revision; boxed, because few wait for that.
    Revision(Box<RevisionWanted>),
    /// The first listing has come.
    Ready,
    /// The consistent read of this ticket is served.
    Consistent(u64),
}

/// The revision that a consumer waits for.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RevisionWanted {
    /// The revision to reach. With an epoch, the wait also ends when the cache leaves that epoch.
    pub(super) position: Position,
    /// With a ticket, the wait also ends when that consistent read is served.
    pub(super) ticket: Option<u64>,
}

impl Interest {
    /// Waits until the cache reaches the revision, leaves the epoch (if one is given), or serves the ticket's
    /// consistent read.
    pub(crate) fn revision(position: Position, ticket: Option<u64>) -> Interest {
        Interest::Revision(Box::new(RevisionWanted { position, ticket }))
    }

    /// Whether the notifier would treat both alike.
    pub(super) fn is(&self, other: &Interest) -> bool {
        match (self, other) {
            (Interest::Events(group, request), Interest::Events(old, before)) => {
                let same = |a: &Arc<Request>, b: &Arc<Request>| Arc::ptr_eq(a, b);
                group.id() == old.id()
                    && match (request, before) {
                        (Some(request), Some(before)) => same(request, before),
                        (request, before) => request.is_none() && before.is_none(),
                    }
            }
            (Interest::Chain(group, bucket), Interest::Chain(old, before)) => {
                group.id() == old.id() && Arc::ptr_eq(bucket, before)
            }
            (Interest::Revision(wanted), Interest::Revision(before)) => wanted == before,
            (Interest::Ready, Interest::Ready) => true,
            (Interest::Consistent(ticket), Interest::Consistent(before)) => ticket == before,
            _ => false,
        }
    }

    /// Whether it waits for events, at this bucket, or with this request for one. Takes no reference count.
    pub(super) fn is_of_events_at(&self, bucket: Option<*const Bucket>, request: Option<*const Request>) -> bool {
        match (self, bucket) {
            (Interest::Events(_, before), None) => before.as_ref().map(Arc::as_ptr) == request,
            (Interest::Chain(_, before), Some(bucket)) => std::ptr::eq(Arc::as_ptr(before), bucket),
            _ => false,
        }
    }

    /// The group of its filter, where it waits for events.
    pub(super) fn group_of_events(&self) -> Option<&GroupRef> {
        match self {
            Interest::Events(group, _) | Interest::Chain(group, _) => Some(group),
            _ => None,
        }
    }

    /// The filter group that a pass evaluates for it; `None` where it waits at a bucket.
    pub(super) fn group(&self) -> Option<&FilterGroup> {
        match self {
            Interest::Events(group, _) => Some(group),
            _ => None,
        }
    }

    /// Whether a seat that parked at `cursor` has to be woken at once: asked by its sleeper after it has parked.
    pub(super) fn holds(&self, cursor: u64, cache: &impl Watched) -> bool {
        let bucket = match self {
            Interest::Events(..) => None,
            Interest::Chain(_, bucket) => Some(bucket),
            _ => {
                let now = cache.frontier();
                return self.is_reached(&now) || now.closed;
            }
        };
        let LogEnd { head, closed } = cache.end();
        // Loaded after head, so `newest` covers every event of the bucket below head. If head has not passed the cursor
        // there is nothing to hand out yet, and the publisher of the next event sees that this consumer waits.
        let has = |bucket: &Arc<Bucket>| head > cursor && (bucket.newest() >= cursor || cache.newest_mark() >= cursor);
        closed || bucket.map_or(head != cursor, has)
    }

    /// Whether a wait for something other than an event is over.
    pub(super) fn is_reached(&self, now: &CacheFrontier) -> bool {
        match self {
            _ if now.failed => true,
            Interest::Revision(wanted) => {
                let RevisionWanted { position: Position { epoch, revision }, ticket } = &**wanted;
                let arrived = now.position.revision >= *revision || (*epoch != 0 && now.position.epoch != *epoch);
                (now.ready && arrived) || ticket.is_some_and(|ticket| now.consistent >= ticket)
            }
            Interest::Ready => now.ready,
            Interest::Consistent(ticket) => now.consistent >= *ticket,
            Interest::Events(..) | Interest::Chain(..) => false,
        }
    }
}
