//! The host names that the server answers to, and the origins whose pages may call it.
//!
//! A page in a browser can send requests to any address that the browser reaches, loopback addresses too. The
//! same-origin policy keeps it from reading the answers, with two exceptions: WebSockets, to which the policy does not
//! apply, and DNS rebinding, by which the page points a name of its own at this address. The first is detected by
//! Origin, which a page cannot forge; the second by Host, which then has the page's name. Pages of listed origins may
//! read answers, by CORS headers.
//!
//! A page that cannot read an answer may still embed it, or measure its time and size, and the browser attaches its
//! user's certificate. Such a request has no Origin, but Sec-Fetch-Site says where the page is from.

use super::bearer::bearer;
use super::peer::Peer;
use crate::status::Refusal;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use std::net::{IpAddr, SocketAddr};

/// Host names and origins that are allowed in addition to the server's own.
#[derive(Default)]
pub(crate) struct Origins {
    /// `name` or `name:port`.
    pub(crate) hosts: Vec<String>,
    /// `https://name:port`
    pub(crate) origins: Vec<String>,
}

impl Origins {
    /// Checks Host, Origin and Sec-Fetch-Site. `peer` is the connection, if our own server accepted it. Where
    /// authentication is required (`is_known`), any host name is accepted.
    ///
    /// # Errors
    /// 400 if Host is malformed or repeated; 403 if the host name or the page's origin is not allowed. A request from
    /// another site is accepted with a bearer token, because a page can attach one only after a successful preflight.
    pub(super) fn check(&self, head: &Parts, peer: Option<&Peer>, is_known: bool) -> Result<(), Refusal> {
        let host = host_of(head)?;
        if let Some(host) = &host
            && !is_known
            && !self.is_own(host, peer.and_then(|peer| peer.local))
        {
            return Err(Refusal::forbidden(format!(
                "Host {:?} is no name of this server: without authentication it answers to loopback names and to those that are listed",
                host.as_str()
            )));
        }
        let is_encrypted = peer.is_some_and(|peer| peer.is_encrypted);
        for origin in head.headers.get_all(header::ORIGIN) {
            if !self.is_allowed(origin, host.as_ref(), is_encrypted) {
                return Err(Refusal::forbidden(format!(
                    "Origin {:?} is not this server's, and not listed",
                    String::from_utf8_lossy(origin.as_bytes())
                )));
            }
        }
        if is_of_another_site(head) && self.listed(head).is_none() && bearer(head).is_none() {
            return Err(Refusal::forbidden(
                "the request is of a page of another site (Sec-Fetch-Site), whose origin is not listed, and has no token",
            ));
        }
        Ok(())
    }

    /// Returns the header Origin if it is a listed one.
    fn listed<'h>(&self, head: &'h Parts) -> Option<&'h HeaderValue> {
        let origin = head.headers.get(header::ORIGIN)?;
        let text = origin.to_str().ok()?;
        self.origins.iter().any(|listed| listed.eq_ignore_ascii_case(text)).then_some(origin)
    }

    /// Returns the CORS headers of an answer.
    pub(super) fn cors_headers(&self, head: &Parts) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if !self.origins.is_empty() {
            headers.insert(header::VARY, HeaderValue::from_static("Origin"));
        }
        if let Some(origin) = self.listed(head) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        } else {
            // Pages of other origins may not embed the answer.
            let name = HeaderName::from_static("cross-origin-resource-policy");
            headers.insert(name, HeaderValue::from_static("same-origin"));
        }
        headers
    }

    /// Answers a CORS preflight request of a listed origin. Preflights carry no credentials, so they cannot be
    /// authenticated.
    pub(super) fn preflight(&self, head: &Parts) -> Option<Response> {
        let asks = head.method == Method::OPTIONS && head.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        self.listed(head).filter(|_| asks)?;
        let mut response = StatusCode::NO_CONTENT.into_response();
        let headers = response.headers_mut();
        for (name, value) in [
            (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, HEAD"),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, "Authorization, Last-Event-ID, X-Request-ID, Audit-ID"),
            (header::ACCESS_CONTROL_MAX_AGE, "600"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        Some(response)
    }

    fn is_own(&self, host: &Authority, local: Option<SocketAddr>) -> bool {
        let name = host.host().strip_suffix('.').unwrap_or(host.host());
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        if let Ok(address) = bare.parse::<IpAddr>() {
            // Addresses cannot be rebound by DNS: a client that names the address it is connected to means this server.
            let address = address.to_canonical();
            if address.is_loopback() || local.is_some_and(|local| local.ip().to_canonical() == address) {
                return true;
            }
        }
        name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|listed| {
                listed.eq_ignore_ascii_case(name)
                    || (host.port().is_some() && listed.eq_ignore_ascii_case(host.as_str()))
            })
    }

    fn is_allowed(&self, origin: &HeaderValue, host: Option<&Authority>, is_encrypted: bool) -> bool {
        let Ok(origin) = origin.to_str() else { return false };
        if self.origins.iter().any(|listed| listed.eq_ignore_ascii_case(origin)) {
            return true;
        }
        // Without its own TLS the server cannot know whether a proxy in front of it speaks TLS.
        let plain = origin.strip_prefix("http://").filter(|_| !is_encrypted);
        let authority = plain.or_else(|| origin.strip_prefix("https://"));
        // Browsers omit the same default ports in both headers.
        matches!((authority, host), (Some(origin), Some(host)) if origin.eq_ignore_ascii_case(host.as_str()))
    }
}

/// Whether the browser says that a page of another site caused the request. Following a link to here is allowed: the
/// answer fills the window, and the other page cannot see it.
fn is_of_another_site(head: &Parts) -> bool {
    let says = |name: &str| head.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>();
    let is_own = says("sec-fetch-site").iter().all(|site| matches!(*site, b"same-origin" | b"none"));
    let is_link = says("sec-fetch-mode") == [b"navigate"] && says("sec-fetch-dest") == [b"document"];
    !is_own && !is_link
}

/// Returns the request's host; `None` if it names none, which no browser does.
fn host_of(head: &Parts) -> Result<Option<Authority>, Refusal> {
    let mut named = head.headers.get_all(header::HOST).iter();
    let first = named.next();
    if named.next().is_some() {
        return Err(Refusal::bad_request("the header Host is there twice"));
    }
    let authority = match (head.uri.authority(), first) {
        // From HTTP/2, or from a request to a proxy.
        (Some(authority), _) => authority.clone(),
        (None, Some(host)) => {
            Authority::try_from(host.as_bytes()).map_err(|_| Refusal::bad_request("the header Host is malformed"))?
        }
        (None, None) => return Ok(None),
    };
    let is_plain = !authority.as_str().contains('@') && !authority.host().is_empty();
    // The parser ignores a malformed port, so it is checked here.
    let port = &authority.as_str()[authority.host().len()..];
    if !is_plain || (port.len() > 1 && authority.port_u16().is_none()) {
        return Err(Refusal::bad_request("the header Host is malformed"));
    }
    Ok(Some(authority))
}
