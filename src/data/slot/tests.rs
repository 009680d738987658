use super::*;
use crate::data::key_value::KeyMeta;
use crate::data::key_value::tests::kv;

#[test]
fn a_version_lies_where_its_distance_says() {
    let kept = SlotCount::from(&b"/a"[..]);
    let slot = kept.0;
    let at = |bytes: isize| VersionPtr(slot.as_ptr().wrapping_byte_offset(bytes).cast_const().cast());
    for bytes in [STEP, -STEP, 1 << 20, -(1 << 20), STEP << 30, -(STEP << 31)] {
        let distance = SlotPtr(slot).distance_to(at(bytes));
        assert!(SlotPtr::at_distance(slot.as_ptr(), distance) == at(bytes), "{bytes}");
    }
    for bytes in [STEP << 31, -(STEP << 31) - STEP, isize::MAX] {
        assert_eq!(SlotPtr(slot).distance_to(at(bytes)), 0, "{bytes}");
    }
}

/// Those who have a count on a slot read its key before, while and after nothing else is left of it.
#[test]
fn lone_key_outlives_its_slot() {
    use crate::sync::often;
    for round in 0..often(200) {
        let key = format!("/key/of/any/length/{}", "x".repeat(round % 7)).into_bytes();
        let tombstone = KeyValue::new(&key, None, KeyMeta::default(), 10, VersionPtr::NULL);
        let slot = OwnedSlot::new(tombstone, &mut System);
        let count = slot.get().counted();
        let reads = |count: &SlotCount| {
            let _pin = reclaim::pin();
            // SAFETY: pinned.
            assert_eq!(unsafe { count.key() }, key);
        };
        std::thread::scope(|scope| {
            let other = count.clone();
            scope.spawn(move || (0..often(100)).for_each(|_| reads(&other)));
            // SAFETY: nobody but those with a count finds it.
            reclaim::free(0, Box::new(move || unsafe { slot.destroy() }));
        });
        assert!(reclaim::quiesce(std::time::Duration::from_secs(30)));
        assert!(count.lone_key().is_some() && count.uncounted_bytes() == 0);
        reads(&count);
    }
    let own = SlotCount::from(&b"/own"[..]);
    assert_eq!(own.uncounted_bytes(), lone_bytes(4));
}

#[test]
fn a_slot_is_read_at_any_head() {
    let first = kv(10, Some("a"), VersionPtr::NULL);
    let second = Fresh::new(kv(20, Some("b"), first.pointer()));
    let slot = OwnedSlot::new(first.clone(), &mut System);
    // SAFETY: the slot is owned here, and both versions are held to the end.
    let counts = unsafe {
        assert!(slot.get().at(10).is_none());
        let counts = second.replace(slot.pointer());
        assert_eq!(slot.get().at(20).unwrap().value(), Some(&b"a"[..]));
        assert_eq!(slot.get().at(21).unwrap().value(), Some(&b"b"[..]));
        assert!(slot.get().at(5).is_none());
        counts
    };
    // SAFETY: nobody reads them any more.
    reclaim::free(
        0,
        Box::new(move || unsafe {
            counts.release(&mut FreeBatch::default());
            slot.destroy();
        }),
    );
    drop(first);
    assert!(reclaim::quiesce(std::time::Duration::from_secs(30)));
}
