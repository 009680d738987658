use super::classes::{GREATEST, class_of};
use super::*;
use crate::reclaim;
use crate::sync::often;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

#[test]
#[cfg_attr(miri, ignore = "it is of numbers alone")]
fn classes_fit_what_they_are_for() {
    let mut last = 0;
    let mut sizes = BTreeMap::new();
    for bytes in 1..=GREATEST {
        let (class, size) = class_of(bytes).expect("a class for each");
        assert!(class == last || class == last + 1, "{bytes}: no class is left out");
        assert_eq!(*sizes.entry(class).or_insert(size), size, "{bytes}: a class has blocks of one size");
        assert!(size >= bytes && size.is_multiple_of(ALIGN), "{bytes}: {size}");
        assert!(bytes % (2 * WIDE) != WIDE || size.is_multiple_of(WIDE), "{bytes}: {size} is not wide");
        assert!(size - bytes < 32.max(bytes / 16) || bytes <= 16, "{bytes}: {size} is too much");
        last = class;
    }
    assert_eq!(class_of(GREATEST + 1), None);
}

fn new_heap() -> Heap {
    Heap::new(|slab| reclaim::free(slab.bytes(), Box::new(move || drop(slab))))
}

#[test]
fn blocks_of_an_even_number_of_lines_begin_in_all_sets() {
    let mut heap = new_heap();
    let all: Vec<_> = (0..4000).map(|_| heap.allocate(640 - HEADER)).collect();
    let odd = all.iter().filter(|block| (block.addr().get() - HEADER) / 64 % 2 == 1).count();
    assert!((400..3600).contains(&odd), "{odd} of 4000 begin in an odd line");
    // SAFETY: given back once, and used by nobody.
    all.into_iter().for_each(|block| unsafe { free(block) });
}

/// A block of its own contents.
struct Filled(NonNull<u8>, usize, u8);

impl Filled {
    fn new(memory: &mut impl Memory, bytes: usize, with: u8) -> Filled {
        let block = memory.allocate(bytes);
        assert!(block.addr().get().is_multiple_of(ALIGN));
        let is_wide = (block.addr().get() + HEADER).is_multiple_of(WIDE);
        assert!(is_wide || (bytes + HEADER) % (2 * WIDE) != WIDE, "{bytes} bytes");
        // SAFETY: a block of so many bytes.
        unsafe { block.write_bytes(with, bytes) };
        Filled(block, bytes, with)
    }

    fn check(&self) {
        // SAFETY: written by `new`.
        let bytes = unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.1) };
        assert!(bytes.iter().all(|byte| *byte == self.2), "somebody else has written here");
    }

    fn free(self) {
        self.check();
        // SAFETY: ours, and nobody uses it any more.
        unsafe { free(self.0) };
    }

    fn free_in(self, batch: &mut FreeBatch) {
        self.check();
        // SAFETY: the block is this value's, which frees it once, here.
        unsafe { batch.free(self.0) };
    }
}

// SAFETY: it alone has the block.
unsafe impl Send for Filled {}

