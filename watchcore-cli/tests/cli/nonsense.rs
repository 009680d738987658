//! Servers that break the rules of etcd's API: nobody is told to correct a command for it, and no command runs for ever.

use crate::fake::{Fake, Fault};
use crate::run::{Ended, Running, command, run};
use crate::support::wait_for;

fn filled() -> Fake {
    let etcd = Fake::start();
    for number in 0..150 {
        etcd.put(format!("/x/{number:03}"), "old");
    }
    etcd
}

const READS: [&[&str]; 2] = [&["list", "--prefix", "/x/"], &["get", "/x/149"]];

fn read(endpoints: &str, timeout: &str, task: &[&str]) -> Ended {
    run(&[&["--etcd", endpoints, "--timeout", timeout, "--format", "json"], task].concat())
}

/// `list` and `get` against these endpoints have what etcd has.
fn reads_succeed(endpoints: &str, fault: Fault) {
    for task in READS {
        assert!(read(endpoints, "60s", task).is(0).out.contains("/x/149"), "{fault:?}");
    }
}

/// Both end with the timeout and these words; on a slow machine the cause is known within the longer timeout alone.
fn reads_time_out(endpoints: &str, fault: Fault, words: &str) {
    for task in READS {
        let says = |timeout: &&str| {
            let ended = read(endpoints, timeout, task).is(4);
            ended.error("TIMEOUT");
            assert!(!ended.err.contains("Correct it"), "{ended:?}");
            ended.err.contains(words)
        };
        assert!(["2s", "30s"].iter().any(says), "{fault:?}");
    }
}

const FAULTS: [Fault; 4] = [Fault::ListsForeignKey, Fault::ListsEmptyKey, Fault::ListsKeyTwice, Fault::LargeRevision];

#[test]
fn nonsense_ends_with_the_timeout() {
    for fault in FAULTS {
        let etcd = filled();
        etcd.fault(fault);
        reads_time_out(&etcd.url(), fault, "broke a rule of etcd's API");
    }
}

#[test]
fn nonsense_is_left_for_another_endpoint() {
    for fault in FAULTS {
        let (poisoned, healthy) = (filled(), filled());
        poisoned.fault(fault);
        reads_succeed(&format!("{},{}", poisoned.url(), healthy.url()), fault);
    }
}

/// One with the same key again and again grew by 90 MB a second.
#[test]
fn endless_streams_end_a_read() {
    for fault in [Fault::RepeatingStream, Fault::RisingStream] {
        let etcd = filled();
        etcd.fault(fault);
        reads_succeed(&etcd.url(), fault);
    }
}

/// A gateway or a web server that answers in etcd's place.
#[test]
fn html_page_is_called_one() {
    for fault in [Fault::GatewayPage, Fault::WebPage] {
        let etcd = filled();
        etcd.fault(fault);
        reads_time_out(&etcd.url(), fault, "the answer is not gRPC: it is an HTML page");
        let healthy = filled();
        reads_succeed(&format!("{},{}", etcd.url(), healthy.url()), fault);
    }
}

/// However often a watch does not last, one line says so until it is over.
#[test]
fn setbacks_in_a_row_are_one_line() {
    let etcd = filled();
    etcd.fault(Fault::CompactedWatches);
    let last = (etcd.revision() + 1).to_string();
    let url = etcd.url();
    let task = ["--etcd", &url, "--timeout", "60s", "watch", "--prefix", "/x/", "--until-revision", &last];
    let watch = Running::start(command(&task));
    wait_for("setbacks in a row", || etcd.calls("Watch") >= 6);
    etcd.heal();
    etcd.put("/x/000", "new");
    let ended = watch.end().is(0);
    let lines: Vec<_> = ended.err.lines().filter(|line| line.contains("no watch lasts")).collect();
    assert_eq!(lines.len(), 1, "{ended:?}");
    assert!(lines[0].contains("reason Compacted"), "{lines:?}");
}
