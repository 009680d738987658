//! Runs the rows of contract/core that claim `http` over a socket: `cargo test -p watchcore-http --test rows [ID]`.
//!
//! A cache is written in Rust, and read at `/v1/keys` and `/metrics` of a server over it ([`face`]). Each file is a
//! test with the file's name.

#[path = "../http/support/client.rs"]
#[allow(dead_code, reason = "the other tests of this crate take more of it")]
mod client;
// The parser of rows, and the writing words.
#[path = "../../../tests/rows/core.rs"]
mod core;
mod face;
#[path = "../../../tests/rows/script.rs"]
mod script;
mod stream;
#[path = "../../../tests/rows/words.rs"]
mod words;

use script::Row;
use std::future::Future;
use std::path::Path;
use std::process::ExitCode;
use words::BOUND;

/// Awaits a future within the bound.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(BOUND, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: nothing within {BOUND:?}"),
    }
}

fn main() -> ExitCode {
    let rows = Row::all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../contract/core"), "http");
    let wanted = std::env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
    // An id selects exactly one row: 1.4 is neither 1.40 nor 11.4.
    let is_wanted = |row: &&Row| wanted.is_empty() || row.name == wanted || row.name.starts_with(&format!("{wanted}-"));
    let (mut passed, mut failed) = (0, 0);
    for row in rows.iter().filter(is_wanted) {
        match row.run::<face::Http>() {
            Ok(()) => {
                passed += 1;
                println!("test {} ... ok", row.name);
            }
            Err(why) => {
                failed += 1;
                println!("test {} ... FAILED\n{why}", row.name);
            }
        }
    }
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {result}. {passed} passed; {failed} failed; 0 ignored; 0 measured\n");
    // As in libtest, a filter without matches is a success, because `cargo test NAME` runs each target.
    ExitCode::from(u8::from(failed > 0))
}
