//! Section 5: a value is decoded once; section 10: foreign code that panics.

use crate::tools::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use watchcore::raw::TestBuilder as _;
use watchcore::*;

#[test]
fn a_value_is_decoded_at_most_once_however_many_look() {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    let cache = Cache::builder("/").decoder(move |_, value| {
        counted.fetch_add(1, SeqCst);
        text(value).parse::<u64>()
    });
    let cache = cache.build().unwrap();
    let mut writer = cache.writer().unwrap();
    let filtered = cache.subscribe(Start::Now).prefix("/").key("/bad").open().unwrap();
    let mut readers: Vec<Subscription> = (0..4).map(|_| cache.subscribe(Start::Now).open().unwrap()).collect();
    readers.push(filtered);
    writer.apply(1, [Change::put("/bad", "no number"), Change::put("/good", "7")]).unwrap();
    writer.apply(2, [Change::delete("/good")]).unwrap();
    let looks: Vec<_> = readers
        .into_iter()
        .map(|mut reader| {
            spawn(move || {
                let mut seen = 0;
                for event in &reader.poll(10).unwrap() {
                    match (event.key(), event.kind()) {
                        (b"/good", Kind::Added) => assert_eq!(event.decoded::<u64>().unwrap(), Some(&7)),
                        (b"/good", _) => {
                            assert!(event.decoded::<u64>().unwrap().is_none(), "a deletion has no value");
                            assert_eq!(event.prev_decoded::<u64>().unwrap(), Some(&7));
                        }
                        _ => {
                            // The error belongs to the event, and the value is there.
                            let error = refused(event.decoded::<u64>(), Code::InvalidArgument);
                            assert!(error.message().contains("/bad"), "{error}");
                            assert_eq!(event.value(), Some(&b"no number"[..]));
                        }
                    }
                    seen += 1;
                }
                seen
            })
        })
        .collect();
    let seen: Vec<u64> = looks.into_iter().map(Task::end).collect();
    assert_eq!(seen, [3, 3, 3, 3, 1]);
    assert_eq!(calls.load(SeqCst), 2, "each value once");
    // Nobody looked, nobody decoded.
    writer.apply(3, [Change::put("/good", "8")]).unwrap();
    assert_eq!(calls.load(SeqCst), 2);
    let mut last = cache.subscribe(Start::After(2)).open().unwrap();
    let batch = last.poll(10).unwrap();
    refused(batch.events()[0].decoded::<String>(), Code::InvalidArgument);
}

/// Panics when it is dropped.
struct Mine;

impl Drop for Mine {
    fn drop(&mut self) {
        panic!("a drop of the user's");
    }
}

#[test]
fn panics_of_decoders_and_of_the_drop_of_what_they_made_are_caught_and_counted() {
    let build = |panics: bool| {
        let builder = Cache::builder("/").capacity(128).segment_slots(16);
        let cache =
            builder.decoder(move |_, _| if panics { panic!("a decoder of the user's") } else { Ok::<_, String>(Mine) });
        cache.build().unwrap()
    };
    let decoded = |cache: &Cache| {
        let mut writer = cache.writer().unwrap();
        let mut all = cache.subscribe(Start::Now).open().unwrap();
        writer.apply(1, [Change::put("/k", "v")]).unwrap();
        let outcome = all.poll(10).unwrap().events()[0].decoded::<Mine>().map(|made| made.is_some());
        // Its version leaves the window, and the process lives.
        write(&mut writer, 2..=1000);
        outcome
    };
    let cache = build(true);
    let before = cache.stats().caught_panics;
    refused(decoded(&cache), Code::Panic);
    assert!(cache.stats().caught_panics > before);
    let (cache, before) = (build(false), cache.stats().caught_panics);
    assert!(decoded(&cache).unwrap());
    until("the drop was caught", || cache.stats().caught_panics > before);
}

/// Decoded values are counted as they come and go; those of values that were replaced count as the window's.
#[test]
fn decoded_values_are_counted() {
    const HOLDS: u64 = 10_000;
    let decode = |_: &[u8], value: &[u8]| Ok::<_, String>(value.to_vec());
    let builder = Cache::builder("/").capacity(8192).capacity_bytes(1 << 20);
    let cache = builder.sized_decoder(decode, |_| HOLDS as usize).build().unwrap();
    let mut writer = cache.writer().unwrap();
    for revision in 1..=2000 {
        writer.apply(revision, [Change::put("/k", "value")]).unwrap();
        assert_eq!(writer.get(b"/k").unwrap().decoded::<Vec<u8>>().unwrap().unwrap(), b"value");
        assert!(cache.stats().window_bytes <= 1 << 20, "{:?}", cache.stats());
    }
    // The window holds as many as there are bytes for, and not 8192 events.
    let held = 2000 + 1 - cache.oldest();
    assert!((50..=(1 << 20) / HOLDS).contains(&held), "{held} revisions");
    until("the others are dropped", || cache.stats().decoded_values <= held + 1);
    let stats = cache.stats();
    assert!(stats.decoded_bytes >= stats.decoded_values * HOLDS, "{stats:?}");
    assert!(stats.bytes() >= stats.decoded_bytes + stats.log_bytes, "{stats:?}");
    // One that nobody says the size of takes its struct at least.
    let cache = Cache::builder("/").decoder(|_, _| Ok::<_, String>([7u8; 1000])).build().unwrap();
    cache.writer().unwrap().apply(1, [Change::put("/k", "")]).unwrap();
    assert_eq!(cache.stats().decoded_bytes, 0, "nobody has asked");
    cache.get("/k", Read::Any).unwrap().kv.unwrap().decoded::<[u8; 1000]>().unwrap();
    assert_eq!(cache.stats().decoded_values, 1);
    assert!((1000..1100).contains(&cache.stats().decoded_bytes), "{:?}", cache.stats());
}
