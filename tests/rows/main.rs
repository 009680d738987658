//! The rows of contract/core, from the same text as in C and Go: `cargo test --test rows [ID]`.

mod core;
mod harness;
mod script;
mod tables;
mod words;

use harness::Test;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = harness::rows::<core::Core>(&root.join("contract/core"), "rust");
    // A package has no documents.
    if root.join("docs/HTTP.md").exists() {
        let tables: Test<'_> = ("tables".to_owned(), Box::new(|| tables::check(root)));
        tests.push(tables);
    }
    harness::main(tests)
}
