//! Clocks, and the one way in which a section is measured.

use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// What one measurement says: one line of JSON on the standard output of its process.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Measured {
    /// The metric of the row, in nanoseconds of processor time where the row says nothing else.
    pub value: f64,
    /// What stands beside it, where that has a meaning: the wall's time beside processor time, and the other
    /// way round.
    pub beside: Option<f64>,
    /// How many operations it is the mean of, or the largest, or the median of.
    pub count: u64,
    /// The 99th percentile, of a distribution.
    pub p99: Option<f64>,
}

impl Measured {
    pub fn plain(value: f64, count: u64) -> Measured {
        Measured { value, beside: None, count, p99: None }
    }

    pub fn with_beside(value: f64, beside: f64, count: u64) -> Measured {
        Measured { beside: Some(beside), ..Measured::plain(value, count) }
    }
}

/// How long a section runs at least: the driver says it by `PEERS_MILLIS`.
pub fn at_least() -> Duration {
    let millis = std::env::var("PEERS_MILLIS").ok().and_then(|text| text.parse().ok());
    Duration::from_millis(millis.unwrap_or(250))
}

/// Processor time of the process, all threads, user and system.
pub fn process_time() -> Duration {
    // SAFETY: all zeros are a valid rusage, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &mut usage), 0, "the process can be asked for its own times");
        usage
    };
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// Processor time of the calling thread.
pub fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the struct that it is given.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(done, 0, "the clock exists");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Bytes that the allocator has handed out, its own heads included.
pub fn allocated() -> usize {
    // SAFETY: mallinfo2 takes no pointer, and returns its struct by value.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

/// What a section took so far, less what its own thread spent on waiting for others.
pub struct Section {
    begun: Instant,
    process: Duration,
    /// Processor time of the measuring thread that is not counted.
    waited: Duration,
    /// Time on the wall that is not counted.
    paused: Duration,
}

impl Section {
    pub fn begin() -> Section {
        Section { begun: Instant::now(), process: process_time(), waited: Duration::ZERO, paused: Duration::ZERO }
    }

    /// Waits, and leaves the processor time of the waiting out.
    pub fn waiting(&mut self, wait: impl FnOnce()) {
        let before = thread_time();
        wait();
        self.waited += thread_time() - before;
    }

    /// Leaves time out that only the clock on the wall counts: nobody worked.
    pub fn paused(&mut self, pause: Duration) {
        self.paused += pause;
    }

    pub fn end(self, count: u64) -> Measured {
        let wall = self.begun.elapsed().saturating_sub(self.paused).as_nanos() as f64 / count as f64;
        let cpu = (process_time() - self.process).saturating_sub(self.waited);
        Measured::with_beside(cpu.as_nanos() as f64 / count as f64, wall, count)
    }
}

/// Repeats `chunk`, which says how many operations it did, until [`at_least`] has passed or it did none.
pub fn repeat(mut chunk: impl FnMut(&mut Section) -> u64) -> Measured {
    let mut section = Section::begin();
    let until = section.begun + at_least();
    let mut count = 0;
    loop {
        let done = chunk(&mut section);
        count += done;
        if done == 0 || Instant::now() >= until {
            return section.end(count);
        }
    }
}

/// A distribution: its median, and its 99th percentile.
pub fn distribution(mut samples: Vec<f64>) -> Measured {
    assert!(!samples.is_empty(), "something was measured");
    samples.sort_by(f64::total_cmp);
    let at = |part: f64| samples[((samples.len() - 1) as f64 * part).round() as usize];
    Measured { p99: Some(at(0.99)), ..Measured::plain(at(0.5), samples.len() as u64) }
}

/// The largest single step of a thread: processor time is the metric, beside it the wall's.
#[derive(Default)]
pub struct Largest {
    cpu: Duration,
    wall: Duration,
    count: u64,
}

impl Largest {
    pub fn step(&mut self, step: impl FnOnce()) {
        let (begun, before) = (Instant::now(), thread_time());
        step();
        self.cpu = self.cpu.max(thread_time() - before);
        self.wall = self.wall.max(begun.elapsed());
        self.count += 1;
    }

    pub fn measured(self) -> Measured {
        let nanos = |time: Duration| time.as_nanos() as f64;
        Measured::with_beside(nanos(self.cpu), nanos(self.wall), self.count)
    }
}
