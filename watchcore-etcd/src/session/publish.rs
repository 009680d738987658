//! A session's listing: it is read, compared with the cache, and published.

use super::{NextStep, Session};
use crate::compaction::compacted_at;
use crate::config::Config;
use crate::connect::Reader;
use crate::failure::{Class, Failure};
use crate::health::silence;
use crate::integrity;
use crate::list::{BufferedPages, Listing, LoadedPages, PageSink, list};
use crate::log::log;
use crate::resume::Resume;
use crate::server_text;
use crate::shared::Shared;
use std::cell::RefCell;
use std::convert::Infallible;
use std::time::Instant;
use watchcore::{Code, Error, ResyncReason, SourceState, Writer};

/// How often one session looks again for the oldest revision of a history.
const HISTORY_TRIES: u32 = 3;

impl Session<'_> {
    /// Lists the range and publishes the result: as the first listing, or as the difference to the cache.
    pub(super) async fn list(&mut self, reader: &Reader, step: NextStep, url: &str) -> Result<(), Failure> {
        self.shared.take_resync();
        self.shared.take_reset();
        let asked = self.config.options.start_revision.filter(|_| step == NextStep::Load);
        let mut at = asked;
        let started = Instant::now();
        let listing = match step {
            NextStep::Resync(wanted) => {
                let mut pages = BufferedPages::default();
                let listing = self.read(reader, at, url, &mut pages).await?;
                self.resync(&listing, &pages, wanted)?;
                listing
            }
            NextStep::Load | NextStep::Watch => {
                let mut pages = LoadedPages::new(self.writer);
                let has_history = self.config.options.history > 0 && !self.config.options.stop_after_listing;
                let listing = if at.is_none() && has_history {
                    let (listing, from) = self.read_history(reader, url, &mut pages).await?;
                    at = from;
                    listing
                } else {
                    self.read(reader, at, url, &mut pages).await?
                };
                // A user who asked for a start revision wants to see the state there. A replayed history only serves
                // watches that resume in it: reads must not be taken back to its beginning.
                pages.publish(asked.is_some() || listing.revision >= listing.header.revision)?;
                listing
            }
        };
        let elapsed = started.elapsed();
        if self.retries.is_unstable() {
            log!(debug, endpoint = url, revision = listing.revision, keys = listing.count, ?elapsed, "listed again");
        } else {
            log!(info, endpoint = url, revision = listing.revision, keys = listing.count, ?elapsed, "listed");
        }
        self.pending_resync = None;
        self.shared.set_epoch(self.writer.borrow().position().epoch);
        self.resume = Some(Resume::listed(&listing, at.is_some(), self.resume.as_ref()));
        self.caught_up();
        self.reporter.listed(listing.header.revision.max(listing.revision));
        self.shared.moved();
        Ok(())
    }

    /// Reads a listing `history` revisions below the newest or, if etcd is compacted above that, at the oldest
    /// revision that etcd still has. Returns the listed revision too, unless it is the newest.
    async fn read_history(
        &mut self,
        reader: &Reader,
        url: &str,
        sink: &mut impl PageSink,
    ) -> Result<(Listing, Option<u64>), Failure> {
        let newest = reader.pin(&self.config.range).await?.revision;
        let mut at = Some(newest.saturating_sub(self.config.options.history).max(1)).filter(|at| *at < newest);
        let mut tries = 0;
        loop {
            match self.read(reader, at, url, sink).await {
                Ok(listing) => return Ok((listing, at)),
                // Each try begins at a higher revision, and the newest one is never compacted.
                Err(Failure { class: Class::Compacted(kept), .. }) if at.is_some() => {
                    tries += 1;
                    if tries > HISTORY_TRIES {
                        return Err(Failure::new(Class::Retry, "etcd compacts faster than the history can be listed"));
                    }
                    if at >= Some(kept) {
                        let text = "etcd does not say how far it is compacted, so the history cannot begin there";
                        return Err(Failure::new(Class::Retry, text));
                    }
                    at = Some(kept);
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Reads a listing at the revision `at`, or at the newest.
    async fn read(
        &mut self,
        reader: &Reader,
        at: Option<u64>,
        url: &str,
        sink: &mut impl PageSink,
    ) -> Result<Listing, Failure> {
        let page_size = self.config.options.page_size.unwrap_or(i64::MAX);
        match list(reader, &self.config.range, at, page_size, &self.shared.counts, sink).await {
            Ok(listing) => {
                self.reporter.listing(&listing.header);
                Ok(listing)
            }
            Err(failure) => {
                let failure = self.of_listing(reader, failure, at, url).await;
                // The refusal does not say how far etcd is, but the user who waits for the start revision wants to
                // know.
                if failure.class == Class::Future
                    && let Ok(newest) = reader.pin(&self.config.range).await
                {
                    self.reporter.record_newest(newest.revision);
                }
                Err(failure)
            }
        }
    }

    /// Publishes the difference between the cache and a listing. If the listing proves another history, the reason is
    /// `HistoryReset` instead of `wanted`.
    fn resync(&mut self, listing: &Listing, pages: &BufferedPages, wanted: ResyncReason) -> Result<(), Failure> {
        // With these reasons the evidence is gone, or the revisions between it and the point are unknown, so the
        // listing itself has to show whether the history is the same. With other reasons the cache itself may lack
        // what etcd had.
        let is_open = matches!(wanted, ResyncReason::Compacted | ResyncReason::TooFarBehind);
        let is_reset = self
            .resume
            .as_ref()
            .is_some_and(|old| old.is_refuted_by(listing) || is_open && !self.continues(pages, old.point()));
        let reason = if is_reset { ResyncReason::HistoryReset } else { wanted };
        let before = self.writer.borrow().position();
        // Counted before it is visible, so that a reader who sees the marks finds it counted.
        self.shared.counts.resynced(reason);
        let done = self.writer.borrow_mut().resync(listing.revision, pages.records(), reason);
        let is_published = done.as_ref().is_ok_and(|now| now.epoch != before.epoch);
        if !is_published {
            self.shared.counts.no_resync(reason);
        }
        done.map_err(|error| Failure::refused(&error))?;
        if is_published {
            let (from, to) = (before.revision, listing.revision);
            if self.retries.is_unstable() {
                log!(debug, reason = reason.name(), from, to, keys = listing.count, "resync again");
            } else {
                log!(warn, reason = reason.name(), from, to, keys = listing.count, "resync");
            }
        }
        if reason != ResyncReason::Requested {
            self.retries.setback();
        }
        Ok(())
    }

    /// Whether a listing can have followed from the state at `point`. A restored backup whose revisions were raised
    /// is recognized by keys that went back.
    fn continues(&self, pages: &BufferedPages, point: u64) -> bool {
        let writer = self.writer.borrow();
        let other =
            pages.records().find(|record| !integrity::continues(record, writer.get(record.key).as_deref(), point));
        let Some(record) = other else { return true };
        log!(
            warn,
            key = server_text::key(record.key),
            modified = record.mod_revision,
            applied = point,
            "a key does not follow from what was applied, so etcd has another history"
        );
        false
    }

    /// Explains the failures of a listing at a start revision, which only the user can correct.
    async fn of_listing(&self, reader: &Reader, failure: Failure, at: Option<u64>, url: &str) -> Failure {
        let Some(at) = at else { return failure };
        let asked = format!("the feeder was asked to begin at revision {at}, which etcd {url} has");
        match failure.class {
            Class::Compacted(_) => match compacted_at(reader, &self.config.range, at).await {
                Ok(kept) => Failure::new(
                    Class::Compacted(kept),
                    format!(
                        "{asked} compacted; it holds the state at {kept} and all changes after it. Begin at {kept} or later"
                    ),
                ),
                Err(_) => Failure::new(
                    Class::Compacted(0),
                    format!("{asked} compacted. Begin at a later revision, or without one"),
                ),
            },
            Class::Future => {
                Failure::new(Class::Future, format!("{asked} not reached. Wait for it, or begin without a revision"))
            }
            _ => failure,
        }
    }
}

/// Runs beside a listing: if that takes longer than a watch may be silent, the cache is Stale meanwhile. The end of
/// the listing sets the state anew.
pub(super) async fn stale_after_silence(
    writer: &RefCell<Writer>,
    shared: &Shared,
    config: &Config,
    url: &str,
) -> Infallible {
    tokio::time::sleep(silence(&config.options)).await;
    let text = format!("etcd {url} is being listed again, and what is there is of before the listing.");
    let error = Error::new(Code::Unavailable, text);
    if writer.borrow().is_loaded() && shared.last_error().is_none() {
        shared.set_error(Some(error.clone()));
        writer.borrow_mut().set_state(SourceState::Stale(error));
    }
    std::future::pending().await
}
