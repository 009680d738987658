//! A mirror of one prefix of etcd as a stranger writes it: prints what there is and what follows, up to `/app/end`.
use std::time::Duration;
use watchcore::{Cache, Read, Result, Start};
use watchcore_etcd::Feeder;

fn main() -> Result<()> {
    let endpoint = std::env::args().nth(1).expect("an endpoint");
    let cache = Cache::builder("/app/").build()?;
    let feeder = Feeder::new([endpoint]).start(cache.writer()?)?;
    cache.wait_ready(Duration::from_secs(60))?;
    let mut events = cache.subscribe(Start::State).open()?;
    println!("following");
    'follow: while let Some(batch) = events.next_batch()? {
        for event in &batch {
            let (key, value) = (String::from_utf8_lossy(event.key()), event.value().map(String::from_utf8_lossy));
            println!("{} {key} {}", event.kind(), value.unwrap_or_default());
            if key == "/app/end" {
                break 'follow;
            }
        }
    }
    let newest = cache.consistent_revision(Duration::from_secs(60))?;
    let answer = cache.get("/app/a", Read::AtLeast(newest))?;
    println!("a is {}", if answer.kv.is_some() { "there" } else { "gone" });
    feeder.stop();
    println!("stopped");
    Ok(())
}
