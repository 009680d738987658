//! Client certificates: the authorities that sign them, the lists that revoke them, and the check whether one still holds.
//!
//! A handshake verifies a certificate once. Its connection may last for days and a watch for an hour, so a
//! [`ClientCertificate`] keeps the chain that the client showed, and is verified again by each request and by the recheck
//! of open watches: against the authorities and revocations as their files are then, and against the clock. The check costs a
//! comparison of a pointer and of a time, as long as neither the files have changed nor one of the certificates has ended.

use super::User;
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

/// How long the files of authorities may go unread while requests come on connections that are open.
const INTERVAL: Duration = Duration::from_secs(1);

/// The authorities of client certificates, with their revocation lists.
pub(crate) struct Authorities {
    verifier: Arc<dyn ClientCertVerifier>,
    /// When the first of the revocation lists ends, in seconds since 1970.
    until: Option<u64>,
}

impl Authorities {
    /// Reads the authorities from the first file, and revocation lists from the second, if there is one; both in PEM.
    ///
    /// # Errors
    /// The text of an INVALID_ARGUMENT, which names the wrong file.
    pub(crate) fn of_files(paths: Vec<PathBuf>) -> Result<Reloaded<Authorities>, String> {
        let named = paths.clone();
        let make = move |files: &[Vec<u8>]| Authorities::make(&named, files);
        // No interval: each handshake looks at the files.
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
            // A list that has ended may lack certificates that were revoked since, so it lets no certificate pass.
            builder = builder.with_crls(lists).enforce_revocation_expiration();
        }
        let verifier = builder.build().map_err(|error| in_file(files.len() - 1, error.to_string()))?;
        Ok(Authorities { verifier, until })
    }

    /// The verifier for handshakes.
    pub(crate) fn verifier(&self) -> &Arc<dyn ClientCertVerifier> {
        &self.verifier
    }

    /// Whether a chain holds at this moment.
    fn verify(&self, chain: &[CertificateDer<'static>], now: UnixTime) -> bool {
        chain.split_first().is_some_and(|(own, others)| self.verifier.verify_client_cert(own, others, now).is_ok())
    }
}

/// The certificate of a client, from its handshake on.
pub(crate) struct ClientCertificate {
    /// The user that the certificate names, if it names one.
    user: Option<User>,
    /// The chain as the client has shown it: its own certificate, then those between that and the authority.
    chain: Vec<CertificateDer<'static>>,
    authorities: Arc<Reloaded<Authorities>>,
    /// The end of the certificate of the chain that ends first, in seconds since 1970.
    until: u64,
    proven: Mutex<Proven>,
}

/// The last verification that found a chain to hold.
struct Proven {
    by: Arc<Authorities>,
    /// Until then the same authorities give the same result, in seconds since 1970.
    until: u64,
}

impl ClientCertificate {
    /// The certificate of a handshake that the authorities `by` have verified.
    pub(crate) fn new(
        chain: &[CertificateDer<'_>],
        authorities: Arc<Reloaded<Authorities>>,
        by: Arc<Authorities>,
    ) -> ClientCertificate {
        let chain: Vec<_> = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
        // A certificate whose end cannot be read is verified each time.
        let until = chain.iter().map(|certificate| not_after(certificate).unwrap_or(0)).min().unwrap_or(0);
        let user = chain.first().and_then(user_of);
        let proven = Mutex::new(Proven { until: until.min(by.until.unwrap_or(u64::MAX)), by });
        ClientCertificate { user, chain, authorities, until, proven }
    }

    pub(crate) fn names_somebody(&self) -> bool {
        self.user.is_some()
    }

    /// The user that the certificate names; `None` where it names none.
    ///
    /// # Errors
    /// 401 where the certificate has ended, was revoked, or is signed by none of the authorities any more.
    pub(crate) async fn user(&self) -> Result<Option<&User>, Refusal> {
        self.authorities.look_after(INTERVAL).await;
        let holds = self.authorities.believed().is_some_and(|authorities| self.holds(authorities, UnixTime::now()));
        if holds { Ok(self.user.as_ref()) } else { Err(Refusal::unauthorized("Unauthorized")) }
    }

    fn holds(&self, authorities: Arc<Authorities>, now: UnixTime) -> bool {
        // Nothing in here panics between two changes that belong together.
        let mut proven = self.proven.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&proven.by, &authorities) && now.as_secs() < proven.until {
            return true;
        }
        let holds = authorities.verify(&self.chain, now);
        if holds {
            // A chain may have certificates that the verification does not need. When one of these has ended, the chain is
            // verified again each second.
            let until = self.until.min(authorities.until.unwrap_or(u64::MAX)).max(now.as_secs() + 1);
            *proven = Proven { by: authorities, until };
        }
        holds
    }
}

/// The certificates in a text in PEM, at least one.
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
        Err(error) => Err(format!("no {what}: {}", said(&error))),
    }
}

/// What is wrong in a file. The text of the error itself has the line that is wrong in it, and in a file whose line ends
/// were lost that line is the whole key: it must not stand in a log.
pub(crate) fn said(error: &pem::Error) -> &'static str {
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

/// The end of a revocation list, if it has one.
fn next_update(list: &CertificateRevocationListDer<'_>) -> Option<u64> {
    let (_, list) = x509_parser::parse_x509_crl(list).ok()?;
    u64::try_from(list.next_update()?.timestamp()).ok()
}

/// Whom a verified certificate names: its common name, in the groups of its organizations. `None`: it has no name.
fn user_of(certificate: &CertificateDer<'static>) -> Option<User> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().find_map(|name| name.as_str().ok()).filter(|name| !name.is_empty())?;
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
    Some(groups.fold(User::new(name), User::group))
}
