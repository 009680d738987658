//! The statistics of a subscription.

#![forbid(unsafe_code)]

use super::handle::Subscription;
use crate::cache::ReadPath;

/// The statistics of a subscription.
///
/// ```
/// use watchcore::{Cache, Change, Index, ReadPath, Start};
///
/// let cache = Cache::builder("/").index(Index::key()).build()?;
/// let mut writer = cache.writer()?;
/// let mut one = cache.subscribe(Start::Now).key("/a").open()?;
/// writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")])?;
/// one.poll(10)?;
/// writer.apply(2, [Change::put("/b", "2"), Change::put("/a", "2")])?;
/// one.poll(10)?;
/// assert_eq!(one.stats().read_path, ReadPath::Chain { index: "key".into() });
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SubscriptionStats {
    /// Its present read path.
    pub read_path: ReadPath,
    /// Events that it has looked at.
    pub looked_at: u64,
    /// Events of the log that it passed over without a look: not of its bucket, or in a segment that the summary
    /// excluded.
    pub skipped: u64,
    /// Events and marks that it handed out.
    pub handed_out: u64,
    /// The number of its losses, reported ones and those that [`OnLag::Conflate`](crate::OnLag::Conflate) does not report.
    pub lagged: u64,
    /// Keys that it records as delivered (policies Resnapshot and Conflate).
    pub delivered_keys: u64,
    /// The memory of these keys, in bytes.
    pub delivered_bytes: u64,
}

impl Subscription {
    /// Its statistics, and its present read path.
    pub fn stats(&self) -> SubscriptionStats {
        let read_path = self.index_name().map_or(ReadPath::Scan, |index| ReadPath::Chain { index: index.to_string() });
        let rare = self.state.rare.as_ref();
        let delivered = rare.and_then(|rare| rare.delivered.as_ref());
        SubscriptionStats {
            read_path,
            looked_at: self.state.looked,
            skipped: rare.map_or(0, |rare| rare.path.skipped),
            handed_out: self.shared.handed_out(),
            lagged: self.shared.losses(),
            delivered_keys: delivered.map_or(0, |delivered| delivered.len()),
            delivered_bytes: delivered.map_or(0, |delivered| delivered.bytes()),
        }
    }

    /// The name of the index whose bucket it reads, if it reads one.
    pub(crate) fn index_name(&self) -> Option<&str> {
        let bucket = self.state.rare.as_ref()?.path.answered()?;
        Some(self.shared.inner.indexes.name(bucket.name()))
    }
}
