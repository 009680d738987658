//! Writers that replace more than the one reclaimer can free.

use crate::heap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use watchcore::{Cache, Change, Writer};

const VALUE: usize = 64 << 10;
/// What may wait in a process, beside an eighth of what each cache may hold.
const BOUND: u64 = 64 << 20;

/// A decoded value whose drop takes its time, on the reclaimer.
struct Slow(Box<dyn Fn() + Send + Sync>);

impl Drop for Slow {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn cache(drop: impl Fn() + Send + Sync + Clone + 'static) -> (Cache, Writer) {
    let decode = move |_: &[u8], _: &[u8]| Ok::<_, String>(Slow(Box::new(drop.clone())));
    let cache = Cache::builder("/").capacity_bytes(1 << 20).decoder(decode).build().unwrap();
    let writer = cache.writer().unwrap();
    (cache, writer)
}

/// Replaces one value so many times, each with a decoded one to drop. Nobody pins: what waits for a
/// reader is not bounded.
fn overwrite(writer: &mut Writer, times: u64) {
    let value = vec![7; VALUE];
    for revision in 1..=times {
        writer.apply(revision, [Change::put("/a", &value)]).unwrap();
        let kv = writer.get(b"/a").unwrap();
        assert!(kv.decoded::<Slow>().unwrap().is_some());
    }
}

#[test]
fn three_writers_do_not_outrun_the_reclaimer() {
    let _alone = heap::alone();
    let before = heap::held();
    let slow = || {
        let began = Instant::now();
        while began.elapsed() < Duration::from_micros(300) {
            std::hint::spin_loop();
        }
    };
    let caches: Vec<_> = (0..3).map(|_| cache(slow)).collect();
    let watched = caches[0].0.clone();
    let over = AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let (mut waiting, mut heap) = (0, 0);
            while !over.load(Relaxed) {
                waiting = waiting.max(watched.stats().unfreed_bytes);
                heap = heap.max(heap::now() - before);
                std::thread::sleep(Duration::from_micros(500));
            }
            (waiting, heap)
        });
        let writers: Vec<_> = caches
            .into_iter()
            .map(|(cache, mut writer)| {
                scope.spawn(move || {
                    overwrite(&mut writer, 1000);
                    drop(cache);
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        over.store(true, Relaxed);
        watching.join().unwrap()
    });
    // What three revisions hand over at once.
    let slack = 8 << 20;
    assert!(most.0 > BOUND / 2, "the writers were faster: {} bytes", most.0);
    assert!(most.0 <= BOUND + slack, "{} bytes wait to be freed", most.0);
    // And the three windows.
    assert!(most.1 <= (BOUND + 2 * slack + (3 << 20)) as i64, "{} bytes allocated", most.1);
}

/// A drop that does not return stops the reclaimer, not the writer.
#[test]
fn a_drop_that_stands_still_stops_no_writer() {
    let _alone = heap::alone();
    let before = heap::held();
    let (go, going) = channel::<()>();
    let going: Arc<Mutex<Receiver<()>>> = Arc::new(Mutex::new(going));
    let (cache, mut writer) = cache(move || {
        // Until the other end is gone.
        let _ = going.lock().unwrap().recv();
    });
    overwrite(&mut writer, 2 * BOUND / VALUE as u64);
    assert!(cache.stats().unfreed_bytes > BOUND);
    drop(go);
    drop((cache, writer));
    let began = Instant::now();
    while watchcore::raw::living_caches() > 0 {
        assert!(began.elapsed() < Duration::from_secs(30), "the notifier lets go of it");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(heap::held() - before < 1 << 20, "it continues where it stood");
}
