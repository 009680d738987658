//! The interest of a waiter, which is the thing that it waits for, and when that has come.

#![forbid(unsafe_code)]

use super::group::{FilterGroup, GroupRef};
use crate::log::buckets::{Bucket, Request};
use crate::position::Position;
use std::sync::Arc;

/// The thing that a waiter waits for.
#[derive(Clone)]
pub(crate) enum Interest {
    /// An event from the cursor on that passes the filter. With a request, the waiter moves to the bucket once the writer
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

/// The position and state of a cache, loaded together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheFrontier {
    pub(crate) position: Position,
    pub(crate) head: u64,
    pub(crate) ready: bool,
    /// The source failed before the first listing: no wait for the cache continues.
    pub(crate) failed: bool,
    pub(crate) closed: bool,
    /// Consistent reads served up to this ticket.
    pub(crate) consistent: u64,
}

/// The revision that a consumer waits for.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RevisionWanted {
    /// The revision to reach. With an epoch, the wait also ends when the cache leaves that epoch.
    pub(crate) position: Position,
    /// With a ticket, the wait also ends when that consistent read is served.
    pub(crate) ticket: Option<u64>,
}

impl Interest {
    /// Waits until the cache reaches the revision, leaves the epoch (if one is given), or serves the ticket's
    /// consistent read.
    pub(crate) fn revision(position: Position, ticket: Option<u64>) -> Interest {
        Interest::Revision(Box::new(RevisionWanted { position, ticket }))
    }

    pub(crate) fn revision_wanted(&self) -> Option<u64> {
        match self {
            Interest::Revision(wanted) => Some(wanted.position.revision),
            _ => None,
        }
    }

    /// Whether the notifier would treat both alike.
    pub(crate) fn is(&self, other: &Interest) -> bool {
        let same_group =
            || self.group_of_events().map(|group| group.id()) == other.group_of_events().map(|group| group.id());
        match (self, other) {
            (_, Interest::Events(_, request)) => {
                self.is_of_events_at(None, request.as_ref().map(Arc::as_ptr)) && same_group()
            }
            (_, Interest::Chain(_, bucket)) => self.is_of_events_at(Some(Arc::as_ptr(bucket)), None) && same_group(),
            (Interest::Revision(wanted), Interest::Revision(before)) => wanted == before,
            (Interest::Ready, Interest::Ready) => true,
            (Interest::Consistent(ticket), Interest::Consistent(before)) => ticket == before,
            _ => false,
        }
    }

    /// Whether it waits for events, at this bucket, or with this request for one. Takes no reference count.
    pub(crate) fn is_of_events_at(&self, bucket: Option<*const Bucket>, request: Option<*const Request>) -> bool {
        match (self, bucket) {
            (Interest::Events(_, before), None) => before.as_ref().map(Arc::as_ptr) == request,
            (Interest::Chain(_, before), Some(bucket)) => std::ptr::eq(Arc::as_ptr(before), bucket),
            _ => false,
        }
    }

    /// The group of its filter, where it waits for events.
    pub(crate) fn group_of_events(&self) -> Option<&GroupRef> {
        match self {
            Interest::Events(group, _) | Interest::Chain(group, _) => Some(group),
            _ => None,
        }
    }

    /// The filter group that a pass evaluates for it; `None` where it waits at a bucket.
    pub(crate) fn group(&self) -> Option<&FilterGroup> {
        match self {
            Interest::Events(group, _) => Some(group),
            _ => None,
        }
    }

    /// Whether a wait for something other than an event is over.
    pub(crate) fn is_reached(&self, now: &CacheFrontier) -> bool {
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
