//! The read path of a subscription, by which it finds its events: a scan of the log, or the chain of a bucket with the links
//! that were collected from it. docs/internals/chains.md explains chains, and from where on one is complete.

#![forbid(unsafe_code)]

use super::cursor::Cursor;
use crate::cache::Consumer;
use crate::log::buckets::{Bucket, Request};
use crate::sync::Relaxed;
use std::sync::Arc;

/// See the module.
#[derive(Default)]
pub(super) struct ReadPathState {
    pub(super) bucket: BucketState,
    pub(super) links: Option<Box<Links>>,
    /// It scans up to here, because the chain is too dense to collect, or a resync mark lies below.
    pub(super) scan_to: u64,
    pub(super) skipped: u64,
}

/// Sequence numbers of a bucket's events, collected from its chain.
pub(super) struct Links {
    /// Newest first. Passed links are dropped only after a traversal, which may go back over some.
    pub(super) seqs: Vec<u64>,
    /// The number of links that the cursor has not passed.
    pub(super) left: usize,
    /// The head below which they were collected.
    pub(super) to: u64,
}

#[derive(Default)]
pub(super) enum BucketState {
    /// It scans.
    #[default]
    None,
    Asked(Arc<Request>),
    Answered(Arc<Bucket>),
}

impl ReadPathState {
    /// The bucket whose chain is complete from the cursor on, which is not below `linked_from` nor `scan_to`. Takes over the
    /// writer's answer. To be called after the head was loaded.
    #[inline]
    pub(super) fn chain(&mut self, cursor: &Cursor, shared: &Consumer) -> Option<&Arc<Bucket>> {
        self.settle(shared);
        let BucketState::Answered(bucket) = &self.bucket else { return None };
        self.scan_end(cursor.seq()).is_none().then_some(bucket)
    }

    /// Where a scan from the cursor ends, because the chain is complete from there on.
    pub(super) fn scan_end(&self, cursor: u64) -> Option<u64> {
        let linked_from = self.answered().map_or(0, |bucket| bucket.linked_from());
        Some(linked_from.max(self.scan_to)).filter(|end| *end > cursor)
    }

    #[inline]
    fn settle(&mut self, shared: &Consumer) {
        if let BucketState::Asked(request) = &self.bucket
            && let Some(answer) = request.answer()
        {
            self.bucket = match answer {
                Some(bucket) => BucketState::Answered(bucket.clone()),
                None => BucketState::None,
            };
            shared.reads(self.answered().cloned());
        }
    }

    /// The request for a bucket that the writer has not answered yet.
    pub(super) fn request(&self) -> Option<&Arc<Request>> {
        match &self.bucket {
            BucketState::Asked(request) => Some(request),
            _ => None,
        }
    }

    pub(super) fn answered(&self) -> Option<&Arc<Bucket>> {
        match &self.bucket {
            BucketState::Answered(bucket) => Some(bucket),
            _ => None,
        }
    }

    /// Leaves the bucket, and withdraws a request for one.
    pub(super) fn leave(&mut self, shared: &Consumer) {
        if self.answered().is_some() {
            shared.reads(None);
        }
        if !matches!(std::mem::take(&mut self.bucket), BucketState::None) {
            shared.inner.requests.left.fetch_add(1, Relaxed);
        }
        self.links = None;
    }

    /// Whether it scans and has no state to keep.
    pub(super) fn is_unused(&self) -> bool {
        matches!(self.bucket, BucketState::None) && self.links.is_none() && self.skipped == 0
    }

    /// Bytes of the collected links that were not followed yet; there are few, see `chain`.
    #[inline]
    pub(super) fn link_bytes(&self) -> u16 {
        self.links.as_ref().map_or(0, |links| (links.seqs.capacity() * size_of::<u64>()).min(u16::MAX.into()) as u16)
    }
}

impl Links {
    pub(super) fn pass_to(&mut self, seq: u64) {
        self.left = self.seqs.partition_point(|&link| link >= seq);
    }
}
