//! The heap: blocks come back to their owner, and slabs go with the last of them.
//!
//! | row | test `loom_...` | weakened in the twins |
//! | --- | --- | --- |
//! | a block comes back, and is taken | `block_against_its_owner` | the block's exchange; the owner's |
//! | announced, and accepted | `slabs_against_their_owner` | the list's exchange; its swap |
//! | more comes back after that | `blocks_after_the_announcement` | its exchange |
//! | two blocks come back | `blocks_against_each_other` | |
//! | two that are freed together come back, and are taken | `batch_against_its_owner` | its exchange |
//! | two that are freed together, and the owner goes | `batch_against_the_end` | its exchange |
//! | a block comes back, and the owner goes | `block_against_the_end` | its exchange |
//! | announced, and the owner goes | `slab_against_the_end` | the owner's swap |
//! | the owner goes first | `end_before_the_last_block` | the owner's exchange |
//!
//! Every block has a `Track`, which the thread that frees it and the thread that takes it write, and every slab is
//! counted in `LIVING`: none leaks, none is freed twice.

use super::*;
use crate::heap::{FreeBatch, Heap, free, living_slabs};
use std::ptr::NonNull;

/// A value that moves to another thread.
struct Sent<T>(T);

// SAFETY: the block is used by one thread at a time.
unsafe impl<T> Send for Sent<T> {}

/// A heap whose slabs have two blocks, and some of its blocks.
fn heap_of(blocks: usize) -> (Local<Heap>, Vec<Sent<NonNull<u8>>>) {
    let mut heap = Local::new(Heap::new(drop));
    let blocks = (0..blocks).map(|_| Sent(heap.take_of_two())).collect();
    (heap, blocks)
}

fn give_back(blocks: impl IntoIterator<Item = Sent<NonNull<u8>>>) {
    // SAFETY: the block is from a heap, in use by no other thread, and freed once.
    blocks.into_iter().for_each(|Sent(block)| unsafe { free(block) });
}

/// Frees blocks in a batch, as the reclaimer does.
fn give_back_together(blocks: impl IntoIterator<Item = Sent<NonNull<u8>>>) {
    let mut batch = FreeBatch::default();
    // SAFETY: the block is from a heap, in use by no other thread, and freed once.
    blocks.into_iter().for_each(|Sent(block)| unsafe { batch.free(block) });
}

/// Runs a model, in which every slab that was made is freed.
fn counted(model: Model, weakened: Weak, body: impl Fn() + Send + Sync + 'static) {
    model.run(weakened, move || {
        living_slabs(|living| *living = 0);
        body();
        assert_eq!(living_slabs(|living| *living), 0, "a slab is left");
    });
}

/// The slab in hand: the owner takes what comes back, or puts the slab away.
fn block_against_its_owner(weakened: Weak) {
    counted(PLAIN, weakened, || {
        let (mut heap, mut blocks) = heap_of(2);
        let back = blocks.pop();
        // The owner knows of no free block: it takes those that came back, or makes another slab.
        let take = move || {
            blocks.push(Sent(heap.take_of_two()));
            (heap, blocks)
        };
        let ((_heap, blocks), ()) = both(take, || give_back(back));
        give_back(blocks);
    });
}

proof!(
    block_against_its_owner, loom_block_against_its_owner,
    loom_block_against_its_owner_weak_free: BlockFreed => "Causality violation",
    loom_block_against_its_owner_weak_take: BlocksTaken => "Causality violation",
);

/// Slabs that were put away: announced by their first block, accepted, taken in hand again.
fn slabs_against_their_owner(weakened: Weak) {
    counted(LONG, weakened, || {
        // Two slabs are full, and put away.
        let (mut heap, mut blocks) = heap_of(6);
        let rest = blocks.split_off(4);
        let (kept, back) = (blocks.remove(0), blocks);
        // Neither block of the slab in hand is free: it takes one of those that came, or of a new slab.
        let take = move || {
            let more = Sent(heap.take_of_two());
            (heap, more)
        };
        let ((mut heap, more), ()) = both(take, || give_back(back));
        (0..3).for_each(|_| heap.tidy());
        give_back(rest.into_iter().chain([kept, more]));
    });
}

proof!(
    slabs_against_their_owner, loom_slabs_against_their_owner,
    loom_slabs_against_their_owner_weak_announcement: SlabAnnounced => "a slab is left",
    loom_slabs_against_their_owner_weak_acceptance: SlabsTaken => "a slab is left",
);

/// Lets another thread continue, without ordering anything.
#[derive(Clone)]
struct Sign(std::sync::Arc<::loom::sync::atomic::AtomicBool>);

