//! Who asks, and who may.
//!
//! Each request goes through [`Access::check`] before anybody looks at what it asks for, in our own server and in a
//! router that is nested in another program's:
//!
//! 1. `origin`: a page of another origin, or a name that was rebound to this address, gets nothing. What the browser of a
//!    listed page asks before it sends a request is answered here. A token among the subprotocols of a WebSocket is put
//!    into its header before.
//! 2. Where somebody can be known (an [`Authenticator`], client certificates), everybody has to be: else 401. Health is
//!    the exception: who restarts servers has no token.
//! 3. An [`Authorizer`], where there is one, decides: else 403. Without one, who is known may read everything.

mod admission;
mod bearer;
mod certificates;
mod origin;
mod tokens;

pub(crate) use admission::{Admission, Verdict};
pub(crate) use bearer::{names, words};
pub(crate) use certificates::{Authorities, ClientCertificate, certificates, said};
pub use tokens::Tokens;

use crate::clients::{Activity, Who};
use crate::status::Refusal;
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use origin::Origins;
use serde_json::json;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Poll;
use std::time::Duration;

/// How long files that say who may ask are believed after they could not be read any more.
pub(crate) const BELIEVED: Duration = Duration::from_secs(60);

/// What a hook answers in its own time.
pub type HookFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Who sends a request.
///
/// ```
/// let user = watchcore_http::User::new("alice").group("readers");
/// assert_eq!((user.name(), user.groups()), ("alice", &["readers".to_owned()][..]));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct User {
    name: String,
    groups: Vec<String>,
}

/// Finds out who sends a request. Several may be asked; the first that knows has it.
///
/// ```
/// use http::request::Parts;
/// use watchcore_http::{Api, Authenticator, HookFuture, Refusal, User};
///
/// /// Trusts a proxy in front of the server, which nobody can pass by.
/// struct OfProxy;
///
/// impl Authenticator for OfProxy {
///     fn authenticate<'a>(&'a self, head: &'a Parts) -> HookFuture<'a, Result<Option<User>, Refusal>> {
///         let name = head.headers.get("x-remote-user").and_then(|name| name.to_str().ok());
///         Box::pin(async move { Ok(name.map(User::new)) })
///     }
/// }
///
/// let api = Api::builder().authenticator(OfProxy).build()?;
/// # Ok::<(), watchcore::Error>(())
/// ```
pub trait Authenticator: Send + Sync + 'static {
    /// Who sends the request with this head; `None`: nobody that this one knows.
    ///
    /// While a watch lasts that the request has opened, it is asked again with the same head
    /// ([`recheck_interval`](crate::ApiBuilder::recheck_interval)). The watch ends when the answer is another user, nobody,
    /// or a refusal of 401 or 403; and when there was none for four intervals, because it hangs, panics, or refuses otherwise.
    ///
    /// # Errors
    /// What the client is answered where that cannot be found out now. Nobody else is asked then.
    fn authenticate<'a>(&'a self, head: &'a Parts) -> HookFuture<'a, Result<Option<User>, Refusal>>;

    /// The headers that [`authenticate`](Authenticator::authenticate) looks at, if it looks at nothing else of a head.
    ///
    /// Who opened a watch is asked for again while it lasts, with the head of its request: a copy of the whole head is kept
    /// with each watch, and each watch is asked for by itself. Where all authenticators name their headers, only these are
    /// kept, a recheck sees a head that has nothing else, and watches that have the same values are asked for once.
    fn reads(&self) -> Option<&[HeaderName]> {
        None
    }
}

/// Decides who may do what. Without one, everybody who is known may read everything that is served.
///
/// ```
/// use watchcore_http::{Api, Asked, Authorizer, Decision, HookFuture, User};
///
/// /// Everybody reads the namespace of their own name, and discovery.
/// struct OwnNamespace;
///
/// impl Authorizer for OwnNamespace {
///     fn authorize<'a>(&'a self, user: &'a User, asked: &'a Asked) -> HookFuture<'a, Decision> {
///         let own = asked.namespace.as_deref() == Some(user.name());
///         let discovery = asked.resource.is_empty() && asked.path.starts_with("/api");
///         let decision = if own || discovery { Decision::Allow } else { Decision::Deny(String::new()) };
///         Box::pin(async move { decision })
///     }
/// }
///
/// let api = Api::builder().authorizer(OwnNamespace).build()?;
/// # Ok::<(), watchcore::Error>(())
/// ```
pub trait Authorizer: Send + Sync + 'static {
    /// Whether this user may do this. Where nobody is known, the user is `system:anonymous`, as with Kubernetes. It is asked
    /// again while a watch lasts, which ends when it denies.
    fn authorize<'a>(&'a self, user: &'a User, asked: &'a Asked) -> HookFuture<'a, Decision>;
}

