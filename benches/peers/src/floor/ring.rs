//! The log of the floors: as many events as watchcore keeps by default, and a block for each.
//!
//! What is in it: key and value are copied into the block whose event is the oldest, the line of the event is written,
//! and the head is stored. Why a library has to pay at least that: watchers that are behind find the last 65,536
//! events, so the bytes of an event go to memory that was last used 65,536 events ago, far out of the caches.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | `publish`, store of the head | `head`, its load | Release / Acquire |

use super::memory::{Block, Line, made};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

/// Events of the window.
pub const EVENTS: usize = 1 << 16;

pub struct Ring {
    lines: &'static [Line],
    /// How many events were published, ever.
    head: AtomicU64,
}

impl Ring {
    /// Empty, with a block for each line.
    pub fn made() -> &'static Ring {
        let (lines, blocks) = (made::<Line>(EVENTS), made::<Block>(EVENTS));
        for (line, block) in lines.iter().zip(blocks) {
            block.key.store(block.bytes(), Ordering::Relaxed);
            line.block.set(Some(block), Ordering::Relaxed);
        }
        Box::leak(Box::new(Ring { lines, head: AtomicU64::new(0) }))
    }

    fn line(&self, event: u64) -> &'static Line {
        &self.lines[event as usize % EVENTS]
    }

    /// How many events there are to read, ever.
    pub fn head(&self) -> u64 {
        // Acquire: the lines below are written. Partner: the store in `publish`.
        self.head.load(Ordering::Acquire)
    }

    /// Writes the next event; one thread does, and readers are less than a window behind.
    pub fn publish(&self, key: &str, value: &[u8]) -> &'static Line {
        let event = self.head.load(Ordering::Relaxed);
        let line = self.line(event);
        let block = line.block.get(Ordering::Relaxed).expect("each line has a block");
        // SAFETY: one thread publishes, and no reader of this log reads the bytes.
        unsafe { block.fill(key.as_bytes(), value) };
        line.revision.store(event + 1, Ordering::Relaxed);
        line.block.set(Some(block), Ordering::Relaxed);
        // Release: a reader of the head finds the line and the block. Partner: the load in `head`.
        self.head.store(event + 1, Ordering::Release);
        line
    }

    /// Reads the events from `next` to below `end`: revision and address of the key.
    pub fn read(&self, next: u64, end: u64) {
        (next..end).for_each(|event| read(self.line(event)));
    }
}

/// Reads the head of an event.
pub fn read(line: &Line) {
    let block = line.block.get(Ordering::Relaxed).expect("each line has a block");
    let key = std::ptr::from_ref(block).addr() as u64;
    black_box(line.revision.load(Ordering::Relaxed).wrapping_add(key));
}

/// The same; the address of the key stands in the first line of the block.
fn read_key(line: &Line) {
    let block = line.block.get(Ordering::Relaxed).expect("each line has a block");
    let key = block.key.load(Ordering::Relaxed).addr() as u64;
    black_box(line.revision.load(Ordering::Relaxed).wrapping_add(key));
}

/// A window of 1024 events, and what reads it once in such batches and says how many they were.
pub fn poll_window(batch: usize) -> impl FnMut() -> u64 {
    const WINDOW: u64 = 1024;
    let ring = Ring::made();
    crate::load::keys(WINDOW as usize).iter().for_each(|key| _ = ring.publish(key, &crate::load::VALUE));
    move || {
        let mut next = ring.head() - WINDOW;
        let begun = next;
        loop {
            let end = ring.head().min(next + batch as u64);
            if next == end {
                return next - begun;
            }
            (next..end).for_each(|event| read_key(ring.line(event)));
            next = end;
        }
    }
}
