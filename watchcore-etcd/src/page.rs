//! How many keys the next page of a listing asks for.

/// What a page should weigh.
const TARGET: u64 = 8 << 20;
/// The first page: values of 1.5 MiB, etcd's usual limit, still fit a message.
const FIRST: i64 = 32;
/// Pages grow at most by this factor.
const GROWTH: i64 = 16;

/// The size of the next page. It follows the size of the values seen so far; each page makes the
/// server count the rest of the range, so pages are as long as they can be.
#[derive(Debug)]
pub(super) struct PageSize {
    next: i64,
    most: i64,
}

impl PageSize {
    pub(super) fn new(most: i64) -> PageSize {
        PageSize { next: FIRST.min(most), most }
    }

    pub(super) fn next(&self) -> i64 {
        self.next
    }

    /// After a page of so many keys and bytes.
    pub(super) fn came(&mut self, keys: u64, bytes: u64) {
        let each = (bytes / keys.max(1)).max(1);
        let fitting = i64::try_from(TARGET / each).unwrap_or(i64::MAX);
        self.next = fitting.min(self.next.saturating_mul(GROWTH)).clamp(1, self.most);
    }

    /// After a page was too long for a message, by its length if known. False: it was one key.
    pub(super) fn too_large(&mut self, length: u64) -> bool {
        if self.next <= 1 {
            return false;
        }
        let fitting =
            i64::try_from(u128::from(TARGET) * self.next as u128 / u128::from(length.max(1))).unwrap_or(i64::MAX);
        self.next = if length == 0 { self.next / 2 } else { fitting.min(self.next / 2) }.max(1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_values_come_in_full_pages() {
        let mut size = PageSize::new(5000);
        assert_eq!(size.next(), 32);
        size.came(32, 32 * 500);
        assert_eq!(size.next(), 512);
        size.came(512, 512 * 500);
        assert_eq!(size.next(), 5000);
        size.came(5000, 5000 * 500);
        assert_eq!(size.next(), 5000);
    }

    #[test]
    fn large_values_make_short_pages() {
        let mut size = PageSize::new(5000);
        size.came(32, 32 * 1_400_000);
        assert_eq!(size.next(), 5);
        size.came(5, 5 * 100_000_000);
        assert_eq!(size.next(), 1);
        size.came(1, 10);
        assert_eq!(size.next(), 16, "and grow again");
    }

    #[test]
    fn too_large_shrinks_down_to_one_key() {
        let mut size = PageSize::new(5000);
        size.came(32, 320);
        size.came(512, 5120);
        assert_eq!(size.next(), 5000);
        assert!(size.too_large(5000 * 1_000_000));
        assert_eq!(size.next(), 8);
        assert!(size.too_large(0));
        assert_eq!(size.next(), 4);
        assert!(size.too_large(0) && size.too_large(0));
        assert_eq!(size.next(), 1);
        assert!(!size.too_large(0));
    }

    #[test]
    fn the_most_holds_from_the_start() {
        assert_eq!(PageSize::new(7).next(), 7);
        let mut size = PageSize::new(7);
        size.came(7, 7);
        assert_eq!(size.next(), 7);
    }
}
