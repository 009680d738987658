//! Versions: counts, and values that are not there.

use super::*;
use crate::data::decoded::{DecodedCell, Decoder};
use std::sync::Arc;
use std::time::Duration;

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

/// What lies between a version and its key is found whatever else is there, and counted.
#[test]
fn each_part_of_a_version_is_found() {
    let decoder = Decoder::new(|key, value| Ok::<_, std::fmt::Error>([key, value].concat()), |_| 0);
    let shared: SharedValue = Arc::from(&b"value"[..]);
    let meta = KeyMeta { create_revision: 1, mod_revision: 2, version: 2, lease: 3 };
    let most = (1 << 61) - 1;
    for parts in 0..8 {
        let extras = VersionExtras {
            attributes: if parts & 1 != 0 { b"attributes" } else { b"" },
            decoder: (parts & 2 != 0).then_some(&decoder),
            shared: (parts & 4 != 0).then_some(&shared),
        };
        let version = KeyValue::with_extras(&mut System, b"/k", Some(b"value"), meta, most, VersionPtr::NULL, extras);
        assert_eq!((version.key(), version.value(), version.seq()), (&b"/k"[..], Some(&b"value"[..]), most), "{parts}");
        assert_eq!(version.attributes(), extras.attributes, "{parts}");
        let decoded = version.decoded::<Vec<u8>>().ok().flatten().map(Vec::as_slice);
        assert_eq!(decoded, extras.decoder.map(|_| &b"/kvalue"[..]), "{parts}");
        assert_eq!(Arc::strong_count(&shared), 1 + usize::from(parts & 4 != 0), "{parts}");
        let between = 8 * (parts & 1) + size_of::<DecodedCell>() * (parts >> 1 & 1) + 16 * (parts >> 2);
        let copied = if parts & 4 == 0 { 5 } else { 0 };
        let block = heap::footprint((72 + between + 2 + copied + extras.attributes.len()).next_multiple_of(8));
        assert_eq!(version.bytes(), block + 5 - copied, "{parts}");
        drop(version);
        assert!(reclaim::quiesce(Duration::from_secs(30)));
        assert_eq!(Arc::strong_count(&shared), 1, "{parts}");
    }
}
