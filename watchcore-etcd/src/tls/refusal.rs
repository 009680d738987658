//! Explains TLS failures: whose certificate it is, which file, and how to correct it.

use super::options::{Named, Pem, Tls};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio_rustls::rustls::pki_types::UnixTime;
use tokio_rustls::rustls::{AlertDescription, CertificateError, Error as TlsError, InvalidMessage, PeerIncompatible};
use watchcore::Code;

/// Why TLS refused a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) text: String,
    /// The kind of refusal, if the text contains an age.
    pub(crate) kind: Option<&'static str>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refusal {}

/// The reason why TLS refused a connection of one channel: the failure of the call that needed the connection says
/// less. It belongs to one channel and one call, so that a refusal explains no other or later failure.
#[derive(Clone, Default)]
pub(crate) struct RecordedRefusal(Arc<Mutex<Option<Refusal>>>);

impl RecordedRefusal {
    fn recorded(&self) -> MutexGuard<'_, Option<Refusal>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record(&self, refusal: Refusal) {
        *self.recorded() = Some(refusal);
    }

    /// Takes the recorded refusal, once a call on the channel has ended, successfully or not.
    pub(crate) fn take(&self) -> Option<Refusal> {
        self.recorded().take()
    }
}

impl Refusal {
    /// The files, or the system's store, cannot be used.
    pub(super) fn files(text: String) -> Refusal {
        Refusal { code: Code::InvalidArgument, text, kind: None }
    }

    fn server(text: impl Into<String>) -> Refusal {
        Refusal { code: Code::Unavailable, text: text.into(), kind: None }
    }

    /// The TLS cause of a connection's error; `None` if it is a network error.
    pub(super) fn of(error: &io::Error, tls: &Tls) -> Option<Refusal> {
        let error = error.get_ref()?.downcast_ref::<TlsError>()?;
        Some(match error {
            TlsError::InvalidCertificate(error) => {
                let kind = match error {
                    CertificateError::ExpiredContext { .. } => Some("the server's certificate expired"),
                    CertificateError::NotValidYetContext { .. } => Some("the server's certificate is not valid yet"),
                    _ => None,
                };
                Refusal { kind, ..Refusal::server(server_certificate(error, tls)) }
            }
            TlsError::AlertReceived(alert) => return of_alert(*alert, tls),
            TlsError::InvalidMessage(InvalidMessage::InvalidContentType) => {
                Refusal::server("the server does not speak TLS on this port; if it has none, write http://")
            }
            TlsError::PeerIncompatible(
                PeerIncompatible::ServerDoesNotSupportTls12Or13
                | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
                | PeerIncompatible::Tls12NotOffered
                | PeerIncompatible::Tls12NotOfferedOrEnabled,
            ) => too_old(tls),
            TlsError::NoApplicationProtocol => no_http2(),
            other => Refusal::server(format!("TLS with the server failed: {other}")),
        })
    }
}

pub(super) fn no_http2() -> Refusal {
    Refusal::server("the server speaks TLS, but no HTTP/2 over it, which etcd needs: is it etcd, or a proxy for gRPC?")
}

fn too_old(tls: &Tls) -> Refusal {
    Refusal::server(format!("the server does not speak {} or newer", tls.min_version))
}

/// Explains why the server's certificate was refused.
fn server_certificate(error: &CertificateError, tls: &Tls) -> String {
    let theirs = "the server's certificate";
    match error {
        CertificateError::ExpiredContext { time, not_after } => format!(
            "{theirs} expired at {} ({} ago): renew it on the server",
            utc(*not_after),
            span(time.as_secs().saturating_sub(not_after.as_secs()))
        ),
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "{theirs} is not valid before {} (in {}): compare the clocks of both machines",
            utc(*not_before),
            span(not_before.as_secs().saturating_sub(time.as_secs()))
        ),
        CertificateError::UnknownIssuer => match &tls.ca {
            Some(ca) => format!("{theirs} is signed by no authority in {}", Named::ca(ca)),
            None => format!("{theirs} is signed by no authority of this system: give the CA of etcd"),
        },
        CertificateError::BadSignature => match &tls.ca {
            // An authority that was renewed under its old name.
            Some(ca) => format!("{theirs} is not signed by the authority of that name in {}", Named::ca(ca)),
            None => format!("{theirs} is not signed by the system's authority of that name"),
        },
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names = match presented.as_slice() {
                [] => "no name".to_owned(),
                // rustls formats them as DnsName("a"), IpAddress(127.0.0.1).
                names => names.iter().map(|name| plain(name)).collect::<Vec<_>>().join(", "),
            };
            format!(
                "{theirs} is for {names}, not for {}: use such a name, or give it as the server name",
                expected.to_str()
            )
        }
        CertificateError::InvalidPurposeContext { .. } => format!("{theirs} is not meant for servers: {error}"),
        other => format!("{theirs} cannot be trusted: {other}"),
    }
}

fn plain(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    inner.trim_matches('"')
}

