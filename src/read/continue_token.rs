//! Continue tokens: where the next page of a list begins, as text that survives a restart.
//!
//! Opaque to users: version, scope (prefix, and the cluster's id or the cache's name), epoch, revision,
//! filter and next key, with a checksum, in base64 for URLs. Revision 0: from whatever is newest then.

#![forbid(unsafe_code)]

use crate::error::{Result, say};
use crate::position::{Position, fnv1a};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

const VERSION: u8 = 2;
/// Version, scope, epoch, revision, filter; then the key, then the checksum.
const HEAD: usize = 1 + 4 * 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContinueToken {
    pub(crate) scope: u64,
    pub(crate) epoch: u64,
    pub(crate) revision: u64,
    pub(crate) filter: u64,
    pub(crate) next: Vec<u8>,
}

/// The scope of a cache's tokens: its prefix, and the cluster's id or, without one (0), the cache's name. It is a hash of
/// the prefix's length, the prefix, a byte that says which of the two follows, and that; numbers are eight bytes,
/// little-endian.
pub(crate) fn scope_of(prefix: &[u8], cluster: u64, name: &str) -> u64 {
    let of: (u8, &[u8]) = if cluster == 0 { (1, name.as_bytes()) } else { (2, &cluster.to_le_bytes()) };
    fnv1a(&[&(prefix.len() as u64).to_le_bytes()[..], prefix, &[of.0], of.1].concat())
}

/// The position of the state that a continue token's list is of; revision 0: whatever is newest when
/// the list continues. A process that starts anew reads it to know which revision to have in its cache
/// before it continues with [`crate::ReadOptions::continue_from`].
///
/// Whose token it is shows only there. Never blocks; from any thread. O(length of the token).
///
/// # Errors
/// INVALID_ARGUMENT where the token is damaged or of another version of tokens.
///
/// ```
/// use watchcore::{Cache, Change, Range, Read, token_revision};
///
/// let cache = Cache::builder("/").build()?;
/// cache.writer()?.apply(5, [Change::put("/a", "1"), Change::put("/b", "1")])?;
/// let page = cache.list(&Range::all(), Read::Any, 1)?;
/// assert_eq!(token_revision(page.continue_token().unwrap())?, page.position());
/// assert!(token_revision("made up").is_err());
/// # Ok::<(), watchcore::Error>(())
/// ```
pub fn token_revision(token: &str) -> Result<Position> {
    let ContinueToken { epoch, revision, .. } = ContinueToken::decode(token.as_bytes())?;
    Ok(Position { epoch, revision })
}

impl ContinueToken {
    pub(crate) fn encode(&self) -> String {
        let mut bytes = vec![VERSION];
        for number in [self.scope, self.epoch, self.revision, self.filter] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(&self.next);
        bytes.extend(fnv1a(&bytes).to_le_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    pub(crate) fn decode(text: &[u8]) -> Result<ContinueToken> {
        let damaged = |why: &str| {
            say::invalid(format!("continue token: {why}. Use one as it was given, or list from the start without one."))
        };
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|error| damaged(&format!("it is not whole ({error})")))?;
        if bytes.len() < HEAD + 8 {
            return Err(damaged("it is too short"));
        }
        let (body, sum) = bytes.split_at(bytes.len() - 8);
        if fnv1a(body).to_le_bytes() != sum {
            return Err(damaged("its checksum does not fit"));
        }
        if body[0] != VERSION {
            return Err(damaged(&format!("it is of version {}, this library knows version {VERSION}", body[0])));
        }
        let number = |at: usize| {
            let from = 1 + 8 * at;
            u64::from_le_bytes(body[from..from + 8].try_into().expect("8 bytes"))
        };
        Ok(ContinueToken {
            scope: number(0),
            epoch: number(1),
            revision: number(2),
            filter: number(3),
            next: body[HEAD..].to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Tokens outlive the process that gave them. If this fails, raise the version; a changed expectation is not enough.
    #[test]
    fn text_of_a_token_stays_as_it_is() {
        assert_eq!(scope_of(b"/registry/", 0, "pods"), 0xe1ba_3421_df42_756b);
        assert_eq!(scope_of(b"/registry/", 0x0102_0304_0506_0708, "pods"), 0x98b5_449f_8688_d4be);
        let token =
            ContinueToken { scope: 1, epoch: 2 << 32 | 3, revision: 4, filter: 5, next: b"/registry/a\0".to_vec() };
        assert_eq!(token.encode(), "AgEAAAAAAAAAAwAAAAIAAAAEAAAAAAAAAAUAAAAAAAAAL3JlZ2lzdHJ5L2EAJupeVpvP-38");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_token_comes_back_whole_and_a_damaged_one_never(
            meta in any::<[u64; 4]>(),
            next in prop::collection::vec(any::<u8>(), 0..200),
            at in any::<prop::sample::Index>(),
            other in any::<u8>(),
        ) {
            let [scope, epoch, revision, filter] = meta;
            let token = ContinueToken { scope, epoch, revision, filter, next };
            let text = token.encode();
            prop_assert_eq!(&ContinueToken::decode(text.as_bytes()).unwrap(), &token);
            prop_assert_eq!(token_revision(&text).unwrap(), Position { epoch, revision });
            let mut bytes = text.clone().into_bytes();
            let at = at.index(bytes.len());
            if bytes[at] != other {
                bytes[at] = other;
                prop_assert!(ContinueToken::decode(&bytes).is_err());
                prop_assert!(std::str::from_utf8(&bytes).is_err() || token_revision(std::str::from_utf8(&bytes).unwrap()).is_err());
            }
            prop_assert!(ContinueToken::decode(&text.as_bytes()[..text.len() - 1]).is_err());
        }

        #[test]
        fn hostile_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(ContinueToken::decode(&bytes).is_err());
        }
    }
}
