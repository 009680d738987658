//! Follows etcd's compaction, beside the sessions: neither a stream of events nor a session's wait delays it.
//!
//! A program may learn of a compaction first and request it of the cache (`Feeder::compact`). The feeder's thread
//! owns the writer, so it compacts, once the cache has reached the revision.
//!
//! A count of one key at a revision tells whether etcd is compacted above that revision, and reads no history. Only
//! if it is, a watch is opened there: etcd refuses it before it reads any history, and names the compacted revision.
//! A watch at a revision that is not compacted would make etcd read all history from there on under its store's lock,
//! so none is ever opened.

use super::config::Config;
use super::connect::Reader;
use super::failure::{Class, Failure};
use super::range::KeyRange;
use super::shared::Shared;
use crate::log::log;
use etcd_client::{GetOptions, WatchOptions};
use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::watch;
use watchcore::{Position, Writer};

/// A query of etcd's compacted revision, as of one moment of the cache.
struct CompactionQuery {
    /// The history that the query is about. The answer says nothing of another history.
    epoch: u64,
    /// The oldest state that the cache can still show.
    revision: u64,
}

impl CompactionQuery {
    /// A query for the cache as it is now; `None` if the cache has nothing that etcd could have compacted.
    fn now(writer: &Writer) -> Option<CompactionQuery> {
        let revision = writer.oldest().saturating_sub(1);
        (writer.is_loaded() && revision > 0).then(|| CompactionQuery { epoch: writer.position().epoch, revision })
    }

    /// Asks for etcd's compacted revision; `None` if it is not above the cache's oldest state.
    async fn ask(&self, reader: &Reader, range: &KeyRange) -> Result<Option<u64>, Failure> {
        let options = GetOptions::new().with_revision(self.revision as i64).with_count_only();
        match reader.get(&range.start, options).await {
            Err(Failure { class: Class::Compacted(_), .. }) => {
                compacted_at(reader, range, self.revision).await.map(Some)
            }
            other => other.map(|_| None),
        }
    }

    /// Compacts the cache to etcd's compacted revision, unless the cache's history was replaced since.
    fn answered(&self, writer: &mut Writer, compacted: u64) {
        let position = writer.position();
        if position.epoch != self.epoch {
            return;
        }
        let revision = compacted.min(position.revision);
        match writer.compact(revision) {
            Ok(()) => log!(debug, revision, "etcd was compacted, and so was the cache"),
            // The cache was closed meanwhile.
            Err(error) => log!(debug, revision, %error, "the cache was not compacted"),
        }
    }
}

/// etcd's compacted revision, where a read at `revision` was refused because it lies below.
pub(super) async fn compacted_at(reader: &Reader, range: &KeyRange, revision: u64) -> Result<u64, Failure> {
    let options = WatchOptions::new().with_range(range.end.clone()).with_start_revision(revision as i64);
    let mut stream = reader.watch(&range.start, options).await?;
    loop {
        let message = super::connect::within("the watch", reader.timeout(), stream.message()).await?;
        let Some(message) = message else { return Err(Failure::new(Class::Retry, "etcd ended the watch")) };
        reader.cluster().header(message.0.header.as_ref())?;
        match u64::try_from(message.compact_revision()) {
            Ok(compacted @ 1..) => return Ok(compacted),
            _ if message.canceled() => return Err(Failure::of_cancel(0, message.cancel_reason())),
            _ if message.created() => {}
            // etcd was restored in between, and the watch delivers: nothing is compacted.
            _ => return Err(Failure::new(Class::Retry, "etcd is not compacted any more")),
        }
    }
}

/// A requested compaction whose revision the cache has not reached yet. It belongs to the history that the cache had
/// when it was requested: the revisions of another history are unrelated.
#[derive(Default)]
struct RequestedCompaction(Option<Position>);

impl RequestedCompaction {
    /// Handles `asked`, the requests since the last call. The cache is compacted at once up to its present position,
    /// because etcd may no longer have the older revisions; and once more when it has reached the requested revision.
    fn advance(&mut self, writer: &mut Writer, asked: Option<Position>) {
        let now = writer.position();
        let [asked, waits] = [asked, self.0].map(|of| of.filter(|of| of.epoch == now.epoch));
        let Some(wanted) = asked.max(waits) else {
            self.0 = None;
            return;
        };
        let is_reached = writer.is_loaded() && wanted.revision <= now.revision;
        if writer.is_loaded() && (asked.is_some() || is_reached) {
            let revision = wanted.revision.min(now.revision);
            match writer.compact(revision) {
                Ok(()) => log!(debug, revision, wanted = wanted.revision, "the cache was compacted, as requested"),
                // The cache was closed meanwhile.
                Err(error) => log!(debug, revision, %error, "the cache was not compacted"),
            }
        }
        self.0 = Some(wanted).filter(|_| !is_reached);
    }
}

