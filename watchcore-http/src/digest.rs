//! SHA-256, for values that must stay equal across processes: the page's content security policy, and ETags.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;

/// The SHA-256 of a text, in base64.
pub(crate) fn sha256(text: &str) -> String {
    // Taken from rustls, a dependency anyway.
    let suite = TLS13_AES_128_GCM_SHA256.tls13().map(|suite| suite.common.hash_provider.hash(text.as_bytes()));
    suite.map_or_else(String::new, |hash| STANDARD.encode(hash.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_of_nothing_is_known() {
        assert_eq!(sha256(""), "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
    }
}
