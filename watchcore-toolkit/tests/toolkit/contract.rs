//! The rows of contract/toolkit/, which Go runs from the same files: contract/README.md says what their words mean.

use crate::informer_rows::InformerRow;
use crate::queue_rows::{LimiterRow, QueueRow};
use crate::rows;
use crate::source_rows::SourceRow;
use crate::watch_rows::WatchRow;
use std::env;
use std::path::Path;
use std::time::Duration;

pub(crate) fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text} is no number"))
}

/// `800ms`, `30s`, `2m`.
pub(crate) fn duration(text: &str) -> Duration {
    let (count, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).expect("a unit"));
    Duration::from_millis(
        number(count) * [("ms", 1), ("s", 1000), ("m", 60_000)].iter().find(|u| u.0 == unit).unwrap().1,
    )
}

/// What the steps of a case have made.
#[derive(Default)]
enum Toolkit {
    #[default]
    Nothing,
    Source(SourceRow),
    Queue(QueueRow),
    Limiter(LimiterRow),
    Informer(Box<InformerRow>),
    Watches(WatchRow),
}

impl rows::Machine for Toolkit {
    fn run(&mut self, words: &[String]) -> Vec<String> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match (self, &*words) {
            (nothing @ Toolkit::Nothing, ["run", "queue", options @ ..]) => {
                *nothing = Toolkit::Queue(QueueRow::new(options));
                Vec::new()
            }
            (nothing @ Toolkit::Nothing, ["run", "limiter", options @ ..]) => {
                *nothing = Toolkit::Limiter(LimiterRow::new(options));
                Vec::new()
            }
            (nothing @ Toolkit::Nothing, ["run", "informer", options @ ..]) => match InformerRow::new(options) {
                Ok(row) => {
                    *nothing = Toolkit::Informer(Box::new(row));
                    Vec::new()
                }
                Err(refused) => refused,
            },
            (nothing @ Toolkit::Nothing, ["run", "watches" | "batches"]) => {
                *nothing = Toolkit::Watches(WatchRow::default());
                Vec::new()
            }
            (nothing @ Toolkit::Nothing, ["run", what @ ..]) => {
                *nothing = Toolkit::Source(SourceRow::new(what));
                Vec::new()
            }
            (Toolkit::Source(row), [word, rest @ ..]) => row.run(word, rest),
            (Toolkit::Queue(row), [word, rest @ ..]) => row.run(word, rest),
            (Toolkit::Limiter(row), [word, rest @ ..]) => row.run(word, rest),
            (Toolkit::Informer(row), [word, rest @ ..]) => row.run(word, rest),
            (Toolkit::Watches(row), [word, rest @ ..]) => row.run(word, rest),
            _ => panic!("the first step says what runs"),
        }
    }
}

/// Nothing is no line.
pub(crate) fn line(text: impl ToString) -> Vec<String> {
    Vec::from_iter(Some(text.to_string()).filter(|text| !text.is_empty()))
}

/// Every row that names Rust. `ROW=WQ-25` runs the files whose names begin so.
#[test]
fn contract_rows_of_the_toolkit() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contract/toolkit");
    let only = env::var("ROW").unwrap_or_default();
    let mut rows = rows::Row::all(&folder, "rust");
    rows.retain(|row| row.name.starts_with(&only));
    assert!(!rows.is_empty(), "no row begins with {only:?}");
    let failed: Vec<String> = rows.iter().filter_map(|row| row.run::<Toolkit>().err()).collect();
    assert!(failed.is_empty(), "{} rows have failed:\n{}", failed.len(), failed.join("\n"));
}
