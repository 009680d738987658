//! What a writer pays at worst, in processor time of its thread: `cargo run --release --no-default-features --example bounds -- PART`.
//!
//! - `threads`: a new key, beside 0, 1000 and 4000 idle threads that read once.
//! - `keys [COUNT]`: the slowest single applies while a cache grows to 4 million keys.
//! - `buckets`: the slowest single applies after 60,000 subscriptions with a bucket each came, and went.
//! - `outrun [SECONDS]`: three caches of 1 MiB written at full speed; what waits to be freed.
//! - `overwrite [COUNT]`: nothing but overwrites of 1000 keys, for callgrind.
//! - `filters [COUNT]`: what so many sleepers with filters that no index answers cost, and how long a sleeper of another cache
//!   waits beside them, with 10,000 events a second.
//! - `capacity`: what a log of 1 MiB, and one of 64 MiB whose keys are all deleted, hold.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use watchcore::{Cache, Change, Index, Read, Start, WakeSet, Want};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |default: u64| arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(default);
    match arguments.first().map(String::as_str) {
        Some("threads") => threads(),
        Some("keys") => keys(number(4_000_000)),
        Some("buckets") => buckets(number(60_000)),
        Some("outrun") => outrun(number(8)),
        Some("filters") => filters(number(10_000)),
        Some("capacity") => capacity(),
        Some("overwrite") => overwrite(number(100_000)),
        _ => eprintln!("bounds: one of threads, keys, buckets, outrun, filters, capacity, overwrite"),
    }
}

/// The times of single applies.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn measure(&mut self, apply: impl FnOnce()) {
        let began = processor_time();
        apply();
        self.0.push(processor_time() - began);
    }

    fn line(mut self, what: &str) {
        let sum: Duration = self.0.iter().sum();
        self.0.sort_unstable();
        let all = self.0.len();
        let at = |part: f64| self.0[((all - 1) as f64 * part) as usize];
        println!(
            "{what}: mean {:.2?}, p50 {:.2?}, p99 {:.2?}, p99.99 {:.2?}, worst {:.2?} {:.2?} {:.2?} ({all} applies)",
            sum / all as u32,
            at(0.5),
            at(0.99),
            at(0.9999),
            self.0[all - 1],
            self.0[all.saturating_sub(2)],
            self.0[all.saturating_sub(3)],
        );
    }
}

/// Beside a cache with sleepers and events, a thread that waits for an event of another cache, 3 s long.
fn filters(count: u64) {
    let [busy, other] = [(); 2].map(|()| Cache::builder("/").build().unwrap());
    let mut sleepers: Vec<_> =
        (0..count).map(|number| busy.subscribe(Start::Now).key(format!("/{number}")).open().unwrap()).collect();
    let set = WakeSet::new().unwrap();
    for (tag, one) in (0..).zip(&mut sleepers) {
        set.add(one, tag).unwrap();
        one.arm().unwrap();
    }
    // While somebody waits for a revision no publisher wakes its readers itself.
    let mut far = other.waiter(Want::Revision(u64::from(u32::MAX))).unwrap();
    set.add_waiter(&mut far, count).unwrap();
    assert!(!far.arm().unwrap());
    let (mut to_busy, mut to_other) = (busy.writer().unwrap(), other.writer().unwrap());
    let stop = AtomicBool::new(false);
    let (times, behind, written) = std::thread::scope(|scope| {
        let writes = scope.spawn(|| {
            let (began, mut revision) = (Instant::now(), 0);
            while !stop.load(Ordering::SeqCst) {
                if began.elapsed().as_micros() as u64 / 100 > revision {
                    revision += 1;
                    to_busy.apply(revision, [Change::put("/x", "")]).unwrap();
                } else {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            revision
        });
        let mut waits = other.subscribe(Start::Now).open().unwrap();
        let (asked, questions) = mpsc::channel();
        let (woken, wakes) = mpsc::channel();
        scope.spawn(move || {
            for () in questions {
                assert!(waits.wait(Duration::from_secs(60)).unwrap());
                let at = Instant::now();
                waits.poll(8).unwrap();
                woken.send(at).unwrap();
            }
        });
        let (began, mut times, mut behind) = (Instant::now(), Vec::new(), 0);
        for revision in 1.. {
            if began.elapsed() > Duration::from_secs(3) {
                break;
            }
            asked.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(1));
            let at = Instant::now();
            to_other.apply(revision, [Change::put("/y", "")]).unwrap();
            times.push(wakes.recv().unwrap().saturating_duration_since(at));
            behind = behind.max(busy.stats().notifier_behind);
        }
        stop.store(true, Ordering::SeqCst);
        (times, behind, writes.join().unwrap())
    });
    println!("{count} sleepers of their own filter each, {} events/s, at most {behind} events behind", written / 3);
    Times(times).line("a thread that waits for another cache");
    // As fast as it can, of what is left.
    let (left, before) = (busy.stats().notifier_behind, processor_time_of_all());
    while busy.stats().notifier_behind > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let spent = processor_time_of_all() - before;
    println!(
        "{left} events for all of them took {spent:.1?}, an event and filter {:.1?}",
        spent / (left * count).max(1) as u32
    );
}

fn threads() {
    for idle in [0usize, 1000, 4000] {
        let cache = Cache::builder("/").build().unwrap();
        let mut writer = cache.writer().unwrap();
        writer.apply(1, [Change::put("/a", "")]).unwrap();
        let (go, ready) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let mut parked = Vec::new();
            for _ in 0..idle {
                let (cache, go, ready) = (&cache, &go, &ready);
                let body = move || {
                    cache.get("/a", Read::Any).unwrap();
                    ready.fetch_add(1, Ordering::SeqCst);
                    while !go.load(Ordering::SeqCst) {
                        std::thread::park();
                    }
                };
                let builder = std::thread::Builder::new().stack_size(64 << 10);
                parked.push(builder.spawn_scoped(scope, body).unwrap());
            }
            while ready.load(Ordering::SeqCst) < idle {
                std::thread::sleep(Duration::from_millis(5));
            }
            let mut times = Times::default();
            for revision in 2..100_000u64 {
                let key = format!("/{revision}");
                times.measure(|| writer.apply(revision, [Change::put(&key, "value")]).unwrap());
            }
            times.line(&format!("{idle} idle threads, a new key"));
            let mut times = Times::default();
            for revision in 100_000..200_000u64 {
                let key = format!("/{}", revision - 99_998);
                let delete = Change::delete(&key);
                times.measure(|| drop(writer.apply(revision, [delete])));
            }
            times.line(&format!("{idle} idle threads, deletes that purge older ones"));
            go.store(true, Ordering::SeqCst);
            parked.iter().for_each(|handle| handle.thread().unpark());
        });
    }
}

