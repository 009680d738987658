//! `watchcore watch`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::exit::{Failure, Stop};
use super::options::{Options, Task};
use super::output::Output;
use super::shown::Shown;
use super::signals::Interrupt;
use super::source::{self, Deadline, FUTURE, Source};
use super::values::StartMode;
use watchcore::etcd::Feeder;
use watchcore::{Batch, Cache, Code, Event, Kind, Start, Subscription, WakeSet, Want};

/// The most events of one poll.
const BATCH: usize = 1024;
/// Between two bookmarks, where they are asked for.
const BOOKMARKS: Duration = Duration::from_millis(500);
/// A wait without a listing is cut into such pieces, to see a feeder that has failed.
const LOOK: Duration = Duration::from_millis(50);

/// What the summary counts.
struct Totals {
    begin: Instant,
    events: AtomicU64,
    lagged: AtomicU64,
    feeder: OnceLock<Arc<Feeder>>,
}

impl Totals {
    fn summary(&self) -> String {
        let counters = self.feeder.get().map(|feeder| feeder.counters());
        let (resyncs, reconnects) = match &counters {
            Some(counters) => (counters.resyncs.iter().sum::<u64>(), counters.reconnects),
            None => (0, 0),
        };
        let events = self.events.load(Ordering::Relaxed);
        summary(events, self.begin.elapsed(), resyncs, self.lagged.load(Ordering::Relaxed), reconnects)
    }
}

fn summary(events: u64, time: Duration, resyncs: u64, lagged: u64, reconnects: u64) -> String {
    let seconds = time.as_secs_f64();
    let rate = if seconds > 0.0 { events as f64 / seconds } else { 0.0 };
    format!(
        "summary: events={events} seconds={seconds:.3} events_per_second={rate:.0} resyncs={resyncs} lagged={lagged} reconnects={reconnects}"
    )
}

/// The part of the options that decides what is printed and when it ends.
struct Plan {
    until: Option<u64>,
    count: Option<u64>,
    bookmarks: bool,
}

pub(crate) fn run(options: &Options, interrupt: &Interrupt, out: &mut Output) -> Result<(), Stop> {
    let Task::Watch { key, start, until, count, bookmarks } = &options.task else { unreachable!("a watch") };
    let totals = Arc::new(Totals {
        begin: Instant::now(),
        events: AtomicU64::new(0),
        lagged: AtomicU64::new(0),
        feeder: OnceLock::new(),
    });
    let said = Arc::clone(&totals);
    interrupt.set_last_words(move || super::say(&said.summary()));

    let deadline = Deadline::of(options);
    let prefix = options.prefix.as_deref().unwrap_or_default();
    let cache = source::cache(options, prefix)?;
    let mut feeder = source::feeder(&options.access)?;
    if *bookmarks {
        feeder = feeder.progress_interval(BOOKMARKS);
    }
    let plan = Plan { until: *until, count: *count, bookmarks: *bookmarks };
    let (marks, cache_of) = (*bookmarks || until.is_some(), &cache);
    let subscribe = |start| {
        let mut builder = cache_of.subscribe(start).bookmarks(marks);
        builder = builder.bookmark_interval(BOOKMARKS);
        if let Some(key) = key {
            builder = builder.key(key);
        }
        builder
    };
    // `after` sets the feeder's pace, so its subscription comes first (etcd's
    // revisions begin at 1, and 1 has no event). The others begin at what etcd
    // has when it is reached.
    let (mut awaited, mut early) = (None, None);
    match *start {
        StartMode::After(revision) => {
            let revision = revision.max(1);
            let subscription = subscribe(Start::After(revision)).open()?;
            feeder = feeder.start_revision(revision).pace(&subscription);
            (awaited, early) = (Some(revision), Some(subscription));
        }
        StartMode::State => early = Some(subscribe(Start::State).open()?),
        StartMode::Now | StartMode::StateAtLeast(_) => {}
    }
    let source = Source::start(&cache, feeder, &options.access, interrupt)?;
    let _ = totals.feeder.set(Arc::clone(&source.feeder));
    let mut view = View::new(plan, &totals, out);
    let subscription = match (*start, early) {
        (_, Some(subscription)) => subscription,
        (StartMode::StateAtLeast(revision), None) => {
            wait_ready(&source, deadline, interrupt)?;
            let patience = options.timeout.unwrap_or(FUTURE);
            subscribe(Start::StateAtLeast(revision)).start_timeout(deadline.left(patience)).open()?
        }
        (_, None) => {
            wait_ready(&source, deadline, interrupt)?;
            let subscription = subscribe(Start::Now).open()?;
            view.bookmark(subscription.position().revision)?;
            subscription
        }
    };
    let closer = subscription.closer();
    interrupt.on_signal(move || closer.close());

    let ended = follow(subscription, &source, awaited, deadline, interrupt, &mut view);
    source.feeder.stop();
    ended
}

