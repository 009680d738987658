//! `watchcore bench`: puts an embedded cache under load and measures it.

use std::io::Write as _;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use super::exit::{Failure, Stop};
use super::json::Line;
use super::memory;
use super::options::{Format, Options, Task};
use super::output::Output;
use super::progress;
use super::signals::Interrupt;
use super::source::Deadline;
use watchcore::{Cache, Change, Code, Index, Range, Read, ReadPath, Record, Start, Subscription};

const PREFIX: &str = "/bench/";
/// The approximate memory of an object beside its value, in the cache or in the log, and of a subscription.
const OBJECT: u128 = 256;
const SUBSCRIPTION: u128 = 640;
/// The number of segments in a group's prefix.
const GROUP_DEPTH: usize = 2;
const DEFAULT_BUCKETS: usize = 65_536;
/// The most events that are written before the readers read them.
const BURST: u64 = 4096;
/// The log's size in bytes, and how many values it must hold if those are larger.
const LOG: u64 = 256 << 20;
const VALUES: u64 = 4;
const GETS: u64 = 200_000;
const SNAPSHOTS: u64 = 100_000;
const WAKES: u64 = 2_000;

/// The requested load.
#[derive(Clone, Copy)]
struct Load {
    objects: u64,
    events: u64,
    subscribers: u64,
    value_size: usize,
    selective: bool,
}

impl Load {
    /// The bytes of an event in the log, which include the replaced value.
    fn event_bytes(&self) -> u64 {
        self.value_size as u64 + OBJECT as u64
    }

    /// The bytes that the log must have.
    fn log_bytes(&self) -> u64 {
        LOG.max(VALUES * self.event_bytes())
    }

    /// How many events may be written before they are read without leaving a log of `capacity` events: the log
    /// guarantees more than half of its events and bytes.
    fn burst(&self, capacity: usize) -> u64 {
        BURST.min(capacity as u64 / 4).min(self.log_bytes() / 2 / self.event_bytes()).max(1)
    }
}

/// The measured times and counts.
#[derive(Default)]
struct Measured {
    load: Duration,
    apply: Duration,
    deliver: Duration,
    deliveries: u64,
    /// How many subscriptions read through the index at the end.
    indexed: u64,
    readers: u64,
    get_ns: f64,
    list: Duration,
    snapshot_ns: f64,
    wake_p50: Duration,
    wake_p99: Duration,
}

pub(crate) fn run(options: &Options, interrupt: &Interrupt, out: &mut Output) -> Result<(), Stop> {
    let Task::Bench { objects, events, subscribers, value_size, selective } = options.task else {
        unreachable!("a bench")
    };
    let load = Load { objects, events, subscribers, value_size, selective };
    let in_objects = u128::from(objects.saturating_add(VALUES)) * (value_size as u128 + OBJECT);
    memory::check("the objects and subscriptions", in_objects + u128::from(subscribers) * SUBSCRIPTION)?;
    let guard = Guard { deadline: Deadline::of(options), interrupt };
    let measured = measure(load, options.capacity, &guard)?;
    match out.format {
        Format::Json => out.line(|buffer| as_json(buffer, load, &measured))?,
        Format::Text => out.line(|buffer| as_table(buffer, load, &measured))?,
        Format::Quiet => {}
    }
    out.flush()
}

/// Ends the benchmark between two steps, at a signal or at the deadline.
struct Guard<'a> {
    deadline: Deadline,
    interrupt: &'a Interrupt,
}

impl Guard<'_> {
    fn check(&self) -> Result<(), Stop> {
        if self.interrupt.signal().is_some() {
            return Err(Stop::Interrupted);
        }
        if self.deadline.has_passed() {
            return Err(self.deadline.failure("the load was not done").into());
        }
        Ok(())
    }

    /// Checks only every 1024th step, for short steps.
    fn check_now_and_then(&self, step: u64) -> Result<(), Stop> {
        if step.is_multiple_of(1024) { self.check() } else { Ok(()) }
    }
}

fn group_prefix(group: u64) -> String {
    format!("{PREFIX}{group:05}/")
}

