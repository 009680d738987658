//! `watchcore watch`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::exit::{Failure, Stop};
use super::json::LineEvent;
use super::memory;
use super::options::{Options, Watch};
use super::output::Output;
use super::signals::Interrupt;
use super::source::{self, Deadline, FUTURE_LIMIT, Source};
use super::stderr;
use super::values::StartMode;
use watchcore::{Batch, Cache, Code, Event, Kind, OnLag, ResyncReason, Start, Subscription, WakeSet, Want};
use watchcore_etcd::Feeder;

/// The most events of one poll.
const BATCH: usize = 1024;
/// The interval of bookmarks, if they are requested.
const BOOKMARKS: Duration = Duration::from_millis(500);
/// The approximate memory of a subscriber.
const SUBSCRIBER: u128 = 1024;
/// While there is no listing, a wait is cut into pieces this long, to notice a feeder that has failed.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The counts of the summary.
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
            Some(counters) => (counters.resyncs(), counters.reconnects),
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

/// The options that decide what is printed and when the watch ends.
#[derive(Clone, Copy)]
struct Plan {
    until: Option<u64>,
    count: Option<u64>,
    bookmarks: bool,
    lag: OnLag,
    /// Whether the state is printed first.
    state: bool,
}

pub(crate) fn run(watch: &Watch, options: &Options, interrupt: &Interrupt, out: &mut Output) -> Result<(), Stop> {
    let totals = Arc::new(Totals {
        begin: Instant::now(),
        events: AtomicU64::new(0),
        lagged: AtomicU64::new(0),
        feeder: OnceLock::new(),
    });
    let said = Arc::clone(&totals);
    interrupt.set_last_words(move || stderr::say(&said.summary()));

    let deadline = Deadline::of(options);
    let prefix = options.prefix.as_deref().unwrap_or_default();
    let cache = source::cache(options, prefix)?;
    if let Some(until) = watch.until {
        source::reachable(&cache, until)?;
    }
    if let StartMode::After(revision) | StartMode::StateAtLeast(revision) = watch.start {
        source::reachable(&cache, revision)?;
    }
    let mut feeder = source::feeder(&options.access)?;
    if let Some(key) = watch.key.as_deref().filter(|key| *key == prefix) {
        // Only this key is requested, so permission to read it is enough.
        feeder = feeder.only_key(key);
    }
    if watch.bookmarks {
        feeder = feeder.progress_interval(BOOKMARKS);
    }
    memory::check("the subscribers", u128::from(watch.subscribers) * SUBSCRIBER)?;
    let open = |start, timeout| open(watch, &cache, start, timeout, deadline, interrupt);
    // With `after`, a subscription sets the feeder's pace, so the subscriptions are opened before the feeder starts
    // (etcd's revisions begin at 1, and 1 has no event). With the other modes they begin at etcd's revision when it is
    // reached.
    let (mut awaited, mut pace, mut followers) = (None, None, Vec::new());
    match watch.start {
        StartMode::After(revision) => {
            let revision = revision.max(1);
            followers = open(Start::After(revision), FUTURE_LIMIT)?;
            feeder = feeder.start_revision(revision);
            awaited = Some(revision);
            if let [only] = &followers[..] {
                feeder = feeder.pace(&only.subscription);
            } else {
                let subscription = cache.subscribe(Start::After(revision)).open()?;
                feeder = feeder.pace(&subscription);
                pace = Some(Pacemaker { subscription, stride: (options.capacity / 8).clamp(1, BATCH) });
            }
        }
        StartMode::State => followers = open(Start::State, FUTURE_LIMIT)?,
        StartMode::Now | StartMode::StateAtLeast(_) => {}
    }
    let source = Source::start(&cache, feeder, &options.access, interrupt)?;
    let _ = totals.feeder.set(Arc::clone(&source.feeder));
    match watch.start {
        StartMode::StateAtLeast(revision) => {
            wait_ready(&source, deadline, interrupt)?;
            let wait_limit = options.timeout.unwrap_or(FUTURE_LIMIT);
            followers = open(Start::StateAtLeast(revision), deadline.left(wait_limit))?;
        }
        StartMode::Now => {
            wait_ready(&source, deadline, interrupt)?;
            followers = open(Start::Now, FUTURE_LIMIT)?;
            for follower in &mut followers {
                out.subscriber = follower.number;
                follower.view.bookmark(follower.subscription.position().revision, out)?;
            }
            out.subscriber = None;
        }
        StartMode::After(_) | StartMode::State => {}
    }
    for follower in &followers {
        let closer = follower.subscription.closer();
        interrupt.on_signal(move || closer.close());
    }
    let work = Work { source: &source, awaited, deadline, interrupt, totals: &totals };
    let ended = follow(&work, followers, pace, out);
    source.feeder.stop();
    ended
}

