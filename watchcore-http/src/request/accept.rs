//! Negotiation of the response form and encoding, by the headers Accept and Accept-Encoding.

use crate::object::Form;
use crate::request::Params;
use crate::status::Refusal;
use http::{HeaderMap, header};

/// One media range of a header Accept, with its parameters.
#[derive(Clone, PartialEq, Debug)]
struct Alternative<'h> {
    kind: &'h str,
    subtype: &'h str,
    parameters: Vec<(&'h str, &'h str)>,
    quality: f32,
}

impl<'h> Alternative<'h> {
    /// Returns the value of a parameter, such as `as` or `v`.
    fn parameter(&self, name: &str) -> Option<&'h str> {
        self.parameters.iter().find(|(there, _)| *there == name).map(|(_, value)| *value)
    }

    /// Whether the range includes `application/json`.
    fn takes_json(&self) -> bool {
        match (self.kind, self.subtype) {
            ("*", "*") => true,
            (kind, subtype) => {
                kind.eq_ignore_ascii_case("application") && (subtype == "*" || subtype.eq_ignore_ascii_case("json"))
            }
        }
    }

    fn parse(text: &'h str) -> Option<Alternative<'h>> {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next()?;
        let (kind, subtype) = if media == "*" { ("*", "*") } else { media.split_once('/')? };
        let (kind, subtype) = (kind.trim(), subtype.trim());
        if kind.is_empty() || subtype.is_empty() || subtype.contains('/') {
            return None;
        }
        let mut alternative = Alternative { kind, subtype, parameters: Vec::new(), quality: 1.0 };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let (name, value) = (name.trim(), value.trim().trim_matches('"'));
            if name.eq_ignore_ascii_case("q") {
                alternative.quality = value.parse().unwrap_or(0.0);
            } else {
                alternative.parameters.push((name, value));
            }
        }
        Some(alternative)
    }

    /// How specific the range is: `*/*` is the least.
    fn specificity(&self) -> u8 {
        u8::from(self.kind != "*") + u8::from(self.subtype != "*")
    }
}

/// Returns the media ranges of the header Accept, best first: by quality, then by how specific they are, then in the
/// order of the header. Unparsable ranges are skipped. `None`: the header is missing or empty, so every form is
/// accepted.
fn alternatives(headers: &HeaderMap) -> Option<Vec<Alternative<'_>>> {
    let texts: Vec<&str> = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    if texts.iter().all(|text| text.trim().is_empty()) && texts.len() == headers.get_all(header::ACCEPT).iter().count()
    {
        return None;
    }
    let mut all: Vec<Alternative<'_>> =
        texts.iter().flat_map(|text| text.split(',')).filter_map(Alternative::parse).collect();
    all.retain(|alternative| alternative.quality > 0.0);
    all.sort_by(|one, other| {
        other.quality.total_cmp(&one.quality).then_with(|| other.specificity().cmp(&one.specificity()))
    });
    Some(all)
}

/// Returns the form in which a client accepts objects: the best media range of its header Accept that is served.
///
/// # Errors
/// 406 if none is served; 400 if a table is requested with an unknown `includeObject`.
pub(crate) fn form(headers: &HeaderMap, params: &Params) -> Result<Form, Refusal> {
    let Some(alternatives) = alternatives(headers) else { return Ok(Form::Json) };
    let found = alternatives.iter().find_map(|alternative| form_of(alternative, params));
    match (found, &params.unknown_included) {
        (Some(Form::Table(_)), Some(unknown)) => Err(Refusal::bad_request(format!(
            "unrecognized includeObject value: {unknown:?}: it is None, Metadata or Object"
        ))),
        (Some(form), _) => Ok(form),
        (None, _) => Err(Refusal::not_acceptable(&accept_text(headers))),
    }
}

/// Returns the form that a media range stands for, if it is served.
fn form_of(alternative: &Alternative<'_>, params: &Params) -> Option<Form> {
    let streams = matches!(alternative.parameter("stream"), None | Some("" | "watch"));
    if !alternative.takes_json() || !streams || !matches!(alternative.parameter("sv"), None | Some("")) {
        return None;
    }
    let of_meta = alternative.parameter("g") == Some("meta.k8s.io") && alternative.parameter("v") == Some("v1");
    match alternative.parameter("as") {
        None if alternative.parameter("g").is_none() && alternative.parameter("v").is_none() => Some(Form::Json),
        Some("Table") if of_meta => Some(Form::Table(params.included)),
        Some("PartialObjectMetadata" | "PartialObjectMetadataList") if of_meta => Some(Form::Metadata),
        _ => None,
    }
}

/// Refuses a client that does not accept plain JSON.
///
/// # Errors
/// 406 if plain JSON is not accepted.
pub(crate) fn accepts_json(headers: &HeaderMap) -> Result<(), Refusal> {
    let plain = |alternative: &Alternative<'_>| {
        alternative.takes_json() && ["as", "g", "v"].iter().all(|name| alternative.parameter(name).is_none())
    };
    match alternatives(headers) {
        Some(alternatives) if !alternatives.iter().any(plain) => Err(Refusal::not_acceptable(&accept_text(headers))),
        _ => Ok(()),
    }
}

/// Whether a client accepts the aggregated form of discovery, which is then preferred, as in Kubernetes.
pub(crate) fn accepts_aggregated(headers: &HeaderMap) -> bool {
    alternatives(headers).unwrap_or_default().iter().any(|alternative| {
        alternative.takes_json()
            && alternative.parameter("as") == Some("APIGroupDiscoveryList")
            && alternative.parameter("g") == Some("apidiscovery.k8s.io")
            && alternative.parameter("v") == Some("v2")
    })
}

/// Returns the header Accept for an error message, truncated.
fn accept_text(headers: &HeaderMap) -> String {
    const MAX: usize = 200;
    let all: Vec<_> =
        headers.get_all(header::ACCEPT).iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
    let mut text = all.join(", ");
    if let Some((cut, _)) = text.char_indices().nth(MAX) {
        text.truncate(cut);
        text.push_str("...");
    }
    text
}

/// Whether a client accepts a body compressed with gzip.
pub(crate) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let texts = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let refused = parts
            .filter_map(|part| part.split_once('='))
            .any(|(name, value)| name.trim().eq_ignore_ascii_case("q") && value.trim().parse().unwrap_or(0.0) <= 0.0);
        gzip && !refused
    })
}

#[cfg(test)]
mod tests;
