//! The bearer token of a request, from the header Authorization or from a WebSocket subprotocol.
//!
//! A page in a browser cannot set headers of a WebSocket, so Kubernetes accepts the token as one of the offered
//! subprotocols: `base64url.bearer.authorization.k8s.io.` followed by the token in base64url without padding. The page
//! must offer a second subprotocol for the server to choose: a browser closes a WebSocket whose server chooses none,
//! and the token must not be echoed in a header of the answer.

use crate::status::Refusal;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{self, HeaderName};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};

const PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Returns the token of the header Authorization, if the header occurs exactly once.
pub(super) fn bearer(head: &Parts) -> Option<&[u8]> {
    let mut all = head.headers.get_all(header::AUTHORIZATION).iter();
    let (Some(one), None) = (all.next(), all.next()) else { return None };
    let bytes = one.as_bytes();
    let (scheme, token) = (bytes.get(..7)?, bytes.get(7..)?.trim_ascii());
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

/// Whether a comma-separated header contains a word.
pub(crate) fn header_contains(headers: &HeaderMap, header: HeaderName, word: &str) -> bool {
    header_words(headers, header).any(|listed| listed.eq_ignore_ascii_case(word))
}

/// Returns the words of a comma-separated header.
pub(crate) fn header_words(headers: &HeaderMap, header: HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|word| !word.is_empty())
}

/// Moves a token from the WebSocket subprotocols to the header Authorization, where authenticators look for it. An
/// existing Authorization header takes precedence.
///
/// # Errors
/// 401 if there are two tokens, if one is malformed, or if no other subprotocol is offered, as in Kubernetes.
pub(super) fn token_from_protocols(head: &mut Parts) -> Result<(), Refusal> {
    let headers = &head.headers;
    if !(header_contains(headers, header::CONNECTION, "upgrade")
        && header_contains(headers, header::UPGRADE, "websocket"))
    {
        return Ok(());
    }
    let (tokens, others): (Vec<&str>, Vec<&str>) =
        header_words(headers, header::SEC_WEBSOCKET_PROTOCOL).partition(|protocol| protocol.starts_with(PROTOCOL));
    let refused = |why: &str| Err(Refusal::unauthorized(format!("Unauthorized: {why}")));
    let [token] = tokens[..] else {
        return if tokens.is_empty() { Ok(()) } else { refused("multiple base64url.bearer.authorization tokens") };
    };
    let decoded = URL_SAFE_NO_PAD.decode(&token[PROTOCOL.len()..]).unwrap_or_default();
    let bearer = HeaderValue::from_bytes(&[b"Bearer ", &decoded[..]].concat());
    let (false, Ok(mut bearer)) = (decoded.is_empty(), bearer) else {
        return refused("the base64url.bearer.authorization token is malformed");
    };
    let Ok(rest) = HeaderValue::from_str(&others.join(", ")) else { return refused("malformed subprotocols") };
    if others.is_empty() {
        return refused("missing additional subprotocol");
    }
    bearer.set_sensitive(true);
    head.headers.insert(header::SEC_WEBSOCKET_PROTOCOL, rest);
    head.headers.entry(header::AUTHORIZATION).or_insert(bearer);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(headers: &[(&str, &str)]) -> Parts {
        let builder = headers.iter().fold(http::Request::builder(), |all, (name, value)| all.header(*name, *value));
        builder.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_bearer_is_found_in_its_header() {
        let head = |values: &[&str]| head(&values.iter().map(|value| ("Authorization", *value)).collect::<Vec<_>>());
        assert_eq!(bearer(&head(&["Bearer a.b"])), Some(&b"a.b"[..]));
        assert_eq!(bearer(&head(&["bearer  a.b "])), Some(&b"a.b"[..]));
        for values in [&[][..], &["Bearer"], &["Bearer "], &["Basic YTpi"], &["Bearer a", "Bearer a"]] {
            assert_eq!(bearer(&head(values)), None, "{values:?}");
        }
    }

    #[test]
    fn subprotocol_becomes_a_header() {
        const UPGRADE: [(&str, &str); 2] = [("Connection", "Upgrade"), ("Upgrade", "websocket")];
        let protocol = |token: &str| format!("{PROTOCOL}{}", URL_SAFE_NO_PAD.encode(token));
        let secret = protocol("secret");
        let taken = |headers: &[(&str, &str)]| {
            let mut head = head(&[&UPGRADE[..], headers].concat());
            token_from_protocols(&mut head).map(|()| head).map_err(|refusal| refusal.code())
        };
        let text = |head: &Parts, name| head.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        for protocols in [format!("{secret}, v1.watch"), format!("v1.watch,{secret}")] {
            let head = taken(&[("Sec-WebSocket-Protocol", &protocols)]).unwrap();
            assert_eq!(text(&head, header::SEC_WEBSOCKET_PROTOCOL).as_deref(), Some("v1.watch"));
            assert_eq!(bearer(&head), Some(&b"secret"[..]));
        }
        let two = [("Sec-WebSocket-Protocol", secret.as_str()), ("Sec-WebSocket-Protocol", "a, b")];
        assert_eq!(text(&taken(&two).unwrap(), header::SEC_WEBSOCKET_PROTOCOL).as_deref(), Some("a, b"));
        let both = [("Authorization", "Bearer other"), ("Sec-WebSocket-Protocol", &format!("{secret},a"))];
        assert_eq!(bearer(&taken(&both).unwrap()), Some(&b"other"[..]), "the header is asked first");
        let plain = taken(&[("Sec-WebSocket-Protocol", "a")]).unwrap();
        assert!(bearer(&plain).is_none() && text(&plain, header::SEC_WEBSOCKET_PROTOCOL).is_some());
        for wrong in [
            secret.clone(),
            format!("{secret},{secret},a"),
            format!("{PROTOCOL},a"),
            format!("{PROTOCOL}=,a"),
            format!("{PROTOCOL}a+/b,a"),
            format!("{},a", protocol("a\nb")),
        ] {
            assert_eq!(taken(&[("Sec-WebSocket-Protocol", &wrong)]).err(), Some(401), "{wrong}");
        }
        let mut no_upgrade = head(&[("Sec-WebSocket-Protocol", &format!("{secret},a"))]);
        token_from_protocols(&mut no_upgrade).unwrap();
        assert_eq!(bearer(&no_upgrade), None, "no WebSocket is asked for");
    }
}