/// Explains an alert from the server. `None` if neither certificates nor versions are the cause.
fn of_alert(alert: AlertDescription, tls: &Tls) -> Option<Refusal> {
    let why = match alert {
        AlertDescription::CertificateRequired | AlertDescription::NoCertificate => "it wants one",
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
            "it is bad: perhaps expired, or meant for another purpose"
        }
        AlertDescription::UnsupportedCertificate => "its kind is not supported",
        AlertDescription::CertificateRevoked => "it is revoked",
        AlertDescription::CertificateExpired => "it is expired, or not valid yet",
        AlertDescription::UnknownCA => "no authority that the server trusts has signed it",
        AlertDescription::AccessDenied => "access is denied to it",
        AlertDescription::ProtocolVersion => return Some(too_old(tls)),
        AlertDescription::NoApplicationProtocol => return Some(no_http2()),
        AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity => {
            return Some(Refusal::server(format!(
                "the server and this client have no cipher of {} in common",
                tls.min_version
            )));
        }
        AlertDescription::UnrecognisedName => {
            return Some(Refusal::server(
                "the server does not know the name that it was asked for: give the server name",
            ));
        }
        _ => return None,
    };
    let text = match &tls.client {
        None => "the server asks for a client certificate: give one, and its key".to_owned(),
        Some((certificate, _)) => {
            let again = if matches!(certificate, Pem::File(_)) { "; a new one is read at the next try" } else { "" };
            format!("the server refused {}: {why}{again}", Named::client(certificate))
        }
    };
    Some(Refusal { code: Code::Unauthenticated, text, kind: None })
}

/// Formats a time as `2026-11-23T04:10:48Z`.
fn utc(time: UnixTime) -> String {
    let seconds = time.as_secs();
    let (days, rest) = ((seconds / 86_400) as i64, seconds % 86_400);
    // Days since 0000-03-01, in eras of 400 years: Howard Hinnant's algorithm.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", Duration::from_secs(seconds).as_secs() / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_795_407_048, "2026-11-23T04:10:48Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(UnixTime::since_unix_epoch(Duration::from_secs(seconds))), text);
        }
        assert_eq!([119, 120, 7_199, 7_200, 172_800].map(span), ["119 s", "2 min", "119 min", "2 h", "2 days"]);
    }

    fn of(error: TlsError, tls: &Tls) -> Option<Refusal> {
        Refusal::of(&io::Error::new(io::ErrorKind::InvalidData, error), tls)
    }

    /// Refusals whose texts differ only by an age are of the same kind.
    #[test]
    fn certificates_expire_once() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let expired = |now| {
            let error = CertificateError::ExpiredContext { time: at(now), not_after: at(10) };
            of(TlsError::InvalidCertificate(error), &Tls::new()).unwrap()
        };
        assert_ne!(expired(20).text, expired(30).text);
        assert!(expired(20).kind.is_some() && expired(20).kind == expired(30).kind);
    }

    #[test]
    fn an_alert_names_the_client_certificate() {
        let files = Tls::new().client_files("/c.pem", "/c.key");
        let certificates = [
            AlertDescription::CertificateRequired,
            AlertDescription::BadCertificate,
            AlertDescription::UnsupportedCertificate,
            AlertDescription::CertificateRevoked,
            AlertDescription::CertificateExpired,
            AlertDescription::CertificateUnknown,
            AlertDescription::UnknownCA,
            AlertDescription::AccessDenied,
        ];
        for alert in certificates {
            let refusal = of(TlsError::AlertReceived(alert), &files).unwrap();
            assert_eq!(refusal.code, Code::Unauthenticated);
            assert!(refusal.text.contains("refused the client certificate /c.pem"), "{refusal}");
            let refusal = of(TlsError::AlertReceived(alert), &Tls::new()).unwrap();
            assert!(refusal.text.contains("asks for a client certificate"), "{refusal}");
        }
        assert_eq!(of(TlsError::AlertReceived(AlertDescription::InternalError), &files), None);
        assert_eq!(Refusal::of(&io::ErrorKind::ConnectionReset.into(), &files), None);
    }

    #[test]
    fn versions_and_protocols_are_named() {
        let tls = Tls::new().min_version(crate::TlsVersion::V1_3);
        let text = |error| of(error, &tls).unwrap().text;
        assert!(text(TlsError::AlertReceived(AlertDescription::ProtocolVersion)).contains("TLS 1.3 or newer"));
        let incompatible = TlsError::PeerIncompatible(PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig);
        assert!(text(incompatible).contains("TLS 1.3 or newer"));
        assert!(text(TlsError::AlertReceived(AlertDescription::NoApplicationProtocol)).contains("HTTP/2"));
        assert!(text(TlsError::AlertReceived(AlertDescription::HandshakeFailure)).contains("no cipher"));
        assert!(text(TlsError::AlertReceived(AlertDescription::UnrecognisedName)).contains("server name"));
        assert!(text(TlsError::NoApplicationProtocol).contains("HTTP/2"));
        assert!(text(TlsError::DecryptError).contains("TLS with the server failed"));
    }

    #[test]
    fn a_certificate_that_is_not_valid_yet_is_told() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let error = CertificateError::NotValidYetContext { time: at(0), not_before: at(86_400) };
        let text = server_certificate(&error, &Tls::new());
        assert!(text.contains("1970-01-02T00:00:00Z (in 24 h)"), "{text}");
        let text = server_certificate(&CertificateError::BadSignature, &Tls::new().ca_file("/ca.pem"));
        assert!(text.contains("of that name in the CA file /ca.pem"), "{text}");
    }
}
