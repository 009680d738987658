//! Work of the second kind: a keyed store that one thread writes and any number read.

pub mod btree;
pub mod imbl;
pub mod papaya;
pub mod watchcore;

use std::hint::black_box;

/// A store of versions: key, value and revision, copied in and handed out counted.
pub trait Keyed: Sized + Send {
    /// What readers share.
    type Reader: Reader;

    /// Holds the objects below `objects`.
    fn filled(objects: usize) -> Self;

    /// Copies key and value in, and makes them visible to readers before it returns.
    fn put(&mut self, key: &[u8], value: &[u8]);

    fn reader(&self) -> Self::Reader;
}

/// The reading side of a store.
pub trait Reader: Clone + Send + 'static {
    /// One byte of the newest value of a key, which must be there.
    fn get(&self, key: &[u8]) -> u64;
}

/// A store that is asked for many keys at once.
pub trait Many: Reader {
    /// The sum of one byte of each newest value of some keys, which must be there.
    fn get_many(&self, keys: &[String]) -> u64;
}

/// A store that hands out its objects in the order of their keys.
pub trait Ordered: Reader {
    /// A consistent list of a prefix, made and dropped: how many objects it has. `touch`: one byte of each
    /// value is loaded.
    fn list(&self, prefix: &str, touch: bool) -> usize;
}

/// Goes over what a list has, and counts it. `touch`: `byte` loads one of the value's.
pub fn walk<T>(items: impl Iterator<Item = T>, touch: bool, byte: impl Fn(&T) -> u64) -> usize {
    let mut count = 0;
    for item in items {
        count += 1;
        if touch {
            black_box(byte(&item));
        } else {
            black_box(item);
        }
    }
    count
}
