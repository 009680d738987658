//! The hash of keys: of slots, buckets, summaries, and of the writer's check for keys that come twice.

#![forbid(unsafe_code)]

use std::hash::{BuildHasher, Hasher};

/// A keyed hash of key bytes: folded multiplication of 8-byte words, both sides drawn, so that nobody who does not
/// know them can choose a word that makes one side zero.
#[derive(Clone)]
pub(crate) struct KeyHash([u64; 2]);

impl Default for KeyHash {
    fn default() -> KeyHash {
        // loom replays executions: the same order each time.
        if cfg!(loom) {
            return KeyHash([1, K]);
        }
        let random = std::collections::hash_map::RandomState::new();
        KeyHash([1u8, 2].map(|number| random.hash_one(number) | 1))
    }
}

impl KeyHash {
    /// The hash of a value of an index, of that of the value itself.
    #[inline]
    pub(crate) fn of_indexed(&self, index: u8, value: u64) -> u64 {
        fold(value ^ self.0[1], K ^ u64::from(index) << 1)
    }
}

impl BuildHasher for KeyHash {
    type Hasher = KeyHasher;
    #[inline]
    fn build_hasher(&self) -> KeyHasher {
        KeyHasher { state: self.0[0], other: self.0[1] }
    }
}

pub(crate) struct KeyHasher {
    state: u64,
    other: u64,
}

/// The factor of the last multiplication: odd, with about as many ones as zeros.
const K: u64 = 0xd6e8_feb8_6659_fd93;

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// The eight, or four, bytes at `at`.
#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[inline]
fn half(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes")))
}

impl Hasher for KeyHasher {
    /// Sixteen bytes a multiplication; the last sixteen are taken as they lie, also where they were taken in part.
    /// Their number is not: a slice writes it before.
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let length = bytes.len();
        let mut state = self.state;
        let (low, high) = match length {
            0 => (0, 0),
            1..4 => (u64::from(bytes[0]) << 16 | u64::from(bytes[length / 2]) << 8 | u64::from(bytes[length - 1]), 0),
            4..8 => (half(bytes, 0), half(bytes, length - 4)),
            8..=16 => (word(bytes, 0), word(bytes, length - 8)),
            _ => {
                let mut at = 0;
                while at + 16 < length {
                    state = fold(word(bytes, at) ^ state, word(bytes, at + 8) ^ self.other);
                    at += 16;
                }
                (word(bytes, length - 16), word(bytes, length - 8))
            }
        };
        self.state = fold(low ^ state, high ^ self.other);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, number: u64) {
        // Multiplied: a number that was only added could cancel a difference of the bytes behind it.
        self.state = fold(self.state ^ number, self.other);
    }

    #[inline]
    fn finish(&self) -> u64 {
        fold(self.state, K)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SEEDS: KeyHash = KeyHash([0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f]);

    #[test]
    fn hashes_differ_by_content_and_length() {
        let build = SEEDS;
        let all: std::collections::HashSet<u64> = ["", "\0", "\0\0", "a", "b", "abcdefgh", "abcdefgh\0", "bbcdefgh"]
            .iter()
            .map(|text| build.hash_one(text.as_bytes()))
            .collect();
        assert_eq!(all.len(), 8);
    }

    /// Words overlap at the end of a key: no byte may be left out, and none may cancel another.
    #[test]
    #[cfg_attr(miri, ignore = "it is of numbers alone")]
    fn every_byte_of_every_length_counts() {
        let build = SEEDS;
        let mut seen = std::collections::HashSet::new();
        let mut hashed = 0;
        for length in 0..70 {
            let mut key = vec![b'k'; length];
            for at in 0..length {
                for byte in [0, b'l', 0xff] {
                    key[at] = byte;
                    hashed += 1;
                    seen.insert(build.hash_one(&key[..]));
                }
                key[at] = b'k';
            }
        }
        assert_eq!(seen.len(), hashed);
    }

    /// Without the seeds nobody finds keys for one cell: not even with words that make a product zero under other seeds.
    #[test]
    fn a_word_that_cancels_one_seed_cancels_no_other() {
        let keys: Vec<Vec<u8>> =
            (0..1000u64).map(|number| [number.to_le_bytes(), SEEDS.0[1].to_le_bytes()].concat()).collect();
        let different = |build: KeyHash| {
            keys.iter().map(|key| build.hash_one(&key[..])).collect::<std::collections::HashSet<u64>>().len()
        };
        assert_eq!(different(SEEDS), 1, "known seeds: all collide");
        assert_eq!(different(KeyHash::default()), 1000, "drawn ones");
    }
}