impl Sign {
    fn new() -> Sign {
        Sign(std::sync::Arc::new(::loom::sync::atomic::AtomicBool::new(false)))
    }

    fn give(&self) {
        self.0.store(true, Relaxed);
    }

    fn wait(&self) {
        while !self.0.load(Relaxed) {
            thread::yield_now();
        }
    }
}

/// A block that comes back after its slab was announced is ordered by the slab's word.
fn blocks_after_the_announcement(weakened: Weak) {
    counted(PLAIN, weakened, || {
        let (mut heap, mut blocks) = heap_of(4);
        let kept = blocks.split_off(2);
        let given = Sign::new();
        let sign = given.clone();
        let give = move || {
            give_back(blocks);
            sign.give();
        };
        let take = move || {
            given.wait();
            let more = Sent(heap.take_of_two());
            (heap, more)
        };
        let ((_heap, more), ()) = both(take, give);
        give_back(kept.into_iter().chain([more]));
    });
}

proof!(
    blocks_after_the_announcement, loom_blocks_after_the_announcement,
    loom_blocks_after_the_announcement_weak_free: BlockFreed => "Causality violation",
);

/// Two threads give the blocks of one slab back, which is announced once.
fn blocks_against_each_other(weakened: Weak) {
    counted(LONG, weakened, || {
        let (mut heap, mut blocks) = heap_of(3);
        let (first, second) = (blocks.remove(0), blocks.remove(0));
        both(|| give_back([first]), || give_back([second]));
        heap.tidy();
        blocks.extend((0..3).map(|_| Sent(heap.take_of_two())));
        give_back(blocks);
    });
}

proof!(blocks_against_each_other, loom_blocks_against_each_other);

/// Both blocks of a slab, and one of the slab in hand, which the owner takes again.
fn batch_against_its_owner(weakened: Weak) {
    counted(LONG, weakened, || {
        let (mut heap, mut blocks) = heap_of(4);
        let back = blocks.split_off(1);
        let take = move || {
            blocks.extend((0..2).map(|_| Sent(heap.take_of_two())));
            (heap, blocks)
        };
        let ((mut heap, blocks), ()) = both(take, || give_back_together(back));
        heap.tidy();
        give_back_together(blocks);
    });
}

proof!(
    batch_against_its_owner, loom_batch_against_its_owner,
    loom_batch_against_its_owner_weak_free: BlockFreed => "Causality violation",
);

/// The owner goes while both blocks of a slab come back, of which one is the last.
fn batch_against_the_end(weakened: Weak) {
    counted(PLAIN, weakened, || {
        let (heap, blocks) = heap_of(2);
        both(|| drop(heap), || give_back_together(blocks));
    });
}

proof!(
    batch_against_the_end, loom_batch_against_the_end,
    loom_batch_against_the_end_weak_free: BlockFreed => "Causality violation",
);

/// The owner goes while the blocks of the slab in hand come back: one of the two frees the slab.
fn block_against_the_end(weakened: Weak) {
    counted(PLAIN, weakened, || {
        let (heap, blocks) = heap_of(2);
        both(|| drop(heap), || give_back(blocks));
    });
}

proof!(
    block_against_the_end, loom_block_against_the_end,
    loom_block_against_the_end_weak_free: BlockFreed => "Causality violation",
);

/// The owner goes while a slab is announced: it is taken by one of the two.
fn slab_against_the_end(weakened: Weak) {
    counted(PLAIN, weakened, || {
        let (heap, mut blocks) = heap_of(3);
        let last = blocks.pop();
        both(|| drop(heap), || give_back(blocks));
        give_back(last);
    });
}

proof!(
    slab_against_the_end, loom_slab_against_the_end,
    loom_slab_against_the_end_weak_close: HomeClosed => "a slab is left",
);

/// A thread that frees a slab after its owner has gone sees all that the owner did with it.
fn end_before_the_last_block(weakened: Weak) {
    counted(PLAIN, weakened, || {
        let (mut heap, blocks) = heap_of(2);
        let gone = Sign::new();
        let sign = gone.clone();
        let end = move || {
            // Puts the first slab away.
            let more = Sent(heap.take_of_two());
            drop(heap);
            sign.give();
            more
        };
        let give = move || {
            gone.wait();
            give_back(blocks);
        };
        let (more, ()) = both(end, give);
        give_back([more]);
    });
}

proof!(
    end_before_the_last_block, loom_end_before_the_last_block,
    loom_end_before_the_last_block_weak_orphan: SlabOrphan => "Causality violation",
);
