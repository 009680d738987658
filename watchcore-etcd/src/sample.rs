//! Reads a sample of the cache again after a reconnect: the newest key, the oldest one, and some at random, with
//! their values, and the number of all keys.
//!
//! The history check reads only the item that was applied last. An etcd that was wiped and filled again by the same
//! script has that item at the same revision, but may have other values elsewhere. A sample costs one round of small
//! reads and usually finds such a history at once; the audit (`audit`) finds what the sample misses.

use super::compare::{Difference, Rule, first_difference};
use super::connect::Reader;
use super::counters::{Counts, add, increment};
use super::failure::{Class, Failure};
use super::history::HistoryCheck;
use super::range::KeyRange;
use crate::log::log;
use etcd_client::GetOptions;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use watchcore::{KeyValueRef, Snapshot};

/// The number of keys drawn at random.
const DRAWN: usize = 14;
/// Longer key-values are not drawn, so that a sample stays below 1 MiB.
const LONGEST_DRAWN: usize = 64 << 10;
/// The walk lets the thread's other futures run after each this many keys.
const WALKED_AT_ONCE: usize = 10_000;

/// Keys to read again, and how many keys there are.
struct Sample<'a> {
    keys: Vec<KeyValueRef<'a>>,
    count: u64,
}

/// Draws a sample in one walk over the keys.
async fn draw(snapshot: &Snapshot) -> Sample<'_> {
    let (mut newest, mut oldest): (Option<KeyValueRef<'_>>, Option<KeyValueRef<'_>>) = (None, None);
    let (mut drawn, mut candidates, mut count) = (Vec::with_capacity(DRAWN), 0, 0);
    for kv in snapshot.iter() {
        count += 1;
        if newest.is_none_or(|newest| newest.mod_revision() < kv.mod_revision()) {
            newest = Some(kv);
        }
        if oldest.is_none_or(|oldest| oldest.mod_revision() > kv.mod_revision()) {
            oldest = Some(kv);
        }
        // Reservoir sampling: each candidate so far is drawn with the same probability.
        if kv.key().len() + kv.value().map_or(0, <[u8]>::len) <= LONGEST_DRAWN {
            candidates += 1;
            match fastrand::usize(..candidates) {
                _ if drawn.len() < DRAWN => drawn.push(kv),
                index if index < DRAWN => drawn[index] = kv,
                _ => {}
            }
        }
        if count % WALKED_AT_ONCE == 0 {
            tokio::task::yield_now().await;
        }
    }
    drawn.extend(newest.into_iter().chain(oldest));
    drawn.sort_unstable_by(|a, b| a.key().cmp(b.key()));
    drawn.dedup_by(|a, b| a.key() == b.key());
    Sample { keys: drawn, count: count as u64 }
}

/// Reads a sample of the cache's state again, at its own revision.
pub(super) async fn check(
    reader: &Reader,
    range: &KeyRange,
    snapshot: &Snapshot,
    counts: &Counts,
) -> Result<HistoryCheck, Failure> {
    let sample = draw(snapshot).await;
    let at = snapshot.revision();
    let options = GetOptions::new().with_revision(at as i64);
    let mut reads: Vec<SampleRead<'_, Result<Answer, Failure>>> = Vec::new();
    let all = options.clone().with_range(range.end.clone()).with_count_only();
    reads.push(Box::pin(async { Ok(Answer::Count(reader.get(&range.start, all).await?.count().max(0) as u64)) }));
    for kv in &sample.keys {
        let options = options.clone();
        reads.push(Box::pin(async move {
            let stored = reader.get(kv.key(), options).await?.take_kvs().into_iter().next();
            Ok(Answer::Key(first_difference([*kv], stored.iter(), Rule::Same)))
        }));
    }
    add(&counts.sampled_keys, sample.keys.len() as u64);
    for answer in joined(reads).await {
        match answer {
            Ok(Answer::Count(count)) if count != sample.count => {
                log!(warn, at, cache = sample.count, etcd = count, "etcd has another number of keys at that revision");
            }
            Ok(Answer::Key(Some(difference))) => log!(warn, at, "etcd does not hold what the cache has: {difference}"),
            Ok(Answer::Count(_) | Answer::Key(None)) => continue,
            Err(Failure { class: Class::Compacted(_), .. }) => return Ok(HistoryCheck::Compacted),
            Err(Failure { class: Class::Future, .. }) => {}
            Err(failure) => return Err(failure),
        }
        increment(&counts.differences);
        return Ok(HistoryCheck::Other);
    }
    Ok(HistoryCheck::Same)
}

/// The result of one read of a sample.
enum Answer {
    Count(u64),
    Key(Option<Difference>),
}

/// A read in progress.
type SampleRead<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Runs all reads concurrently and returns their answers once the last one is there.
async fn joined<T>(mut reads: Vec<SampleRead<'_, T>>) -> Vec<T> {
    let mut answers: Vec<Option<T>> = reads.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (read, answer) in reads.iter_mut().zip(&mut answers).filter(|(_, answer)| answer.is_none()) {
            if let Poll::Ready(came) = read.as_mut().poll(context) {
                *answer = Some(came);
            }
        }
        if answers.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use watchcore::{Cache, Change};

    fn drawn(writer: &watchcore::Writer) -> (Vec<Vec<u8>>, u64) {
        let snapshot = writer.snapshot().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let sample = runtime.block_on(draw(&snapshot));
        (sample.keys.iter().map(|kv| kv.key().to_vec()).collect(), sample.count)
    }

    #[test]
    fn sample_has_newest_and_oldest() {
        let cache = Cache::builder("/").build().unwrap();
        let mut writer = cache.writer().unwrap();
        assert_eq!(drawn(&writer), (Vec::new(), 0));
        let long = vec![b'v'; LONGEST_DRAWN + 1];
        writer.apply(1, [Change::put("/m/oldest", &long)]).unwrap();
        assert_eq!(drawn(&writer), (vec![b"/m/oldest".to_vec()], 1));
        for number in 2..500 {
            writer.apply(number, [Change::put(&format!("/k/{number}"), "v")]).unwrap();
        }
        writer.apply(500, [Change::put("/a/newest", &long)]).unwrap();
        let (keys, count) = drawn(&writer);
        assert_eq!((keys.len(), count), (DRAWN + 2, 500));
        assert!(keys.contains(&b"/a/newest".to_vec()) && keys.contains(&b"/m/oldest".to_vec()));
        assert!((0..20).any(|_| drawn(&writer).0 != keys), "the others are drawn at random");
    }
}