/// Serves requests until dropped.
pub(super) async fn serve(writer: &RefCell<Writer>, shared: &Shared) {
    let mut requested = RequestedCompaction::default();
    loop {
        requested.advance(&mut writer.borrow_mut(), shared.take_compaction());
        shared.compaction_waits.store(requested.0.is_some(), Relaxed);
        shared.compaction.notified().await;
    }
}

/// Queries etcd every interval until dropped. Without a connection it waits for one.
pub(super) async fn follow(writer: &RefCell<Writer>, mut readers: watch::Receiver<Option<Reader>>, config: &Config) {
    let Some(interval) = config.options.follow_compaction else { return std::future::pending().await };
    loop {
        tokio::time::sleep(interval).await;
        let reader = readers.wait_for(Option::is_some).await.ok().and_then(|reader| reader.clone());
        let query = CompactionQuery::now(&writer.borrow());
        let (Some(reader), Some(query)) = (reader, query) else { continue };
        match query.ask(&reader, &config.range).await {
            Ok(Some(compacted)) => query.answered(&mut writer.borrow_mut(), compacted),
            Ok(None) => {}
            Err(failure) => log!(debug, error = %failure.text(), "etcd's compacted revision could not be read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use watchcore::{Cache, Change, ResyncReason};

    fn asked(writer: &Writer, revision: u64) -> Option<Position> {
        Some(Position { revision, ..writer.position() })
    }

    /// A request waits for a revision that is still to come, but not for one of a replaced history.
    #[test]
    fn requested_compaction_waits_for_the_cache() {
        let cache = Cache::builder("/").expect_load(true).build().unwrap();
        let mut writer = cache.writer().unwrap();
        let mut requested = RequestedCompaction::default();
        let ask = asked(&writer, 12);
        requested.advance(&mut writer, ask);
        writer.load(10, []).unwrap();
        requested.advance(&mut writer, None);
        assert!(requested.0.is_some(), "the cache is at 10");
        for revision in 11..=14 {
            writer.apply(revision, [Change::put("/a", "")]).unwrap();
            requested.advance(&mut writer, None);
        }
        assert_eq!((cache.oldest(), requested.0), (13, None), "compacted at 12, and no further");
        let ask = asked(&writer, 14);
        requested.advance(&mut writer, ask);
        let ask = asked(&writer, 5);
        requested.advance(&mut writer, ask);
        assert_eq!(cache.oldest(), 15, "never back");

        let ask = asked(&writer, 20);
        requested.advance(&mut writer, ask);
        writer.resync(3, [], ResyncReason::HistoryReset).unwrap();
        for revision in 4..=21 {
            writer.apply(revision, [Change::put("/b", "")]).unwrap();
            requested.advance(&mut writer, None);
        }
        assert!(cache.oldest() < 20, "20 was a revision of the history before: {}", cache.oldest());
    }

    /// The request is not yet taken when the history is replaced.
    #[test]
    fn request_of_a_replaced_history_is_dropped() {
        let cache = Cache::builder("/").build().unwrap();
        let mut writer = cache.writer().unwrap();
        writer.apply(10, [Change::put("/a", "")]).unwrap();
        let shared = Shared::default();
        let mut requested = RequestedCompaction::default();
        shared.set_epoch(writer.position().epoch);
        shared.request_compaction(20);
        writer.resync(3, [], ResyncReason::HistoryReset).unwrap();
        for revision in 4..=6 {
            writer.apply(revision, [Change::put("/b", "")]).unwrap();
            requested.advance(&mut writer, shared.take_compaction());
        }
        assert!(cache.oldest() < 6 && requested.0.is_none(), "oldest {}, {:?}", cache.oldest(), requested.0);
    }

    /// Compacts once at the request and once at its revision: revisions in between stay in the window.
    #[test]
    fn requested_compaction_compacts_twice() {
        let cache = Cache::builder("/").build().unwrap();
        let mut writer = cache.writer().unwrap();
        writer.apply(10, [Change::put("/a", "")]).unwrap();
        let mut requested = RequestedCompaction::default();
        let ask = asked(&writer, 13);
        requested.advance(&mut writer, ask);
        for revision in 11..=12 {
            writer.apply(revision, [Change::put("/a", "")]).unwrap();
            requested.advance(&mut writer, None);
            assert_eq!(cache.oldest(), 11, "at {revision}");
        }
        writer.apply(13, [Change::put("/a", "")]).unwrap();
        requested.advance(&mut writer, None);
        assert_eq!((cache.oldest(), requested.0), (14, None));
    }
}