/// Opens the subscriptions, all with the same options.
fn open(
    watch: &Watch,
    cache: &Cache,
    start: Start,
    timeout: Duration,
    deadline: Deadline,
    interrupt: &Interrupt,
) -> Result<Vec<Follower>, Stop> {
    let state = matches!(start, Start::State | Start::StateAtLeast(_));
    let plan = Plan { until: watch.until, count: watch.count, bookmarks: watch.bookmarks, lag: watch.lag, state };
    let one = |number| {
        if interrupt.signal().is_some() {
            return Err(Stop::Interrupted);
        }
        if deadline.has_passed() {
            return Err(deadline.failure("the subscriptions were not all open").into());
        }
        let mut builder = cache.subscribe(start).filter(watch.filter.clone()).on_lag(watch.lag).start_timeout(timeout);
        builder = builder.bookmarks(watch.bookmarks || watch.until.is_some()).bookmark_interval(BOOKMARKS);
        if let Some(key) = &watch.key {
            builder = builder.key(key);
        }
        // With several threads printing, the lines of one revision stay together.
        builder = builder.whole_revisions(watch.subscribers > 1);
        let number = (watch.subscribers > 1).then_some(number);
        Ok(Follower { subscription: builder.open()?, number, view: View::new(plan), lagged: None })
    };
    (0..watch.subscribers).map(one).collect()
}

/// Waits for the first listing, without a limit of its own.
fn wait_ready(source: &Source, deadline: Deadline, interrupt: &Interrupt) -> Result<(), Stop> {
    while !source.is_ready() {
        if let Some(failure) = source.failure() {
            return Err(failure.into());
        }
        if interrupt.signal().is_some() {
            return Err(Stop::Interrupted);
        }
        if deadline.has_passed() {
            return Err(source.late(deadline, "no listing came").into());
        }
        let _ = source.cache.wait_ready(deadline.left(CHECK_INTERVAL));
    }
    Ok(())
}

/// The outcome of polling a subscription.
#[derive(PartialEq, Eq)]
enum Outcome {
    Nothing,
    Something,
    /// The last line has been printed.
    Done,
}

/// A subscription, and what it has printed.
struct Follower {
    subscription: Subscription,
    /// The subscription's number, if there are several.
    number: Option<u64>,
    view: View,
    /// The loss that the last poll reported, if any.
    lagged: Option<Failure>,
}

impl Follower {
    fn poll_and_print(&mut self, totals: &Totals, out: &mut Output) -> Result<Outcome, Stop> {
        out.subscriber = self.number;
        let outcome = self.polled(totals, out);
        out.subscriber = None;
        outcome.map_err(|stop| match stop {
            Stop::Failure(failure) => Stop::Failure(Failure { subscriber: self.number, ..failure }),
            other => other,
        })
    }

