//! TLS: what a feeder trusts, who it is, and how it says what went wrong.
//!
//! | module | holds |
//! | --- | --- |
//! | `mod` | the options |
//! | `credentials` | the files, read again for each connection, and the last ones that could be used |
//! | `expiry` | when the client's certificate runs out |
//! | `connector` | the handshake, and what is noticed of a connection after it |
//! | `refusal` | the words for each way in which TLS fails |
//!
//! The certificates of one connection are those that the files held when it was made: a handshake is the only moment
//! at which either side looks at them. So nothing watches the files, and a connection that stands outlives its
//! certificates. See docs/internals/feeder.md.

mod connector;
mod credentials;
mod expiry;
mod refusal;

pub(super) use connector::TlsConnector;
pub(super) use credentials::Credentials;
pub(super) use refusal::{NotedRefusal, Refusal};

use std::fmt;
use std::path::{Path, PathBuf};
use watchcore::Result;

/// Where a certificate or a key comes from, in PEM.
#[derive(Clone, PartialEq, Eq)]
enum Pem {
    /// Read again for each new connection.
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
    /// No bytes: they may be a private key.
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
    /// TLS 1.2 and newer. Older versions do not exist here.
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

/// How a feeder trusts etcd, and who it is: the options of TLS.
///
/// Without any, an `https` endpoint is trusted where an authority of the system has signed its certificate: those in
/// the system's store, or in the file and the directories that `SSL_CERT_FILE` and `SSL_CERT_DIR` name.
///
/// Certificates and keys are PEM, from files or from memory. **Files are read again for each new connection**, so
/// certificates can be replaced under a running feeder: a reconnect takes the new ones. No connection ends because a
/// certificate expires or a file changes. Where the files cannot be used at that moment (missing, half-written, a
/// certificate without its key), the last ones that could be used are, a warning is logged, and
/// [`SourceReport::warning`](watchcore::SourceReport::warning) says so until they can be used again; where none could
/// be used yet, the connection is tried again with backoff.
///
/// Every connection proves both sides anew: no TLS session is resumed. There is no option to trust any server
/// whatever its certificate: name its own certificate as `ca_file`, and the name in it as `server_name`. Private keys
/// with a passphrase are not supported, nor are lists of revoked certificates.
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
    /// `None`: the authorities of the system.
    ca: Option<Pem>,
    /// The client's certificate, and its key.
    client: Option<(Pem, Pem)>,
    server_name: Option<String>,
    min_version: TlsVersion,
}

impl Tls {
    /// The authorities of the system, no client certificate, the endpoint's host as the server's name, TLS 1.2.
    pub fn new() -> Tls {
        Tls::default()
    }

    /// Trusts the authorities in this file, and those of the system no longer. Read again for each new connection.
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> Tls {
        self.ca = Some(Pem::file(path));
        self
    }

    /// Trusts these authorities, and those of the system no longer.
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Tls {
        self.ca = Some(Pem::bytes(pem));
        self
    }

    /// The client's certificate (with those between it and the authority behind it, if there are any) and its private
    /// key, for an etcd that asks for one. Read again for each new connection. Both may be in one file.
    pub fn client_files(mut self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Tls {
        self.client = Some((Pem::file(certificate), Pem::file(key)));
        self
    }

    /// The same from memory.
    pub fn client_pem(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Tls {
        self.client = Some((Pem::bytes(certificate), Pem::bytes(key)));
        self
    }

    /// The name (or the address) that the server's certificate must be for, and that the server is asked for, where it
    /// is not the endpoint's host.
    pub fn server_name(mut self, name: impl Into<String>) -> Tls {
        self.server_name = Some(name.into());
        self
    }

    /// The oldest version of TLS to speak (default TLS 1.2).
    pub fn min_version(mut self, version: TlsVersion) -> Tls {
        self.min_version = version;
        self
    }

    /// Refuses what no change of a file can mend.
    pub(super) fn check(&self) -> Result<()> {
        credentials::check(self)
    }
}