fn key(object: u64, load: Load) -> String {
    let group = object % load.subscribers;
    format!("{}object-{object:08}", group_prefix(group))
}

fn measure(load: Load, capacity: usize, guard: &Guard<'_>) -> Result<Measured, Stop> {
    let mut measured = Measured::default();
    let mut builder = Cache::builder(PREFIX).capacity(capacity).expect_load(true);
    builder = builder.max_value_bytes(load.value_size.max(1)).capacity_bytes(load.log_bytes());
    if load.selective {
        let buckets = usize::try_from(load.subscribers).unwrap_or(usize::MAX);
        builder = builder.index(Index::prefix(GROUP_DEPTH)).max_buckets(buckets.max(DEFAULT_BUCKETS));
    }
    let cache = builder.build()?;
    let mut writer = cache.writer()?;
    let value = vec![b'v'; load.value_size];
    let mut keys = Vec::new();
    for object in 0..load.objects {
        guard.check_now_and_then(object)?;
        keys.push(key(object, load));
    }

    let mut sorted: Vec<&String> = keys.iter().collect();
    sorted.sort_unstable();
    let (revision, version, lease) = (1, 1, 0);
    let records = sorted.iter().map(|key| Record {
        key: key.as_bytes(),
        value: &value,
        create_revision: revision,
        mod_revision: revision,
        version,
        lease,
    });
    let begin = Instant::now();
    writer.load(revision, records)?;
    measured.load = begin.elapsed();

    let readers = Readers::start(&cache, load, guard)?;
    measured.readers = readers.each.len() as u64;
    let bar = progress::bar("changes", load.events);
    // A fixed seed: every run uses the same numbers.
    let mut random = fastrand::Rng::with_seed(1);
    let burst = load.burst(capacity);
    let (mut written, mut revision) = (0, revision);
    while written < load.events {
        guard.check()?;
        let size = burst.min(load.events - written);
        let picked: Vec<&String> = (0..size).map(|_| &keys[random.u64(..load.objects) as usize]).collect();
        let begin = Instant::now();
        for key in picked {
            revision += 1;
            writer.apply(revision, [Change::put(key, &value)])?;
        }
        measured.apply += begin.elapsed();
        let begin = Instant::now();
        let taken = readers.drain()?;
        measured.deliver += begin.elapsed();
        measured.deliveries += taken.deliveries;
        measured.indexed = taken.indexed;
        written += size;
        bar.inc(size);
    }
    drop(readers);
    bar.finish_and_clear();
    let expected = if load.selective { load.events } else { load.events.saturating_mul(load.subscribers) };
    if measured.deliveries != expected {
        let message = format!(
            "{} deliveries instead of {expected}: this is a bug of the library, please report it",
            measured.deliveries
        );
        return Err(Failure::new(Code::Internal, message).into());
    }

    reads(&cache, &keys, &mut random, guard, &mut measured)?;
    wakes(&cache, |revision| writer.apply(revision, [Change::put(&keys[0], &value)]), revision, guard, &mut measured)?;
    Ok(measured)
}

/// The result of one reading thread.
#[derive(Default)]
struct ReadCounts {
    deliveries: u64,
    /// How many subscriptions read their own bucket of the index.
    indexed: u64,
}

/// Threads that each read a share of the subscriptions, when they are asked to.
struct Readers {
    each: Vec<(Sender<()>, Receiver<watchcore::Result<ReadCounts>>)>,
}

impl Readers {
    fn start(cache: &Cache, load: Load, guard: &Guard<'_>) -> Result<Readers, Stop> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(load.subscribers as usize);
        let mut shares: Vec<Vec<Subscription>> = (0..threads).map(|_| Vec::new()).collect();
        for subscriber in 0..load.subscribers {
            guard.check_now_and_then(subscriber)?;
            let mut builder = cache.subscribe(Start::Now);
            if load.selective {
                builder = builder.prefix(group_prefix(subscriber));
            }
            shares[subscriber as usize % threads].push(builder.open()?);
        }
        let each = shares
            .into_iter()
            .map(|mut share| {
                let (go, asked) = mpsc::channel();
                let (answer, answers) = mpsc::channel();
                std::thread::spawn(move || {
                    while asked.recv().is_ok() {
                        if answer.send(drain(&mut share)).is_err() {
                            break;
                        }
                    }
                });
                (go, answers)
            })
            .collect();
        Ok(Readers { each })
    }

