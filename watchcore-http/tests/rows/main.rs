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
#[path = "../../../tests/rows/harness.rs"]
mod harness;
mod lines;
#[path = "../../../tests/rows/script.rs"]
mod script;
mod stream;
#[path = "../../../tests/rows/words.rs"]
mod words;

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
    let rows = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contract/core");
    harness::main(harness::rows::<face::Http>(&rows, "http"))
}
