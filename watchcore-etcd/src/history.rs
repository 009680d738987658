//! The history check: whether etcd, after a reconnect, still has the history that was applied.
//!
//! A restored backup keeps cluster id, member id and term, and may have grown past the cache's revision before the
//! feeder looks. So the evidence, the newest applied item, is read again at its own revision.

use super::connect::Reader;
use super::failure::{Class, Failure};
use super::integrity::Live;
use super::range::KeyRange;
use super::resume::{Evidence, Held};
use etcd_client::GetOptions;
use etcd_client::proto::PbKeyValue;

/// Above this many keys, only the newest key and the count prove a listing: the server would have to walk through all
/// values to find those changed later.
const WALKED_KEYS: u64 = 50_000;

/// The result of reading the evidence again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HistoryCheck {
    /// etcd still holds the evidence.
    Same,
    /// etcd does not hold the evidence.
    Other,
    /// The evidence's revision is compacted, so it can no longer be checked.
    Compacted,
}

/// Reads the evidence again, at its own revision.
pub(super) async fn check(reader: &Reader, range: &KeyRange, evidence: &Evidence) -> Result<HistoryCheck, Failure> {
    let at = evidence.revision() as i64;
    let answer = match evidence.held() {
        Held::Put(kv) => put_is_there(reader, kv, at).await,
        Held::Deletion { key, before } => deletion_is_there(reader, key, at, *before).await,
        Held::Listing { count, newest } => listing_is_there(reader, range, *count, newest.as_ref(), at).await,
    };
    match answer {
        Ok(true) => Ok(HistoryCheck::Same),
        Ok(false) => Ok(HistoryCheck::Other),
        Err(Failure { class: Class::Compacted(_), .. }) => Ok(HistoryCheck::Compacted),
        Err(Failure { class: Class::Future, .. }) => Ok(HistoryCheck::Other),
        Err(failure) => Err(failure),
    }
}

async fn value_at(reader: &Reader, key: &[u8], revision: i64) -> Result<Option<PbKeyValue>, Failure> {
    let mut response = reader.get(key, GetOptions::new().with_revision(revision)).await?;
    Ok(response.take_kvs().into_iter().next().map(|kv| kv.0))
}

async fn put_is_there(reader: &Reader, kv: &PbKeyValue, at: i64) -> Result<bool, Failure> {
    let held = value_at(reader, &kv.key, at).await?;
    Ok(held.is_some_and(|held| {
        (held.create_revision, held.mod_revision, held.version) == (kv.create_revision, kv.mod_revision, kv.version)
            && held.value == kv.value
    }))
}

async fn deletion_is_there(reader: &Reader, key: &[u8], at: i64, before: Live) -> Result<bool, Failure> {
    if value_at(reader, key, at).await?.is_some() {
        return Ok(false);
    }
    let held = value_at(reader, key, at - 1).await?;
    Ok(held.is_some_and(|held| Live::of(&held) == before))
}

/// Whether the newest key is the same, no key of the range changed after it, and the count is the same: then the
/// state at `at` is the listed one, whatever happened since.
async fn listing_is_there(
    reader: &Reader,
    range: &KeyRange,
    count: u64,
    newest: Option<&PbKeyValue>,
    at: i64,
) -> Result<bool, Failure> {
    let all = GetOptions::new().with_range(range.end.clone()).with_revision(at);
    let response = reader.get(&range.start, all.clone().with_count_only()).await?;
    if response.count() as u64 != count {
        return Ok(false);
    }
    let Some(newest) = newest else { return Ok(true) };
    if !put_is_there(reader, newest, at).await? {
        return Ok(false);
    }
    if count > WALKED_KEYS {
        return Ok(true);
    }
    let later = all.with_min_mod_revision(newest.mod_revision + 1).with_limit(1).with_keys_only();
    Ok(reader.get(&range.start, later).await?.kvs().is_empty())
}
