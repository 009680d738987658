//! Authentication and authorization.
//!
//! Each request passes [`Access::check`] before its handler, in our own server and in a router nested in another
//! program's:
//!
//! 1. `bearer` moves a token from the WebSocket subprotocols to its header. `origin` refuses pages of other origins, and
//!    names that were rebound to this address. CORS preflights of listed origins are answered before.
//! 2. If any user can be authenticated (by an [`Authenticator`] or a client certificate), every request must be: else 401.
//!    Health probes are exempt, because a supervisor that restarts servers has no token.
//! 3. Each [`Authorizer`] must allow the request: else 403. Without one, every authenticated user may read everything.

mod admission;
mod bearer;
mod certificates;
mod origin;
mod peer;
mod tokens;
mod user;

pub(crate) use admission::{Admission, Verdict};
pub(crate) use bearer::{header_contains, header_words};
pub(crate) use certificates::{Authorities, ClientCertificate, certificates, pem_fault};
pub(crate) use peer::{Peer, watcher};
pub use tokens::Tokens;
pub use user::User;

use crate::status::Refusal;
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use origin::Origins;
use serde_json::json;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// How long the last good token list or authorities are used after their files became unreadable.
pub(crate) const UNREADABLE_LIMIT: Duration = Duration::from_secs(60);

/// The future of an authenticator's or authorizer's answer.
pub type HookFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Authenticates requests. With several, the first that knows the user decides.
///
/// ```
/// use http::request::Parts;
/// use watchcore_http::{Api, Authenticator, HookFuture, Refusal, User};
///
/// /// Trusts a proxy in front of the server, the only way to reach it.
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
    /// Returns the user who sent the request with this head; `None` if this authenticator does not know the user.
    ///
    /// While a watch lasts, it is asked again with the head of the watch's request
    /// ([`recheck_interval`](crate::ApiBuilder::recheck_interval)). The watch ends if the answer is another user,
    /// `None`, or a refusal with 401 or 403; and if there was no answer for four intervals, because it hangs, panics,
    /// or refuses with another code.
    ///
    /// # Errors
    /// The answer to the client if the user cannot be determined now. No further authenticator is asked.
    fn authenticate<'a>(&'a self, head: &'a Parts) -> HookFuture<'a, Result<Option<User>, Refusal>>;

    /// Returns the headers that [`authenticate`](Authenticator::authenticate) reads, if it reads nothing else of a
    /// head.
    ///
    /// By default each watch keeps a copy of its request's whole head, and is rechecked on its own. If all
    /// authenticators name their headers, only these are kept, the recheck sees a head with nothing else, and watches
    /// with equal values are rechecked together.
    fn reads(&self) -> Option<&[HeaderName]> {
        None
    }
}

/// Decides which user may do what. Without an authorizer, every authenticated user may read everything that is served.
///
/// ```
/// use watchcore_http::{Api, Asked, Authorizer, Decision, HookFuture, User};
///
/// /// Every user may read discovery, and the namespace that has the name of the user.
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
    /// Decides whether the user may make this request. Where authentication is not required, the user is
    /// `system:anonymous`, as in Kubernetes. While a watch lasts, it is asked again; the watch ends when it denies.
    fn authorize<'a>(&'a self, user: &'a User, asked: &'a Asked) -> HookFuture<'a, Decision>;
}

/// The answer of an [`Authorizer`].
///
/// ```
/// use watchcore_http::Decision;
///
/// let decision = Decision::Deny("ask for your own namespace".to_owned());
/// assert_ne!(decision, Decision::Allow);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// The request is allowed.
    Allow,
    /// The request is refused with 403 and this reason, which may be empty.
    Deny(String),
}

/// The attributes of a request, as an [`Authorizer`] sees them.
///
/// The attributes of a resource are empty for other paths, such as `/metrics`, `/v1/keys` and discovery. `/v1/keys`
/// shows every key of its caches, those of resources too, and the page `/` shows their names: an authorizer that keeps
/// users from a resource must deny these paths too.
///
/// ```
/// use watchcore_http::{Asked, Decision};
///
/// /// Allows lists, denies watches.
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
    /// `get`, `list` or `watch` of a resource; otherwise the method in lower case.
    pub verb: String,
    /// The API group; `""` is the core group.
    pub group: String,
    /// The version of the group.
    pub version: String,
    /// The plural name; empty if the path names no resource.
    pub resource: String,
    /// `None`: all namespaces, or a resource without namespaces.
    pub namespace: Option<String>,
    /// `None`: all objects.
    pub name: Option<String>,
    /// The canonical path: decoded, without a trailing slash. An invalid path is given as it was sent.
    pub path: String,
}

/// Authenticators, authorizers and allowed origins of one service.
#[derive(Default)]
pub(crate) struct Access {
    pub(crate) authenticators: Vec<Box<dyn Authenticator>>,
    /// A request must be allowed by each of them.
    pub(crate) authorizers: Vec<Box<dyn Authorizer>>,
    pub(crate) origins: Origins,
}

impl Access {
    /// Authenticates and authorizes a request. Stores in its extensions the [`User`], if known, and the [`Asked`] that
    /// the authorizers answered, if there are any.
    ///
    /// # Errors
    /// 400 and 403 of `origin`; 401 if authentication is required and failed; errors of an authenticator or of `asked`;
    /// 403 if an authorizer denies.
    pub(crate) async fn check(
        &self,
        head: &mut Parts,
        is_health: bool,
        asked: impl FnOnce(&Parts) -> Result<Asked, Refusal>,
    ) -> Result<(), Refusal> {
        bearer::token_from_protocols(head)?;
        let peer = Peer::of(head).map(|peer| &**peer);
        let requires_authentication = self.requires_authentication(peer);
        self.origins.check(head, peer, requires_authentication)?;
        if is_health {
            return Ok(());
        }
        let user = self.user_of(head, peer).await?;
        if requires_authentication && user.is_none() {
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

    /// Asks the authorizers; a missing user is anonymous.
    ///
    /// # Errors
    /// 403 if an authorizer denies.
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

    /// Returns the security headers of the answer to a request.
    pub(crate) fn response_headers(&self, head: &Parts) -> HeaderMap {
        let mut headers = self.origins.cors_headers(head);
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if Peer::of(head).is_some_and(|peer| peer.is_encrypted) {
            headers.insert(header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000"));
        }
        headers
    }

    /// Answers a CORS preflight request, which need not be authenticated; `None` if it is another request.
    ///
    /// # Errors
    /// 400 and 403 of `origin`.
    pub(crate) fn preflight(&self, head: &Parts) -> Result<Option<Response>, Refusal> {
        let Some(response) = self.origins.preflight(head) else { return Ok(None) };
        let peer = Peer::of(head).map(|peer| &**peer);
        self.origins.check(head, peer, self.requires_authentication(peer))?;
        Ok(Some(response))
    }

    fn requires_authentication(&self, peer: Option<&Peer>) -> bool {
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

/// Awaits a future; `None` if it panicked. A panic, most likely in a hook, then gives an answer of 500, which operators
/// watch for. Otherwise the connection would end, and the request be counted as one whose client went away.
pub(crate) async fn catch_panic<T>(made: impl Future<Output = T>) -> Option<T> {
    let mut made = pin!(made);
    // Unwind safety: locks shared between requests are taken over after a panic, and guard no state that a panic can
    // break.
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| made.as_mut().poll(context))) {
        Ok(polled) => polled.map(Some),
        Err(_) => Poll::Ready(None),
    })
    .await
}

impl Asked {
    /// Creates the attributes of a path that names no resource.
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

    /// Creates a 403 in Kubernetes' words.
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
