//! What a run leaves: one file that the document is made of.

use crate::measure::Measured;
use serde::{Deserialize, Serialize};
use std::path::Path;

#[derive(Serialize, Deserialize)]
pub struct Results {
    pub machine: Machine,
    /// Name and version of each program and library that was measured.
    pub versions: Vec<(String, String)>,
    pub quick: bool,
    /// Who was left out, and why.
    pub left_out: Vec<String>,
    pub seconds: f64,
    pub cases: Vec<Case>,
}

#[derive(Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    pub memory_mib: u64,
    pub kernel: String,
    /// The load average of a minute at the start and at the end.
    pub load: (f64, f64),
    /// The day of the run.
    pub day: String,
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    Rust,
    Go,
}

impl Results {
    /// These, with one row as it was measured again.
    pub fn with_row(mut self, row: &str, again: Results) -> Results {
        self.cases.retain(|case| case.listed.row != row);
        self.cases.extend(again.cases);
        self.left_out.extend(again.left_out);
        self
    }
}

/// One contestant at one size of a row, with what each round measured.
#[derive(Serialize, Deserialize)]
pub struct Case {
    #[serde(flatten)]
    pub listed: Listed,
    pub language: Language,
    pub rounds: Vec<Measured>,
}

/// What a program says that it can measure: a line of its answer to `list`.
#[derive(Serialize, Deserialize, Clone)]
pub struct Listed {
    pub row: String,
    pub size: usize,
    pub contestant: String,
    #[serde(default)]
    pub note: String,
}

impl Case {
    /// Whether it is watchcore itself, not a peer.
    pub fn is_ours(&self) -> bool {
        self.listed.contestant.starts_with("watchcore")
    }

    pub fn is_peer(&self) -> bool {
        !self.is_ours()
    }

    pub fn metrics(&self) -> Spread {
        Spread::of(self.rounds.iter().map(|round| round.value).collect())
    }

    pub fn beside(&self) -> Option<Spread> {
        let values: Option<Vec<f64>> = self.rounds.iter().map(|round| round.beside).collect();
        values.map(Spread::of)
    }

    /// The 99th percentile of a distribution, the median of the rounds.
    pub fn p99(&self) -> Option<f64> {
        let values: Option<Vec<f64>> = self.rounds.iter().map(|round| round.p99).collect();
        values.map(|values| Spread::of(values).median)
    }
}

/// The median of some rounds, the least and the greatest.
#[derive(Clone, Copy)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Spread { median: (low + high) / 2.0, least: values[0], most: values[values.len() - 1] }
    }
}

pub fn read(path: &Path) -> Result<Results, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("{}: {error}. Run `make bench-peers` first: it writes that file.", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

pub fn write(path: &Path, results: &Results) -> Result<(), String> {
    let text = serde_json::to_string_pretty(results).map_err(|error| error.to_string())?;
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    std::fs::write(path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))
}
