//! Servers that break the rules of etcd's API: nobody is told to correct a command for it, and no command runs for ever.

use crate::fake::{Fake, Fault};
use crate::run::{Ended, run};

fn filled() -> Fake {
    let etcd = Fake::start();
    for number in 0..150 {
        etcd.put(format!("/x/{number:03}"), "old");
    }
    etcd
}

/// `list` and `get` against these endpoints.
fn reads(endpoints: &str) -> [Ended; 2] {
    [&["list", "--prefix", "/x/"][..], &["get", "/x/149"]]
        .map(|task| run(&[&["--etcd", endpoints, "--timeout", "2s", "--format", "json"], task].concat()))
}

const FAULTS: [Fault; 4] = [Fault::ListsForeignKey, Fault::ListsEmptyKey, Fault::ListsKeyTwice, Fault::LargeRevision];

#[test]
fn nonsense_ends_with_the_timeout() {
    for fault in FAULTS {
        let etcd = filled();
        etcd.fault(fault);
        for ended in reads(&etcd.url()) {
            let ended = ended.is(4);
            ended.error("TIMEOUT");
            assert!(ended.err.contains("broke a rule of etcd's API"), "{fault:?}: {ended:?}");
            assert!(!ended.err.contains("Correct it"), "{ended:?}");
        }
    }
}

#[test]
fn nonsense_is_left_for_another_endpoint() {
    for fault in FAULTS {
        let (poisoned, healthy) = (filled(), filled());
        poisoned.fault(fault);
        for ended in reads(&format!("{},{}", poisoned.url(), healthy.url())) {
            assert!(ended.is(0).out.contains("/x/149"), "{fault:?}");
        }
    }
}

/// One with the same key again and again grew by 90 MB a second.
#[test]
fn endless_streams_end_a_read() {
    for fault in [Fault::RepeatingStream, Fault::RisingStream] {
        let etcd = filled();
        etcd.fault(fault);
        for ended in reads(&etcd.url()) {
            assert!(ended.is(0).out.contains("/x/149"), "{fault:?}");
        }
    }
}