/// Waits for the first listing for as long as it takes.
fn wait_ready(source: &Source, deadline: Deadline, interrupt: &Interrupt) -> Result<(), Stop> {
    while !source.is_ready() {
        if let Some(failure) = source.failure() {
            return Err(failure.into());
        }
        if interrupt.signal().is_some() {
            return Err(Stop::Interrupted);
        }
        if deadline.has_passed() {
            return Err(source.late(deadline, "no listing from etcd").into());
        }
        let _ = source.cache.wait_ready(deadline.left(LOOK));
    }
    Ok(())
}

fn follow(
    mut subscription: Subscription,
    source: &Source,
    awaited: Option<u64>,
    deadline: Deadline,
    interrupt: &Interrupt,
    view: &mut View<'_>,
) -> Result<(), Stop> {
    let mut bell = Bell::new(&source.cache, &mut subscription, view.plan.until)?;
    let mut ready = false;
    loop {
        if interrupt.signal().is_some() {
            view.out.flush()?;
            return Err(Stop::Interrupted);
        }
        let batch = match subscription.poll(BATCH) {
            Ok(batch) => batch,
            Err(_) if interrupt.signal().is_some() => return Err(Stop::Interrupted),
            Err(error) => {
                if error.code() == Code::Lagged {
                    view.totals.lagged.fetch_add(1, Ordering::Relaxed);
                    view.out.lagged(&error)?;
                }
                return Err(Failure::from(error).into());
            }
        };
        let done = view.batch(&batch)?;
        view.out.flush()?;
        ready = ready || source.is_ready();
        if done || (ready && view.is_complete(subscription.position().revision)) {
            return Ok(());
        }
        if !ready
            && let Some(failure) = awaited.and_then(|revision| source.future(revision, view.totals.begin, deadline))
        {
            return Err(failure.into());
        }
        if deadline.has_passed() {
            return Err(source.late(deadline, "the watch did not come to its end; etcd").into());
        }
        if !batch.is_empty() {
            continue;
        }
        if !ready && let Some(failure) = source.failure() {
            return Err(failure.into());
        }
        bell.wait(&mut subscription, deadline.left(if ready { Duration::MAX } else { LOOK }))?;
    }
}

/// Wakes for an event, a mark or the end, and when the last revision is reached.
struct Bell {
    set: WakeSet,
    until: Option<watchcore::Waiter>,
}

impl Bell {
    fn new(cache: &Cache, subscription: &mut Subscription, until: Option<u64>) -> Result<Bell, Stop> {
        let set = WakeSet::new()?;
        set.add(subscription, 0)?;
        let until = until.map(|revision| cache.waiter(Want::Revision(revision))).transpose()?;
        let mut bell = Bell { set, until };
        if let Some(waiter) = &mut bell.until {
            bell.set.add_waiter(waiter, 1)?;
        }
        Ok(bell)
    }

    fn wait(&mut self, subscription: &mut Subscription, most: Duration) -> Result<(), Stop> {
        if let Some(waiter) = &mut self.until
            && !matches!(waiter.arm(), Ok(false))
        {
            // Reached, or in vain: from here on the subscription's bookmarks tell.
            self.until = None;
            return Ok(());
        }
        // What is wrong with a subscription its next poll tells.
        if matches!(subscription.arm(), Ok(false)) && !self.set.arm() {
            self.set.wait(most);
        }
        while self.set.take(&mut [0; 2]) > 0 {}
        Ok(())
    }
}

/// What has been printed, and what is still to be.
struct View<'a> {
    plan: Plan,
    totals: &'a Totals,
    out: &'a mut Output,
    /// Event lines so far.
    lines: u64,
    last_bookmark: (u64, Instant),
}