fn keys(count: u64) {
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut times = Times::default();
    let began = Instant::now();
    for revision in 1..=count {
        let key = format!("/registry/pods/{revision:012}");
        times.measure(|| writer.apply(revision, [Change::put(&key, "value")]).unwrap());
    }
    times.line(&format!("{count} new keys"));
    println!("in all {:.1?}", began.elapsed());
    let mut times = Times::default();
    for revision in 1..=count {
        let key = format!("/registry/pods/{revision:012}");
        times.measure(|| writer.apply(count + revision, [Change::delete(&key)]).unwrap());
    }
    times.line(&format!("{count} deletes"));
}

fn buckets(count: u64) {
    let cache = Cache::builder("/").index(Index::key()).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let open = |number: u64| cache.subscribe(Start::Now).key(format!("/{number}")).open().unwrap();
    let subscriptions: Vec<_> = (0..count).map(open).collect();
    let mut revision = 0;
    let mut write = |what: &str| {
        let mut times = Times::default();
        for _ in 0..50_000 {
            revision += 1;
            times.measure(|| writer.apply(revision, [Change::put("/0", "value")]).unwrap());
        }
        times.line(&format!("{count} subscriptions {what}"));
    };
    write("came");
    drop(subscriptions);
    write("went");
}

fn outrun(seconds: u64) {
    let until = Instant::now() + Duration::from_secs(seconds);
    let value = vec![7u8; 1000];
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let cache = Cache::builder("/").capacity_bytes(1 << 20).build().unwrap();
                let mut writer = cache.writer().unwrap();
                let mut revision = 0;
                while Instant::now() < until {
                    for _ in 0..100 {
                        revision += 1;
                        let key = format!("/{}", revision % 100);
                        writer.apply(revision, [Change::put(&key, &value)]).unwrap();
                    }
                }
                println!("a writer: {} applies", revision);
            });
        }
        let mut most = 0;
        while Instant::now() < until {
            most = most.max(resident());
            std::thread::sleep(Duration::from_millis(20));
        }
        println!("most resident memory: {} MiB", most >> 20);
    });
}

fn overwrite(count: u64) {
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    let keys: Vec<String> = (0..1000).map(|key| format!("/registry/pods/{key:012}")).collect();
    let value = [7; 100];
    for revision in 1..=count {
        writer.apply(revision, [Change::put(&keys[revision as usize % keys.len()], &value)]).unwrap();
    }
}

fn capacity() {
    for (asked, deletes) in [(1u64 << 20, false), (64 << 20, true)] {
        let before = resident();
        let cache = Cache::builder("/").capacity_bytes(asked).build().unwrap();
        let mut writer = cache.writer().unwrap();
        let value = vec![7u8; 100];
        let mut revision = 0;
        for round in 0..400_000u64 {
            let key = format!("/registry/pods/{:012}", if deletes { round } else { round % 100 });
            revision += 1;
            writer.apply(revision, [Change::put(&key, &value)]).unwrap();
            if deletes {
                revision += 1;
                writer.apply(revision, [Change::delete(&key)]).unwrap();
            }
        }
        assert!(watchcore::raw::quiesce(Duration::from_secs(30)));
        println!(
            "{} MiB asked{}: {} MiB more resident, stats say {:.1} MiB",
            asked >> 20,
            if deletes { ", every key deleted" } else { "" },
            resident().saturating_sub(before) >> 20,
            cache.stats().bytes() as f64 / f64::from(1 << 20),
        );
    }
}

/// Of this thread: a loaded machine takes it from the processor, which is no work of the writer.
fn processor_time() -> Duration {
    time_of(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The same of all threads.
fn processor_time_of_all() -> Duration {
    time_of(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn time_of(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: plain memory of this frame.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Resident memory of this process, in bytes (Linux).
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}
