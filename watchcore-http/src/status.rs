//! Error answers: Kubernetes' Status objects.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};
use std::fmt;
use watchcore::{Code, Error};

/// An error answer: the HTTP status code, Kubernetes' reason for it, and a message.
///
/// Its JSON is a Status object, in which Kubernetes' clients look for errors: client-go and kube-rs find the reason and
/// the details by their names.
///
/// ```
/// use watchcore_http::Refusal;
///
/// let no = Refusal::forbidden("bob may not watch secrets");
/// assert_eq!((no.code(), no.reason()), (403, "Forbidden"));
/// assert!(no.to_json().contains(r#""status":"Failure""#));
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Refusal {
    code: u16,
    reason: &'static str,
    message: String,
    details: Map<String, Value>,
    continue_token: Option<String>,
    /// Seconds until the client should try again.
    retry_after: Option<u32>,
}

impl Refusal {
    /// Creates a refusal from an HTTP status code and a Kubernetes reason (`metav1.StatusReason`).
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { code, reason, message: message.into(), details: Map::new(), continue_token: None, retry_after: None }
    }

    /// 400: the request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Refusal {
        Refusal::new(400, "BadRequest", message)
    }

    /// 401: the request is not authenticated.
    pub fn unauthorized(message: impl Into<String>) -> Refusal {
        Refusal::new(401, "Unauthorized", message)
    }

    /// 403: the user may not do this.
    pub fn forbidden(message: impl Into<String>) -> Refusal {
        Refusal::new(403, "Forbidden", message)
    }

    /// 404: this path does not exist.
    pub fn no_such_path() -> Refusal {
        Refusal::new(404, "NotFound", "the server could not find the requested resource")
    }

    /// 404: there is no such object. `resource` is the plural with its group: `widgets.matrix.test`.
    pub fn no_such_object(group: &str, plural: &str, name: &str) -> Refusal {
        let dot = if group.is_empty() { "" } else { "." };
        let mut refusal = Refusal::new(404, "NotFound", format!("{plural}{dot}{group} {name:?} not found"));
        refusal.detail("name", json!(name));
        if !group.is_empty() {
            refusal.detail("group", json!(group));
        }
        refusal.detail("kind", json!(plural));
        refusal
    }

    /// 405: this resource is read-only here. The message is Kubernetes' own.
    pub(crate) fn not_supported(verb: &str, group: &str, plural: &str) -> Refusal {
        let dot = if group.is_empty() { "" } else { "." };
        let message = format!("{verb} is not supported on resources of kind \"{plural}{dot}{group}\"");
        let mut refusal = Refusal::new(405, "MethodNotAllowed", message);
        if !group.is_empty() {
            refusal.detail("group", json!(group));
        }
        refusal.detail("kind", json!(plural));
        refusal
    }

    /// 400: a continue token that is malformed, or of another list.
    pub(crate) fn bad_token(error: &Error) -> Refusal {
        Refusal::bad_request(format!("invalid continue token: continue key is not valid: {}", error.message()))
    }

    /// 405: this server only reads.
    pub fn read_only(method: &http::Method) -> Refusal {
        Refusal::new(
            405,
            "MethodNotAllowed",
            format!("{method} is not supported: this server is read-only, and answers GET and HEAD"),
        )
    }

    /// 406: none of the accepted forms is served.
    pub fn not_acceptable(accepted: &str) -> Refusal {
        Refusal::new(
            406,
            "NotAcceptable",
            format!(
                "only the following media types are accepted: application/json, application/json;as=Table;v=v1;g=meta.k8s.io, application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io (asked for: {accepted})"
            ),
        )
    }

    /// 410: the requested revision has left the window.
    pub fn expired(message: impl Into<String>) -> Refusal {
        Refusal::new(410, "Expired", message)
    }

    /// 422: invalid combinations of parameters, each with its cause. The messages are those of Kubernetes
    /// (`k8s.io/apimachinery`, `pkg/apis/meta/internalversion/validation`).
    pub(crate) fn invalid_options(causes: &[Cause]) -> Refusal {
        let listed: Vec<String> = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        let listed = match &listed[..] {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let message = format!("ListOptions.meta.k8s.io \"\" is invalid: {listed}");
        let mut refusal = Refusal::new(422, "Invalid", message);
        refusal.detail("group", json!("meta.k8s.io"));
        refusal.detail("kind", json!("ListOptions"));
        let causes: Vec<Value> = causes
            .iter()
            .map(|cause| json!({"reason": cause.reason, "message": cause.message, "field": cause.field}))
            .collect();
        refusal.detail("causes", Value::Array(causes));
        refusal
    }

    /// Creates a refusal with the HTTP status, reason and retry time that the core's table has for a code.
    pub(crate) fn of_code(code: Code, message: impl Into<String>) -> Refusal {
        let refusal = Refusal::new(code.http_status(), code.reason(), message);
        Refusal { retry_after: code.retry_after().map(|after| after.as_secs() as u32), ..refusal }
    }

    /// 429: a limit is reached. The client may try again after `seconds`.
    pub fn too_many(message: impl Into<String>, seconds: u32) -> Refusal {
        Refusal::new(429, "TooManyRequests", message).retry_after(seconds)
    }

    /// 504: a revision that was not reached in time, or that no cache can reach.
    pub fn too_large_revision(asked: u64, current: u64) -> Refusal {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let mut refusal = Refusal::of_code(Code::FutureRevision, message);
        refusal
            .detail("causes", json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]));
        refusal
    }

    /// Sets `details.retryAfterSeconds` and the header Retry-After.
    pub fn retry_after(mut self, seconds: u32) -> Refusal {
        self.retry_after = Some(seconds);
        self
    }

    /// Sets `metadata.continue`: a token with which the client may continue the list at a newer revision.
    pub fn with_continue(mut self, token: impl Into<String>) -> Refusal {
        self.continue_token = Some(token.into());
        self
    }

    /// Adds a member of `details`.
    pub(crate) fn detail(&mut self, name: &str, value: Value) {
        self.details.insert(name.into(), value);
    }

    /// Returns the HTTP status code.
    pub fn code(&self) -> u16 {
        self.code
    }

    /// Returns Kubernetes' reason.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    /// Returns the message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the Status object as JSON.
    pub fn to_json(&self) -> String {
        let text = |text: &str| Value::from(text).to_string();
        let token =
            self.continue_token.as_deref().map_or(String::new(), |token| format!("\"continue\":{}", text(token)));
        let mut details = self.details.clone();
        if let Some(seconds) = self.retry_after {
            details.insert("retryAfterSeconds".into(), json!(seconds));
        }
        let details = match details.is_empty() {
            true => String::new(),
            false => format!("\"details\":{},", Value::Object(details)),
        };
        format!(
            "{{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{{{token}}},\"status\":\"Failure\",\"message\":{},\"reason\":{},{details}\"code\":{}}}",
            text(&self.message),
            text(self.reason),
            self.code
        )
    }
}

