//! The tables: one line a row and size with the ratio to the best peer, and one table a row with everybody.

use super::at_size;
use crate::catalog::{Metric, ROWS, Row, Size};
use crate::results::{Case, Language, Results, Spread};

const SUMMARY: &str = "
Medians. The ratio is watchcore's metric over that of the best peer in the same language and run: below 1 watchcore is \
ahead, in bold it is behind (in the row of two threads, where more is better, the other way round). A goal is in bold \
where it is missed.

";

/// Each row and size in one line.
pub fn summary(results: &Results) -> String {
    let mut text = SUMMARY.to_string();
    text += "| what | at | Rust | best peer | ratio | goal | Go | best peer | ratio | goal |\n";
    text += "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for row in ROWS {
        // A row's name stands at its first size.
        let mut title = row.title;
        for size in row.sizes {
            if at_size(results, row.name, size.number).next().is_some() {
                let rust = standing(results, row, size, Language::Rust, size.rust);
                let go = standing(results, row, size, Language::Go, size.go);
                text += &format!("| {title} | {} {} | {rust} | {go} |\n", grouped(size.number), row.of);
                title = "";
            }
        }
    }
    text
}

/// The case with the best median.
fn best<'a>(row: &Row, cases: impl Iterator<Item = &'a Case>) -> Option<(&'a Case, f64)> {
    cases.map(|case| (case, case.metrics().median)).min_by(|a, b| row.metric.order(a.1, b.1))
}

/// Four cells: ours, the best peer, the ratio, the goal.
fn standing(results: &Results, row: &Row, size: &Size, language: Language, goal: Option<f64>) -> String {
    let cases = || at_size(results, row.name, size.number).filter(|case| case.language == language);
    let ours = best(row, cases().filter(|case| case.is_ours()));
    let peer = best(row, cases().filter(|case| case.is_peer()));
    let cell = |value: Option<f64>| value.map_or("-".to_string(), |value| row.metric.show(value));
    let peer_cell = peer.map_or("-".to_string(), |(case, value)| {
        format!("{}, {}", row.metric.show(value), code(&case.listed.contestant))
    });
    let ratio = ours.zip(peer).map_or("-".to_string(), |((_, ours), (_, peer))| {
        let ratio = format!("{:.2}", ours / peer);
        if row.metric.order(ours, peer).is_gt() { format!("**{ratio}**") } else { ratio }
    });
    let goal_cell = goal.map_or("-".to_string(), |goal| {
        let missed = ours.is_some_and(|(_, value)| row.metric.order(value, goal).is_gt());
        let goal = row.metric.show(goal);
        if missed { format!("**{goal}**") } else { goal }
    });
    format!("{} | {peer_cell} | {ratio} | {goal_cell}", cell(ours.map(|(_, value)| value)))
}

/// One row: what it includes, and every contestant at every size.
pub fn row(results: &Results, row: &Row) -> String {
    let sizes: Vec<&Size> =
        row.sizes.iter().filter(|size| at_size(results, row.name, size.number).next().is_some()).collect();
    let mut names: Vec<(&Case, Language)> = Vec::new();
    for case in results.cases.iter().filter(|case| case.listed.row == row.name) {
        let known = |(one, language): &(&Case, Language)| {
            one.listed.contestant == case.listed.contestant && *language == case.language
        };
        if !names.iter().any(known) {
            names.push((case, case.language));
        }
    }
    if names.is_empty() {
        return String::new();
    }
    names.sort_by_key(|(_, language)| *language == Language::Go);
    let mut text = format!("\n### {}\n\n{}\n\n", row.title, row.includes);
    text += "| who |";
    sizes.iter().for_each(|size| text += &format!(" {} {} |", grouped(size.number), row.of));
    text += "\n| --- |";
    sizes.iter().for_each(|_| text += " --- |");
    text += "\n";
    for (named, language) in names {
        text += &format!("| {} |", name(named, language));
        for size in &sizes {
            let mut cases = at_size(results, row.name, size.number);
            let case =
                cases.find(|case| case.listed.contestant == named.listed.contestant && case.language == language);
            text += &format!(" {} |", case.map_or("-".to_string(), |case| measured(case, row.metric)));
        }
        text += "\n";
    }
    text
}

fn name(case: &Case, language: Language) -> String {
    let note = if case.listed.note.is_empty() { String::new() } else { format!(" ({})", case.listed.note) };
    format!("{language:?}: {}{note}", code(&case.listed.contestant))
}

/// Median, spread, and what stands beside it.
fn measured(case: &Case, metric: Metric) -> String {
    let spread = |spread: Spread| {
        let Spread { median, least, most } = spread;
        match case.rounds.len() {
            1 => metric.show(median),
            _ => format!("{} ({} to {})", metric.show(median), metric.show(least), metric.show(most)),
        }
    };
    let mut text = spread(case.metrics());
    if let Some(beside) = case.beside() {
        let name = if metric == Metric::Wall { "CPU" } else { "wall" };
        text += &format!("; {name} {}", metric.show(beside.median));
    }
    if let Some(late) = case.p99() {
        text += &format!("; p99 {}", metric.show(late));
    }
    text
}

/// A name that Markdown would misread.
fn code(name: &str) -> String {
    if name.contains(['<', '_', '*']) { format!("`{name}`") } else { name.to_string() }
}

/// 150000 as 150,000.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let first = digits.len() % 3;
    let mut text = digits[..first].to_string();
    for at in (first..digits.len()).step_by(3) {
        if !text.is_empty() {
            text.push(',');
        }
        text += &digits[at..at + 3];
    }
    text
}

impl Metric {
    /// The better one first.
    fn order(self, a: f64, b: f64) -> std::cmp::Ordering {
        match self {
            Metric::Times => b.total_cmp(&a),
            _ => a.total_cmp(&b),
        }
    }

    /// With its unit, in three digits.
    fn show(self, value: f64) -> String {
        match self {
            Metric::Cpu | Metric::Wall => time(value),
            Metric::Bytes => format!("{} B", grouped(value.max(0.0).round() as usize)),
            Metric::Times | Metric::Part => format!("{value:.2}"),
        }
    }
}

/// Nanoseconds, as a reader takes them in.
fn time(nanos: f64) -> String {
    let (value, unit) = match nanos {
        below if below < 1e3 => (below, "ns"),
        below if below < 1e6 => (below / 1e3, "us"),
        below if below < 1e9 => (below / 1e6, "ms"),
        above => (above / 1e9, "s"),
    };
    match value {
        below if below < 10.0 => format!("{value:.2} {unit}"),
        below if below < 100.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}
