//! Blocks that are freed one after the other: those of one slab go back to it together, by one exchange.
//!
//! What left the log together was mostly taken together, so a segment that goes gives many blocks of one slab back.

use super::returned;
use super::slab::{Home, Returned};
use std::ptr::NonNull;

/// Blocks of one slab that nobody uses any more, and that have not gone back to it: they go with the next one of another
/// slab, or when this is dropped. For the reclaimer alone, which counts what it frees without an exchange.
#[derive(Default)]
pub(crate) struct FreeBatch(Option<Returned>);

impl FreeBatch {
    /// Frees a block.
    ///
    /// # Safety
    ///
    /// As [`super::free`].
    #[inline]
    pub(crate) unsafe fn free(&mut self, block: NonNull<u8>) {
        // SAFETY: by the caller's promise.
        let Some(more) = (unsafe { returned(block) }) else { return };
        match &mut self.0 {
            Some(together) if together.is_of(&more) => together.join(more),
            _ => {
                self.give_back();
                self.0 = Some(more);
            }
        }
    }

    fn give_back(&mut self) {
        if let Some(together) = self.0.take() {
            together.give_back(Home::reclaimed);
        }
    }
}

impl Drop for FreeBatch {
    fn drop(&mut self) {
        self.give_back();
    }
}