/// Why a parameter is refused: one cause in a Status of code 422.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Cause {
    reason: &'static str,
    field: &'static str,
    message: String,
}

impl Cause {
    /// The parameter must not be given here, whatever its value.
    pub(crate) fn forbidden(field: &'static str, why: &str) -> Cause {
        Cause { reason: "FieldValueForbidden", field, message: format!("Forbidden: {why}") }
    }

    /// The parameter has an unsupported value.
    pub(crate) fn not_supported(field: &'static str, value: &str, supported: &[&str]) -> Cause {
        let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        let message = format!("Unsupported value: {value:?}: supported values: {}", supported.join(", "));
        Cause { reason: "FieldValueNotSupported", field, message }
    }
}

/// Translates an error of the core: status, reason and retry time by the core's table, the message in Kubernetes' words
/// where it has one.
impl From<&Error> for Refusal {
    fn from(error: &Error) -> Refusal {
        let code = error.code();
        let too_old = |asked: u64| format!("too old resource version: {asked} ({})", error.oldest().saturating_sub(1));
        let message = match code {
            Code::FutureRevision => return Refusal::too_large_revision(error.asked(), error.current()),
            Code::Compacted => too_old(error.asked()),
            Code::Lagged => too_old(error.lost_from().saturating_sub(1)),
            Code::Timeout => format!("Timeout: {}", error.message()),
            Code::NotReady => format!("the cache is not ready: {}", error.message()),
            Code::Panic | Code::Internal => format!("Internal error occurred: {}", error.message()),
            _ => error.message().to_owned(),
        };
        let refusal = Refusal::of_code(code, message);
        match error.continue_token() {
            Some(token) => refusal.with_continue(token),
            None => refusal,
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::from(&error)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for Refusal {}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (code, self.to_json()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.code == 401 {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"watchcore\""));
        }
        if self.code == 405 {
            headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        if self.code == 426 {
            headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        }
        response.extensions_mut().insert(Refused(self.reason));
        response
    }
}

/// Extension of a response: the reason of a refusal, for the access log.
#[derive(Clone, Copy)]
pub(crate) struct Refused(pub(crate) &'static str);
