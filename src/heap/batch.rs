//! Batches of freed blocks: consecutive blocks of one slab go back to it by one exchange.
//!
//! Versions that leave the log together were mostly allocated together, so a freed segment returns many blocks of a slab.

use super::returned;
use super::slab::{Home, Returned};
use std::ptr::NonNull;

/// Unused blocks of one slab that are still to go back to it, when a block of another slab comes or this is dropped.
/// Only the reclaimer uses it, because it counts freed bytes without an exchange.
#[derive(Default)]
pub(crate) struct FreeBatch(Option<Returned>);

impl FreeBatch {
    /// Frees a block.
    ///
    /// # Safety
    ///
    /// The contract of [`super::free`].
    #[inline]
    pub(crate) unsafe fn free(&mut self, block: NonNull<u8>) {
        // SAFETY: no thread uses the block any more, and this call alone frees it (`# Safety`).
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