    fn polled(&mut self, totals: &Totals, out: &mut Output) -> Result<Outcome, Stop> {
        let batch = match self.subscription.poll(BATCH) {
            Ok(batch) => batch,
            Err(error) if error.code() == Code::Lagged => {
                totals.lagged.fetch_add(1, Ordering::Relaxed);
                out.lagged(&error)?;
                out.flush()?;
                if self.view.plan.lag == OnLag::Stop {
                    return Err(error.into());
                }
                self.lagged = Some(error.into());
                return Ok(Outcome::Something);
            }
            // With `skip`, no events can follow a loss in the initial state.
            Err(error) if error.code() == Code::Closed => {
                return Err(self.lagged.take().unwrap_or_else(|| error.into()).into());
            }
            Err(error) => return Err(error.into()),
        };
        self.lagged = None;
        let done = self.view.batch(&batch, totals, out)?;
        out.flush()?;
        Ok(match (done, batch.is_empty()) {
            (true, _) => Outcome::Done,
            (_, false) => Outcome::Something,
            (_, true) => Outcome::Nothing,
        })
    }
}

/// With several subscriptions the feeder keeps pace with this one, which is never ahead of any of them by more than its
/// stride.
struct Pacemaker {
    subscription: Subscription,
    stride: usize,
}

impl Pacemaker {
    /// Advances if no follower is behind. Returns `None` when the pacemaker can no longer poll.
    fn step(mut self, followers: &[Follower]) -> (Option<Pacemaker>, bool) {
        let own = self.subscription.position().revision;
        if followers.iter().any(|follower| follower.subscription.position().revision < own) {
            return (Some(self), false);
        }
        match self.subscription.poll(self.stride) {
            Ok(batch) => (Some(self), !batch.is_empty()),
            Err(_) => (None, false),
        }
    }
}

/// The context of a watch: its source, and its limits.
struct Work<'a> {
    source: &'a Source,
    /// The requested revision, which etcd may not have yet.
    awaited: Option<u64>,
    deadline: Deadline,
    interrupt: &'a Interrupt,
    totals: &'a Totals,
}

fn follow(
    work: &Work<'_>,
    mut followers: Vec<Follower>,
    mut pace: Option<Pacemaker>,
    out: &mut Output,
) -> Result<(), Stop> {
    let Work { source, awaited, deadline, interrupt, totals } = *work;
    let until = followers.first().and_then(|follower| follower.view.plan.until);
    let mut wakeup = Wakeup::new(&source.cache, &mut followers, pace.as_mut(), until)?;
    let mut ready = false;
    loop {
        if interrupt.signal().is_some() {
            out.flush()?;
            return Err(Stop::Interrupted);
        }
        let mut idle = true;
        let mut at = 0;
        while at < followers.len() && interrupt.signal().is_none() && !deadline.has_passed() {
            match followers[at].poll_and_print(totals, out) {
                Err(Stop::Failure(_)) if interrupt.signal().is_some() => return Err(Stop::Interrupted),
                Err(stop) => return Err(stop),
                Ok(Outcome::Done) => drop(followers.remove(at)),
                Ok(outcome) => {
                    idle &= outcome == Outcome::Nothing;
                    at += 1;
                }
            }
        }
        if interrupt.signal().is_some() {
            continue;
        }
        ready = ready || source.is_ready();
        if ready {
            followers.retain(|follower| !follower.view.is_complete(follower.subscription.position().revision));
        }
        if followers.is_empty() {
            return Ok(());
        }
        if let Some(pacemaker) = pace.take() {
            let stepped;
            (pace, stepped) = pacemaker.step(&followers);
            idle &= !stepped;
        }
        if !ready && let Some(failure) = awaited.and_then(|revision| source.future(revision, totals.begin, deadline)) {
            return Err(failure.into());
        }
        if deadline.has_passed() {
            return Err(source.late(deadline, "the watch was not over").into());
        }
        if !idle {
            continue;
        }
        if !ready && let Some(failure) = source.failure() {
            return Err(failure.into());
        }
        wakeup.wait(
            &mut followers,
            pace.as_mut(),
            deadline.left(if ready { Duration::MAX } else { CHECK_INTERVAL }),
        )?;
    }
}

/// Wakes the watch for an event, a resync mark or the end, and when the last revision is reached.
struct Wakeup {
    set: WakeSet,
    until: Option<watchcore::Waiter>,
}