    /// Makes all threads read everything that was written.
    fn drain(&self) -> Result<ReadCounts, Stop> {
        let gone = || Stop::from(Failure::new(Code::Internal, "a reader has ended: this is a bug, please report it"));
        for (go, _) in &self.each {
            go.send(()).map_err(|_| gone())?;
        }
        let mut all = ReadCounts::default();
        for (_, answers) in &self.each {
            let taken = answers.recv().map_err(|_| gone())??;
            all.deliveries += taken.deliveries;
            all.indexed += taken.indexed;
        }
        Ok(all)
    }
}

fn drain(share: &mut [Subscription]) -> watchcore::Result<ReadCounts> {
    let mut taken = ReadCounts::default();
    for subscription in share {
        loop {
            let batch = subscription.poll(1024)?;
            if batch.is_empty() {
                break;
            }
            let mut touched = 0_u64;
            for event in batch.events() {
                touched = touched.wrapping_add(event.revision()).wrapping_add(event.key().as_ptr() as u64);
            }
            std::hint::black_box(touched);
            taken.deliveries += batch.len() as u64;
        }
        taken.indexed += u64::from(subscription.stats().read_path != ReadPath::Scan);
    }
    Ok(taken)
}

fn reads(
    cache: &Cache,
    keys: &[String],
    random: &mut fastrand::Rng,
    guard: &Guard<'_>,
    measured: &mut Measured,
) -> Result<(), Stop> {
    guard.check()?;
    let begin = Instant::now();
    for _ in 0..GETS {
        let key = &keys[random.usize(..keys.len())];
        std::hint::black_box(cache.get(key, Read::Any)?);
    }
    measured.get_ns = begin.elapsed().as_nanos() as f64 / GETS as f64;
    guard.check()?;
    let begin = Instant::now();
    std::hint::black_box(cache.list(&Range::all(), Read::Any, 0)?.len());
    measured.list = begin.elapsed();
    guard.check()?;
    let begin = Instant::now();
    for _ in 0..SNAPSHOTS {
        std::hint::black_box(cache.snapshot()?);
    }
    measured.snapshot_ns = begin.elapsed().as_nanos() as f64 / SNAPSHOTS as f64;
    Ok(())
}

/// Measures wake-up times: from the publishing call until the consumer, which slept, holds the event.
fn wakes(
    cache: &Cache,
    mut publish: impl FnMut(u64) -> watchcore::Result<()>,
    mut revision: u64,
    guard: &Guard<'_>,
    measured: &mut Measured,
) -> Result<(), Stop> {
    let mut subscription = cache.subscribe(Start::Now).open()?;
    let (woken, times) = mpsc::channel();
    let sleeper = std::thread::spawn(move || -> watchcore::Result<()> {
        for _ in 0..WAKES {
            subscription.wait(Duration::MAX)?;
            let batch = subscription.poll(16)?;
            if woken.send((Instant::now(), batch.len())).is_err() {
                break;
            }
        }
        Ok(())
    });
    let mut taken = Vec::new();
    for _ in 0..WAKES {
        guard.check()?;
        // Long enough that the consumer mostly sleeps again, short enough for thousands of rounds.
        std::thread::sleep(Duration::from_micros(50));
        revision += 1;
        let begin = Instant::now();
        publish(revision)?;
        match times.recv_timeout(Duration::from_secs(5)) {
            Ok((end, _)) => taken.push(end.saturating_duration_since(begin)),
            Err(_) => {
                let message =
                    "a sleeping consumer was not woken within 5 s: this is a bug of the library, please report it";
                return Err(Failure::new(Code::Internal, message).into());
            }
        }
    }
    let _ = sleeper.join();
    taken.sort_unstable();
    measured.wake_p50 = percentile(&taken, 50);
    measured.wake_p99 = percentile(&taken, 99);
    Ok(())
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted.get((sorted.len() * percent / 100).min(last)).copied().unwrap_or_default()
}

