//! Makes two documents of the results: the table of docs/PERFORMANCE.md, between two markers in a page that is written
//! by hand, and `report.md` beside the results, with every contestant of every row.

mod tables;

use crate::catalog::ROWS;
use crate::results::{Case, Results};
use std::path::Path;

const BEGIN: &str = "<!-- peers: made by `make performance`; what is changed here by hand is lost -->";
const END: &str = "<!-- peers: end -->";
const DOCUMENT: &str = "docs/PERFORMANCE.md";
const REPORT: &str = "report.md";

/// `directory`: where the results lie.
pub fn write(results: &Results, repository: &Path, directory: &Path) -> Result<(), String> {
    let path = repository.join(DOCUMENT);
    let in_file = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let before = std::fs::read_to_string(&path).map_err(|error| in_file(&path, error))?;
    let parts = before.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    let (above, below) = parts.ok_or_else(|| format!("{} has lost its markers: {BEGIN} and {END}", path.display()))?;
    let summary = head(results) + &tables::summary(results);
    std::fs::write(&path, format!("{above}{BEGIN}\n\n{summary}\n{END}{below}"))
        .map_err(|error| in_file(&path, error))?;
    let report = directory.join(REPORT);
    std::fs::write(&report, everybody(results)).map_err(|error| in_file(&report, error))
}

/// The cases of one row at one size.
fn at_size<'a>(results: &'a Results, row: &'a str, size: usize) -> impl Iterator<Item = &'a Case> {
    results.cases.iter().filter(move |case| case.listed.row == row && case.listed.size == size)
}

/// The same head, and each row with all who were measured.
fn everybody(results: &Results) -> String {
    let mut text = format!("# Every contestant of `make bench-peers`\n\n{}", head(results));
    ROWS.iter().for_each(|row| text += &tables::row(results, row));
    text
}

fn head(results: &Results) -> String {
    let machine = &results.machine;
    let versions: Vec<String> = results.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let rounds = results.cases.iter().map(|case| case.rounds.len());
    let (least, most) = (rounds.clone().min().unwrap_or(0), rounds.max().unwrap_or(0));
    let rounds = if least == most { format!("{most} rounds") } else { format!("{least} to {most} rounds") };
    let mut text = format!(
        "Taken on {} by `make bench-peers`{}: {} in {:.0} s, on {} cores of {} with {} GiB, Linux {}, at a load average of \
        {:.1} at the start and {:.1} at the end. Measured were {}.\n",
        machine.day,
        if results.quick { " with `QUICK=1`" } else { "" },
        rounds,
        results.seconds,
        machine.cores,
        machine.processor,
        (machine.memory_mib + 512) >> 10,
        machine.kernel,
        machine.load.0,
        machine.load.1,
        versions.join(", "),
    );
    if !results.left_out.is_empty() {
        text += "\nLeft out:\n\n";
        results.left_out.iter().for_each(|line| text += &format!("- {line}\n"));
    }
    text
}
