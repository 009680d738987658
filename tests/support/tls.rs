//! Certificates for tests.

use super::etcd::{Etcd, ServerTls};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// An authority of certificates, and the files of the servers that it signed for.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: PathBuf,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap();
        let directory = std::env::temp_dir().join(format!("watchcore-tls-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Authority { issuer, directory }
    }

    pub(crate) fn pem(&self) -> Vec<u8> {
        self.issuer.pem().into_bytes()
    }

    /// A certificate for these names, and its key.
    pub(crate) fn sign(&self, names: &[&str]) -> (Vec<u8>, Vec<u8>) {
        let day = Duration::from_secs(86_400);
        self.sign_for(names, SystemTime::now() - day, SystemTime::now() + day)
    }

    /// The same, valid from then to then.
    pub(crate) fn sign_for(&self, names: &[&str], from: SystemTime, to: SystemTime) -> (Vec<u8>, Vec<u8>) {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(names).unwrap();
        (parameters.not_before, parameters.not_after) = (from.into(), to.into());
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem().into_bytes(), key.serialize_pem().into_bytes())
    }

    /// Replaces the certificate of a server that it made: etcd reads the files at each handshake.
    pub(crate) fn renew(&self, pair: &(Vec<u8>, Vec<u8>)) {
        self.file("server.pem", &pair.0);
        self.file("server.key", &pair.1);
    }

    /// Writes a file that goes with the authority.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.directory.join(name);
        // In one step: etcd reads it at any time.
        let new = self.directory.join(format!("{name}.new"));
        std::fs::write(&new, bytes).unwrap();
        std::fs::rename(&new, &path).unwrap();
        path
    }

    /// A server whose certificate has these names.
    pub(crate) fn server(&self, names: &[&str], client_auth: bool) -> Etcd {
        self.server_with(names, client_auth, &[])
    }

    /// The same, with more options of etcd.
    pub(crate) fn server_with(&self, names: &[&str], client_auth: bool, extra: &[&str]) -> Etcd {
        let (certificate, key) = self.sign(names);
        let tls = ServerTls {
            ca: self.file("ca.pem", &self.pem()),
            cert: self.file("server.pem", &certificate),
            key: self.file("server.key", &key),
            client_auth,
        };
        Etcd::with_tls(tls, extra)
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
