//! Chooses how many keys the next page of a listing asks for.
//!
//! etcd counts the rest of the range for every page, so a listing in pages of a fixed number of keys is quadratic in
//! the number of keys. A page is therefore sized in bytes: the first one is small, and each later one has as many
//! keys as the mean size so far allows. Two limits make pages shorter: one side, or a proxy in between, refuses a
//! message as too long, or the connection is too slow for the page to arrive in time.

use std::time::Duration;

/// The size to aim for, if the message limit allows it.
const TARGET: u64 = 32 << 20;
/// A page of a shorter listing is at most this fraction of it: the page is in memory beside the cached part.
const SHARES: u64 = 8;
/// But no smaller than this: each page costs a request.
const LEAST: u64 = 1 << 20;
/// The keys of the first page: values of 1.5 MiB, etcd's usual limit, still fit a message.
const FIRST: i64 = 32;
/// A page has at most this many times the keys of the previous one: a few small values predict little.
const GROWTH: i64 = 64;
/// The size of an item in a message beyond its key and value: two lengths, three revisions, a lease, the tags.
const ITEM: u64 = 40;

/// The size of the next page, in keys.
#[derive(Debug)]
pub(super) struct PageSize {
    next: i64,
    most: i64,
    /// The size to aim for; lowered when a page below it was refused.
    target: u64,
    /// How long a page may take.
    time_limit: Duration,
    /// The mean size of an item of the last page; 0 before one came.
    each: u64,
    /// The keys of the whole listing, as etcd counts them; 0 before a page came.
    keys: u64,
}

impl PageSize {
    /// Pages of at most `most` keys, in messages of at most `message_limit` bytes, each of which should arrive within
    /// `time_limit`.
    pub(super) fn new(most: i64, message_limit: usize, time_limit: Duration) -> PageSize {
        // Items differ in size: a page twice as large as expected still fits the message.
        let target = TARGET.min(message_limit as u64 / 2).max(1);
        PageSize { next: FIRST.min(most), most, target, time_limit, each: 0, keys: 0 }
    }

    pub(super) fn next(&self) -> i64 {
        self.next
    }

    /// Learns from a page of `keys` keys, with `bytes` bytes in keys and values, that took `took`; etcd had counted
    /// `left` keys from its first key on.
    pub(super) fn came(&mut self, keys: u64, bytes: u64, left: u64, took: Duration) {
        self.each = (bytes / keys.max(1)).saturating_add(ITEM);
        self.keys = self.keys.max(left);
        let share = (self.keys.saturating_mul(self.each) / SHARES).max(LEAST);
        let fitting = self.target.min(share) / self.each;
        let in_time = u128::from(keys) * self.time_limit.as_nanos() / took.as_nanos().max(1);
        let wanted = i64::try_from(in_time.min(u128::from(fitting))).unwrap_or(i64::MAX);
        self.next = wanted.min(self.next.saturating_mul(GROWTH)).clamp(1, self.most);
    }

