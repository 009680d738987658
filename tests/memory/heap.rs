//! An allocator that counts what the process holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

struct Counting;

static HELD: AtomicI64 = AtomicI64::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size() as i64, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as i64, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        HELD.fetch_add(size as i64 - layout.size() as i64, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes allocated now, once everything that waited to be freed is freed.
pub fn held() -> i64 {
    assert!(watchcore::quiesce(Duration::from_secs(60)), "the reclaimer does not come to rest");
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
