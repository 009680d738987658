//! Certificates: those of the server, read again when they change, and what those of clients say.

use crate::access::User;
use crate::files::Reloaded;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use watchcore::{Code, Error, Result};

/// Where the certificates of a server are: files in PEM.
///
/// They are looked at in each handshake, and read again when they have changed: a certificate is renewed by replacing
/// the files. While they make no pair, because only one of the two is replaced yet, the pair before serves.
///
/// ```
/// let tls = watchcore_http::Tls::new("server.crt", "server.key").client_ca("ca.crt");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

impl Tls {
    /// The chain of certificates, the server's own first, and its private key (PKCS#8, PKCS#1 or SEC1).
    pub fn new(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Tls {
        Tls { certificate: certificate.into(), key: key.into(), client_ca: None }
    }

    /// Certificates that sign those of clients. A client that shows one of these is the user that its common name
    /// says, in the groups that its organizations say, as with Kubernetes. A client without one may connect, and is
    /// known by another authenticator or not at all; one with another's certificate may not.
    pub fn client_ca(mut self, path: impl Into<PathBuf>) -> Tls {
        self.client_ca = Some(path.into());
        self
    }

    pub(super) fn asks_certificate(&self) -> bool {
        self.client_ca.is_some()
    }

    /// # Errors
    /// INVALID_ARGUMENT where the files cannot be read, or are no pair.
    pub(super) fn load(&self) -> Result<Arc<Reloaded<ServerConfig>>> {
        let mut paths = vec![self.certificate.clone(), self.key.clone()];
        paths.extend(self.client_ca.clone());
        let named = paths.clone();
        Reloaded::new("certificates of the server", paths, Duration::ZERO, move |files| config(&named, files))
            .map(Arc::new)
            .map_err(|why| Error::new(Code::InvalidArgument, format!("TLS: {why}. Give files in PEM.")))
    }
}

fn config(paths: &[PathBuf], files: &[Vec<u8>]) -> std::result::Result<ServerConfig, String> {
    let in_file = |at: usize, what: String| format!("{}: {what}", name_of(paths, at));
    let chain = certificates(&files[0]).map_err(|why| in_file(0, why))?;
    let key = PrivateKeyDer::from_pem_slice(&files[1])
        .map_err(|error| in_file(1, format!("no private key: {}", said(&error))))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match files.get(2) {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = rustls::RootCertStore::empty();
            for certificate in certificates(file).map_err(|why| in_file(2, why))? {
                roots.add(certificate).map_err(|error| in_file(2, error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|error| in_file(2, error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| format!("{} and {} are no pair: {error}", name_of(paths, 0), name_of(paths, 1)))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    if files.len() > 2 {
        // A session that is resumed is not verified again: a client's certificate would outlive its end.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(config)
}

fn name_of(paths: &[PathBuf], at: usize) -> String {
    paths.get(at).map(|path| path.display().to_string()).unwrap_or_default()
}

fn certificates(pem: &[u8]) -> std::result::Result<Vec<CertificateDer<'static>>, String> {
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err("no certificate in it".into()),
        Ok(all) => Ok(all),
        Err(error) => Err(format!("no certificate: {}", said(&error))),
    }
}

/// What is wrong in a file. The text of the error itself has the line that is wrong in it, and in a file whose line ends
/// were lost that line is the whole key: it must not stand in a log.
fn said(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::IllegalSectionStart { .. } => "a line that begins a section has more in it than -----BEGIN …-----",
        pem::Error::MissingSectionEnd { .. } => "a section has no line -----END …----- of its own",
        pem::Error::Base64Decode(_) => "a section is no base64",
        pem::Error::NoItemsFound => "there is none in it that is not encrypted",
        _ => "it cannot be read as PEM",
    }
}

/// Whom a verified certificate names: its common name, in the groups of its organizations. `None`: it has no name.
pub(super) fn user_of(certificate: &CertificateDer<'_>) -> Option<User> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().find_map(|name| name.as_str().ok()).filter(|name| !name.is_empty())?;
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
    Some(groups.fold(User::new(name), User::group))
}
