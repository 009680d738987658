//! An inventory service as a stranger writes it: one thread writes, two follow, one of them by a label,
//! and a request is answered at the revision that its client has seen.
use std::thread;
use std::time::Duration;
use watchcore::{Attribute, Cache, Change, Index, Kind, Labels, Range, Read, Result, Start, Subscription};

const LAST: u64 = 100;

/// What a follower has seen when it meets the key `/items/end`.
fn follow(mut items: Subscription) -> Result<(usize, usize)> {
    let (mut live, mut deleted) = (0, 0);
    while let Some(batch) = items.next_batch()? {
        for event in &batch {
            match event.kind() {
                Kind::Added => live += 1,
                Kind::Deleted => (live, deleted) = (live - 1, deleted + 1),
                _ => {}
            }
            if event.key() == b"/items/end" {
                return Ok((live, deleted));
            }
        }
    }
    panic!("the end was never seen");
}

fn main() -> Result<()> {
    let cache = Cache::builder("/items/")
        .labels(Labels::json("/labels")?)
        .field(Attribute::json("shelf", "/shelf")?)
        .index(Index::field("shelf"))
        .build()?;
    let all = cache.subscribe(Start::State).open()?;
    let red = cache.subscribe(Start::State).labels("colour in (red, all)")?.open()?;
    let readers = [all, red].map(|subscription| thread::spawn(move || follow(subscription)));

    let mut writer = cache.writer()?;
    let client = {
        let cache = cache.clone();
        thread::spawn(move || {
            cache.wait_until(LAST, Duration::from_secs(60))?;
            cache.get("/items/1", Read::Exact(LAST))
        })
    };
    for revision in 1..=LAST {
        let colour = if revision % 2 == 0 { "red" } else { "blue" };
        let key = format!("/items/{revision}");
        let item = format!(r#"{{"labels":{{"colour":"{colour}"}},"shelf":"{}"}}"#, revision % 10);
        writer.apply(revision, [Change::put(&key, &item)])?;
    }
    writer.apply(LAST + 1, [Change::delete("/items/1"), Change::delete("/items/2")])?;
    writer.apply(LAST + 2, [Change::put("/items/end", r#"{"labels":{"colour":"all"}}"#)])?;

    let seen = readers.map(|reader| reader.join().expect("no panic"));
    for (name, seen) in ["all", "red"].into_iter().zip(seen) {
        let (live, deleted) = seen?;
        println!("{name}: {live} items, {deleted} deleted");
    }
    let answer = client.join().expect("no panic")?;
    println!("item 1 at revision {LAST}: {}", if answer.kv.is_some() { "there" } else { "gone" });
    let page = cache.list(&Range::prefix("/items/1"), Read::Any, 5)?;
    println!("a page of {}, {} keys in all", page.items().len(), cache.stats().objects);
    Ok(())
}
