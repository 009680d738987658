//! What every row works on: keys of 37 bytes in namespaces of 1000, values of 512 bytes.

use std::mem::MaybeUninit;
use std::sync::Arc;

pub const NAMESPACE: usize = 1000;
pub const VALUE: [u8; 512] = [b'v'; 512];
pub const PREFIX: &str = "/registry/pods/";
/// More events than watchcore's log holds by default.
pub const FILLS_A_LOG: u64 = 100_000;
/// A step that is prime to every size in use: consecutive operations are far apart.
const STRIDE: usize = 7919;

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

/// The numbers below `count`, each once before any is repeated, neighbours far apart.
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
        let at = self.at;
        self.at = (at + STRIDE) % self.count;
        at
    }
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
