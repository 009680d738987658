//! The TLS options of a feeder.

use std::fmt;
use std::path::{Path, PathBuf};

/// The source of a certificate or a key in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Pem {
    /// A path, read again for each new connection.
    File(PathBuf),
    Bytes(Vec<u8>),
}

impl Pem {
    fn file(path: impl AsRef<Path>) -> Pem {
        Pem::File(path.as_ref().to_owned())
    }

    fn bytes(pem: impl Into<Vec<u8>>) -> Pem {
        Pem::Bytes(pem.into())
    }
}

impl fmt::Debug for Pem {
    /// Prints no bytes, because they may be a private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::File(path) => path.fmt(f),
            Pem::Bytes(bytes) => write!(f, "({} bytes)", bytes.len()),
        }
    }
}

/// The oldest version of TLS that a feeder speaks.
///
/// ```
/// use watchcore_etcd::{Tls, TlsVersion};
///
/// let modern = Tls::new().min_version(TlsVersion::V1_3);
/// assert!(TlsVersion::default() < TlsVersion::V1_3);
/// # drop(modern);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[non_exhaustive]
pub enum TlsVersion {
    /// TLS 1.2 and newer. Older versions are not supported.
    #[default]
    V1_2,
    /// TLS 1.3 and newer.
    V1_3,
}

impl fmt::Display for TlsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TlsVersion::V1_2 => "TLS 1.2",
            TlsVersion::V1_3 => "TLS 1.3",
        })
    }
}

/// The TLS options of a feeder: which servers it trusts, and its own certificate.
///
/// By default, an `https` endpoint is trusted if an authority of the system has signed its certificate: one in the
/// system's store, or in the file and the directories that `SSL_CERT_FILE` and `SSL_CERT_DIR` name.
///
/// Certificates and keys are PEM, from files or from memory. **Files are read again for each new connection**, so
/// certificates can be replaced while a feeder runs: a reconnect uses the new ones. No connection ends because a
/// certificate expires or a file changes. If the files cannot be used at that moment (missing, half-written, a
/// certificate without its key), the last usable ones are used, a warning is logged, and
/// [`SourceReport::warning`](watchcore::SourceReport::warning) says so until the files can be used again; if there
/// are none yet, the connection is tried again with backoff.
///
/// Every connection authenticates both sides: no TLS session is resumed. No option trusts a server regardless of its
/// certificate: name its own certificate as `ca_file`, and the name in it as `server_name`. Private keys with a
/// passphrase are not supported, nor are revocation lists.
///
/// ```no_run
/// use watchcore_etcd::{Feeder, Tls};
///
/// # let cache = watchcore::Cache::builder("/").build()?;
/// let tls = Tls::new().ca_file("/etc/etcd/ca.crt").client_files("/etc/etcd/client.crt", "/etc/etcd/client.key");
/// let feeder = Feeder::new(["https://etcd.example:2379"]).tls(tls).start(cache.writer()?)?;
/// # drop(feeder);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[must_use = "it is given to FeederBuilder::tls"]
pub struct Tls {
    /// `None`: the system's authorities.
    pub(super) ca: Option<Pem>,
    /// The client's certificate chain, and its key.
    pub(super) client: Option<(Pem, Pem)>,
    pub(super) server_name: Option<String>,
    pub(super) min_version: TlsVersion,
}

impl Tls {
    /// The system's authorities, no client certificate, the endpoint's host as the server's name, TLS 1.2.
    pub fn new() -> Tls {
        Tls::default()
    }

    /// Trusts the authorities in this file instead of the system's. Read again for each new connection.
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> Tls {
        self.ca = Some(Pem::file(path));
        self
    }

    /// Trusts these authorities instead of the system's.
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Tls {
        self.ca = Some(Pem::bytes(pem));
        self
    }

    /// The client's certificate (followed by intermediate certificates, if any) and its private key, for an etcd that
    /// requires one. Read again for each new connection. Both may be in one file.
    pub fn client_files(mut self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Tls {
        self.client = Some((Pem::file(certificate), Pem::file(key)));
        self
    }

    /// Like [`Tls::client_files`], from memory.
    pub fn client_pem(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Tls {
        self.client = Some((Pem::bytes(certificate), Pem::bytes(key)));
        self
    }

    /// The name or address that the server's certificate must be for, and that is sent to the server, if it is not
    /// the endpoint's host.
    pub fn server_name(mut self, name: impl Into<String>) -> Tls {
        self.server_name = Some(name.into());
        self
    }

    /// The oldest version of TLS to speak (default TLS 1.2).
    pub fn min_version(mut self, version: TlsVersion) -> Tls {
        self.min_version = version;
        self
    }
}

/// The names of certificates and keys in messages.
pub(super) struct Named;

impl Named {
    pub(super) fn ca(pem: &Pem) -> String {
        Named::with(pem, "the CA file", "the CA certificates given as bytes")
    }

    pub(super) fn client(pem: &Pem) -> String {
        Named::with(pem, "the client certificate", "the client certificate given as bytes")
    }

    pub(super) fn key(pem: &Pem) -> String {
        Named::with(pem, "the client key", "the client key given as bytes")
    }

    fn with(pem: &Pem, file: &str, bytes: &str) -> String {
        match pem {
            Pem::File(path) => format!("{file} {}", path.display()),
            Pem::Bytes(_) => bytes.to_owned(),
        }
    }
}