/// What an [`Authorizer`] says.
///
/// ```
/// use watchcore_http::Decision;
///
/// let decision = Decision::Deny("ask for your own namespace".to_owned());
/// assert_ne!(decision, Decision::Allow);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// The request goes on.
    Allow,
    /// 403, with this reason behind what was asked; it may be empty.
    Deny(String),
}

/// What a request asks for, as an [`Authorizer`] sees it.
///
/// The parts of a resource are empty for other paths, such as `/metrics`, `/v1/keys` and discovery. The plain face
/// `/v1/keys` shows every key of its caches, those of resources too, and the page `/` their names: an authorizer that
/// keeps users from a resource denies them that path.
///
/// ```
/// use watchcore_http::{Asked, Decision};
///
/// /// Everybody may list, and nobody may watch.
/// fn decide(asked: &Asked) -> Decision {
///     match &*asked.verb {
///         "watch" => Decision::Deny(format!("{} are only listed", asked.resource)),
///         _ => Decision::Allow,
///     }
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Asked {
    /// `get`, `list` or `watch` of a resource; else the method in small letters.
    pub verb: String,
    /// `""` is the core group.
    pub group: String,
    /// The version in the group.
    pub version: String,
    /// The plural name; empty where the path names no resource.
    pub resource: String,
    /// `None`: all namespaces, or a resource that has none.
    pub namespace: Option<String>,
    /// `None`: all objects.
    pub name: Option<String>,
    /// The path, in one spelling for each that is served: its escapes are decoded, and no slash is at its end. One that
    /// names nothing is as it was sent.
    pub path: String,
}

/// The connection that a request came on: in the extensions of each request of our own server.
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// The address of this machine that was connected to.
    pub(crate) local: Option<SocketAddr>,
    /// Whether the connection itself has TLS.
    pub(crate) is_encrypted: bool,
    /// The certificate that the client has shown.
    pub(crate) certificate: Option<Box<ClientCertificate>>,
    /// Whether the server asks for client certificates: then nobody is let in unknown.
    pub(crate) asks_certificate: bool,
    /// Watches of the connection that are open.
    pub(crate) watches: Arc<AtomicUsize>,
    /// What it is about, where that is watched.
    pub(crate) activity: Option<Arc<Activity>>,
}

/// The hooks and lists of one service.
#[derive(Default)]
pub(crate) struct Access {
    pub(crate) authenticators: Vec<Box<dyn Authenticator>>,
    /// Each of them may deny.
    pub(crate) authorizers: Vec<Box<dyn Authorizer>>,
    pub(crate) origins: Origins,
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

    fn anonymous() -> User {
        User::new("system:anonymous").group("system:unauthenticated")
    }
}

impl Peer {
    /// That of a request, if our own server accepted it.
    pub(crate) fn of(head: &Parts) -> Option<&Arc<Peer>> {
        head.extensions.get()
    }

    /// Whether its certificate says who it is.
    fn names_somebody(&self) -> bool {
        self.certificate.as_ref().is_some_and(|certificate| certificate.names_somebody())
    }
}

impl Who {
    /// The sender of a request whose user has been looked up.
    pub(crate) fn of(request: &Parts) -> Who {
        let user = request.extensions.get::<User>();
        match (user, Peer::of(request)) {
            (Some(user), _) => Who::User(user.name().into()),
            (None, Some(peer)) => Who::at(peer.address.ip()),
            (None, None) => Who::Somebody,
        }
    }
}

impl Access {
    /// Lets a request pass. Who sends it, and what the authorizers were asked, is in its extensions from here on; the first
    /// is missing where nobody has to be known, the second where there are no authorizers.
    ///
    /// # Errors
    /// 400 and 403 of `origin`; 401 where nobody is known; what a hook or `asked` answers; 403 where an authorizer
    /// denies.
    pub(crate) async fn check(
        &self,
        head: &mut Parts,
        is_health: bool,
        asked: impl FnOnce(&Parts) -> Result<Asked, Refusal>,
    ) -> Result<(), Refusal> {
        bearer::take_from_protocols(head)?;
        let peer = Peer::of(head).map(|peer| &**peer);
        let must_be_known = self.must_be_known(peer);
        self.origins.check(head, peer, must_be_known)?;
        if is_health {
            return Ok(());
        }
        let user = self.user_of(head, peer).await?;
        if must_be_known && user.is_none() {
            return Err(Refusal::unauthorized("Unauthorized"));
        }
        if !self.authorizers.is_empty() {
            let asked = asked(head)?;
            self.decide(user.as_ref(), &asked).await?;
            head.extensions.insert(Arc::new(asked));
        }
        if let Some(user) = user {
            head.extensions.insert(user);
        }
        Ok(())
    }

