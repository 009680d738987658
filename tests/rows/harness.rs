//! A test for each row, by its name. The harness is these lines: a library for that asks for features of clap, which the
//! command line would have too where the workspace is tested as a whole, and its help would be coloured.

use crate::script::{Machine, Row};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

/// What a test is called, and what it runs.
pub(crate) type Test<'a> = (String, Box<dyn Fn() -> Result<(), String> + Send + Sync + 'a>);

/// The rows of a folder that a face claims, as its machine runs them.
pub(crate) fn rows<'a, M: Machine>(folder: &Path, face: &str) -> Vec<Test<'a>> {
    let test = |row: Row| -> Test<'a> { (row.name.clone(), Box::new(move || row.run::<M>())) };
    Row::all(folder, face).into_iter().map(test).collect()
}

/// Runs the tests that the command line of this process names: all, those of an id, or those with a word in their name.
pub(crate) fn main(mut tests: Vec<Test<'_>>) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `--test-threads N` is libtest's.
    let is_value = |at: usize| at > 0 && arguments[at - 1] == "--test-threads";
    let mut words = arguments.iter().enumerate().filter(|(at, word)| !word.starts_with('-') && !is_value(*at));
    let wanted = words.next().map(|(_, word)| word.clone()).unwrap_or_default();
    // An id is one row: 1.4 is neither 1.40 nor 11.4.
    let id = format!("{wanted}-");
    let is_id = tests.iter().any(|(name, _)| name.starts_with(&id));
    tests.retain(|(name, _)| if is_id { name.starts_with(&id) } else { name.contains(&wanted) });
    if arguments.iter().any(|word| word == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    run(&tests)
}

/// Runs all, some at a time, and prints what libtest would.
fn run(tests: &[Test<'_>]) -> ExitCode {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = 2 * thread::available_parallelism().map_or(1, usize::from);
    println!("\nrunning {} tests", tests.len());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((name, test)) = tests.get(next.fetch_add(1, Relaxed)) {
                    let outcome = test();
                    println!("test {name} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
                    if let Err(why) = outcome {
                        failures.lock().expect("no test panics").push((name, why));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no test panics");
    for (name, why) in &failures {
        println!("\n---- {name} ----\n{why}");
    }
    let (passed, failed) = (tests.len() - failures.len(), failures.len());
    println!(
        "\ntest result: {}. {passed} passed; {failed} failed; 0 ignored; 0 measured\n",
        if failed == 0 { "ok" } else { "FAILED" }
    );
    ExitCode::from(u8::from(failed > 0))
}
