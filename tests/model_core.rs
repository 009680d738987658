//! Random histories on tiny rings against a naive twin.
//!
//! `WATCHCORE_SEED` replays a run (the seed is printed), `WATCHCORE_CASES` sets how many histories.
#![allow(missing_docs, unreachable_pub)]

#[path = "model/filter.rs"]
mod filter;
#[path = "model/ops.rs"]
mod ops;
#[path = "model/plan.rs"]
mod plan;
#[path = "model/reads.rs"]
mod reads;
#[path = "model/sub.rs"]
mod sub;
#[path = "model/twin.rs"]
mod twin;
#[path = "model/world.rs"]
mod world;

use proptest::collection::vec;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;

/// Where the last panic was: shrinking makes thousands, only the last is of interest.
static PLACE: Mutex<String> = Mutex::new(String::new());

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: a number")))
}

#[test]
fn random_histories_equal_the_naive_twin() {
    let seed = number("WATCHCORE_SEED").unwrap_or_else(|| RandomState::new().hash_one(0u8));
    let cases = number("WATCHCORE_CASES").unwrap_or(160);
    println!("WATCHCORE_SEED={seed} WATCHCORE_CASES={cases}");
    // Not the usual generator: unoptimized, that takes a third of the time.
    let mut bytes = [7u8; 16];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: cases as u32,
        failure_persistence: None,
        max_shrink_iters: number("WATCHCORE_SHRINK").unwrap_or(6000) as u32,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::XorShift, &bytes));
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|info| {
        *PLACE.lock().unwrap() = info.location().map_or(String::new(), ToString::to_string);
    }));
    let outcome = runner.run(
        &(ops::setup(), vec(ops::op(), 1..number("WATCHCORE_STEPS").unwrap_or(140) as usize)),
        |(setup, ops)| {
            let mut world = world::World::new(&setup);
            for op in &ops {
                world.run(op);
            }
            world.finish();
            Ok(())
        },
    );
    std::panic::set_hook(hook);
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, (setup, ops))) => {
            let ops: Vec<String> = ops.iter().map(|op| format!("{op:?}")).collect();
            panic!(
                "{}: {why}\nWATCHCORE_SEED={seed} WATCHCORE_CASES={cases}\n{setup:?}\n{}",
                PLACE.lock().unwrap(),
                ops.join("\n")
            )
        }
        Err(error) => panic!("{error}\nWATCHCORE_SEED={seed}"),
    }
}
