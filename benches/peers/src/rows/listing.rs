//! Rows about the first listing from etcd: they join with the feature `etcd`, where
//! `WATCHCORE_TEST_ENDPOINT` names one.

use super::Contestant;
use crate::measure::{Measured, allocated, process_time};
use etcd_client::{Client, GetOptions, Txn, TxnOp};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use watchcore::Cache;
use watchcore_etcd::Feeder;

pub const CONTESTANTS: &[Contestant] = &[
    Contestant::new("listing", "watchcore", "a feeder, until the cache is ready", |objects| feeder(objects).0)
        .prepared(fill),
    Contestant::new("listing", "etcd-client, one read", BARE, |objects| bare(objects, 0)).prepared(fill),
    Contestant::new("listing", "etcd-client, pages", BARE_PAGES, |objects| bare(objects, 100_000)).prepared(fill),
    Contestant::new("listing", "etcd-client, stream", BARE, bare_stream).prepared(fill),
    Contestant::new("listing-memory", "watchcore", "", |objects| feeder(objects).1).prepared(fill),
];

const BARE: &str = "nothing is checked or kept";
const BARE_PAGES: &str = "of 100,000 objects; nothing is checked or kept";

/// The endpoint, where there is one.
pub fn endpoint() -> Option<String> {
    std::env::var("WATCHCORE_TEST_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty())
}

const VALUE: [u8; 380] = [b'v'; 380];
/// Above any message of these listings.
const MESSAGE_LIMIT: usize = 2 << 30;

/// Each size has a prefix of its own.
fn prefix(objects: usize) -> String {
    format!("/peers/{objects}/")
}

fn run<T>(work: impl AsyncFnOnce(Client) -> Result<T, etcd_client::Error>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let done = runtime.block_on(async {
        let endpoint = endpoint().expect("WATCHCORE_TEST_ENDPOINT names an etcd");
        work(Client::connect([endpoint], None).await?).await
    });
    done.expect("etcd answers")
}

/// Writes what is not there yet of so many objects, and reads all of them once.
pub fn fill(objects: usize) {
    /// Puts of a transaction (etcd's limit is 128), and transactions that are under way at once.
    const PUTS: usize = 100;
    const LANES: usize = 16;
    run(async |mut client| {
        let count = GetOptions::new().with_prefix().with_count_only();
        if client.get(prefix(objects), Some(count)).await?.count() as usize >= objects {
            return Ok(());
        }
        let mut lanes = JoinSet::new();
        for lane in 0..LANES {
            let mut client = client.clone();
            lanes.spawn(async move {
                for first in (lane * PUTS..objects).step_by(LANES * PUTS) {
                    let put = |number| TxnOp::put(format!("{}{number:09}", prefix(objects)), VALUE, None);
                    let puts: Vec<TxnOp> = (first..objects.min(first + PUTS)).map(put).collect();
                    client.txn(Txn::new().and_then(puts)).await?;
                }
                Ok::<(), etcd_client::Error>(())
            });
        }
        while let Some(lane) = lanes.join_next().await {
            lane.expect("no panic")?;
        }
        // etcd still writes what it has confirmed, and has read nothing yet: the contestant that comes first would pay for that.
        let all = GetOptions::new().with_prefix();
        client.kv_client().max_decoding_message_size(MESSAGE_LIMIT).get(prefix(objects), Some(all)).await?;
        Ok(())
    });
}

/// The time of a listing by the clock on the wall, and the processor time of this process beside it.
fn timed(objects: usize, listing: impl FnOnce() -> usize) -> Measured {
    let (begun, before) = (Instant::now(), process_time());
    assert_eq!(listing(), objects, "all objects");
    let wall = begun.elapsed().as_nanos() as f64;
    let cpu = (process_time() - before).as_nanos() as f64;
    Measured::with_beside(wall, cpu, 1)
}

/// Reads everything at one revision, in pages of so many objects (0: in one).
fn bare(objects: usize, page: i64) -> Measured {
    let client_and_all = async |client: Client| {
        let mut kv = client.kv_client().max_decoding_message_size(MESSAGE_LIMIT);
        let (mut from, end) = (prefix(objects).into_bytes(), crate::load::end_of(&prefix(objects)));
        let (mut count, mut revision) = (0, 0);
        loop {
            let options = GetOptions::new().with_range(end.clone()).with_limit(page).with_revision(revision);
            let answer = kv.get(from, Some(options)).await?;
            revision = answer.header().map_or(0, |header| header.revision());
            count += answer.kvs().len();
            match answer.kvs().last() {
                Some(last) if answer.more() => from = [last.key(), &[0]].concat(),
                _ => return Ok(count),
            }
        }
    };
    timed(objects, || run(client_and_all))
}

/// Reads everything in one stream, at the revision of a read before it.
fn bare_stream(objects: usize) -> Measured {
    let client_and_all = async |client: Client| {
        let mut kv = client.kv_client();
        let (from, end) = (prefix(objects), crate::load::end_of(&prefix(objects)));
        let pinned = kv.get(from.as_bytes(), None).await?.header().map_or(0, |header| header.revision());
        let options = GetOptions::new().with_range(end).with_revision(pinned);
        let mut stream = kv.get_stream(from, Some(options)).await?;
        let mut count = 0;
        while let Some(message) = stream.message().await? {
            count += message.kvs().len();
        }
        Ok(count)
    };
    timed(objects, || run(client_and_all))
}

/// A field of /proc/self/status, in bytes.
fn memory(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the process has a status");
    let line = status.lines().find(|line| line.starts_with(name)).expect("it says how much memory it has");
    let kib = line.split_whitespace().nth(1).and_then(|word| word.parse::<f64>().ok());
    kib.expect("a number") * 1024.0
}

/// Waits until the feeder's thread, too, has freed what the listing took: two looks see the same.
fn settled() {
    let mut seen = usize::MAX;
    loop {
        assert!(watchcore::raw::quiesce(Duration::from_secs(30)), "everything is freed");
        let now = allocated();
        if now.abs_diff(seen) < now / 1000 {
            return;
        }
        seen = now;
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// The time, and the peak of resident memory against what the allocator has handed out for the finished cache.
/// (Resident memory does not fall to that: what is freed lies between what stays.)
fn feeder(objects: usize) -> (Measured, Measured) {
    let (resident, before) = (memory("VmRSS"), allocated() as f64);
    let cache = Cache::builder(prefix(objects)).build().expect("a cache");
    let endpoint = endpoint().expect("WATCHCORE_TEST_ENDPOINT names an etcd");
    let time = timed(objects, || {
        let feeder = Feeder::new([endpoint]).start(cache.writer().expect("is free")).expect("starts");
        cache.wait_ready(Duration::from_secs(300)).expect("lists");
        // It follows until the process ends.
        std::mem::forget(feeder);
        cache.status().objects as usize
    });
    let peak = memory("VmHWM") - resident;
    settled();
    let finished = allocated() as f64 - before;
    (time, Measured::plain(peak / finished, 1))
}
