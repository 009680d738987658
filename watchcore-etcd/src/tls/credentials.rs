//! Provides the certificates for the next connection.
//!
//! [`Credentials::current`] is called once per connection. It reads the files and returns the configuration made from
//! them, the same one while their content is unchanged. A configuration is made when the files first have this
//! content; every connection gets it until the files have other *usable* content; it is dropped with the last
//! connection that was made with it.

use super::expiry;
use super::options::{Named, Pem, Tls, TlsVersion};
use super::refusal::Refusal;
use crate::log::log;
use http::Uri;
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{
    ClientConfig, Error as TlsError, InconsistentKeys, RootCertStore, SupportedProtocolVersion,
};
use watchcore::{Code, Error, Result};

/// The longest certificate file that is read.
const LONGEST_FILE: u64 = 4 << 20;
/// How often files that change during the read are read again at once.
const READS: usize = 5;
/// How long a connection waits for the files if the last good configuration can serve it.
const READ_LIMIT: Duration = Duration::from_secs(2);
const H2: &[u8] = b"h2";

/// The content of the files and of memory at one moment.
#[derive(PartialEq, Eq)]
struct Material {
    roots: Roots,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

#[derive(PartialEq, Eq)]
enum Roots {
    Pem(Vec<u8>),
    System(Vec<CertificateDer<'static>>),
}

#[derive(Default)]
struct State {
    /// The last usable material, and the configuration made from it.
    last_good: Option<(Material, Arc<ClientConfig>)>,
    /// Why the last good configuration differs from the files' present content.
    warning: Option<String>,
    reloads: u64,
    failures: u64,
    /// When the client's certificate of the last good material expires.
    expires: Option<u64>,
}

/// The certificates of a feeder's connections.
pub(crate) struct Credentials {
    tls: Tls,
    /// Permits one read of the files at a time: a hanging disk blocks one thread, not one per attempt.
    reads: Arc<Semaphore>,
    state: Mutex<State>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Credentials").field(&self.tls).finish()
    }
}

impl Credentials {
    /// # Errors
    /// INVALID_ARGUMENT for options that no change of a file can make valid: certificates given as bytes, or the
    /// server's name.
    pub(crate) fn new(tls: Tls) -> Result<Credentials> {
        let refused = |text: String| Error::new(Code::InvalidArgument, text);
        if let Some(name) = &tls.server_name {
            ServerName::try_from(name.as_str())
                .map_err(|_| refused(format!("the server name {name:?} is neither a host's name nor an address")))?;
        }
        if let Some(Pem::Bytes(pem)) = &tls.ca {
            roots_of(pem, "the CA certificates given as bytes").map_err(refused)?;
        }
        if let Some((certificate @ Pem::Bytes(chain), key @ Pem::Bytes(secret))) = &tls.client {
            client_of(chain, secret, &Named::client(certificate), &Named::key(key), &provider()).map_err(refused)?;
        }
        Ok(Credentials { tls, reads: Arc::new(Semaphore::new(1)), state: Mutex::default() })
    }

    pub(super) fn tls(&self) -> &Tls {
        &self.tls
    }

    /// The name that a server's certificate must be for.
    pub(crate) fn server_name(&self, uri: &Uri) -> std::result::Result<ServerName<'static>, String> {
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let name = self.tls.server_name.as_deref().unwrap_or(host);
        ServerName::try_from(name.to_owned())
            .map_err(|_| format!("{name:?} is neither a host's name nor an address: no certificate can be for it"))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configuration for a new connection. Files are read on a blocking thread: they may be on a disk that hangs,
    /// and the feeder must still be able to stop.
    pub(super) async fn current(self: &Arc<Credentials>) -> std::result::Result<Arc<ClientConfig>, Refusal> {
        let mut before = None;
        for _ in 0..READS {
            let material = match self.read_in_time().await {
                Ok(material) => material,
                Err(text) => return self.keep_last_good(text),
            };
            if let Some(config) = self.unchanged(&material) {
                return Ok(config);
            }
            match self.configure(&material) {
                Ok(config) => return Ok(self.take(material, Arc::new(config))),
                // The files may be in the middle of a replacement. If a second read returns the same content, it
                // really does not fit.
                Err(text) if before.as_ref() == Some(&material) => return self.keep_last_good(text),
                Err(_) => before = Some(material),
            }
        }
        self.keep_last_good(format!("{} do not fit each other; they change while they are read", self.names()))
    }

    async fn read_in_time(self: &Arc<Credentials>) -> std::result::Result<Material, String> {
        let reading = self.clone();
        let read = async {
            // The permit moves into the read, and is released when the disk answers, even if nobody waits any more.
            let alone = self.reads.clone().acquire_owned().await;
            tokio::task::spawn_blocking(move || {
                let _alone = alone;
                reading.material()
            })
            .await
        };
        let not_read = |why: &dyn std::fmt::Display| format!("{} were not read: {why}", self.names());
        let read = if self.state().last_good.is_some() {
            tokio::time::timeout(READ_LIMIT, read).await.map_err(|_| not_read(&"nothing came in time"))?
        } else {
            read.await
        };
        read.unwrap_or_else(|error| Err(not_read(&error)))
    }

