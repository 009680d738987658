//! Polls one published event at a time: for counting instructions under callgrind.

use watchcore::{Cache, Change, Start};

fn main() -> watchcore::Result<()> {
    let max: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1);
    let cache = Cache::builder("/").build()?;
    let mut writer = cache.writer()?;
    for revision in 1..=8192 {
        writer.apply(revision, [Change::put("/registry/pods/default/one", "v")])?;
    }
    let begin = std::time::Instant::now();
    let mut sum = 0u64;
    for _ in 0..20 {
        let mut subscription = cache.subscribe(Start::After(0)).open()?;
        loop {
            let batch = subscription.poll(max)?;
            if batch.is_empty() {
                break;
            }
            for event in &batch {
                sum = sum.wrapping_add(event.revision() + event.kind() as u64 + event.key().as_ptr() as u64);
            }
        }
    }
    println!("{:.1} ns an event (sum {sum})", begin.elapsed().as_nanos() as f64 / (20.0 * 8192.0));
    Ok(())
}
