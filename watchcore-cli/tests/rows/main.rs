//! The rows of contract/core that claim `cli`, over the command line: `cargo test -p watchcore-cli --test rows [ID]`.
//!
//! A fake etcd has what the row writes, and each word that reads is a process of `watchcore` ([`face`]). Each file is a test
//! by its name.

mod face;
#[path = "../../../tests/support/fake/mod.rs"]
mod fake;
#[path = "../../../tests/rows/harness.rs"]
mod harness;
#[path = "../../../watchcore-http/tests/rows/lines.rs"]
mod lines;
mod place;
#[path = "../cli/run.rs"]
mod run;
#[path = "../../../tests/rows/script.rs"]
mod script;
mod stream;
#[path = "../../../tests/rows/words.rs"]
#[allow(dead_code, reason = "the other half of it is for caches of this process")]
mod words;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let rows = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contract/core");
    harness::main(harness::rows::<face::Cli>(&rows, "cli"))
}
