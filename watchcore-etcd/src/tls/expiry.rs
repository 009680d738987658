//! When certificates expire: the one field of X.509 that nothing else here reads, for an alarm before it happens.

use tokio_rustls::rustls::pki_types::CertificateDer;

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// When the first of these expires, in seconds of Unix time; `None` where none says it.
pub(super) fn earliest(chain: &[CertificateDer<'_>]) -> Option<u64> {
    chain.iter().filter_map(|certificate| not_after(certificate)).min()
}

/// RFC 5280, section 4.1: version (if there is one), serial number, algorithm, issuer, validity.
fn not_after(certificate: &[u8]) -> Option<u64> {
    let (mut fields, _) = expect(certificate, SEQUENCE).and_then(|(content, _)| expect(content, SEQUENCE))?;
    if let Some((_, rest)) = expect(fields, VERSION) {
        fields = rest;
    }
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        (_, fields) = expect(fields, tag)?;
    }
    let (validity, _) = expect(fields, SEQUENCE)?;
    let (_, _, after) = element(validity)?;
    let (tag, time, _) = element(after)?;
    seconds(tag, time)
}

/// The content of the first element, which must be of this kind, and what follows it.
fn expect(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    element(bytes).filter(|(found, ..)| *found == tag).map(|(_, content, rest)| (content, rest))
}

/// The first element of DER: its tag, its content, and what follows it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], mut rest) = bytes.split_first_chunk::<2>()?;
    let mut length = usize::from(first);
    if first >= 0x80 {
        let (digits, behind) = rest.split_at_checked(usize::from(first & 0x7f))?;
        if digits.len() > 4 {
            return None;
        }
        length = digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit));
        rest = behind;
    }
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// `YYMMDDHHMMSSZ`, of the years 1950 to 2049, or `YYYYMMDDHHMMSSZ`.
fn seconds(tag: u8, time: &[u8]) -> Option<u64> {
    let digits = time.strip_suffix(b"Z").filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let number =
        |from: usize, to: usize| digits[from..to].iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
    let (year, at) = match (tag, digits.len()) {
        (UTC_TIME, 12) if number(0, 2) < 50 => (2000 + number(0, 2), 2),
        (UTC_TIME, 12) => (1900 + number(0, 2), 2),
        (GENERALIZED_TIME, 14) => (number(0, 4), 4),
        _ => return None,
    };
    let [month, day, hour, minute, second] = [0, 2, 4, 6, 8].map(|place| number(at + place, at + place + 2));
    // Days since 1970, in eras of 400 years from March on, as Howard Hinnant counts them.
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468;
    u64::try_from(days * 86_400 + hour * 3_600 + minute * 60 + second).ok()
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
        // The last second of UTCTime, and the first one of GeneralizedTime.
        for seconds in [1_795_407_048, 951_782_400, 2_524_607_999, 2_524_608_000, 253_402_300_799] {
            assert_eq!(earliest(&[at(seconds)]), Some(seconds));
        }
        assert_eq!(earliest(&[at(2_000_000_000), at(1_900_000_000), at(2_100_000_000)]), Some(1_900_000_000));
        assert_eq!(earliest(&[]), None);
    }

    /// Whatever the bytes are, nothing panics.
    #[test]
    fn damaged_bytes_are_no_time() {
        let whole = signed(SystemTime::now()).to_vec();
        for end in 0..whole.len() {
            assert_eq!(not_after(&whole[..end]), None, "cut at {end}");
        }
        for at in 0..whole.len() {
            for damage in [0x00, 0x80, 0x84, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = damage;
                let _ = not_after(&damaged);
            }
        }
        for time in [&b"Z"[..], b"991231235959", b"99123123595Z", b"9x1231235959Z"] {
            assert_eq!(seconds(UTC_TIME, time), None);
        }
    }
}
