//! Who asks, and who may.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use tokio::sync::Notify;

/// Who sends a request.
///
/// ```
/// let user = watchcore_http::User::new("alice").group("readers");
/// assert_eq!((user.name(), user.groups()), ("alice", &["readers".to_owned()][..]));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    name: String,
    groups: Vec<String>,
}

impl User {
    /// A user of no group.
    pub fn new(name: impl Into<String>) -> User {
        User { name: name.into(), groups: Vec::new() }
    }

    /// In one more group.
    pub fn group(mut self, group: impl Into<String>) -> User {
        self.groups.push(group.into());
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The groups that it is in.
    pub fn groups(&self) -> &[String] {
        &self.groups
    }
}

/// The connection that a request came on: in the extensions of each request of our own server.
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// Whom a verified client certificate names.
    pub(crate) certificate: Option<User>,
    /// Whether the server asks for client certificates: then nobody is let in unknown.
    pub(crate) asks_certificate: bool,
    /// Watches of the connection that are open.
    pub(crate) watches: Arc<AtomicUsize>,
    /// An answer waits for a client that takes nothing of it: the connection is to be cut off, where it has no other
    /// answers (HTTP/1.1).
    pub(crate) stalled: Notify,
}
