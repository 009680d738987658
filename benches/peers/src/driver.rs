//! Runs every contestant of every row, each measurement a process of its own, in rounds: A B A B.
//!
//! The first round measures everything once. Each later round measures again what still fits into the
//! time that is left, judged by what it took before; so the whole never takes much longer than it may.

use crate::catalog::{ROWS, Row};
use crate::measure::Measured;
use crate::results::{Case, Language, Listed, Results};
use crate::{machine, rows};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a run may take beyond its first round, how often it measures at most, and how long a measured
/// section is.
pub struct Limits {
    pub quick: bool,
    pub whole: Duration,
    pub rounds: usize,
    pub section: Duration,
}

impl Limits {
    /// What is usual, for `minutes` where they are given.
    pub fn new(quick: bool, minutes: Option<u64>) -> Limits {
        let (usual, rounds, millis) = if quick { (2, 3, 40) } else { (10, 5, 100) };
        let minutes = minutes.unwrap_or(usual);
        Limits { quick, whole: Duration::from_secs(minutes * 60), rounds, section: Duration::from_millis(millis) }
    }
}

/// A program that measures: this one, or its counterpart in Go.
pub struct Program {
    pub language: Language,
    pub path: PathBuf,
}

impl Program {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// What it prints; an error has the beginning of what it said.
    fn output(&self, command: &mut Command) -> Result<String, String> {
        let output = command.output().map_err(|error| format!("{}: {error}", self.path.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            // Of a panic the first line is the place, the second the message.
            let reason: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).take(2).collect();
            return Err(format!("{}: {}", output.status, reason.join(" ")));
        }
        String::from_utf8(output.stdout).map_err(|error| error.to_string())
    }

    fn list(&self) -> Result<Vec<Listed>, String> {
        let text = self.output(self.command().arg("list"))?;
        text.lines().map(|line| serde_json::from_str(line).map_err(|error| format!("{line}: {error}"))).collect()
    }

    /// Names and versions of what it measures.
    fn versions(&self) -> Result<Vec<(String, String)>, String> {
        let text = self.output(self.command().arg("versions"))?;
        let pair = |line: &str| {
            let (name, version) = line.split_once(' ').unwrap_or((line, ""));
            (name.to_string(), version.to_string())
        };
        Ok(text.lines().map(pair).collect())
    }

    fn measure(&self, case: &Listed, section: Duration) -> Result<Measured, String> {
        let mut command = self.command();
        command.args(["measure", &case.row, &case.size.to_string(), &case.contestant]);
        command.env("PEERS_MILLIS", section.as_millis().to_string());
        let text = self.output(&mut command)?;
        serde_json::from_str(&text).map_err(|error| format!("{text}: {error}"))
    }
}

/// The cases of this program: what `list` prints.
pub fn own_list() -> Vec<Listed> {
    let sizes = |row: &'static Row| row.sizes.iter().map(move |size| (row, size.number));
    let fits = |(row, size): (&'static Row, usize)| {
        rows::contestants().filter(move |one| one.row == row.name && size <= one.most).map(move |one| Listed {
            row: row.name.to_string(),
            size,
            contestant: one.name.to_string(),
            note: one.note.to_string(),
        })
    };
    ROWS.iter().flat_map(sizes).flat_map(fits).collect()
}

/// All contestants of one size of a row: they are measured in turns.
struct Group {
    cases: Vec<Case>,
    /// What the last round of it took.
    took: Duration,
}

pub fn run(programs: &[Program], limits: &Limits, only: Option<&str>) -> Result<Results, String> {
    let mut groups = groups(programs, limits, only)?;
    let mut versions = vec![("watchcore".to_string(), machine::commit())];
    for program in programs {
        versions.extend(program.versions()?);
    }
    let (begun, load) = (Instant::now(), machine::load());
    let mut left_out = Vec::new();
    for case in groups.iter().flat_map(|group| &group.cases).filter(|case| case.language == Language::Rust) {
        let Listed { row, size, contestant, .. } = &case.listed;
        rows::contestant(row, contestant).inspect(|one| (one.prepare)(*size));
    }
    for round in 1..=limits.rounds {
        for group in &mut groups {
            let left = limits.whole.saturating_sub(begun.elapsed());
            if round == 1 || group.took < left {
                let measuring = Instant::now();
                measure_group(group, programs, limits.section, &mut left_out);
                group.took = measuring.elapsed();
            }
        }
        eprintln!("round {round} done after {:.0} s", begun.elapsed().as_secs_f64());
    }
    let cases = groups.into_iter().flat_map(|group| group.cases).filter(|case| !case.rounds.is_empty());
    Ok(Results {
        cases: cases.collect(),
        machine: machine::describe(load),
        versions,
        quick: limits.quick,
        left_out,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

fn groups(programs: &[Program], limits: &Limits, only: Option<&str>) -> Result<Vec<Group>, String> {
    let mut listed = Vec::new();
    for program in programs {
        listed.extend(program.list()?.into_iter().map(|case| (program.language, case)));
    }
    let mut groups = Vec::new();
    for row in ROWS.iter().filter(|row| only.is_none_or(|only| row.name == only)) {
        for size in row.sizes.iter().filter(|size| size.quick || !limits.quick) {
            let of_this = listed.iter().filter(|(_, case)| case.row == row.name && case.size == size.number);
            let case = |(language, listed): &(Language, Listed)| Case {
                listed: listed.clone(),
                language: *language,
                rounds: Vec::new(),
            };
            groups.push(Group { cases: of_this.map(case).collect(), took: Duration::ZERO });
        }
    }
    Ok(groups)
}

/// Once each. Who fails is named and not asked again.
fn measure_group(group: &mut Group, programs: &[Program], section: Duration, left_out: &mut Vec<String>) {
    group.cases.retain_mut(|case| {
        let program = programs.iter().find(|program| program.language == case.language);
        let program = program.expect("the case is of one of the programs");
        match program.measure(&case.listed, section) {
            Ok(measured) => case.rounds.push(measured),
            Err(reason) => {
                let Listed { row, size, contestant, .. } = &case.listed;
                let line = format!("{contestant} ({:?}) at {row} {size}: {reason}", case.language);
                eprintln!("failed: {line}");
                left_out.push(line);
                return false;
            }
        }
        true
    });
}
