//! The rows of contract/core, from the same text as in C and Go: `cargo test --test rows [ID]`.

mod core;
mod script;

use libtest_mimic::{Arguments, Trial};
use script::Row;

fn main() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/contract/core");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("contract/core").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    let rows = files.iter().map(|path| Row::read(path)).filter(|row| row.faces.iter().any(|face| face == "rust"));
    let trials = rows.map(|row| Trial::test(row.name.clone(), move || row.run::<core::Core>().map_err(Into::into)));
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}
