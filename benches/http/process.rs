//! What the system says about a process: its processor time, its memory.

use std::fs;
use std::time::Duration;

/// Processor time of all its threads so far, those that have ended apart.
pub(crate) fn cpu(pid: u32) -> Duration {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives").flatten() {
        let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        sum += text.split(' ').next().and_then(|time| time.parse::<u64>().ok()).unwrap_or(0);
    }
    Duration::from_nanos(sum)
}

/// A line of its status in bytes: `VmRSS`, `VmHWM`.
pub(crate) fn memory(pid: u32, line: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let found = text.lines().find_map(|each| each.strip_prefix(line)?.strip_prefix(':'));
    let kilobytes = found.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.expect("a number of kB") * 1024
}

/// From now on `VmHWM` is the most since now.
pub(crate) fn forget_peak(pid: u32) {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("a process of the same user");
}
