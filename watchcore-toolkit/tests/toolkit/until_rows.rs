//! Rows of waits: until conditions hold, on a watch, on a retrying watch, or over a state.

use crate::contract::{duration, line, number};
use crate::machine_rows::{Named, shown};
use crate::source_rows::{Machine, Source, settle};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use watchcore::{Cache, KeyValue};
use watchcore_toolkit::{
    Held, ManualClock, Reflector, RetryWatch, Until, UntilEnd, UntilError, Watch, WatchEvent, until, until_with_sync,
};

/// `[if KEY|if fails] [within D] [for CONDITION...]`.
struct Options {
    precondition: Option<String>,
    /// Zero is without end.
    within: Duration,
    conditions: Vec<Condition>,
}

/// The beginning of an event as it is shown, or `fails`.
struct Condition {
    text: String,
    asked: Arc<AtomicUsize>,
}

impl Options {
    fn new(words: &[&str]) -> Options {
        let (words, conditions) = match words.iter().position(|word| *word == "for") {
            Some(at) => (&words[..at], &words[at + 1..]),
            None => (words, &[][..]),
        };
        let of = |name| words.iter().position(|word| *word == name).map(|at| words[at + 1]);
        let condition = |text: &&str| Condition { text: (*text).to_owned(), asked: Arc::default() };
        Options {
            precondition: of("if").map(str::to_owned),
            within: of("within").map_or(Duration::ZERO, duration),
            conditions: conditions.iter().map(condition).collect(),
        }
    }
}

impl Condition {
    fn test<O: Named>(&self) -> impl FnMut(&WatchEvent<O>) -> Result<bool, &'static str> + Send + 'static {
        let (text, asked) = (self.text.clone(), Arc::clone(&self.asked));
        move |event| {
            asked.fetch_add(1, Ordering::Relaxed);
            if text == "fails" { Err("as the row says") } else { Ok(shown(event).starts_with(&text)) }
        }
    }
}

type Running = Pin<Box<dyn Future<Output = ()>>>;

/// A wait, and what it waits over.
pub(crate) struct Waiting {
    /// Until it is over, or given up.
    run: Option<Pin<Box<dyn Future<Output = String>>>>,
    /// What feeds the state, and the state, which closes with its last handle.
    reflector: Option<(Running, Cache)>,
    end: String,
    asked: Vec<Arc<AtomicUsize>>,
}

impl Waiting {
    /// `run until watch|retry FROM|state OPTION...`.
    pub(crate) fn new(words: &[&str], source: Source, clock: &Arc<ManualClock>) -> watchcore::Result<Waiting> {
        let options = Options::new(words);
        let asked = options.conditions.iter().map(|condition| Arc::clone(&condition.asked)).collect();
        let mut reflector = None;
        let run: Pin<Box<dyn Future<Output = String>>> = match words {
            ["watch", ..] => {
                let watch = source.open("watch@0".to_owned()).and_then(Result::ok).flatten().expect("a watch");
                Box::pin(over(watch, options, clock))
            }
            ["retry", from, ..] => {
                let watch = RetryWatch::builder(source, number(from)).clock(clock.clone()).open()?;
                Box::pin(over(watch, options, clock))
            }
            ["state", ..] => {
                let cache = Cache::builder("/").expect_load(true).build()?;
                let feeding = Reflector::new(cache.writer()?, source)?.clock(clock.clone());
                let run: Running = Box::pin(feeding.run());
                reflector = Some((run, cache.clone()));
                Box::pin(over_state(cache, options, Arc::clone(clock)))
            }
            other => panic!("nothing waits over {other:?}"),
        };
        Ok(Waiting { run: Some(run), reflector, end: String::new(), asked })
    }
}

fn over<W: Watch<Object: Named> + 'static>(
    watch: W,
    options: Options,
    clock: &Arc<ManualClock>,
) -> impl Future<Output = String> + use<W> {
    let all = until(watch).timeout(options.within).clock(clock.clone());
    let wait = options.conditions.iter().fold(all, |wait: Until<W>, condition| wait.then_try(condition.test()));
    async move { ended(wait.await, true) }
}

async fn over_state(cache: Cache, options: Options, clock: Arc<ManualClock>) -> String {
    let mut wait = until_with_sync::<KeyValue>(&cache).timeout(options.within).clock(clock);
    if let Some(precondition) = options.precondition {
        wait = wait.precondition_try(move |state| match &*precondition {
            "fails" => Err("as the row says"),
            key => Ok(state.get(key).is_some()),
        });
    }
    for condition in &options.conditions {
        wait = wait.then_try(condition.test());
    }
    let without_lost = |event: WatchEvent<KeyValue>| event.with_lost(0);
    let result = wait.run().await.map(|mut held| {
        held.event = held.event.map(without_lost);
        held
    });
    ended(result, false)
}

/// How a wait has ended, and what it saw last. Over a state an event of a difference has no place that all languages know.
fn ended<O: Named>(result: Result<Held<O>, UntilError<O>>, says_where: bool) -> String {
    let error = match result {
        Ok(Held { event: Some(event), position, .. }) if says_where => {
            return format!("held {} at {}", shown(&event), position.revision);
        }
        Ok(Held { event: Some(event), .. }) => return format!("held {}", shown(&event)),
        Ok(_) => return "held".to_owned(),
        Err(error) => error,
    };
    let end = match &error.end {
        UntilEnd::Ended => "closed",
        UntilEnd::Timeout => "timeout",
        UntilEnd::Condition(error) => {
            assert_eq!(error.to_string(), "as the row says");
            "failed"
        }
        UntilEnd::NotSynced(_) => {
            assert_eq!(error.condition, 0, "of the precondition");
            "no-state"
        }
        UntilEnd::Failed(status) => return format!("error:{}", status.code()),
        other => panic!("{other:?}"),
    };
    match &error.last {
        Some(last) => format!("{end} after {}", shown(last)),
        None => end.to_owned(),
    }
}

impl Machine for Waiting {
    fn poll(&mut self, context: &mut Context<'_>) {
        if let Some((reflector, _)) = &mut self.reflector {
            assert!(reflector.as_mut().poll(context).is_pending());
        }
    }

    /// Not beside the reflector: the poll of a wait for a state wakes its source.
    fn read(&mut self) {
        settle(|context| {
            if let Some(Poll::Ready(end)) = self.run.as_mut().map(|run| run.as_mut().poll(context)) {
                (self.run, self.end) = (None, end);
            }
        });
    }

    fn say(&mut self, word: &str, rest: &[&str]) -> Vec<String> {
        match (word, rest) {
            ("waits" | "ended", []) => line(&self.end),
            ("tried", []) => {
                let counts = self.asked.iter().map(|asked| asked.load(Ordering::Relaxed).to_string());
                line(counts.collect::<Vec<_>>().join(" "))
            }
            ("stop", []) => {
                self.run = None;
                Vec::new()
            }
            _ => panic!("{word} is no word of a wait"),
        }
    }
}