/// Nanoseconds per operation.
fn nanoseconds_each(time: Duration, count: u64) -> f64 {
    time.as_nanos() as f64 / count.max(1) as f64
}

fn as_json(buffer: &mut Vec<u8>, load: Load, measured: &Measured) {
    let short = |number: f64| (number * 10.0).round() / 10.0;
    let micros = |time: Duration| short(time.as_nanos() as f64 / 1000.0);
    let mut line = Line::new(buffer);
    line.number("objects", load.objects)
        .number("events", load.events)
        .number("subscribers", load.subscribers)
        .number("value_size", load.value_size);
    if load.selective {
        line.truth("selective").number("indexed", measured.indexed);
    }
    line.number("reader_threads", measured.readers)
        .number("deliveries", measured.deliveries)
        .number("load_ns_per_object", short(nanoseconds_each(measured.load, load.objects)))
        .number("apply_ns_per_event", short(nanoseconds_each(measured.apply, load.events)))
        .number("ns_per_delivery", short(nanoseconds_each(measured.deliver, measured.deliveries)))
        .number("get_ns", short(measured.get_ns))
        .number("list_us", micros(measured.list))
        .number("snapshot_ns", short(measured.snapshot_ns))
        .number("wake_p50_us", micros(measured.wake_p50))
        .number("wake_p99_us", micros(measured.wake_p99))
        .end();
}

fn as_table(buffer: &mut Vec<u8>, load: Load, measured: &Measured) {
    let kind = match load.selective {
        true => format!("its own keys each, {} through an index", grouped(measured.indexed)),
        false => "all keys each".to_owned(),
    };
    let rate = |nanoseconds: f64| grouped((1e9 / nanoseconds.max(0.01)) as u64);
    let _ = writeln!(
        buffer,
        "{} objects, {} changes, values of {} bytes, {} subscriptions ({kind}) on {} threads",
        grouped(load.objects),
        grouped(load.events),
        load.value_size,
        grouped(load.subscribers),
        measured.readers
    );
    let mut row = |name: &str, nanoseconds: f64, what: &str| {
        let time = time(nanoseconds);
        let _ = writeln!(buffer, "{name:<10}{time:>12} {what:<12}{:>16}/s", rate(nanoseconds));
    };
    row("load", nanoseconds_each(measured.load, load.objects), "an object");
    row("apply", nanoseconds_each(measured.apply, load.events), "a change");
    row("deliver", nanoseconds_each(measured.deliver, measured.deliveries), "a delivery");
    row("get", measured.get_ns, "a key");
    row("list", nanoseconds_each(measured.list, 1), "all objects");
    row("snapshot", measured.snapshot_ns, "one");
    row("wake p50", nanoseconds_each(measured.wake_p50, 1), "one");
    row("wake p99", nanoseconds_each(measured.wake_p99, 1), "one");
}

fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        n if n < 1e3 => format!("{n:.1} ns"),
        n if n < 1e6 => format!("{:.2} us", n / 1e3),
        n => format!("{:.2} ms", n / 1e6),
    }
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!((time(12.34), time(1234.0), time(2.5e6)), ("12.3 ns".into(), "1.23 us".into(), "2.50 ms".into()));
    }

    #[test]
    fn percentiles() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_nanos).collect();
        assert_eq!(percentile(&times, 50), Duration::from_nanos(51));
        assert_eq!(percentile(&times, 99), Duration::from_nanos(100));
        assert_eq!(percentile(&times[..1], 99), Duration::from_nanos(1));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }

    #[test]
    fn every_group_has_keys_of_its_own() {
        let load = Load { objects: 300, events: 1, subscribers: 30, value_size: 1, selective: true };
        for object in 0..300 {
            let key = key(object, load);
            let groups: Vec<u64> = (0..30).filter(|group| key.starts_with(&group_prefix(*group))).collect();
            assert_eq!(groups, [object % 30], "{key}");
        }
    }
}