    /// The last good configuration, if it was made from this material.
    fn unchanged(&self, material: &Material) -> Option<Arc<ClientConfig>> {
        let mut state = self.state();
        let config = state.last_good.as_ref().filter(|(good, _)| good == material).map(|(_, config)| config.clone())?;
        // The files may have been unusable in between.
        state.warning = None;
        Some(config)
    }

    fn take(&self, material: Material, config: Arc<ClientConfig>) -> Arc<ClientConfig> {
        let chain = material.client.iter().flat_map(|(chain, _)| CertificateDer::pem_slice_iter(chain));
        let expires = expiry::earliest(&chain.flatten().collect::<Vec<_>>());
        let mut state = self.state();
        state.expires = expires;
        state.warning = None;
        let is_another = state.last_good.replace((material, config.clone())).is_some();
        state.reloads += u64::from(is_another);
        drop(state);
        if is_another {
            log!(info, files = self.names(), "the certificates were replaced: new connections use the new ones");
        }
        config
    }

    /// Handles unusable files: returns the last good configuration, or refuses if there is none.
    fn keep_last_good(&self, text: String) -> std::result::Result<Arc<ClientConfig>, Refusal> {
        let mut state = self.state();
        state.failures += 1;
        let Some((_, config)) = &state.last_good else {
            return Err(Refusal::files(text));
        };
        let config = config.clone();
        let text = format!("{text}. New connections still use what was read before; repair it before that expires");
        let is_news = state.warning.as_ref() != Some(&text);
        state.warning = Some(text.clone());
        drop(state);
        if is_news {
            log!(warn, "{text}");
        }
        Ok(config)
    }

    /// Why the files cannot be used, while connections use their earlier content.
    pub(crate) fn warning(&self) -> Option<String> {
        self.state().warning.clone()
    }

    /// How often the certificates were replaced, and how often they could not be used.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.state();
        (state.reloads, state.failures)
    }

    /// When the certificate chain of the client that new connections use expires, in Unix time: its earliest expiry.
    pub(crate) fn expires(&self) -> Option<u64> {
        self.state().expires
    }

    /// The names of the files, for messages.
    fn names(&self) -> String {
        let client = self.tls.client.iter().flat_map(|(certificate, key)| [certificate, key]);
        let files = self.tls.ca.iter().chain(client).filter_map(|pem| match pem {
            Pem::File(path) => Some(path.display().to_string()),
            Pem::Bytes(_) => None,
        });
        let names = files.collect::<Vec<_>>().join(", ");
        if names.is_empty() { "the system's CA certificates".to_owned() } else { names }
    }

    fn material(&self) -> std::result::Result<Material, String> {
        let roots = match &self.tls.ca {
            Some(ca) => Roots::Pem(read(ca, "the CA file")?),
            None => Roots::System(system_roots()?),
        };
        let client = match &self.tls.client {
            Some((certificate, key)) => {
                Some((read(certificate, "the client certificate")?, read(key, "the client key")?))
            }
            None => None,
        };
        Ok(Material { roots, client })
    }

    fn configure(&self, material: &Material) -> std::result::Result<ClientConfig, String> {
        let provider = provider();
        let roots = match (&material.roots, &self.tls.ca) {
            (Roots::Pem(pem), Some(ca)) => roots_of(pem, &Named::ca(ca))?,
            (Roots::Pem(pem), None) => roots_of(pem, "the CA certificates")?,
            (Roots::System(certificates), _) => {
                let mut store = RootCertStore::empty();
                store.add_parsable_certificates(certificates.iter().cloned());
                store
            }
        };
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions(self.tls.min_version))
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let mut config = match (&material.client, &self.tls.client) {
            (Some((chain, secret)), Some((certificate, key))) => {
                let (certificate, key) = (Named::client(certificate), Named::key(key));
                let (chain, secret) = client_of(chain, secret, &certificate, &key, &provider)?;
                builder
                    .with_client_auth_cert(chain, secret)
                    .map_err(|error| format!("{certificate} with {key}: {error}"))?
            }
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols.push(H2.to_vec());
        // A resumed session would check no certificate.
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()))
}

fn versions(oldest: TlsVersion) -> &'static [&'static SupportedProtocolVersion] {
    static BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
    match oldest {
        TlsVersion::V1_2 => &BOTH,
        TlsVersion::V1_3 => &BOTH[..1],
    }
}

fn read(pem: &Pem, what: &str) -> std::result::Result<Vec<u8>, String> {
    let path = match pem {
        Pem::Bytes(bytes) => return Ok(bytes.clone()),
        Pem::File(path) => path,
    };
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST_FILE + 1).read_to_end(&mut bytes));
    match read {
        Ok(_) if bytes.len() as u64 > LONGEST_FILE => {
            Err(format!("{what} {} is longer than {LONGEST_FILE} bytes", path.display()))
        }
        Ok(_) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(format!("{what} {} does not exist", path.display()))
        }
        Err(error) => Err(format!("{what} {} cannot be read: {error}", path.display())),
    }
}

