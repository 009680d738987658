//! Versions: counts, and values that are not there.

use super::*;

pub(in crate::data) fn kv(seq: u64, value: Option<&str>, older: VersionPtr) -> KeyValue {
    let meta = KeyMeta { create_revision: 1, mod_revision: seq, version: 1, lease: 0 };
    KeyValue::new(b"/k", value.map(str::as_bytes), meta, seq, older)
}

/// In a process of its own, which ends.
#[test]
#[cfg(all(unix, not(miri)))]
fn too_many_clones_end_the_process() {
    use std::os::unix::process::ExitStatusExt;
    const CHILD: &str = "WATCHCORE_TEST_TOO_MANY_CLONES";
    if std::env::var_os(CHILD).is_none() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "data::key_value::tests::too_many_clones_end_the_process"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert_eq!(child.status.signal(), Some(libc::SIGABRT), "{child:?}");
        return;
    }
    let version = kv(1, Some("x"), VersionPtr::NULL);
    version.count().store(heap::MOST_COUNTS, Relaxed);
    std::mem::forget(version.clone());
    std::mem::forget(version.clone());
}

#[test]
fn absent_and_empty_values_differ() {
    assert_eq!(kv(1, Some(""), VersionPtr::NULL).value(), Some(&b""[..]));
    assert_eq!(kv(1, None, VersionPtr::NULL).value(), None);
    assert_eq!(size_of::<Head>(), 56);
}
