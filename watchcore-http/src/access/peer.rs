//! The connection of a request, and the client that sent it.

use super::certificates::ClientCertificate;
use super::user::User;
use crate::clients::{Activity, ClientId};
use http::request::Parts;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// The connection of a request: an extension of each request of our own server.
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// The server's address to which the client connected.
    pub(crate) local: Option<SocketAddr>,
    /// Whether the connection uses TLS.
    pub(crate) is_encrypted: bool,
    /// The client's certificate.
    pub(crate) certificate: Option<Box<ClientCertificate>>,
    /// Whether the server asks for client certificates; if so, authentication is required.
    pub(crate) asks_certificate: bool,
    /// Number of open watches on the connection.
    pub(crate) watches: Arc<AtomicUsize>,
    /// The connection's activity, if a clock supervises it.
    pub(crate) activity: Option<Arc<Activity>>,
}

impl Peer {
    /// Returns the connection of a request, if our own server accepted it.
    pub(crate) fn of(head: &Parts) -> Option<&Arc<Peer>> {
        head.extensions.get()
    }

    /// Whether the certificate names a user.
    pub(super) fn names_user(&self) -> bool {
        self.certificate.as_ref().is_some_and(|certificate| certificate.names_user())
    }
}

impl ClientId {
    /// Returns the client of a request that was already authenticated.
    pub(crate) fn of(request: &Parts) -> ClientId {
        let user = request.extensions.get::<User>();
        match (user, Peer::of(request)) {
            (Some(user), _) => ClientId::User(user.name().into()),
            (None, Some(peer)) => ClientId::at(peer.address.ip()),
            (None, None) => ClientId::Unknown,
        }
    }
}

/// Describes the client of a watch for people: the user and the address, as far as they are known.
pub(crate) fn watcher(parts: &Parts) -> Option<String> {
    let user = parts.extensions.get::<User>().map(|user| user.name().escape_debug().to_string());
    let address = Peer::of(parts).map(|peer| peer.address.to_string());
    match (user, address) {
        (Some(user), Some(address)) => Some(format!("{user} {address}")),
        (user, address) => user.or(address),
    }
}
