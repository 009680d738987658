//! What the benches share: keys as API servers have them (37 bytes), values of 512 bytes.

use watchcore::{Cache, Change, Subscription, Writer};

/// The value of every object.
pub const VALUE: [u8; 512] = [b'v'; 512];

/// The key with that number.
pub fn key(number: usize) -> String {
    format!("/registry/pods/namespace-{:04}/p-{number:06}", number % 1000)
}

/// A cache with `count` objects, its writer, and the revision of the last put.
pub fn filled(count: usize) -> (Cache, Writer, u64, Vec<String>) {
    let cache = Cache::builder("/").build().expect("builds");
    let mut writer = cache.writer().expect("is free");
    let keys: Vec<String> = (0..count).map(key).collect();
    let mut revision = 0;
    for chunk in keys.chunks(64) {
        revision += 1;
        writer.apply(revision, chunk.iter().map(|key| Change::put(key, &VALUE))).expect("applies");
    }
    (cache, writer, revision, keys)
}

/// The sum that a consumer makes of every event: revision, type and key pointer.
#[inline]
pub fn drain(subscription: &mut Subscription, max: usize) -> (u64, u64) {
    let (mut sum, mut events) = (0u64, 0);
    loop {
        let batch = subscription.poll(max).expect("polls");
        if batch.is_empty() {
            return (sum, events);
        }
        for event in &batch {
            sum = sum
                .wrapping_add(event.revision())
                .wrapping_add(event.kind() as u64)
                .wrapping_add(event.key().as_ptr() as u64);
        }
        events += batch.len() as u64;
    }
}
