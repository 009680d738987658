//! What publishing costs the writer while subscriptions sleep: run by scripts/callgrind.sh, which
//! counts the instructions of `publish`.
//!
//! Usage: armed SUBSCRIPTIONS EVENTS [indexed]. Each subscription has a filter of its own that never
//! matches; `indexed`: the cache has an index by key, and each subscription its bucket.
use watchcore::{Cache, Change, Index, Result, Start, Subscription, WakeSet, Writer};

/// The part that is counted.
#[inline(never)]
fn count_this(writer: &mut Writer, keys: &[String], from: u64, events: u64) -> Result<()> {
    publish(writer, keys, from, events)
}

fn publish(writer: &mut Writer, keys: &[String], from: u64, events: u64) -> Result<()> {
    for revision in from..from + events {
        writer.apply(revision, [Change::put(&keys[(revision % 64) as usize], "a value of some bytes")])?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let indexed = std::env::args().nth(3).is_some_and(|text| text == "indexed");
    let mut numbers = std::env::args().skip(1).take(2).map(|text| text.parse::<u64>().expect("a number"));
    let (count, events) = (numbers.next().unwrap_or(1), numbers.next().unwrap_or(500));
    let builder = Cache::builder("/");
    let cache = if indexed { builder.index(Index::key()) } else { builder }.build()?;
    let mut writer = cache.writer()?;
    let keys: Vec<String> = (0..64).map(|at| format!("/registry/pods/default/pod-{at}")).collect();
    for (at, key) in keys.iter().enumerate() {
        writer.apply(at as u64 + 1, [Change::put(key, "")])?;
    }
    let set = WakeSet::new()?;
    let mut all = Vec::new();
    for tag in 0..count {
        let mut subscription: Subscription =
            cache.subscribe(Start::Now).key(format!("/registry/never/{tag}")).open()?;
        set.add(&mut subscription, tag)?;
        all.push(subscription);
    }
    // The writer answers some requests for buckets a revision: from here on all are there.
    let mut next = 65;
    while next == 65 || (indexed && cache.stats().buckets < count) {
        publish(&mut writer, &keys, next, 1)?;
        next += 1;
    }
    for subscription in &mut all {
        assert!(subscription.poll(1)?.is_empty() && !subscription.arm()?, "nothing is ready");
    }
    count_this(&mut writer, &keys, next, events)?;
    println!("{events} events with {count} armed subscriptions");
    Ok(())
}
