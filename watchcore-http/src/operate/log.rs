//! Logging and counting of requests: see [`RequestRecord`].

use crate::access::Peer;
use crate::counters::ResourceLabels;
use crate::object::Resource;
use crate::request::{Health, Params, Route};
use crate::request_record::{RequestRecord, Subject};
use crate::state::ApiState;
use crate::status::{Refusal, Refused};
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, header};
use http_body::{Frame as BodyFrame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// The parameters that are logged. Others may be secrets that were sent to the wrong server.
const LOGGED: [&str; 16] = [
    "watch",
    "resourceVersion",
    "resourceVersionMatch",
    "limit",
    "labelSelector",
    "fieldSelector",
    "timeoutSeconds",
    "allowWatchBookmarks",
    "sendInitialEvents",
    "pretty",
    "includeObject",
    "prefix",
    "after",
    "labels",
    "fields",
    "verbose",
];

/// Maximum logged length of a query.
const MAX_LOGGED: usize = 1024;

/// Returns the subject of a request.
pub(crate) fn subject(state: &ApiState, head: &Parts, route: &Result<Route, Refusal>) -> Subject {
    let (verb, resource) = labels(state, head, route);
    let peer = Peer::of(head).map(|peer| peer.address);
    Subject { verb, resource, query: loggable(head.uri.query().unwrap_or_default()), peer }
}

/// Returns the labels of a request, of bounded cardinality, whatever clients send.
fn labels(state: &ApiState, head: &Parts, route: &Result<Route, Refusal>) -> (&'static str, ResourceLabels) {
    let method = match head.method {
        Method::GET | Method::HEAD => "get",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        _ => "other",
    };
    let path = match route {
        Ok(Route::Objects { version, plural, name, old_watch, .. }) => {
            let served = state.catalog.resource(&version.group, &version.version, plural);
            let resource = served.map_or_else(|| ResourceLabels::path("unknown"), |served| labels_of(&served.resource));
            let watches = || Params::parse(head.uri.query()).is_ok_and(|params| params.watch);
            let verb = match method {
                "get" if *old_watch || watches() => "watch",
                "get" if name.is_none() => "list",
                method => method,
            };
            return (verb, resource);
        }
        Ok(Route::Page | Route::PageEvents) => "/",
        Ok(Route::Health(Health::Live)) => "/livez",
        Ok(Route::Health(Health::Ready)) => "/readyz",
        Ok(Route::Health(Health::Healthz)) => "/healthz",
        Ok(Route::Metrics) => "/metrics",
        Ok(Route::Version) => "/version",
        // A watch corrects this verb in its record when it is opened.
        Ok(Route::Keys) if method == "get" => return ("list", ResourceLabels::path("/v1/keys")),
        Ok(Route::Keys) => "/v1/keys",
        Ok(Route::OpenApi(_)) => "/openapi",
        Ok(Route::CoreVersions) => "/api",
        Ok(Route::Groups | Route::Group(_) | Route::Resources(_)) => "/apis",
        Ok(Route::Subresource { .. }) | Err(_) => "unknown",
    };
    (method, ResourceLabels::path(path))
}

pub(super) fn labels_of(resource: &Resource) -> ResourceLabels {
    ResourceLabels::new(&resource.group, &resource.version, &resource.plural)
}

/// Returns the parameters of a query that may be logged.
fn loggable(query: &str) -> String {
    let mut logged = String::new();
    for parameter in query.split('&') {
        let name = parameter.split('=').next().unwrap_or_default();
        if LOGGED.contains(&name) && logged.len() + parameter.len() < MAX_LOGGED {
            if !logged.is_empty() {
                logged.push('&');
            }
            logged.push_str(parameter);
        }
    }
    logged
}

/// Adds the request ID to an answer, and counts its body until the end.
pub(crate) fn finish(record: Arc<RequestRecord>, mut response: Response) -> Response {
    let reason = response.extensions().get::<Refused>().map(|refused| refused.0);
    record.set_answer(response.status().as_u16(), reason);
    let headers = response.headers_mut();
    for name in ["audit-id", "x-request-id"] {
        headers.insert(HeaderName::from_static(name), record.id().clone());
    }
    // Answers are private to their user and must not be cached, as in Kubernetes, unless the handler decides otherwise.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    response.map(|body| Body::new(FollowedBody { body, record }))
}

/// A body that reports its bytes to the request's record.
struct FollowedBody {
    body: Body,
    record: Arc<RequestRecord>,
}

impl http_body::Body for FollowedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.record.add_body_bytes(data.len());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_logged_without_secrets() {
        assert_eq!(loggable("watch=1&token=secret&limit=5&access_token=x&continue=abc"), "watch=1&limit=5");
        assert_eq!(loggable(""), "");
        assert_eq!(loggable(&format!("labelSelector={}", "x".repeat(2000))), "");
    }
}
