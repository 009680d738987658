//! The rows of contract/core, from the same text as in C and Go: `cargo test --test rows [ID]`.

mod core;
mod script;
mod tables;

use libtest_mimic::{Arguments, Trial};
use script::Row;
use std::path::Path;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> = std::fs::read_dir(root.join("contract/core"))
        .expect("contract/core")
        .map(|entry| entry.expect("a file").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    files.sort();
    let rows = files.iter().map(|path| Row::read(path)).filter(|row| row.faces.iter().any(|face| face == "rust"));
    let arguments = Arguments::from_args();
    // An id is one row: 1.4 is neither 1.40 nor 11.4.
    let id = format!("{}-", arguments.filter.as_deref().unwrap_or_default());
    let mut rows: Vec<Row> = rows.collect();
    if rows.iter().any(|row| row.name.starts_with(&id)) {
        rows.retain(|row| row.name.starts_with(&id));
    }
    let trial = |row: Row| Trial::test(row.name.clone(), move || row.run::<core::Core>().map_err(Into::into));
    let mut trials: Vec<Trial> = rows.into_iter().map(trial).collect();
    // A package has no documents.
    if root.join("docs/HTTP.md").exists() {
        trials.push(Trial::test("tables", || tables::check(root).map_err(Into::into)));
    }
    libtest_mimic::run(&arguments, trials).exit();
}
