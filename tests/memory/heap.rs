//! An allocator that counts what the process holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

struct Counting;

static HELD: AtomicI64 = AtomicI64::new(0);

/// What a thread asked of the allocator.
#[derive(Clone, Copy, Default, Debug)]
pub struct Work {
    /// Blocks allocated or grown, and their bytes.
    pub blocks: u64,
    pub bytes: u64,
    /// Blocks freed.
    pub freed: u64,
}

thread_local! {
    static WORK: Cell<Work> = const { Cell::new(Work { blocks: 0, bytes: 0, freed: 0 }) };
}

fn count(blocks: u64, bytes: usize, freed: u64) {
    // A thread that ends may be past its counts.
    let _ = WORK.try_with(|work| {
        let now = work.get();
        work.set(Work { blocks: now.blocks + blocks, bytes: now.bytes + bytes as u64, freed: now.freed + freed });
    });
}

/// What `run` asks of the allocator, on this thread.
pub fn work_of(run: impl FnOnce()) -> Work {
    WORK.set(Work::default());
    run();
    WORK.get()
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size(), 0);
        HELD.fetch_add(layout.size() as i64, Relaxed);
        // SAFETY: `System` asks of its caller what `GlobalAlloc` asks of ours, and gets the same arguments.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, 0, 1);
        HELD.fetch_sub(layout.size() as i64, Relaxed);
        // SAFETY: `System` asks of its caller what `GlobalAlloc` asks of ours, and gets the same arguments.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, size, 0);
        HELD.fetch_add(size as i64 - layout.size() as i64, Relaxed);
        // SAFETY: `System` asks of its caller what `GlobalAlloc` asks of ours, and gets the same arguments.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes allocated now, once everything that waited to be freed is freed.
pub fn held() -> i64 {
    assert!(watchcore::raw::quiesce(Duration::from_secs(60)), "the reclaimer does not come to rest");
    HELD.load(Relaxed)
}

/// Bytes allocated at this moment.
pub fn now() -> i64 {
    HELD.load(Relaxed)
}

/// The count for one test; a test that failed has let go of it.
pub fn alone() -> MutexGuard<'static, ()> {
    static COUNT: Mutex<()> = Mutex::new(());
    COUNT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until what is held is at most that much: the notifier has to read what it was told.
pub fn held_at_most(bytes: i64) -> i64 {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let now = held();
        if now <= bytes || Instant::now() > until {
            return now;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
