//! Makes docs/PERFORMANCE.md of the results: the part between two markers, and the figures. The rest of
//! the document is written by hand.

mod plots;
mod tables;

use crate::catalog::ROWS;
use crate::results::{Case, Results};
use std::fmt::Write;
use std::path::Path;

const BEGIN: &str = "<!-- peers: made by `make performance`; what is changed here by hand is lost -->";
const END: &str = "<!-- peers: end -->";
const DOCUMENT: &str = "docs/PERFORMANCE.md";
const FIGURES: &str = "docs/figures";

pub fn write(results: &Results, repository: &Path) -> Result<(), String> {
    let path = repository.join(DOCUMENT);
    let in_file = |error| format!("{}: {error}", path.display());
    let before = std::fs::read_to_string(&path).map_err(in_file)?;
    let parts = before.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    let (head, tail) = parts.ok_or_else(|| format!("{} has lost its markers: {BEGIN} and {END}", path.display()))?;
    let figures = plots::write(results, &repository.join(FIGURES))?;
    let made = text(results, &figures);
    std::fs::write(&path, format!("{head}{BEGIN}\n\n{made}\n{END}{tail}")).map_err(in_file)
}

/// The cases of one row at one size.
fn at_size<'a>(results: &'a Results, row: &'a str, size: usize) -> impl Iterator<Item = &'a Case> {
    results.cases.iter().filter(move |case| case.listed.row == row && case.listed.size == size)
}

fn text(results: &Results, figures: &[plots::Figure]) -> String {
    let mut text = head(results);
    text += &tables::summary(results);
    for row in ROWS {
        text += &tables::row(results, row);
        for figure in figures.iter().filter(|figure| figure.row == row.name) {
            writeln!(text, "\n![{}](figures/{})", figure.title, figure.file).expect("a string takes it");
        }
    }
    text.trim_end().to_string() + "\n"
}

fn head(results: &Results) -> String {
    let machine = &results.machine;
    let versions: Vec<String> = results.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let rounds = results.cases.iter().map(|case| case.rounds.len());
    let (least, most) = (rounds.clone().min().unwrap_or(0), rounds.max().unwrap_or(0));
    let rounds = if least == most { format!("{most} rounds") } else { format!("{least} to {most} rounds") };
    let mut text = format!(
        "Taken on {} by `make bench-peers`{}, {} in {:.0} s, on {} cores of {} with {} GiB, Linux {}. \
        The load average was {:.1} at the start and {:.1} at the end: other work ran beside it where that is above the \
        run's own.\n\nMeasured were {}.\n",
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
