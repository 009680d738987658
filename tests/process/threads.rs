//! The threads that all caches of the process share.

use crate::alone;
use std::process::Command;
use std::time::Duration;
use watchcore::{Cache, Change, Code, Filter, Start};

const CHILD: &str = "WATCHCORE_TEST_WITHOUT_THREADS";

/// Sets how many processes and threads this user may have.
fn limit(soft: libc::rlim_t) {
    // SAFETY: plain memory of this frame.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NPROC, &mut limit), 0);
        limit.rlim_cur = soft.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NPROC, &limit), 0);
    }
}

/// In a process of its own: for root the limit does not hold, so that becomes another user.
#[test]
fn no_thread_is_an_error_of_build() {
    let _alone = alone();
    if std::env::var_os(CHILD).is_none() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "threads::no_thread_is_an_error_of_build", "--test-threads=1", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    // SAFETY: numbers only.
    if unsafe { libc::geteuid() } == 0 {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setuid(54_321) }, 0);
    }
    limit(0);
    for _ in 0..2 {
        let error = Cache::builder("/").build().unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted);
        assert!(error.to_string().contains("ulimit -u"), "{error}");
    }
    limit(libc::RLIM_INFINITY);
    let cache = Cache::builder("/").build().unwrap();
    // Predicates have a thread of their own, which the first subscription with one starts.
    let with_predicate = || cache.subscribe(Start::Now).filter(Filter::any().predicate(|_| true)).open();
    limit(0);
    let error = with_predicate().unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert!(error.to_string().contains("ulimit -u"), "{error}");
    drop(cache.subscribe(Start::Now).open().unwrap());
    limit(libc::RLIM_INFINITY);
    drop(with_predicate().unwrap());
    cache.writer().unwrap().apply(1, [Change::put("/a", "")]).unwrap();
    drop(cache);
    assert!(watchcore::quiesce(Duration::from_secs(30)), "somebody frees");
}
