//! Reads when certificates expire, so that an alarm can warn before.

use tokio_rustls::rustls::pki_types::CertificateDer;

/// When the first of these certificates expires, in Unix seconds; `None` if no certificate can be parsed.
pub(super) fn earliest(chain: &[CertificateDer<'_>]) -> Option<u64> {
    let end = |certificate| {
        let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
        u64::try_from(certificate.validity().not_after.timestamp()).ok()
    };
    chain.iter().filter_map(|certificate| end(certificate)).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    fn signed(not_after: SystemTime) -> CertificateDer<'static> {
        let mut parameters = rcgen::CertificateParams::new(vec!["a".into()]).unwrap();
        parameters.not_after = not_after.into();
        parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().into()
    }

    #[test]
    fn the_earliest_end_is_found() {
        let at = |seconds| signed(UNIX_EPOCH + Duration::from_secs(seconds));
        // Includes the last second of UTCTime, and the first one of GeneralizedTime.
        for seconds in [1_795_407_048, 951_782_400, 2_524_607_999, 2_524_608_000, 253_402_300_799] {
            assert_eq!(earliest(&[at(seconds)]), Some(seconds));
        }
        assert_eq!(earliest(&[at(2_000_000_000), at(1_900_000_000), at(2_100_000_000)]), Some(1_900_000_000));
        assert_eq!(earliest(&[]), None);
        assert_eq!(earliest(&[at(7)[1..].to_vec().into()]), None);
    }
}
