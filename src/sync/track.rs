//! Accesses of plain memory that loom sees.

use std::cell::Cell;

/// Shows loom the reads of a plain object, and its making and its end.
pub(crate) struct Track {
    cell: loom::cell::UnsafeCell<()>,
    ended: Cell<bool>,
}

// SAFETY: loom runs the threads of a model one at a time.
unsafe impl Sync for Track {}
// SAFETY: loom runs the threads of a model one at a time, whichever of them has it.
unsafe impl Send for Track {}

impl Track {
    pub(crate) fn new() -> Track {
        let track = Track { cell: loom::cell::UnsafeCell::new(()), ended: Cell::new(false) };
        track.written();
        track
    }

    pub(crate) fn written(&self) {
        self.cell.with_mut(|_| ());
    }

    #[track_caller]
    pub(crate) fn read(&self) {
        if !std::thread::panicking() {
            assert!(!self.ended.get(), "used after it was freed");
            self.cell.with(|_| ());
        }
    }

    pub(crate) fn end(&self) {
        if !std::thread::panicking() {
            assert!(!self.ended.replace(true), "freed twice");
            self.cell.with_mut(|_| ());
        }
    }
}