proptest! {
    #![proptest_config(ProptestConfig { cases: often(64) as u32, failure_persistence: None, ..ProptestConfig::default() })]
    /// Whatever is taken and given back, in whatever order: no two blocks share a byte, and the slabs go with the last
    /// of their blocks, or with the heap.
    #[test]
    fn blocks_are_ones_own(
        steps in prop::collection::vec((0usize..9, 1usize..400, any::<u8>(), any::<prop::sample::Index>()), 1..often(400)),
        heap_goes_first in any::<bool>(),
    ) {
        let mut heap = new_heap();
        let home = heap.home();
        let mut blocks = Vec::new();
        for (what, bytes, with, index) in steps {
            match what {
                // Many of one size, so that slabs fill.
                0 => blocks.extend((0..64).map(|at| Filled::new(&mut heap, 100, with.wrapping_add(at)))),
                1 => blocks.push(Filled::new(&mut heap, bytes * bytes / 4, with)),
                2 => blocks.push(Filled::new(&mut heap, bytes, with)),
                7 => blocks.push(Filled::new(&mut heap, bytes / 2 * 2 * WIDE + HEADER, with)),
                3 => heap.tidy(),
                4 => blocks.drain(index.index(blocks.len() + 1)..).for_each(Filled::free),
                8 => {
                    let mut batch = FreeBatch::default();
                    blocks.drain(index.index(blocks.len() + 1)..).for_each(|block| block.free_in(&mut batch));
                }
                _ if blocks.is_empty() => {}
                _ => blocks.swap_remove(index.index(blocks.len())).free(),
            }
        }
        blocks.iter().for_each(Filled::check);
        if heap_goes_first {
            drop(heap);
            blocks.drain(..).for_each(Filled::free);
        } else {
            blocks.drain(..).for_each(Filled::free);
            drop(heap);
        }
        prop_assert!(reclaim::quiesce(Duration::from_secs(30)));
        prop_assert_eq!(crate::sync::Arc::strong_count(&home), 1, "a slab is left");
    }
}

/// Freed blocks are taken again: a heap that has its size does not grow.
#[test]
fn freed_blocks_come_back() {
    let mut heap = new_heap();
    let home = heap.home();
    let take = |heap: &mut Heap| (0..often(10_000)).map(|at| Filled::new(heap, 200, at as u8)).collect::<Vec<_>>();
    take(&mut heap).into_iter().for_each(Filled::free);
    let slabs = crate::sync::Arc::strong_count(&home);
    for _ in 0..often(10) {
        take(&mut heap).into_iter().for_each(Filled::free);
        // Slabs that were discarded on the way count until they are freed.
        assert!(reclaim::quiesce(Duration::from_secs(30)));
        assert!(crate::sync::Arc::strong_count(&home) <= slabs, "more slabs than before");
    }
}

/// A heap that has shrunk gives slabs back to the system, a few with each revision.
#[test]
#[cfg_attr(miri, ignore = "of fewer blocks it says nothing")]
fn empty_slabs_go() {
    let mut heap = new_heap();
    let home = heap.home();
    let blocks: Vec<_> = (0..100_000).map(|at| Filled::new(&mut heap, 200, at as u8)).collect();
    let slabs = crate::sync::Arc::strong_count(&home);
    assert!(slabs > 300);
    blocks.into_iter().for_each(Filled::free);
    (0..slabs).for_each(|_| heap.tidy());
    assert!(reclaim::quiesce(Duration::from_secs(30)));
    // The heap's count and the test's, the slab in hand, and spares.
    assert!(crate::sync::Arc::strong_count(&home) <= 5, "{} of {slabs}", crate::sync::Arc::strong_count(&home));
}

/// A thread takes, two free, and the heap is dropped while some blocks are in use.
#[test]
fn any_thread_gives_back() {
    for round in 0..often(20) {
        let mut heap = new_heap();
        let home = heap.home();
        let (to, frees): (Vec<_>, Vec<_>) = (0..2)
            .map(|_| {
                let (to, blocks) = mpsc::sync_channel::<Filled>(512);
                (to, std::thread::spawn(move || blocks.into_iter().for_each(Filled::free)))
            })
            .unzip();
        let mut kept = BTreeMap::new();
        for at in 0..often(20_000) {
            let block = Filled::new(&mut heap, [40, 150, 500][at % 3], at as u8);
            if let Some(old) = kept.insert(at * 7919 % (50 << (round % 6)), block) {
                to[at / 5 % 2].send(old).unwrap();
            }
            heap.tidy();
        }
        drop(heap);
        kept.into_values().enumerate().for_each(|(at, block)| to[at % 2].send(block).unwrap());
        drop(to);
        frees.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(reclaim::quiesce(Duration::from_secs(30)));
        assert_eq!(crate::sync::Arc::strong_count(&home), 1, "a slab is left");
    }
}
