//! The hashes that the checker, the C program and the Go program share:
//! FNV-1a with 64 bits, over fields of a fixed length or after their length.

/// ADDED, MODIFIED, DELETED, as the library numbers them.
pub(crate) const ADDED: u8 = 1;
pub(crate) const MODIFIED: u8 = 2;
pub(crate) const DELETED: u8 = 3;

const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;
/// The length that stands for an absent value.
const ABSENT: u32 = u32::MAX;

/// A running FNV-1a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fnv(pub u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(BASIS)
    }
}

impl Fnv {
    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(PRIME);
        }
    }

    fn field(&mut self, bytes: Option<&[u8]>) {
        self.bytes(&bytes.map_or(ABSENT, |bytes| bytes.len() as u32).to_le_bytes());
        self.bytes(bytes.unwrap_or_default());
    }

    /// Adds one event: revision (8 bytes, little-endian), type (1), key and value (4 bytes of length each, then the
    /// bytes).
    pub(crate) fn event(&mut self, revision: u64, kind: u8, key: &[u8], value: Option<&[u8]>) {
        self.bytes(&revision.to_le_bytes());
        self.bytes(&[kind]);
        self.field(Some(key));
        self.field(value);
    }
}

/// The hash of a single event.
pub(crate) fn of_event(revision: u64, kind: u8, key: &[u8], value: Option<&[u8]>) -> u64 {
    let mut hash = Fnv::default();
    hash.event(revision, kind, key, value);
    hash.0
}

/// The hash of one object; a state is the wrapping sum of its objects' hashes, so order does not matter.
pub(crate) fn of_object(mod_revision: u64, key: &[u8], value: &[u8]) -> u64 {
    let mut hash = Fnv::default();
    hash.bytes(&mod_revision.to_le_bytes());
    hash.field(Some(key));
    hash.field(Some(value));
    hash.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_fnv_1a() {
        let mut hash = Fnv::default();
        hash.bytes(b"foobar");
        assert_eq!(hash.0, 0x8594_4171_f739_67e8, "a published test vector");
    }

    #[test]
    fn fields_cannot_be_mistaken_for_each_other() {
        let base = of_event(1, ADDED, b"ab", Some(b"c"));
        assert_ne!(base, of_event(1, ADDED, b"a", Some(b"bc")));
        assert_ne!(base, of_event(2, ADDED, b"ab", Some(b"c")));
        assert_ne!(base, of_event(1, MODIFIED, b"ab", Some(b"c")));
        assert_ne!(of_event(1, DELETED, b"ab", None), of_event(1, DELETED, b"ab", Some(b"")));
        assert_ne!(of_object(1, b"a", b""), of_object(2, b"a", b""));
    }
}