fn system_roots() -> std::result::Result<Vec<CertificateDer<'static>>, String> {
    let found = rustls_native_certs::load_native_certs();
    if !found.certs.is_empty() {
        return Ok(found.certs);
    }
    let errors = found.errors.iter().map(|error| format!(" ({error})")).collect::<String>();
    Err(format!(
        "the system has no CA certificates{errors}. Install them (such as the package ca-certificates), name their file in SSL_CERT_FILE, or give the CA of etcd"
    ))
}

/// Describes an error in a PEM file. The error's own text quotes the bad line, and in a file that lost its line ends
/// that line is the whole key, which must not be logged.
fn pem_problem(error: &pem::Error, what: &str) -> String {
    let why = match error {
        pem::Error::NoItemsFound => return format!("holds no {what} in PEM"),
        pem::Error::MissingSectionEnd { .. } => return format!("ends in the middle of a {what}"),
        pem::Error::IllegalSectionStart { .. } => {
            "a line that begins a section has more in it than -----BEGIN …-----; were its line ends lost?"
        }
        pem::Error::Base64Decode(_) => "a section is no base64",
        _ => "a section is too long",
    };
    format!("holds no {what} in PEM that can be read: {why}")
}

fn roots_of(pem: &[u8], name: &str) -> std::result::Result<RootCertStore, String> {
    let problem = |error: pem::Error| format!("{name} {}", pem_problem(&error, "certificate"));
    let all = CertificateDer::pem_slice_iter(pem).collect::<std::result::Result<Vec<_>, _>>().map_err(problem)?;
    if all.is_empty() {
        return Err(problem(pem::Error::NoItemsFound));
    }
    let mut store = RootCertStore::empty();
    match store.add_parsable_certificates(all) {
        (0, _) => Err(format!("{name} holds no certificate that can be read")),
        _ => Ok(store),
    }
}

type Client = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Parses a certificate chain and its key, and checks that they match.
fn client_of(
    chain: &[u8],
    secret: &[u8],
    certificate: &str,
    key: &str,
    provider: &CryptoProvider,
) -> std::result::Result<Client, String> {
    let problem = |error: pem::Error| format!("{certificate} {}", pem_problem(&error, "certificate"));
    let all = CertificateDer::pem_slice_iter(chain).collect::<std::result::Result<Vec<_>, _>>().map_err(problem)?;
    if all.is_empty() {
        return Err(problem(pem::Error::NoItemsFound));
    }
    let secret = PrivateKeyDer::from_pem_slice(secret).map_err(|error| {
        let hint = if is_encrypted(secret) { " (one with a passphrase is not supported)" } else { "" };
        format!("{key} {}{hint}", pem_problem(&error, "private key"))
    })?;
    use tokio_rustls::rustls::sign::CertifiedKey;
    match CertifiedKey::from_der(all.clone(), secret.clone_key(), provider) {
        Ok(_) => Ok((all, secret)),
        Err(TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            Err(format!("{key} is not the key of {certificate}"))
        }
        Err(TlsError::InvalidCertificate(error)) => Err(format!("{certificate} cannot be used: {error}")),
        Err(error) => Err(format!("{key} cannot be used: {error}")),
    }
}

fn is_encrypted(pem: &[u8]) -> bool {
    let says = |mark: &[u8]| pem.windows(mark.len()).any(|window| window == mark);
    says(b"ENCRYPTED")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key that lost its line ends, for example in an environment variable, is one bad line. Error texts appear in
    /// logs, metrics and pages, so they must contain no part of it.
    #[test]
    fn errors_show_nothing_of_a_key() {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate =
            rcgen::CertificateParams::new(vec!["client".to_owned()]).unwrap().self_signed(&key).unwrap().pem();
        let text = key.serialize_pem();
        let lines: Vec<&str> = text.lines().collect();
        let secret = lines[1];
        let texts =
            [lines.join(" "), lines.concat(), lines[..2].concat(), lines[..2].join("\n"), text.replace('M', "*")];
        for broken in texts.map(String::into_bytes) {
            for (tls, named) in [
                (Tls::new().client_pem(&*certificate, &*broken), "the client key"),
                (Tls::new().client_pem(&*broken, &*text), "the client certificate"),
                (Tls::new().ca_pem(&*broken), "the CA certificates"),
            ] {
                let message = Credentials::new(tls.clone()).expect_err("it is broken").message().to_owned();
                assert!(message.starts_with(named), "{message}");
                for at in 0..secret.len() - 8 {
                    let part = &secret[at..at + 8];
                    let numbers = format!("{:?}", part.as_bytes());
                    assert!(
                        !message.contains(part) && !message.contains(numbers.trim_matches(['[', ']'])),
                        "{message}"
                    );
                }
            }
        }
    }
}
