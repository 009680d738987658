//! What every row works on: keys of 37 bytes in namespaces of 1000, values of 512 bytes.

use std::mem::MaybeUninit;
use std::sync::Arc;

pub const NAMESPACE: usize = 1000;
pub const VALUE: [u8; 512] = [b'v'; 512];
pub const PREFIX: &str = "/registry/pods/";
/// More events than watchcore's log holds by default.
pub const FILLS_A_LOG: u64 = 100_000;

/// The key of object `number`.
pub fn key(number: usize) -> String {
    format!("{}p-{:05}", namespace(number / NAMESPACE), number % NAMESPACE)
}

/// A key that no object has, between those of the objects.
pub fn new_key(number: usize) -> String {
    format!("{}p-{:05}", namespace(number / NAMESPACE), NAMESPACE + number % NAMESPACE)
}

/// The prefix of a namespace.
pub fn namespace(number: usize) -> String {
    format!("{PREFIX}namespace-{number:04}/")
}

/// The first key above all that start with this prefix.
pub fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().expect("no prefix is empty") += 1;
    end
}

pub fn keys(count: usize) -> Vec<String> {
    (0..count).map(key).collect()
}

/// The numbers below `count`, each once before any is repeated, in no order that a processor could know: one with a
/// constant step it sees after a few, and has lines of memory ready that nobody who asks in earnest finds ready.
#[derive(Clone)]
pub struct Scattered {
    count: usize,
    at: usize,
}

impl Scattered {
    pub fn below(count: usize) -> Scattered {
        Scattered { count, at: 0 }
    }

    pub fn next(&mut self) -> usize {
        loop {
            let mixed = mixed(self.at, self.count.next_power_of_two().ilog2().max(2));
            self.at = self.at.wrapping_add(1);
            if mixed < self.count {
                return mixed;
            }
        }
    }
}

/// A number of so many bits as another one of as many: each has one of its own.
fn mixed(number: usize, bits: u32) -> usize {
    let mask = (1 << bits) - 1;
    let half = bits / 2;
    let step = |number: usize, factor: usize| {
        let number = number.wrapping_mul(factor) & mask;
        number ^ number >> half
    };
    step(step(step(number, 0x9e37_79b1), 0x85eb_ca6b), 0xc2b2_ae35) & mask
}

/// What peers keep of a version, and send: key and value in one counted allocation, and a revision.
#[derive(Clone)]
pub struct Object {
    bytes: Arc<[u8]>,
    key: usize,
    pub revision: u64,
}

impl Object {
    pub fn new(revision: u64, key: &[u8], value: &[u8]) -> Object {
        let mut bytes = Arc::<[u8]>::new_uninit_slice(key.len() + value.len());
        let (front, back) = unshared(&mut bytes).split_at_mut(key.len());
        front.write_copy_of_slice(key);
        back.write_copy_of_slice(value);
        // SAFETY: the two parts are the whole slice, and both were written.
        Object { bytes: unsafe { bytes.assume_init() }, key: key.len(), revision }
    }

    pub fn key(&self) -> &[u8] {
        &self.bytes[..self.key]
    }

    pub fn value(&self) -> &[u8] {
        &self.bytes[self.key..]
    }
}

fn unshared(bytes: &mut Arc<[MaybeUninit<u8>]>) -> &mut [MaybeUninit<u8>] {
    Arc::get_mut(bytes).expect("nobody else has it yet")
}

/// What a consumer does with an object whose content it reads: one byte of the value is loaded.
pub fn touched(value: &[u8]) -> u64 {
    value.first().copied().map_or(0, u64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_comes_once_before_any_is_repeated() {
        for count in [1, 2, 3, 10, 1000, 1024, 4097] {
            let mut scattered = Scattered::below(count);
            for round in 0..3 {
                let mut all: Vec<usize> = (0..count).map(|_| scattered.next()).collect();
                let steps: std::collections::HashSet<_> =
                    all.windows(2).map(|two| two[1].wrapping_sub(two[0])).collect();
                assert!(count < 1000 || steps.len() > count / 2, "round {round} of {count}: {} steps", steps.len());
                all.sort_unstable();
                assert!(all.into_iter().eq(0..count), "round {round} of {count}");
            }
        }
    }
}
