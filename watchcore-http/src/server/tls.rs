//! TLS: the server's certificates, reloaded when they change, and the configuration of client certificates.

use crate::access::{Authorities, ClientCertificate, UNREADABLE_LIMIT, certificates, pem_fault};
use crate::files::Reloaded;
use arc_swap::ArcSwap;
use pkcs8::EncryptedPrivateKeyInfoRef;
use pkcs8::der::pem::PemLabel;
use pkcs8::der::{Error as DerError, SecretDocument};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use watchcore::{Code, Error, Result};

/// The certificate files of a server, in PEM.
///
/// Each handshake checks the files, and reads them again if they have changed: a certificate is renewed by replacing
/// the files. While certificate and key do not match, because only one of them was replaced yet, the previous pair is
/// used.
///
/// The files `client_ca` and `client_crl` are also checked while connections last. When a client's certificate expires,
/// is revoked, or loses its authority, its requests on open connections get 401, and its watches end. While these files
/// cannot be read, their previous contents are used for a minute; after that, no client is authenticated by a
/// certificate.
///
/// ```
/// let tls = watchcore_http::Tls::new("server.crt", "server.key").client_ca("ca.crt").client_crl("ca.crl");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    passphrase: Option<PathBuf>,
    client_ca: Option<PathBuf>,
    client_crl: Option<PathBuf>,
}

/// The certificates of a running server, reloaded when their files change.
pub(super) struct Certificates {
    pair: Arc<Reloaded<SingleCertAndKey>>,
    authorities: Option<Arc<Reloaded<Authorities>>>,
    /// The newest configuration, with the values that it was made from.
    made: ArcSwap<Made>,
}

/// A configuration for handshakes, and the values that it was made from.
pub(super) struct Made {
    pub(super) config: Arc<ServerConfig>,
    pair: Arc<SingleCertAndKey>,
    authorities: Option<Arc<Authorities>>,
}

impl Tls {
    /// Sets the certificate chain, the server's own certificate first, and its private key (PKCS#8, PKCS#1 or SEC1).
    pub fn new(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Tls {
        let (certificate, key) = (certificate.into(), key.into());
        Tls { certificate, key, passphrase: None, client_ca: None, client_crl: None }
    }

    /// Sets the file with the passphrase of the key, which must be encrypted PKCS#8 (`ENCRYPTED PRIVATE KEY`), as
    /// `openssl pkcs8 -topk8` writes it. A line feed at the end of the file is not part of the passphrase.
    pub fn key_passphrase_file(mut self, path: impl Into<PathBuf>) -> Tls {
        self.passphrase = Some(path.into());
        self
    }

    /// Sets the authorities that sign client certificates. A client with such a certificate is the user of its common
    /// name, in the groups of its organizations, as in Kubernetes. A client without a certificate may connect, and is
    /// authenticated by another authenticator or not at all; one with a certificate of another authority is refused.
    pub fn client_ca(mut self, path: impl Into<PathBuf>) -> Tls {
        self.client_ca = Some(path.into());
        self
    }

    /// Sets the revocation lists of the authorities (CRL, PEM). A list is required for each authority and intermediate
    /// that has signed a client certificate: certificates whose authority has no list are refused, and so are those
    /// whose list has expired.
    pub fn client_crl(mut self, path: impl Into<PathBuf>) -> Tls {
        self.client_crl = Some(path.into());
        self
    }

    pub(super) fn asks_certificate(&self) -> bool {
        self.client_ca.is_some()
    }

    /// # Errors
    /// INVALID_ARGUMENT if the files cannot be read, or certificate and key do not match.
    pub(super) fn load(&self) -> Result<Certificates> {
        self.load_believing(UNREADABLE_LIMIT)
    }

    /// Loads the files. `believed` is how long authorities and revocation lists are used after they became unreadable.
    fn load_believing(&self, believed: Duration) -> Result<Certificates> {
        let failed = |why: String| Error::new(Code::InvalidArgument, format!("TLS: {why}. Give files in PEM."));
        let mut paths = vec![self.certificate.clone(), self.key.clone()];
        paths.extend(self.passphrase.clone());
        let named = paths.clone();
        let make = move |files: &[Vec<u8>]| pair(&named, files);
        let pair = Reloaded::new("certificates of the server", paths, Duration::ZERO, make).map_err(failed)?;
        let authorities = match (&self.client_ca, &self.client_crl) {
            (None, None) => None,
            (None, Some(crl)) => {
                return Err(failed(format!("{}: revocations without the authorities of clients", crl.display())));
            }
            (Some(ca), crl) => {
                let paths = std::iter::once(ca).chain(crl).cloned().collect();
                Some(Arc::new(Authorities::of_files(paths).map_err(failed)?.usable_for(believed)))
            }
        };
        let made = Made::new(
            pair.latest(),
            authorities.as_ref().map(|authorities| authorities.latest()),
            self.asks_certificate(),
        )
        .map_err(|error| failed(error.to_string()))?;
        Ok(Certificates { pair: Arc::new(pair), authorities, made: ArcSwap::from_pointee(made) })
    }
}

impl Certificates {
    /// Returns the configuration for the current files.
    pub(super) async fn current(&self) -> Arc<Made> {
        let pair = self.pair.current().await;
        let authorities = match &self.authorities {
            Some(authorities) => {
                authorities.current().await;
                authorities.usable()
            }
            None => None,
        };
        let made = self.made.load_full();
        if made.is_of(&pair, authorities.as_ref()) {
            return made;
        }
        // Another handshake may store its own at the same time, of older files too: the next handshake compares again.
        match Made::new(pair, authorities, self.authorities.is_some()) {
            Ok(newer) => {
                let newer = Arc::new(newer);
                self.made.store(newer.clone());
                newer
            }
            // Protocol versions and provider do not match, which files cannot cause.
            Err(error) => {
                tracing::error!(target: "watchcore_http", "TLS: {error}");
                made
            }
        }
    }

