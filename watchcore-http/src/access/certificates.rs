//! Client certificates: the authorities that sign them, the lists that revoke them, and their re-verification.
//!
//! A handshake verifies a certificate once. Its connection may last for days and a watch for an hour, so a
//! [`ClientCertificate`] keeps the client's chain, and is verified again by each request and by the recheck of open
//! watches: against the authorities and revocation lists as their files are then, and against the clock. While the
//! files are unchanged and no certificate has expired, that costs one pointer comparison and one time comparison.

use super::user::User;
use crate::files::Reloaded;
use crate::status::Refusal;
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How old the last check of the authorities' files may be for a request on an open connection.
const INTERVAL: Duration = Duration::from_secs(1);

/// The authorities of client certificates, with their revocation lists.
pub(crate) struct Authorities {
    verifier: Arc<dyn ClientCertVerifier>,
    /// When the first revocation list expires, in seconds since 1970.
    until: Option<u64>,
}

impl Authorities {
    /// Reads the authorities from the first file and the revocation lists from the second, if given; both in PEM.
    ///
    /// # Errors
    /// The text of an INVALID_ARGUMENT, which names the faulty file.
    pub(crate) fn of_files(paths: Vec<PathBuf>) -> Result<Reloaded<Authorities>, String> {
        let named = paths.clone();
        let make = move |files: &[Vec<u8>]| Authorities::make(&named, files);
        // Interval zero: each handshake checks the files.
        Reloaded::new("authorities of clients", paths, Duration::ZERO, make)
    }

    fn make(paths: &[PathBuf], files: &[Vec<u8>]) -> Result<Authorities, String> {
        let in_file = |at: usize, what: String| format!("{}: {what}", paths[at].display());
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&files[0]).map_err(|why| in_file(0, why))? {
            roots.add(certificate).map_err(|error| in_file(0, error.to_string()))?;
        }
        let provider = Arc::new(ring::default_provider());
        let mut builder =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).allow_unauthenticated();
        let mut until = None;
        if let Some(file) = files.get(1) {
            let lists = revocations(file).map_err(|why| in_file(1, why))?;
            until = lists.iter().filter_map(|list| next_update(list)).min();
            // An expired list may lack later revocations, so with it no certificate is accepted.
            builder = builder.with_crls(lists).enforce_revocation_expiration();
        }
        let verifier = builder.build().map_err(|error| in_file(files.len() - 1, error.to_string()))?;
        Ok(Authorities { verifier, until })
    }

    /// Returns the verifier for handshakes.
    pub(crate) fn verifier(&self) -> &Arc<dyn ClientCertVerifier> {
        &self.verifier
    }

    /// Whether a chain is valid at this moment.
    fn verify(&self, chain: &[CertificateDer<'static>], now: UnixTime) -> bool {
        chain.split_first().is_some_and(|(own, others)| self.verifier.verify_client_cert(own, others, now).is_ok())
    }
}

/// A client's certificate, kept for the life of its connection.
pub(crate) struct ClientCertificate {
    /// The user that the certificate names, if it names one.
    user: Option<User>,
    /// The chain as the client sent it: its own certificate, then the intermediates.
    chain: Vec<CertificateDer<'static>>,
    authorities: Arc<Reloaded<Authorities>>,
    /// The earliest expiry in the chain, in seconds since 1970.
    until: u64,
    proven: Mutex<Proven>,
}

/// The last successful verification of a chain.
struct Proven {
    by: Arc<Authorities>,
    /// The time, in seconds since 1970, until which these authorities give this result.
    until: u64,
}

impl ClientCertificate {
    /// Creates the certificate of a handshake that the authorities `by` have verified.
    pub(crate) fn new(
        chain: &[CertificateDer<'_>],
        authorities: Arc<Reloaded<Authorities>>,
        by: Arc<Authorities>,
    ) -> ClientCertificate {
        let chain: Vec<_> = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
        // A certificate whose expiry cannot be read is verified each time.
        let until = chain.iter().map(|certificate| not_after(certificate).unwrap_or(0)).min().unwrap_or(0);
        let user = chain.first().and_then(user_of);
        let proven = Mutex::new(Proven { until: until.min(by.until.unwrap_or(u64::MAX)), by });
        ClientCertificate { user, chain, authorities, until, proven }
    }

    pub(crate) fn names_user(&self) -> bool {
        self.user.is_some()
    }

    /// Returns the user that the certificate names; `None` if it names none.
    ///
    /// # Errors
    /// 401 if the certificate has expired, was revoked, or is no longer signed by one of the authorities.
    pub(crate) async fn user(&self) -> Result<Option<&User>, Refusal> {
        self.authorities.check_if_older(INTERVAL).await;
        let holds = self.authorities.usable().is_some_and(|authorities| self.holds(authorities, UnixTime::now()));
        if holds { Ok(self.user.as_ref()) } else { Err(Refusal::unauthorized("Unauthorized")) }
    }

    fn holds(&self, authorities: Arc<Authorities>, now: UnixTime) -> bool {
        // A panic cannot leave half a change: the lock guards one assignment.
        let mut proven = self.proven.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&proven.by, &authorities) && now.as_secs() < proven.until {
            return true;
        }
        let holds = authorities.verify(&self.chain, now);
        if holds {
            // A chain may contain certificates that the verification does not need. After one of these has expired, the
            // chain is verified again each second.
            let until = self.until.min(authorities.until.unwrap_or(u64::MAX)).max(now.as_secs() + 1);
            *proven = Proven { by: authorities, until };
        }
        holds
    }
}

/// Returns the certificates in a PEM text, at least one.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    at_least_one(CertificateDer::pem_slice_iter(pem).collect(), "certificate")
}

fn revocations(pem: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    at_least_one(CertificateRevocationListDer::pem_slice_iter(pem).collect(), "revocation list (X509 CRL)")
}

fn at_least_one<T>(all: Result<Vec<T>, pem::Error>, what: &str) -> Result<Vec<T>, String> {
    match all {
        Ok(all) if all.is_empty() => Err(format!("no {what} in it")),
        Ok(all) => Ok(all),
        Err(error) => Err(format!("no {what}: {}", pem_fault(&error))),
    }
}

/// Describes an error in a PEM file. The error's own text quotes the faulty line, which in a file without line ends is
/// the whole key, and must not be logged.
pub(crate) fn pem_fault(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::IllegalSectionStart { .. } => "a line that begins a section has more in it than -----BEGIN …-----",
        pem::Error::MissingSectionEnd { .. } => "a section has no line -----END …----- of its own",
        pem::Error::Base64Decode(_) => "a section is no base64",
        pem::Error::NoItemsFound => "there is none in it",
        _ => "it cannot be read as PEM",
    }
}

fn not_after(certificate: &CertificateDer<'_>) -> Option<u64> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    u64::try_from(certificate.validity().not_after.timestamp()).ok()
}

/// Returns the expiry of a revocation list, if it has one.
fn next_update(list: &CertificateRevocationListDer<'_>) -> Option<u64> {
    let (_, list) = x509_parser::parse_x509_crl(list).ok()?;
    u64::try_from(list.next_update()?.timestamp()).ok()
}

/// Returns the user of a verified certificate: its common name, with its organizations as groups. `None` if it has no
/// name.
fn user_of(certificate: &CertificateDer<'static>) -> Option<User> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().find_map(|name| name.as_str().ok()).filter(|name| !name.is_empty())?;
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
    Some(groups.fold(User::new(name), User::group))
}
