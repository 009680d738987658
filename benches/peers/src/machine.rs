//! What a run was measured on.

use crate::results::Machine;
use std::fs::read_to_string;
use std::process::Command;

/// The load average of the last minute; 0 where the system does not say it.
pub fn load() -> f64 {
    let text = read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

pub fn describe(load_before: f64) -> Machine {
    Machine {
        processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_string()),
        cores: std::thread::available_parallelism().map_or(1, |count| count.get()),
        memory_mib: field("/proc/meminfo", "MemTotal")
            .and_then(|text| text.split(' ').next().and_then(|word| word.parse::<u64>().ok()))
            .unwrap_or(0)
            >> 10,
        kernel: read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_string(),
        load: (load_before, load()),
        day: said("date", &["-u", "+%F"]).unwrap_or_default(),
    }
}

/// The text behind `name:` in a file of such lines.
fn field(path: &str, name: &str) -> Option<String> {
    let text = read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// The newest commit of what is measured, and whether that was changed since.
pub fn commit() -> String {
    const MEASURED: [&str; 4] = ["src", "watchcore-capi", "go", "Cargo.toml"];
    let Some(commit) = said("git", &[&["log", "-1", "--format=%h", "--"], &MEASURED[..]].concat()) else {
        return "of an unknown commit".to_string();
    };
    match said("git", &[&["diff", "--quiet", "HEAD", "--"], &MEASURED[..]].concat()) {
        Some(_) => commit,
        None => commit + " with changes",
    }
}

/// What a command prints, where it can be run.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
}
