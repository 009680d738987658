//! watchcore beside its peers, at the same work, in one run: `make bench-peers`, then `make performance`.
//!
//! - `peers run [--go PROGRAM] [--quick] [--minutes N] [--only ROW] [--results FILE]`: measures, and writes the results;
//!   one row alone takes the place of that row in them.
//! - `peers render [--results FILE] [--repository DIRECTORY]`: makes the table of docs/PERFORMANCE.md of them, and
//!   beside them `report.md`, with every contestant.
//! - `peers list`, `peers versions`, `peers measure ROW SIZE CONTESTANT`: what `run` asks each program,
//!   this one and the one in Go. A measurement is one line of JSON.
//!
//! `catalog` has the rows, `rows` who is measured at them. `watchers` and `keyed` have the contestants, each behind the
//! trait of its kind of work, so that no row is written twice.

mod catalog;
mod driver;
mod informing;
mod keyed;
mod load;
mod machine;
mod measure;
mod report;
mod results;
mod rows;
mod watchers;

use driver::{Limits, Program};
use results::Language;
use std::path::PathBuf;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rest = arguments.get(1..).unwrap_or_default();
    let done = match arguments.first().map(String::as_str) {
        Some("run") => run(rest),
        Some("render") => render(rest),
        Some("list") => list(),
        Some("versions") => versions(),
        Some("measure") => measure(rest),
        _ => Err("one of run, render, list, versions, measure: see the head of benches/peers/src/main.rs".to_string()),
    };
    if let Err(error) = done {
        eprintln!("peers: {error}");
        std::process::exit(1);
    }
}

/// The word behind an option.
fn option<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    let at = arguments.iter().position(|argument| argument == name)?;
    arguments.get(at + 1).map(String::as_str)
}

fn results_file(arguments: &[String]) -> PathBuf {
    option(arguments, "--results").unwrap_or("target/peers/results.json").into()
}

fn run(arguments: &[String]) -> Result<(), String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut programs = vec![Program { language: Language::Rust, path: own }];
    if let Some(path) = option(arguments, "--go") {
        programs.push(Program { language: Language::Go, path: path.into() });
    }
    let minutes = option(arguments, "--minutes").map(|text| text.parse().map_err(|error| format!("{text}: {error}")));
    let limits = Limits::new(arguments.iter().any(|argument| argument == "--quick"), minutes.transpose()?);
    let only = option(arguments, "--only");
    if let Some(name) = only.filter(|name| catalog::row(name).is_none()) {
        let names: Vec<&str> = catalog::ROWS.iter().map(|row| row.name).collect();
        return Err(format!("no row is named {name:?}; there are {}", names.join(", ")));
    }
    let path = results_file(arguments);
    let mut results = driver::run(&programs, &limits, only)?;
    if let Some(row) = only.filter(|_| path.exists()) {
        results = results::read(&path)?.with_row(row, results);
    }
    results::write(&path, &results)?;
    println!("{:.0} s; the results are in {}", results.seconds, path.display());
    match results.left_out.len() {
        0 => Ok(()),
        failed => Err(format!("{failed} contestants failed: they are named above")),
    }
}

fn render(arguments: &[String]) -> Result<(), String> {
    let file = results_file(arguments);
    let results = results::read(&file)?;
    let repository = option(arguments, "--repository").unwrap_or(".");
    report::write(&results, repository.as_ref(), file.parent().unwrap_or(".".as_ref()))
}

fn list() -> Result<(), String> {
    for case in driver::own_list() {
        println!("{}", serde_json::to_string(&case).map_err(|error| error.to_string())?);
    }
    Ok(())
}

/// The peers, as the lock file has them.
fn versions() -> Result<(), String> {
    const LOCK: &str = include_str!("../Cargo.lock");
    let kube = cfg!(feature = "kube").then_some("kube-runtime");
    for peer in ["tokio", "crossbeam-channel", "papaya", "imbl"].into_iter().chain(kube) {
        let mut lines = LOCK.lines().skip_while(|line| *line != format!("name = \"{peer}\""));
        let version = lines.nth(1).and_then(|line| line.split('"').nth(1));
        println!("{peer} {}", version.ok_or_else(|| format!("Cargo.lock has no {peer}"))?);
    }
    Ok(())
}

fn measure(arguments: &[String]) -> Result<(), String> {
    let [row, size, name] = arguments else {
        return Err("measure ROW SIZE CONTESTANT".to_string());
    };
    let size: usize = size.parse().map_err(|error| format!("{size}: {error}"))?;
    let contestant = rows::contestant(row, name).ok_or_else(|| format!("nobody is named {name:?} at row {row:?}"))?;
    let measured = (contestant.run)(size);
    println!("{}", serde_json::to_string(&measured).map_err(|error| error.to_string())?);
    // Watchers still run, and nothing is taken down: what a large store takes for that is no part of the run.
    std::process::exit(0);
}