impl Wakeup {
    fn new(
        cache: &Cache,
        followers: &mut [Follower],
        pace: Option<&mut Pacemaker>,
        until: Option<u64>,
    ) -> Result<Wakeup, Stop> {
        let set = WakeSet::new()?;
        for subscription in each(followers, pace) {
            set.add(subscription, 0)?;
        }
        let until = until.map(|revision| cache.waiter(Want::Revision(revision))).transpose()?;
        let mut wakeup = Wakeup { set, until };
        if let Some(waiter) = &mut wakeup.until {
            wakeup.set.add_waiter(waiter, 1)?;
        }
        Ok(wakeup)
    }

    fn wait(&mut self, followers: &mut [Follower], pace: Option<&mut Pacemaker>, most: Duration) -> Result<(), Stop> {
        if let Some(waiter) = &mut self.until
            && !matches!(waiter.arm(), Ok(false))
        {
            // The wait has ended, successfully or not: from here on the subscription's bookmarks show the position.
            self.until = None;
            return Ok(());
        }
        // The next poll reports a failed subscription.
        if each(followers, pace).all(|subscription| matches!(subscription.arm(), Ok(false))) && !self.set.arm() {
            self.set.wait(most);
        }
        while self.set.take(&mut [0; 64]) > 0 {}
        Ok(())
    }
}

fn each<'a>(
    followers: &'a mut [Follower],
    pace: Option<&'a mut Pacemaker>,
) -> impl Iterator<Item = &'a mut Subscription> {
    let paced = pace.map(|pacemaker| &mut pacemaker.subscription);
    followers.iter_mut().map(|follower| &mut follower.subscription).chain(paced)
}

/// What has been printed, and what is still to be printed.
struct View {
    plan: Plan,
    /// Event lines printed so far.
    lines: u64,
    /// Whether the end of the initial state is still to come.
    initial: bool,
    last_bookmark: (u64, Instant),
}

impl View {
    fn new(plan: Plan) -> View {
        View { plan, lines: 0, initial: plan.state, last_bookmark: (0, Instant::now()) }
    }

    fn bookmark(&mut self, revision: u64, out: &mut Output) -> Result<(), Stop> {
        self.last_bookmark = (revision, Instant::now());
        out.bookmark(revision, false)
    }

    /// Whether everything up to the last revision has been printed.
    fn is_complete(&self, position: u64) -> bool {
        self.plan.until.is_some_and(|until| position >= until)
    }

    /// Prints a batch; true if the last line has been printed.
    fn batch(&mut self, batch: &Batch, totals: &Totals, out: &mut Output) -> Result<bool, Stop> {
        for event in batch.events() {
            if self.event(event, totals, out)? {
                return Ok(true);
            }
        }
        // While events come without a pause, the library sends no bookmarks.
        let position = batch.position().revision;
        if self.plan.bookmarks && !batch.is_empty() && !batch.continues() && self.last_bookmark.1.elapsed() >= BOOKMARKS
        {
            self.other_bookmark(position, out)?;
        }
        Ok(false)
    }

    fn other_bookmark(&mut self, revision: u64, out: &mut Output) -> Result<(), Stop> {
        let beyond = self.plan.until.is_some_and(|until| revision > until);
        if self.plan.bookmarks && !beyond && revision > self.last_bookmark.0 {
            self.bookmark(revision, out)?;
        }
        Ok(())
    }

    fn event(&mut self, event: &Event, totals: &Totals, out: &mut Output) -> Result<bool, Stop> {
        if event.ends_initial_state() {
            let revision = event.revision();
            self.initial = false;
            self.last_bookmark = (revision, Instant::now());
            out.bookmark(revision, true)?;
            return Ok(false);
        }
        if event.kind() == Kind::Bookmark {
            self.other_bookmark(event.revision(), out)?;
            return Ok(false);
        }
        if !self.initial
            && let Some(until) = self.plan.until.filter(|until| event.revision() > *until)
        {
            return self.beyond(event, until);
        }
        if let Some(resync) = event.resync() {
            // After a resync, revisions may begin lower.
            self.last_bookmark = (0, Instant::now());
            out.resync(&resync)?;
            return Ok(false);
        }
        let Some(shown) = LineEvent::of(event) else { return Ok(false) };
        out.event(&shown)?;
        self.lines += 1;
        totals.events.fetch_add(1, Ordering::Relaxed);
        Ok(self.plan.count.is_some_and(|count| self.lines >= count))
    }