    /// Returns the certificate of a client after a handshake with this configuration.
    pub(super) fn client_certificate(
        &self,
        session: &rustls::ServerConnection,
        made: &Made,
    ) -> Option<ClientCertificate> {
        let (chain, authorities) = (session.peer_certificates()?, self.authorities.clone()?);
        Some(ClientCertificate::new(chain, authorities, made.authorities.clone()?))
    }
}

impl Made {
    fn new(
        pair: Arc<SingleCertAndKey>,
        authorities: Option<Arc<Authorities>>,
        asks_certificate: bool,
    ) -> std::result::Result<Made, rustls::Error> {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?;
        let builder = match &authorities {
            Some(authorities) => builder.with_client_cert_verifier(authorities.verifier().clone()),
            // There are no authorities, or their files were unreadable for too long. Clients are then authenticated by
            // a token or not at all.
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(pair.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        if asks_certificate {
            // A resumed session is not verified again: a client's certificate would outlive its end.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Made { config: Arc::new(config), pair, authorities })
    }

    fn is_of(&self, pair: &Arc<SingleCertAndKey>, authorities: Option<&Arc<Authorities>>) -> bool {
        let same = match (&self.authorities, authorities) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        same && Arc::ptr_eq(&self.pair, pair)
    }
}

/// Returns the server's certificate chain with its key.
fn pair(paths: &[PathBuf], files: &[Vec<u8>]) -> std::result::Result<SingleCertAndKey, String> {
    let in_file = |at: usize, what: String| format!("{}: {what}", paths[at].display());
    let chain = certificates(&files[0]).map_err(|why| in_file(0, why))?;
    let key = match encrypted_key(&files[1]) {
        Some(document) => {
            let Some(passphrase) = files.get(2) else {
                return Err(in_file(1, "the private key is encrypted, and no file of its passphrase is given".into()));
            };
            decrypted(&document.map_err(|why| in_file(1, why))?, passphrase).map_err(|why| in_file(1, why))?
        }
        None => PrivateKeyDer::from_pem_slice(&files[1])
            .map_err(|error| in_file(1, format!("no private key: {}", pem_fault(&error))))?,
    };
    let pair = CertifiedKey::from_der(chain, key, &ring::default_provider())
        .map_err(|error| format!("{} and {} are no pair: {error}", paths[0].display(), paths[1].display()))?;
    Ok(SingleCertAndKey::from(pair))
}

/// Returns the encrypted key in a PEM text; `None` if the text has no such section.
fn encrypted_key(pem: &[u8]) -> Option<std::result::Result<SecretDocument, String>> {
    let text = std::str::from_utf8(pem).ok()?;
    let begin = format!("-----BEGIN {}-----", EncryptedPrivateKeyInfoRef::PEM_LABEL);
    let text = &text[text.find(&begin)?..];
    // The error is replaced, because its text may contain a part of the key.
    let parsed = SecretDocument::from_pem(text).map(|(_, document)| document);
    Some(parsed.map_err(|_: DerError| "the encrypted private key cannot be read as PEM".to_owned()))
}

fn decrypted(document: &SecretDocument, passphrase: &[u8]) -> std::result::Result<PrivateKeyDer<'static>, String> {
    let info = EncryptedPrivateKeyInfoRef::try_from(document.as_bytes())
        .map_err(|_| "the private key is encrypted in another form than PKCS#8 with PBES2".to_owned())?;
    let passphrase = passphrase.strip_suffix(b"\n").unwrap_or(passphrase);
    let passphrase = passphrase.strip_suffix(b"\r").unwrap_or(passphrase);
    let key = info.decrypt(passphrase).map_err(|_| "the passphrase does not decrypt the private key".to_owned())?;
    Ok(PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.as_bytes().to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
    use rustls::pki_types::CertificateDer;

    /// Waits until the authorities are in use, or no longer in use.
    async fn until(certificates: &Certificates, believed: bool) -> Arc<Made> {
        let seen = async {
            loop {
                let made = certificates.current().await;
                if made.authorities.is_some() == believed {
                    return made;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), seen).await.expect("the authorities are believed for ever")
    }

    /// While the authorities' file cannot be read, handshakes ask for no certificate, and earlier certificates are not
    /// accepted.
    #[tokio::test]
    async fn authorities_that_are_gone_know_nobody() {
        let mut parameters = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        parameters.distinguished_name.push(DnType::CommonName, "alice");
        let own = parameters.signed_by(&key, &authority).unwrap();
        let directory = std::env::temp_dir().join(format!("watchcore-tls-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (certificate, key) = (write("crt", &own.pem()), write("key", &key.serialize_pem()));
        let ca = write("ca", &authority.pem());
        let tls = Tls::new(certificate, key).client_ca(&ca);
        let certificates = tls.load_believing(Duration::from_millis(30)).unwrap();
        let made = until(&certificates, true).await;
        let authorities = certificates.authorities.clone().unwrap();
        let chain = [CertificateDer::from(own.der().to_vec())];
        let presented = ClientCertificate::new(&chain, authorities, made.authorities.clone().unwrap());
        assert_eq!(presented.user().await.unwrap().map(|user| user.name()), Some("alice"));
        std::fs::remove_file(&ca).unwrap();
        until(&certificates, false).await;
        assert_eq!(presented.user().await.unwrap_err().code(), 401);
        write("ca", &authority.pem());
        until(&certificates, true).await;
        assert!(presented.user().await.is_ok(), "it is there again");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
