//! The hash of keys: of slots, buckets, summaries, and of the writer's check for keys that come twice.

#![forbid(unsafe_code)]

use std::hash::{BuildHasher, Hasher};

/// A keyed hash of key bytes: folded multiplication over 8-byte words, drawn seed.
#[derive(Clone)]
pub(crate) struct KeyHash(u64);

impl Default for KeyHash {
    fn default() -> KeyHash {
        // loom replays executions: the same order each time.
        KeyHash(if cfg!(loom) { 1 } else { std::collections::hash_map::RandomState::new().hash_one(1u8) | 1 })
    }
}

impl BuildHasher for KeyHash {
    type Hasher = KeyHasher;
    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(self.0)
    }
}

pub(crate) struct KeyHasher(u64);

fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ ((wide >> 64) as u64)
}

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        const K: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut words = bytes.chunks_exact(8);
        for word in words.by_ref() {
            let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            self.0 = fold(self.0 ^ word, K);
        }
        let mut rest = [0u8; 8];
        rest[..words.remainder().len()].copy_from_slice(words.remainder());
        self.0 = fold(self.0 ^ u64::from_le_bytes(rest), K ^ bytes.len() as u64);
    }

    fn write_usize(&mut self, number: usize) {
        self.0 ^= number as u64;
    }

    fn write_u64(&mut self, number: u64) {
        self.0 ^= number;
    }

    fn finish(&self) -> u64 {
        fold(self.0, 0xd6e8_feb8_6659_fd93)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn hashes_differ_by_content_and_length() {
        let build = KeyHash(1);
        let all: std::collections::HashSet<u64> = ["", "\0", "\0\0", "a", "b", "abcdefgh", "abcdefgh\0", "bbcdefgh"]
            .iter()
            .map(|text| build.hash_one(text.as_bytes()))
            .collect();
        assert_eq!(all.len(), 8);
    }
}
