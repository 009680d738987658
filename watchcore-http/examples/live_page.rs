//! A server over a busy cache, as a demonstration: `cargo run -p watchcore-http --example live_page`, then open
//! <http://127.0.0.1:8080/> in a browser. Another address can be given: `-- 127.0.0.1:0`.
//!
//! The program writes to its cache itself: 2,000 objects, some hundreds of changes per second, and now and then a
//! resync. Three watchers read the changes; one of them is slow, so that it lags.

use std::time::Duration;
use tokio::net::TcpListener;
use watchcore::{Cache, Change, OnLag, Record, ResyncReason, Start, Writer};
use watchcore_http::{Api, Resource};

const OBJECTS: u64 = 2_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".into());
    let orders = Resource::new("shop.example", "v1", "orders", "Order").prefix("/shop/orders/");
    let cache = Cache::builder("/shop/").name("shop").capacity(8192);
    let cache = Resource::declare(cache, [&orders])?.build()?;
    let mut writer = cache.writer()?;
    let keys: Vec<String> = (0..OBJECTS).map(|number| format!("/shop/orders/{number:04}")).collect();
    for (revision, key) in (1..).zip(&keys) {
        writer.apply(revision, [Change::put(key, &value(revision))])?;
    }
    for (name, pause) in [("orders report", 20), ("<script>alert(1)</script>", 50), ("slow archive", 3_000)] {
        tokio::spawn(read(cache.clone(), name, Duration::from_millis(pause)));
    }
    tokio::spawn(write(writer, keys));
    let api = Api::builder().cache(cache).resource(orders).build()?;
    let listener = TcpListener::bind(address).await?;
    println!("http://{}/", listener.local_addr()?);
    axum::serve(listener, api.router()).await?;
    Ok(())
}

fn value(revision: u64) -> String {
    format!(r#"{{"state":"open","amount":{}}}"#, revision * 7 % 1000)
}

/// Changes objects, in batches of up to eight, for ever.
async fn write(mut writer: Writer, keys: Vec<String>) {
    let mut revision = OBJECTS;
    loop {
        tokio::time::sleep(Duration::from_millis(10)).await;
        revision += 1;
        let value = value(revision);
        let at = revision as usize * 13 % keys.len();
        let changed = keys[at..].iter().take(1 + revision as usize % 8);
        if writer.apply(revision, changed.map(|key| Change::put(key, &value))).is_err() {
            return;
        }
        if revision.is_multiple_of(1_000) && resync(&mut writer, &keys, revision + 1).is_ok() {
            revision += 1;
        }
    }
}

/// Replaces the whole state, as a source does that lost its position.
fn resync(writer: &mut Writer, keys: &[String], revision: u64) -> watchcore::Result<()> {
    let value = value(revision);
    let records = keys.iter().map(|key| Record {
        key: key.as_bytes(),
        value: value.as_bytes(),
        create_revision: revision,
        mod_revision: revision,
        version: 1,
        lease: 0,
    });
    writer.resync(revision, records, ResyncReason::TooFarBehind)?;
    Ok(())
}

/// Reads changes, a batch at a time.
async fn read(cache: Cache, name: &'static str, pause: Duration) {
    let opened = cache.subscribe(Start::State).name(name).on_lag(OnLag::SkipToOldest).open();
    let Ok(mut subscription) = opened else { return };
    while let Ok(waited) = subscription.wait_async(Duration::from_secs(1)).await {
        if waited {
            // A loss is reported once as an error; reading then continues after it.
            let _ = subscription.poll(512);
        }
        tokio::time::sleep(pause).await;
    }
}
