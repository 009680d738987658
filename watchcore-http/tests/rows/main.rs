//! The rows of contract/core that claim `http`, over a socket: `cargo test -p watchcore-http --test rows [ID]`.
//!
//! A cache is written in Rust, and read at `/v1/keys` and `/metrics` of a server over it ([`face`]). Each file is a test by
//! its name.

#[path = "../http/support/client.rs"]
#[allow(dead_code, reason = "the other tests of this crate take more of it")]
mod client;
// The parser of rows, and those words of a row that write.
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

/// What a future comes to, within the bound.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(BOUND, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: nothing within {BOUND:?}"),
    }
}

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contract/core");
    let files = std::fs::read_dir(folder).expect("contract/core").map(|file| file.expect("a file").path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|extension| extension == "txt")).collect();
    files.sort();
    let wanted = std::env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
    // An id is one row: 1.4 is neither 1.40 nor 11.4.
    let is_wanted = |name: &str| wanted.is_empty() || name == wanted || name.starts_with(&format!("{wanted}-"));
    let (mut passed, mut failed) = (0, 0);
    for row in files.iter().map(|path| Row::read(path)) {
        if !is_wanted(&row.name) || !row.faces.iter().any(|face| face == "http") {
            continue;
        }
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
    ExitCode::from(u8::from(failed > 0))
}
