//! Two subscriptions as streams in tasks of a runtime, as axum or tonic take them: `Send`, `'static`, without a
//! thread of their own; and a wait beside them that stops nobody.
use tokio_stream::{StreamExt, StreamMap};
use watchcore::{Cache, Change, Read, Result, Start};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let cache = Cache::builder("/").build()?;
    let mut streams = StreamMap::new();
    for kind in ["cats", "dogs"] {
        streams.insert(kind, cache.subscribe(Start::State).prefix(format!("/{kind}/")).open()?);
    }
    let follower = tokio::spawn(async move {
        let mut seen = [0, 0];
        while let Some((kind, batch)) = streams.next().await {
            let events = batch?.events().iter().filter(|event| !event.key().is_empty()).count();
            seen[usize::from(kind == "dogs")] += events;
        }
        Ok(seen)
    });
    let reader = {
        let cache = cache.clone();
        // The only thread writes while this one waits for what it writes.
        tokio::spawn(async move { cache.get_async("/cats/9", Read::AtLeast(300)).await })
    };
    let mut writer = cache.writer()?;
    for revision in 1..=300u64 {
        let kind = if revision % 3 == 0 { "dogs" } else { "cats" };
        writer.apply(revision, [Change::put(&format!("/{kind}/{}", revision % 10), "")])?;
        if revision % 50 == 0 {
            tokio::task::yield_now().await;
        }
    }
    println!("read at {}", reader.await.expect("no panic")?.revision);
    cache.close();
    let seen: Result<[usize; 2]> = follower.await.expect("no panic");
    println!("cats {}, dogs {}", seen.as_ref().map_or(0, |seen| seen[0]), seen.as_ref().map_or(0, |seen| seen[1]));
    Ok(())
}
