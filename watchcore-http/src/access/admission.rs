//! The reason why an open watch was admitted, and the check whether it still would be.
//!
//! A request is authenticated once, but the watch that it opens lasts for up to an hour. So the watch keeps an
//! [`Admission`]: the credential of the request, and the question that the authorizers answered. [`Access::review`] asks
//! the same authenticators and authorizers again about all watches of one user. Each distinct credential and each
//! distinct question is asked once, however many watches share it.

use super::{Access, Asked, Peer, User, catch_panic};
use crate::request_record::RequestRecord;
use axum::extract::OriginalUri;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Uri};
use hyper::upgrade::OnUpgrade;
use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::hash::Hash;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use watchcore::{Code, Error};

/// How many questions about one user are asked concurrently.
const MAX_CONCURRENT: usize = 16;

/// The credential and the question with which a watch was let in.
pub(crate) struct Admission {
    /// The user that the authenticators named; `None` if authentication is not required.
    user: Option<User>,
    credential: Credential,
    /// The question to the authorizers; `None` if there are none.
    asked: Option<Arc<Asked>>,
}

/// The part of a request that authenticates its user. All texts are copied: a request's parts share the read buffer of
/// their connection, which the watch would otherwise keep alive.
enum Credential {
    /// Authentication is not required.
    Nobody,
    /// The certificate of the connection.
    Certificate(Arc<Peer>),
    /// The headers that the authenticators read.
    Headers(Vec<(HeaderName, HeaderValue)>),
    /// The whole head, because an authenticator does not say which headers it reads.
    Head(Box<Parts>),
}

/// The identity of a credential: authenticators give one answer for all credentials that compare equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum SameCredential<'a> {
    Nobody,
    /// The address of the connection's peer, which the admission keeps alive.
    Certificate(usize),
    Headers(&'a [(HeaderName, HeaderValue)]),
    /// The address of the head, so no two are equal.
    Head(usize),
}

/// Whether a watch may continue.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    Stays,
    /// The user no longer exists (UNAUTHENTICATED), or may no longer watch (PERMISSION_DENIED).
    Ends(Error),
    /// An authenticator or authorizer hung, panicked or failed; the error says which.
    Unknown(Error),
    /// The pass ran out of time before this watch's questions were asked.
    Unasked(Error),
}

/// The user to whom a credential belongs now, or the verdict on its watches.
type Recognized = Result<Option<User>, Verdict>;

impl Admission {
    /// Returns the admission of a request that was let in; `None` if neither authenticator nor authorizer was asked, so
    /// that no answer can change.
    pub(crate) fn of(request: &Parts, access: &Access) -> Option<Admission> {
        let user = request.extensions.get::<User>().cloned();
        let asked = request.extensions.get::<Arc<Asked>>().cloned();
        let credential = Credential::of(request, access);
        let is_asked = asked.is_some() || !matches!(credential, Credential::Nobody);
        is_asked.then_some(Admission { user, credential, asked })
    }

    /// The user that the authenticators named.
    pub(crate) fn user(&self) -> Option<&User> {
        self.user.as_ref()
    }
}

impl Credential {
    fn of(request: &Parts, access: &Access) -> Credential {
        if let Some(peer) = Peer::of(request).filter(|peer| peer.names_user()) {
            return Credential::Certificate(peer.clone());
        }
        if access.authenticators.is_empty() {
            return Credential::Nobody;
        }
        let mut names = Vec::new();
        for authenticator in &access.authenticators {
            match authenticator.reads() {
                Some(read) => names.extend_from_slice(read),
                None => return Credential::Head(Box::new(copy_of(request))),
            }
        }
        names.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        names.dedup();
        let values = |name: &HeaderName| -> Vec<_> {
            request.headers.get_all(name).iter().map(|value| (name.clone(), copy(value))).collect()
        };
        Credential::Headers(names.iter().flat_map(values).collect())
    }

    fn same(&self) -> SameCredential<'_> {
        match self {
            Credential::Nobody => SameCredential::Nobody,
            Credential::Certificate(peer) => SameCredential::Certificate(Arc::as_ptr(peer).addr()),
            Credential::Headers(headers) => SameCredential::Headers(headers),
            Credential::Head(head) => SameCredential::Head((&raw const **head).addr()),
        }
    }
}

/// Copies a value out of the read buffer of its connection.
fn copy(value: &HeaderValue) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| HeaderValue::from_static(""))
}

fn copy_of_uri(uri: &Uri) -> Uri {
    uri.to_string().parse().unwrap_or_default()
}

/// Copies the head of a request, without extensions that belong to its answer.
fn copy_of(request: &Parts) -> Parts {
    let mut head = Request::new(()).into_parts().0;
    head.method = request.method.clone();
    head.uri = copy_of_uri(&request.uri);
    head.version = request.version;
    head.headers = request.headers.iter().map(|(name, value)| (name.clone(), copy(value))).collect();
    head.extensions = request.extensions.clone();
    head.extensions.remove::<Arc<RequestRecord>>();
    head.extensions.remove::<OnUpgrade>();
    if let Some(OriginalUri(uri)) = head.extensions.remove::<OriginalUri>() {
        head.extensions.insert(OriginalUri(copy_of_uri(&uri)));
    }
    head
}