    /// Shrinks the page after a refusal as too long; `length` is the message's length, 0 if unknown. False: the page
    /// had one key and cannot be smaller.
    pub(super) fn too_large(&mut self, length: u64) -> bool {
        if self.next <= 1 {
            return false;
        }
        let keys = self.next as u64;
        let weight = if length == 0 { self.each.saturating_mul(keys) } else { length };
        if (1..=self.target).contains(&weight) {
            // The page was within the target, so something in between has a lower limit.
            self.target = (weight / 2).max(1);
        }
        let fitting = u128::from(self.target) * u128::from(keys) / u128::from(weight.max(1));
        self.next = i64::try_from(fitting).unwrap_or(i64::MAX).clamp(1, self.next / 2);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    /// A total of keys so large that no page is limited to a fraction of it.
    const ALL: u64 = 1 << 40;
    const QUICK: Duration = Duration::from_millis(1);

    fn new(most: i64) -> PageSize {
        PageSize::new(most, 64 << 20, Duration::from_secs(15))
    }

    #[test]
    fn pages_grow_to_the_target() {
        let mut size = new(i64::MAX);
        assert_eq!(size.next(), 32);
        size.came(32, 32 * 380, ALL, QUICK);
        assert_eq!(size.next(), 2048);
        for _ in 0..3 {
            size.came(size.next() as u64, size.next() as u64 * 380, ALL, QUICK);
            let weight = size.next() as u64 * (380 + ITEM);
            assert!((31 * MIB..=32 * MIB).contains(&weight), "{weight}");
        }
    }

    /// Lists a million objects; with pages of 5000 keys, etcd counted 100 million.
    #[test]
    fn large_listing_counts_little() {
        let (mut size, mut left, mut counted, mut pages) = (new(i64::MAX), 1_000_000u64, 0, 0);
        while left > 0 {
            let keys = left.min(size.next() as u64);
            counted += left;
            pages += 1;
            size.came(keys, keys * 380, left, QUICK);
            left -= keys;
        }
        assert!(pages <= 16 && counted <= 9_000_000, "{pages} pages, {counted} keys counted");
    }

    /// A page of a short listing is a fraction of it.
    #[test]
    fn short_listings_come_in_shares() {
        let (mut size, mut left, mut pages) = (new(i64::MAX), 100_000u64, 0);
        while left > 0 {
            let keys = left.min(size.next() as u64);
            assert!(keys <= 100_000 / SHARES);
            pages += 1;
            size.came(keys, keys * 380, left, QUICK);
            left -= keys;
        }
        assert!(pages <= SHARES + 2, "{pages}");
        let mut size = new(i64::MAX);
        size.came(32, 32 * 380, 1000, QUICK);
        assert_eq!(size.next() as u64, GROWTH as u64 * 32, "a page of {LEAST} bytes, were it not the second");
    }

    #[test]
    fn large_values_make_short_pages() {
        let mut size = new(5000);
        size.came(32, 32 * 1_400_000, ALL, QUICK);
        assert_eq!(size.next(), 23);
        size.came(5, 5 * 100_000_000, ALL, QUICK);
        assert_eq!(size.next(), 1);
        size.came(1, 10, ALL, QUICK);
        assert_eq!(size.next(), 64, "and grow again");
    }

    #[test]
    fn empty_values_have_weight() {
        let mut size = new(i64::MAX);
        for _ in 0..9 {
            size.came(size.next() as u64, 0, ALL, QUICK);
        }
        assert_eq!(size.next() as u64, 32 * MIB / ITEM);
    }

    #[test]
    fn slow_connection_makes_short_pages() {
        let mut size = new(i64::MAX);
        size.came(32, 32 * 380, ALL, Duration::from_secs(1));
        assert_eq!(size.next(), 480, "what comes in 15 s at this pace");
        size.came(480, 480 * 380, ALL, Duration::from_secs(480));
        assert_eq!(size.next(), 15);
        size.came(15, 15 * 380, ALL, Duration::from_secs(1000));
        assert_eq!(size.next(), 1);
    }

    #[test]
    fn too_large_shrinks_down_to_one_key() {
        let mut size = new(5000);
        size.came(32, 320, ALL, QUICK);
        size.came(2048, 20_480, ALL, QUICK);
        assert_eq!(size.next(), 5000);
        assert!(size.too_large(5000 * 1_000_000));
        assert_eq!(size.next(), 33);
        while size.next() > 1 {
            let before = size.next();
            assert!(size.too_large(0));
            assert!((1..=before / 2).contains(&size.next()));
        }
        assert!(!size.too_large(0));
    }

    /// A limit that only a proxy knows is found once, not with each page.
    #[test]
    fn refused_pages_lower_the_target() {
        let (mut size, mut refused) = (new(i64::MAX), 0);
        for _ in 0..20 {
            let keys = size.next() as u64;
            if keys * 420 > 4 * MIB {
                refused += 1;
                assert!(size.too_large(0));
            } else {
                size.came(keys, keys * 380, ALL, QUICK);
            }
        }
        assert_eq!(refused, 3, "32, 16 and 8 MiB");
        assert!((3 * MIB..=4 * MIB).contains(&(size.next() as u64 * 420)), "{}", size.next());
    }

    #[test]
    fn short_messages_make_short_pages() {
        let mut size = PageSize::new(i64::MAX, 4 << 20, Duration::from_secs(15));
        size.came(32, 32 * 380, ALL, QUICK);
        size.came(2048, 2048 * 380, ALL, QUICK);
        assert_eq!(size.next() as u64, 2 * MIB / 420);
        assert!(PageSize::new(i64::MAX, 1, Duration::ZERO).next() == 32);
    }

    #[test]
    fn the_most_holds_from_the_start() {
        assert_eq!(new(7).next(), 7);
        let mut size = new(7);
        size.came(7, 7, ALL, QUICK);
        assert_eq!(size.next(), 7);
    }
}