    /// Whether this user may do this; `None`: whoever asks.
    ///
    /// # Errors
    /// 403 where an authorizer denies.
    async fn decide(&self, user: Option<&User>, asked: &Asked) -> Result<(), Refusal> {
        let anonymous = User::anonymous();
        let user = user.unwrap_or(&anonymous);
        for authorizer in &self.authorizers {
            if let Decision::Deny(reason) = authorizer.authorize(user, asked).await {
                return Err(asked.forbidden(user, &reason));
            }
        }
        Ok(())
    }

    /// What goes into the answer to a request, for the browser of a page.
    pub(crate) fn told(&self, head: &Parts) -> HeaderMap {
        let mut told = self.origins.told(head);
        told.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if Peer::of(head).is_some_and(|peer| peer.is_encrypted) {
            told.insert(header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000"));
        }
        told
    }

    /// The answer to a browser that asks for a page before that may, where it is one; nobody has to be known for it.
    ///
    /// # Errors
    /// 400 and 403 of `origin`.
    pub(crate) fn preflight(&self, head: &Parts) -> Result<Option<Response>, Refusal> {
        let Some(response) = self.origins.preflight(head) else { return Ok(None) };
        let peer = Peer::of(head).map(|peer| &**peer);
        self.origins.check(head, peer, self.must_be_known(peer))?;
        Ok(Some(response))
    }

    fn must_be_known(&self, peer: Option<&Peer>) -> bool {
        !self.authenticators.is_empty() || peer.is_some_and(|peer| peer.asks_certificate)
    }

    async fn user_of(&self, head: &Parts, peer: Option<&Peer>) -> Result<Option<User>, Refusal> {
        if let Some(certificate) = peer.and_then(|peer| peer.certificate.as_ref())
            && let Some(user) = certificate.user().await?
        {
            return Ok(Some(user.clone()));
        }
        for authenticator in &self.authenticators {
            if let Some(user) = authenticator.authenticate(head).await? {
                return Ok(Some(user));
            }
        }
        Ok(None)
    }
}

/// What a future comes to; `None`: it panicked. A bug, of a hook most likely, is one answer of 500, which operators are told
/// to look for. Otherwise the connection would end, and the request be counted as one whose client went.
pub(crate) async fn unless_it_panics<T>(made: impl Future<Output = T>) -> Option<T> {
    let mut made = pin!(made);
    // What requests share has no invariant between two calls that can panic: locks are taken over from those who did.
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| made.as_mut().poll(context))) {
        Ok(polled) => polled.map(Some),
        Err(_) => Poll::Ready(None),
    })
    .await
}

impl Asked {
    /// A path that names no resource.
    pub(crate) fn of_path(head: &Parts, path: String) -> Asked {
        Asked {
            verb: head.method.as_str().to_ascii_lowercase(),
            group: String::new(),
            version: String::new(),
            resource: String::new(),
            namespace: None,
            name: None,
            path,
        }
    }

    /// 403 in the words of Kubernetes.
    fn forbidden(&self, user: &User, reason: &str) -> Refusal {
        let Asked { verb, group, resource, namespace, name, path, .. } = self;
        let who = format!("User {:?} cannot {verb}", user.name());
        let colon = if reason.is_empty() { "" } else { ": " };
        if resource.is_empty() {
            return Refusal::forbidden(format!("forbidden: {who} path {path:?}{colon}{reason}"));
        }
        let scope = match namespace {
            Some(namespace) => format!("in the namespace {namespace:?}"),
            None => "at the cluster scope".to_owned(),
        };
        let dot = if group.is_empty() { "" } else { "." };
        let what = match name {
            Some(name) => format!("{resource}{dot}{group} {name:?}"),
            None => format!("{resource}{dot}{group}"),
        };
        let message =
            format!("{what} is forbidden: {who} resource {resource:?} in API group {group:?} {scope}{colon}{reason}");
        let mut refusal = Refusal::forbidden(message);
        if let Some(name) = name {
            refusal.detail("name", json!(name));
        }
        if !group.is_empty() {
            refusal.detail("group", json!(group));
        }
        refusal.detail("kind", json!(resource));
        refusal
    }
}

#[cfg(test)]
mod tests;
