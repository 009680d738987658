//! What publishing costs the writer while subscriptions sleep: run by scripts/callgrind.sh, which
//! counts the instructions of `publish`.
//!
//! Usage: armed SUBSCRIPTIONS EVENTS. Each subscription has a filter of its own that never matches.
use watchcore::{Cache, Change, Result, Start, Subscription, WakeSet, Writer};

/// The part that is counted.
#[inline(never)]
fn publish(writer: &mut Writer, keys: &[String], from: u64, events: u64) -> Result<()> {
    for revision in from..from + events {
        writer.apply(revision, [Change::put(&keys[(revision % 64) as usize], "a value of some bytes")])?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let (count, events) = (numbers.next().unwrap_or(1), numbers.next().unwrap_or(500));
    let cache = Cache::builder("/").build()?;
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
        assert!(!subscription.arm()?, "nothing is ready");
        all.push(subscription);
    }
    publish(&mut writer, &keys, 65, events)?;
    println!("{events} events with {count} armed subscriptions");
    Ok(())
}
