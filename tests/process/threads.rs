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
    // SAFETY: the call takes no pointer.
    if unsafe { libc::geteuid() } == 0 {
        // SAFETY: the call takes a number, and no pointer.
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
    assert!(watchcore::raw::quiesce(Duration::from_secs(30)), "somebody frees");
}

/// How often the notifier has gone to sleep.
#[cfg(target_os = "linux")]
fn sleeps_of_the_notifier() -> u64 {
    let is_it = |task: &std::path::PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "watchcore-wake")
    };
    // A thread has its name a moment after it has begun.
    let until = std::time::Instant::now() + Duration::from_secs(30);
    let task = loop {
        let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
        if let Some(task) = tasks.find(is_it) {
            break task;
        }
        assert!(std::time::Instant::now() < until, "the notifier runs");
    };
    let status = std::fs::read_to_string(task.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// Subscriptions that sleep at their buckets cost a revision of others nothing, with a bookmark to come neither.
#[cfg(target_os = "linux")]
#[test]
fn bookmarks_to_come_wake_no_notifier() {
    use watchcore::{Index, ReadPath, Start, WakeSet};
    let _alone = alone();
    let cache = Cache::builder("/").index(Index::key()).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let open = |number: u64| {
        let options = cache.subscribe(Start::Now).key(format!("/{number}")).bookmarks(true);
        options.bookmark_interval(Duration::from_secs(3600)).open().unwrap()
    };
    let mut sleepers: Vec<_> = (0..100).map(open).collect();
    // The writer answers a few requests for buckets a revision.
    for revision in 1..=100 {
        writer.apply(revision, [Change::put("/other", "")]).unwrap();
    }
    let set = WakeSet::new().unwrap();
    for sleeper in &mut sleepers {
        while !sleeper.poll(10).unwrap().is_empty() {}
        assert_eq!(sleeper.stats().read_path, ReadPath::Chain { index: "key".into() });
        set.add(sleeper, 1).unwrap();
        assert!(!sleeper.arm().unwrap());
    }
    let before = sleeps_of_the_notifier();
    for revision in 101..=2100 {
        writer.apply(revision, [Change::put("/other", "")]).unwrap();
        std::thread::yield_now();
    }
    // It may still have been on its way to read who came.
    let sleeps = sleeps_of_the_notifier() - before;
    assert!(sleeps <= 10, "it was woken {sleeps} times by 2000 revisions that nobody sleeps for");
    assert_eq!(cache.stats().waiting, 100);
    writer.apply(2101, [Change::put("/7", "")]).unwrap();
    assert!(set.wait(Duration::from_secs(30)) && sleepers[7].poll(10).unwrap().len() == 1);
}