/// Asks each distinct question once, some concurrently, and returns the answers that came within `limit`.
async fn ask_all<Q: Copy + Eq + Hash, A, F: Future<Output = A>>(
    questions: Vec<Q>,
    ask: impl Fn(Q) -> F,
    limit: Duration,
) -> HashMap<Q, A> {
    let mut asked = HashSet::new();
    let distinct = questions.into_iter().filter(|question| asked.insert(*question));
    let asking = stream::iter(distinct).map(|question| ask(question).map(move |answer| (question, answer)));
    let mut asking = pin!(asking.buffer_unordered(MAX_CONCURRENT));
    let (mut answers, begin) = (HashMap::new(), Instant::now());
    while let Ok(Some((question, answer))) = timeout(limit.saturating_sub(begin.elapsed()), asking.next()).await {
        answers.insert(question, answer);
    }
    answers
}

impl Access {
    /// Reviews the watches of one user, in the order of the slice. Each call of an authenticator or authorizer may take
    /// `time_limit`, and each of the two rounds of calls three times as long.
    pub(crate) async fn review(&self, admissions: &[Arc<Admission>], time_limit: Duration) -> Vec<Verdict> {
        let credentials: HashMap<_, _> =
            admissions.iter().map(|admission| (admission.credential.same(), &admission.credential)).collect();
        let order = admissions.iter().map(|admission| admission.credential.same()).collect();
        let known = ask_all(order, |same| self.user_again(credentials[&same], time_limit), time_limit * 3).await;
        let questions = admissions.iter().filter_map(|admission| {
            let user = known.get(&admission.credential.same())?.as_ref().ok()?;
            Some((user.as_ref(), admission.asked.as_deref()?))
        });
        let decide = |(user, asked)| self.decide_again(user, asked, time_limit);
        let decided = ask_all(questions.collect(), decide, time_limit * 3).await;
        let verdict = |admission: &Arc<Admission>| match known.get(&admission.credential.same()) {
            None => Verdict::Unasked(unknown("hooks are slow")),
            Some(Err(verdict)) => verdict.clone(),
            // The token now belongs to another user, so the user of the watch has lost it.
            Some(Ok(user)) if user.as_ref().map(User::name) != admission.user().map(User::name) => {
                Verdict::Ends(gone())
            }
            Some(Ok(user)) => match &admission.asked {
                None => Verdict::Stays,
                Some(asked) => {
                    let decided = decided.get(&(user.as_ref(), &**asked));
                    decided.cloned().unwrap_or_else(|| Verdict::Unasked(unknown("hooks are slow")))
                }
            },
        };
        admissions.iter().map(verdict).collect()
    }

    async fn user_again(&self, credential: &Credential, time_limit: Duration) -> Recognized {
        let made;
        let (head, peer) = match credential {
            Credential::Nobody => return Ok(None),
            Credential::Certificate(peer) => {
                made = Request::new(()).into_parts().0;
                (&made, Some(&**peer))
            }
            Credential::Headers(headers) => {
                let mut request = Request::new(());
                for (name, value) in headers {
                    request.headers_mut().append(name, value.clone());
                }
                made = request.into_parts().0;
                (&made, None)
            }
            Credential::Head(head) => (&**head, None),
        };
        match answered(self.user_of(head, peer), time_limit).await.map_err(Verdict::Unknown)? {
            Ok(Some(user)) => Ok(Some(user)),
            Ok(None) => Err(Verdict::Ends(gone())),
            Err(refusal) => Err(match refusal.code() {
                401 => Verdict::Ends(gone()),
                403 => Verdict::Ends(Error::new(Code::PermissionDenied, refusal.message())),
                _ => Verdict::Unknown(unknown(refusal.message())),
            }),
        }
    }

    async fn decide_again(&self, user: Option<&User>, asked: &Asked, time_limit: Duration) -> Verdict {
        match answered(self.decide(user, asked), time_limit).await {
            Ok(Ok(())) => Verdict::Stays,
            Ok(Err(refusal)) => Verdict::Ends(Error::new(Code::PermissionDenied, refusal.message())),
            Err(error) => Verdict::Unknown(error),
        }
    }
}

/// Returns the answer of an authenticator or authorizer, or the error that it hung or panicked.
async fn answered<T>(hook: impl Future<Output = T>, time_limit: Duration) -> Result<T, Error> {
    match timeout(time_limit, catch_panic(hook)).await {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(unknown("a hook panicked")),
        Err(_) => Err(unknown("a hook does not answer")),
    }
}

fn gone() -> Error {
    Error::new(Code::Unauthenticated, "Unauthorized")
}

fn unknown(why: &str) -> Error {
    Error::new(Code::Unavailable, format!("the user of a watch could not be checked again: {why}"))
}
