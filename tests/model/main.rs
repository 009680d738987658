//! Random histories on tiny rings against a naive oracle.
//!
//! | variable | what |
//! | --- | --- |
//! | `WATCHCORE_SEED` | other histories, or those of a failure, which prints it with the two below |
//! | `WATCHCORE_CASES` | how many histories |
//! | `WATCHCORE_THREADS` | in how many threads, each with a seed of its own |
//! | `WATCHCORE_STEPS` | the longest history |
//! | `WATCHCORE_SHRINK` | steps of shrinking at most |
#![allow(missing_docs, unreachable_pub)]

mod draw;
mod filter;
mod harness;
mod ops;
mod oracle;
mod plan;
mod reads;
mod sub;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};

thread_local! {
    /// Where the last panic was: shrinking makes thousands, only the last is of interest.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

thread_local! {
    /// What happens in the smallest history that fails, once more.
    static TRACE: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

pub fn trace(line: impl FnOnce() -> String) {
    TRACE.with_borrow_mut(|trace| trace.as_mut().map(|lines| lines.push(line())));
}

fn play(setup: &ops::Setup, ops: &[ops::Op]) {
    let mut harness = harness::Harness::new(setup);
    for op in ops {
        trace(|| format!("{op:?}"));
        harness.run(op);
    }
    harness.finish();
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: a number")))
}

/// Many short histories, some long ones.
fn history() -> impl Strategy<Value = Vec<ops::Op>> {
    let longest = number("WATCHCORE_STEPS").unwrap_or(160) as usize;
    prop_oneof![
        40 => vec(ops::op(), 1..longest.min(20)),
        8 => vec(ops::op(), 1..longest.min(60)),
        2 => vec(ops::op(), 1..longest),
    ]
}

/// Runs the histories of one seed; `Err`: what failed, and how to see it again.
fn run(seed: u64, cases: u64) -> Result<(), String> {
    // Not the usual generator: unoptimized, that takes a third of the time.
    let mut bytes = [7u8; 16];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: cases as u32,
        failure_persistence: None,
        max_shrink_iters: number("WATCHCORE_SHRINK").unwrap_or(2000) as u32,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::XorShift, &bytes));
    let outcome = runner.run(&(ops::setup(), history()), |(setup, ops)| {
        play(&setup, &ops);
        Ok(())
    });
    match outcome {
        Ok(()) => Ok(()),
        Err(TestError::Fail(why, (setup, ops))) => {
            let place = PLACE.with_borrow(Clone::clone);
            TRACE.set(Some(Vec::new()));
            let _ = std::panic::catch_unwind(|| play(&setup, &ops));
            let ops = TRACE.take().unwrap_or_default();
            let again = format!("WATCHCORE_SEED={seed} WATCHCORE_CASES={cases} WATCHCORE_THREADS=1");
            Err(format!("{place}: {why}\n{again}\n{setup:?}\n{}", ops.join("\n")))
        }
        Err(error) => Err(format!("{error}\nWATCHCORE_SEED={seed}")),
    }
}

#[test]
fn random_histories_equal_the_oracle() {
    // Other histories in each run.
    let drawn = || RandomState::new().hash_one(std::process::id()) >> 32;
    let seed = number("WATCHCORE_SEED").unwrap_or_else(drawn);
    let cases = number("WATCHCORE_CASES").unwrap_or(10_000);
    let threads = number("WATCHCORE_THREADS").unwrap_or(2).max(1);
    println!("WATCHCORE_SEED={seed} WATCHCORE_CASES={cases} WATCHCORE_THREADS={threads}");
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|info| {
        PLACE.set(info.location().map_or(String::new(), ToString::to_string));
    }));
    let failed: Vec<String> = std::thread::scope(|scope| {
        let part = |number: u64| scope.spawn(move || run(seed.wrapping_add(number), cases.div_ceil(threads)));
        let parts: Vec<_> = (0..threads).map(part).collect();
        parts.into_iter().filter_map(|part| part.join().expect("a history does not end the thread").err()).collect()
    });
    std::panic::set_hook(hook);
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}