    /// Handles the first event above the last revision. A catch-up at that point also contains changes up to the last
    /// revision, which can no longer be separated.
    fn beyond(&self, event: &Event, until: u64) -> Result<bool, Stop> {
        let lost = match event.resync() {
            Some(resync) => resync.reason == ResyncReason::Lagged,
            None => event.is_synthetic() && self.plan.lag == OnLag::Conflate,
        };
        if !lost {
            return Ok(true);
        }
        let message = format!(
            "the watch fell behind, and its catch-up to revision {} goes beyond --until-revision {until}: what changed up to there can no longer be shown alone. Ask for a later revision, or make --capacity larger",
            event.revision()
        );
        Err(Failure::new(Code::Lagged, message).into())
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::Format;
    use super::super::output::Captured;
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
        let shared = Captured::default();
        let mut out = Output::to(Format::Json, shared.clone());
        let plan = Plan { until: None, count: None, bookmarks: true, lag: OnLag::Stop, state: false };
        let mut view = View::new(plan);
        let mut marks = Vec::new();
        for (most, is_due) in [(20, true), (10, false), (20, true), (10, true), (30, true)] {
            view.last_bookmark.1 = Instant::now();
            if is_due {
                view.last_bookmark.1 -= BOOKMARKS;
            }
            let batch = subscription.poll(most).expect("polls");
            assert!(!batch.is_empty() && !view.batch(&batch, &totals, &mut out).expect("prints"));
            out.flush().expect("writes");
            let text = String::from_utf8(std::mem::take(&mut *shared.0.lock().unwrap())).expect("UTF-8");
            let mark = text.lines().last().filter(|line| line.contains("BOOKMARK")).map(str::to_owned);
            assert_eq!(mark.is_some(), is_due && !batch.continues(), "{text}");
            marks.extend(mark);
        }
        assert_eq!(marks, [r#"{"type":"BOOKMARK","revision":2}"#, r#"{"type":"BOOKMARK","revision":3}"#]);
    }

    #[test]
    fn the_pacemaker_waits_for_whoever_is_behind() {
        let cache = Cache::builder("/").build().expect("a cache");
        let mut writer = cache.writer().expect("is free");
        let now = || cache.subscribe(Start::Now).open().expect("opens");
        let plan = Plan { until: None, count: None, bookmarks: false, lag: OnLag::Stop, state: false };
        let mut followers = [0, 1].map(|number| Follower {
            subscription: now(),
            number: Some(number),
            view: View::new(plan),
            lagged: None,
        });
        let pacemaker = Pacemaker { subscription: now(), stride: 1 };
        for revision in 1..=3 {
            writer.apply(revision, [Change::put("/k", "v")]).expect("applies");
        }
        let step = |pacemaker: Option<Pacemaker>, followers: &[Follower]| pacemaker.expect("is kept").step(followers);
        let (pacemaker, stepped) = step(Some(pacemaker), &followers);
        assert!(stepped, "nobody is behind");
        let (pacemaker, stepped) = step(pacemaker, &followers);
        assert!(!stepped, "both are behind");
        assert_eq!(followers[0].subscription.poll(9).expect("polls").len(), 3);
        let (pacemaker, stepped) = step(pacemaker, &followers);
        assert!(!stepped, "one is behind");
        assert_eq!(followers[1].subscription.poll(1).expect("polls").len(), 1);
        let (pacemaker, stepped) = step(pacemaker, &followers);
        assert!(stepped);
        assert_eq!(pacemaker.expect("is kept").subscription.position().revision, 2, "one step at a time");
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
