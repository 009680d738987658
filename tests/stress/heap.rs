//! A global allocator that knows who frees segments and versions: by sizes that only one test has.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

/// Slots a segment, and bytes a value, of the test that is watched: such a value lies in no slab. There are slabs of as many
/// bytes, but they begin at a line of memory: one that came before the watch and went after it was taken for a version.
pub const SLOTS: u64 = 2048;
pub const VALUE: usize = 16_500;

static WATCHED: AtomicBool = AtomicBool::new(false);
static ALIVE: [AtomicI64; 2] = [AtomicI64::new(0), AtomicI64::new(0)];
static FREED: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
static ELSEWHERE: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

/// 0: the events of a segment. 1: a version with its key and value.
fn class(layout: Layout) -> Option<usize> {
    match (layout.size(), layout.align()) {
        (size, 64) if size == SLOTS as usize * size_of::<watchcore::Event>() => Some(0),
        (size, 8..64) if size > VALUE + 60 && size < VALUE + 120 => Some(1),
        _ => None,
    }
}

#[cfg(target_os = "linux")]
fn is_reclaimer() -> bool {
    let mut name = [0u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name.starts_with(b"watchcore-free\0")
}

#[cfg(not(target_os = "linux"))]
fn is_reclaimer() -> bool {
    true
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if WATCHED.load(Relaxed)
            && let Some(class) = class(layout)
        {
            ALIVE[class].fetch_add(1, Relaxed);
        }
        // SAFETY: `System` asks of its caller what `GlobalAlloc` asks of ours, and gets the same arguments.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if WATCHED.load(Relaxed)
            && let Some(class) = class(layout)
        {
            ALIVE[class].fetch_sub(1, Relaxed);
            FREED[class].fetch_add(1, Relaxed);
            if !is_reclaimer() {
                ELSEWHERE[class].fetch_add(1, Relaxed);
            }
        }
        // SAFETY: `System` asks of its caller what `GlobalAlloc` asks of ours, and gets the same arguments.
        unsafe { System.dealloc(place, layout) }
    }
}

pub fn watch_sizes() {
    WATCHED.store(true, Relaxed);
}

fn both(counts: &[AtomicU64; 2]) -> (u64, u64) {
    (counts[0].load(Relaxed), counts[1].load(Relaxed))
}

/// (segments, versions) that live.
pub fn alive() -> (i64, i64) {
    (ALIVE[0].load(Relaxed), ALIVE[1].load(Relaxed))
}

/// (segments, versions) that were freed.
pub fn freed() -> (u64, u64) {
    both(&FREED)
}

/// Those of them that another thread than the reclaimer freed.
pub fn freed_elsewhere() -> (u64, u64) {
    both(&ELSEWHERE)
}
