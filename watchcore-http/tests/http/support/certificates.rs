//! A certificate authority, the files of a server, and TLS clients.

use super::within;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa, KeyIdMethod,
    KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A temporary directory, removed on drop.
pub(crate) struct Files(PathBuf);

impl Files {
    pub(crate) fn new() -> Files {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("watchcore-http-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory");
        Files(path)
    }

    /// Writes a file atomically, as certificate renewers do.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let (new, path) = (self.0.join(format!("{name}.new")), self.0.join(name));
        std::fs::write(&new, text).expect("a file");
        std::fs::rename(new, &path).expect("a file");
        path
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
    serial: u64,
}

/// Returns the time an hour from now.
pub(crate) fn later() -> SystemTime {
    SystemTime::now() + Duration::from_secs(3600)
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(DnType::CommonName, name);
        Authority(CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Signs a certificate for localhost with this common name and these organizations.
    pub(crate) fn sign(&self, name: &str, organizations: &[&str]) -> Pair {
        self.sign_until(name, organizations, later())
    }

    /// Signs a certificate that expires at this time.
    pub(crate) fn sign_until(&self, name: &str, organizations: &[&str], end: SystemTime) -> Pair {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let serial = SERIAL.fetch_add(1, Relaxed);
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        parameters.serial_number = Some(SerialNumber::from(serial));
        parameters.not_after = date_time_ymd(1970, 1, 1) + end.duration_since(UNIX_EPOCH).unwrap();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        if !name.is_empty() {
            parameters.distinguished_name.push(DnType::CommonName, name);
        }
        // rcgen keeps only the last name of each type.
        for organization in organizations {
            parameters.distinguished_name.push(DnType::OrganizationName, *organization);
        }
        let certificate = parameters.signed_by(&key, &self.0).unwrap();
        Pair { certificate: certificate.pem(), key: key.serialize_pem(), serial }
    }

    /// Returns the revocation list of these certificates, which expires at this time.
    pub(crate) fn revoke(&self, revoked: &[&Pair], end: SystemTime) -> String {
        let at = |time: SystemTime| date_time_ymd(1970, 1, 1) + time.duration_since(UNIX_EPOCH).unwrap();
        let begin = at(UNIX_EPOCH + Duration::from_secs(1));
        let revoked = revoked.iter().map(|pair| RevokedCertParams {
            serial_number: SerialNumber::from(pair.serial),
            revocation_time: begin,
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: begin,
            next_update: at(end),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).unwrap().pem().unwrap()
    }
}

/// Returns a client that trusts an authority, has a certificate if given, and offers these protocols.
pub(crate) fn client(trusts: &Authority, shows: Option<&Pair>, protocols: &[&str]) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusts.pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match shows {
        None => builder.with_no_client_auth(),
        Some(Pair { certificate, key, .. }) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
        }
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

/// Connects, with a TLS handshake.
pub(crate) async fn connect(address: SocketAddr, client: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    within("the handshake", client.connect(ServerName::try_from("localhost").unwrap(), stream)).await
}

/// Sends one GET on a new connection, and returns the code and the whole response.
pub(crate) async fn get(
    address: SocketAddr,
    client: &TlsConnector,
    target: &str,
    header: &str,
) -> Result<(u16, String), String> {
    let mut stream = connect(address, client).await.map_err(|error| error.to_string())?;
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut said = Vec::new();
    within("the answer", stream.read_to_end(&mut said)).await.map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&said).into_owned();
    let code =
        said.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(|| format!("no answer: {said:?}"))?;
    Ok((code, said))
}

/// Returns the server's certificate.
pub(crate) fn shown(stream: &TlsStream<TcpStream>) -> Vec<u8> {
    stream.get_ref().1.peer_certificates().expect("a certificate")[0].to_vec()
}

pub(crate) fn der(pair: &Pair) -> Vec<u8> {
    CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap().to_vec()
}

/// Writes the files of a server: `server.crt`, `server.key`.
pub(crate) fn install(files: &Files, pair: &Pair) -> (PathBuf, PathBuf) {
    (files.write("server.crt", &pair.certificate), files.write("server.key", &pair.key))
}