impl<'a> View<'a> {
    fn new(plan: Plan, totals: &'a Totals, out: &'a mut Output) -> View<'a> {
        View { plan, totals, out, lines: 0, last_bookmark: (0, Instant::now()) }
    }

    fn bookmark(&mut self, revision: u64) -> Result<(), Stop> {
        self.last_bookmark = (revision, Instant::now());
        self.out.bookmark(revision, false)
    }

    /// Everything up to the last revision has been printed.
    fn is_complete(&self, position: u64) -> bool {
        self.plan.until.is_some_and(|until| position >= until)
    }

    /// Prints a batch; true if the last line has been printed.
    fn batch(&mut self, batch: &Batch) -> Result<bool, Stop> {
        for event in batch.events() {
            if self.event(event)? {
                return Ok(true);
            }
        }
        // While events come without a pause the library has no bookmark to give.
        let position = batch.position().revision;
        if self.plan.bookmarks && !batch.is_empty() && !batch.continues() && self.last_bookmark.1.elapsed() >= BOOKMARKS
        {
            self.other_bookmark(position)?;
        }
        Ok(false)
    }

    fn other_bookmark(&mut self, revision: u64) -> Result<(), Stop> {
        let beyond = self.plan.until.is_some_and(|until| revision > until);
        if self.plan.bookmarks && !beyond && revision > self.last_bookmark.0 {
            self.bookmark(revision)?;
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<bool, Stop> {
        if event.ends_initial_state() {
            let revision = event.revision();
            self.last_bookmark = (revision, Instant::now());
            self.out.bookmark(revision, true)?;
            return Ok(false);
        }
        if event.kind() == Kind::Bookmark {
            self.other_bookmark(event.revision())?;
            return Ok(false);
        }
        if !event.is_initial_state() && self.plan.until.is_some_and(|until| event.revision() > until) {
            return Ok(true);
        }
        if let Some(resync) = event.resync() {
            // A history may begin at a lower revision.
            self.last_bookmark = (0, Instant::now());
            self.out.resync(&resync)?;
            return Ok(false);
        }
        let Some(shown) = Shown::of(event) else { return Ok(false) };
        self.out.event(&shown)?;
        self.lines += 1;
        self.totals.events.fetch_add(1, Ordering::Relaxed);
        Ok(self.plan.count.is_some_and(|count| self.lines >= count))
    }
}

#[cfg(test)]
mod tests {
    use super::super::output::{Format, Shared};
    use super::*;
    use watchcore::Change;

    #[test]
    fn without_a_pause_bookmarks_come_between_batches_and_never_inside_a_revision() {
        let cache = Cache::builder("/").build().expect("a cache");
        let mut writer = cache.writer().expect("is free");
        let mut subscription = cache.subscribe(Start::Now).open().expect("opens");
        let keys: Vec<String> = (0..30).map(|number| format!("/{number:02}")).collect();
        for revision in 1..=3 {
            writer.apply(revision, keys.iter().map(|key| Change::put(key, "v"))).expect("applies");
        }
        let totals = Totals {
            begin: Instant::now(),
            events: AtomicU64::new(0),
            lagged: AtomicU64::new(0),
            feeder: OnceLock::new(),
        };
        let shared = Shared::default();
        let mut out = Output::to(Format::Json, shared.clone());
        let plan = Plan { until: None, count: None, bookmarks: true };
        let mut view = View::new(plan, &totals, &mut out);
        let mut marks = Vec::new();
        for (most, is_due) in [(20, true), (10, false), (20, true), (10, true), (30, true)] {
            view.last_bookmark.1 = Instant::now();
            if is_due {
                view.last_bookmark.1 -= BOOKMARKS;
            }
            let batch = subscription.poll(most).expect("polls");
            assert!(!batch.is_empty() && !view.batch(&batch).expect("prints"));
            view.out.flush().expect("writes");
            let text = String::from_utf8(std::mem::take(&mut *shared.0.lock().unwrap())).expect("UTF-8");
            let mark = text.lines().last().filter(|line| line.contains("BOOKMARK")).map(str::to_owned);
            assert_eq!(mark.is_some(), is_due && !batch.continues(), "{text}");
            marks.extend(mark);
        }
        assert_eq!(marks, [r#"{"type":"BOOKMARK","revision":2}"#, r#"{"type":"BOOKMARK","revision":3}"#]);
    }

    #[test]
    fn the_summary_is_one_line_to_the_letter() {
        assert_eq!(
            summary(1000, Duration::from_millis(2500), 1, 2, 3),
            "summary: events=1000 seconds=2.500 events_per_second=400 resyncs=1 lagged=2 reconnects=3"
        );
        assert_eq!(
            summary(0, Duration::ZERO, 0, 0, 0),
            "summary: events=0 seconds=0.000 events_per_second=0 resyncs=0 lagged=0 reconnects=0"
        );
    }
}
