//! Classifies etcd's errors for the feeder, and words them for people.

use super::integrity::Violation;
use super::server_text;
use super::tls::Refusal;
use etcd_client::Error as ClientError;
use std::error::Error as _;
use watchcore::{Code, Error};

/// The reaction to a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// Try again, after the backoff.
    Retry,
    /// This member cannot serve now but others may: try the next endpoint at once.
    OtherEndpoint,
    /// The token has expired: authenticate again.
    Authenticate,
    /// Authentication is switched off in etcd: continue without a user.
    AuthenticationOff,
    /// Name or password is wrong.
    Credentials,
    /// The user may not read the range.
    Denied,
    /// The requested revision is compacted; the number is etcd's compacted revision, 0 if unknown. The state at that
    /// revision can still be read.
    Compacted(u64),
    /// The requested revision has not been reached.
    Future,
    /// A message exceeds the limit of one side; the number is its length, 0 if unknown.
    TooLarge(u64),
    /// A proxy or server has exhausted an unnamed resource. A shorter answer may succeed; otherwise try again, after
    /// the backoff.
    Exhausted,
    /// An invalid endpoint, or a limit of the cache: only the user can correct it.
    Refused,
    /// The server broke a rule of etcd's API ([`Violation`]), so its data is not used. A listing replaces the data,
    /// and a second violation switches to another endpoint.
    Broken,
    /// A certificate or another TLS failure that only a person can correct, though other endpoints may work. The code
    /// is the one that users see.
    Tls(Code),
    /// The cache was closed, so nothing is left to do.
    Closed,
}

/// A failed call: its class, and a text that never contains a password.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    pub(super) class: Class,
    /// Free of control characters: only [`Failure::new`] sets it.
    text: String,
    /// A name for the kind of failure, used if the text contains numbers that change each time.
    pub(super) kind: Option<&'static str>,
}

/// The message of every failure of the transport layer; its causes say more.
const TRANSPORT: &str = "transport error";

// The gRPC codes that are distinguished.
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const UNAUTHENTICATED: i32 = 16;

impl Failure {
    /// The failure for data that the cache refused.
    pub(super) fn refused(error: &Error) -> Failure {
        let class = if error.code() == Code::Closed { Class::Closed } else { Class::Refused };
        Failure::new(class, format!("the cache refused etcd's data: {}", error.message()))
    }

    /// Makes a failure. The text may contain a server's words, so it is cleaned here, for every failure.
    pub(super) fn new(class: Class, text: impl AsRef<str>) -> Failure {
        Failure { class, text: server_text::clean(text.as_ref()), kind: None }
    }

    /// Adds the kind to a failure whose text contains numbers that change each time.
    pub(super) fn of_kind(self, kind: &'static str) -> Failure {
        Failure { kind: Some(kind), ..self }
    }

    /// The failure in one line without control characters.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The failure of a call that timed out.
    pub(super) fn timeout(what: &'static str, seconds: f64) -> Failure {
        let failure = Failure::new(Class::Retry, format!("{what} did not answer within {seconds:.1} s"));
        Failure { kind: Some(what), ..failure }
    }

    /// Classifies the failure of a call.
    pub(super) fn of(error: &ClientError) -> Failure {
        match error {
            ClientError::GRpcStatus(status) => {
                let class = class_of(status.code() as i32, status.message());
                // The status says only "transport error": its causes say which one.
                let mut text = if status.message() == TRANSPORT { "" } else { status.message() }.to_owned();
                let mut source = status.source();
                while let Some(cause) = source {
                    let cause_text = cause.to_string();
                    if !cause_text.is_empty() && cause_text != TRANSPORT && !text.contains(&cause_text) {
                        text = if text.is_empty() { cause_text } else { format!("{text}: {cause_text}") };
                    }
                    source = cause.source();
                }
                if text.is_empty() {
                    text = format!("gRPC status {:?}", status.code());
                }
                Failure::new(class, explain(&text).unwrap_or(text))
            }
            ClientError::InvalidArgs(_) | ClientError::InvalidUri(_) | ClientError::InvalidMetadataValue(_) => {
                Failure::new(Class::Refused, error.to_string())
            }
            ClientError::TransportError(cause) => {
                // Calls fail with a status, so this error comes from building the endpoint.
                let mut text = cause.to_string();
                let mut source = cause.source();
                while let Some(inner) = source {
                    text = format!("{text}: {inner}");
                    source = inner.source();
                }
                Failure::new(Class::Refused, text)
            }
            other => Failure::new(Class::Retry, other.to_string()),
        }
    }

    /// Classifies a watch that the server canceled.
    pub(super) fn of_cancel(compact_revision: i64, reason: &str) -> Failure {
        if compact_revision > 0 {
            let text = format!(
                "the watch's revision is compacted; etcd holds the state at {compact_revision} and all after it"
            );
            return Failure::new(Class::Compacted(compact_revision as u64), text);
        }
        if reason.is_empty() {
            return Failure::new(Class::Retry, "etcd canceled the watch without a reason");
        }
        Failure::new(class_of(0, reason), format!("etcd canceled the watch: {reason}"))
    }

    /// Replaces the failure by the TLS refusal that caused it, if any.
    pub(super) fn with_tls_cause(self, refusal: Option<Refusal>) -> Failure {
        match (self.class, refusal) {
            // Other classes are etcd's own answers, which came over a connection that TLS accepted.
            (Class::Retry | Class::Refused | Class::OtherEndpoint, Some(refusal)) => {
                Failure { kind: refusal.kind, ..Failure::new(Class::Tls(refusal.code), refusal.text) }
            }
            _ => self,
        }
    }

    /// Whether a TLS-only port may have ended a connection without TLS: by an alert, which is no HTTP/2 frame, or by
    /// closing the connection, which this end notices when it writes or reads.
    pub(super) fn may_want_tls(&self) -> bool {
        let ends = [NO_HTTP2, "broken pipe", "connection reset", "connection closed", "Connection reset"];
        self.class == Class::Retry && ends.iter().any(|end| self.text.contains(end))
    }

    /// The error code that users see.
    pub(super) fn code(&self) -> Code {
        match self.class {
            Class::Retry | Class::OtherEndpoint | Class::Exhausted | Class::Broken => Code::Unavailable,
            Class::Authenticate | Class::AuthenticationOff | Class::Credentials => Code::Unauthenticated,
            Class::Denied => Code::PermissionDenied,
            Class::Compacted(_) => Code::Compacted,
            Class::Future => Code::FutureRevision,
            Class::TooLarge(_) => Code::ResourceExhausted,
            Class::Refused => Code::InvalidArgument,
            Class::Tls(code) => code,
            Class::Closed => Code::Closed,
        }
    }
}

/// Explains a symptom reported by the layers below gRPC; `None` if their text is clear enough.
fn explain(text: &str) -> Option<String> {
    const NO_GRPC: &str = "the answer is not gRPC";
    if let Some((_, flag)) = text.split_once("invalid compression flag: ") {
        // The first byte of an HTML page is mistaken for the compression flag of a gRPC message.
        let page = if first_number(flag) == u64::from(b'<') { ": it is an HTML page" } else { "" };
        return Some(format!("{NO_GRPC}{page}. A gateway or a web server answered in etcd's place"));
    }
    if let Some((_, status)) = text.split_once("grpc-status header missing, mapped from HTTP status code ") {
        let status = first_number(status);
        return Some(format!(
            "{NO_GRPC}, but HTTP status {status}. A gateway or a web server answered in etcd's place"
        ));
    }
    // In h2's texts, "detected" is an error that this end found, "received" one that the server sent.
    if let Some((_, reason)) = text.split_once("connection error detected: ") {
        if reason.contains(NO_HTTP2) {
            return Some(format!("the server does not speak HTTP/2 on this port ({reason})"));
        }
        return Some(format!("this client's HTTP/2 layer ended the connection, not the server: {reason}"));
    }
    None
}

/// h2's text for bytes that are no HTTP/2 frame, such as a TLS alert or an HTTP/1 answer.
const NO_HTTP2: &str = "frame with invalid size";

impl From<Violation> for Failure {
    fn from(violation: Violation) -> Failure {
        let text = format!("the server broke a rule of etcd's API: {violation}");
        Failure::new(Class::Broken, text).of_kind(violation.what)
    }
}

/// Classifies a gRPC code and message. The message decides first: etcd uses the codes loosely, and refuses a watch by
/// a text only.
fn class_of(code: i32, message: &str) -> Class {
    let says = |text: &str| message.contains(text);
    if says("message length too large") || says("message larger than max") {
        return Class::TooLarge(first_number(message));
    }
    if says("no leader") || says("not supported for learner") || says("server is stopping") {
        return Class::OtherEndpoint;
    }
    if says("required revision has been compacted") {
        return Class::Compacted(0);
    }
    if says("required revision is a future revision") {
        return Class::Future;
    }
    if says("authentication is not enabled") {
        return Class::AuthenticationOff;
    }
    if says("invalid user ID or password") || says("user name is empty") || says("user name not found") {
        return Class::Credentials;
    }
    if says("invalid auth token") || says("revision of auth store is old") {
        return Class::Authenticate;
    }
    if says("permission denied") || code == PERMISSION_DENIED {
        return Class::Denied;
    }
    // etcd itself names the exhausted resource, and the length of an answer is never one.
    if code == RESOURCE_EXHAUSTED && !says("etcdserver: ") {
        return Class::Exhausted;
    }
    if code == UNAUTHENTICATED { Class::Authenticate } else { Class::Retry }
}

fn first_number(text: &str) -> u64 {
    let digits = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcd_s_messages_have_their_classes() {
        for (code, message, class) in [
            (14, "etcdserver: no leader", Class::OtherEndpoint),
            (14, "etcdserver: rpc not supported for learner", Class::OtherEndpoint),
            (11, "etcdserver: mvcc: required revision has been compacted", Class::Compacted(0)),
            (11, "etcdserver: mvcc: required revision is a future revision", Class::Future),
            (16, "etcdserver: invalid auth token", Class::Authenticate),
            (16, "whatever a proxy says", Class::Authenticate),
            (3, "etcdserver: revision of auth store is old", Class::Authenticate),
            (3, "etcdserver: authentication failed, invalid user ID or password", Class::Credentials),
            (3, "etcdserver: user name is empty", Class::Credentials),
            (9, "etcdserver: authentication is not enabled", Class::AuthenticationOff),
            (7, "etcdserver: permission denied", Class::Denied),
            (2, "transport error", Class::Retry),
            (14, "etcdserver: request timed out", Class::Retry),
            (8, "etcdserver: too many requests", Class::Retry),
            (8, "response exceeds the limit of the gateway", Class::Exhausted),
            (8, "", Class::Exhausted),
        ] {
            assert_eq!(class_of(code, message), class, "{code} {message}");
        }
    }

    #[test]
    fn a_long_message_tells_its_length() {
        let limit = "Error, decoded message length too large: found 5242890 bytes, the limit is: 4194304 bytes";
        assert_eq!(class_of(11, limit), Class::TooLarge(5_242_890));
        let server = "trying to send message larger than max (3000000000 vs. 2147483647)";
        assert_eq!(class_of(8, server), Class::TooLarge(3_000_000_000));
        let proxy = "grpc: received message larger than max (2100036 vs. 1048576)";
        assert_eq!(class_of(8, proxy), Class::TooLarge(2_100_036));
    }

    #[test]
    fn a_watch_is_refused_in_words() {
        assert_eq!(Failure::of_cancel(17, "").class, Class::Compacted(17));
        assert_eq!(Failure::of_cancel(0, "etcdserver: permission denied").class, Class::Denied);
        assert_eq!(Failure::of_cancel(0, "etcdserver: invalid auth token").class, Class::Authenticate);
        assert_eq!(Failure::of_cancel(0, "").class, Class::Retry);
        assert!(Failure::of_cancel(17, "").text().contains("17"));
    }

    #[test]
    fn server_s_words_are_clean() {
        let forged = "\u{1b}[2Jbye\n2026-01-01 ERROR forged";
        let long = "x".repeat(20_000);
        let status = |text: &str| Failure::of(&ClientError::GRpcStatus(tonic::Status::unavailable(text)));
        let refusal = Refusal { code: Code::Unavailable, text: forged.to_owned(), kind: None };
        for failure in [
            Failure::of_cancel(0, forged),
            Failure::of_cancel(0, &long),
            status(forged),
            status(&long),
            Failure::new(Class::Retry, "").with_tls_cause(Some(refusal)),
        ] {
            assert!(!failure.text().chars().any(char::is_control) && failure.text().len() < 1100, "{failure:?}");
        }
    }

    #[test]
    fn symptoms_are_called_by_their_cause() {
        let of = |text: &str| Failure::of(&ClientError::GRpcStatus(tonic::Status::internal(text))).text().to_owned();
        let flag = "protocol error: received message with invalid compression flag: 60 (valid flags are 0 and 1) while receiving response with status: 200 OK";
        assert!(of(flag).contains("an HTML page"), "{}", of(flag));
        assert!(!of(&flag.replace("60", "72")).contains("HTML"));
        let gateway = of("grpc-status header missing, mapped from HTTP status code 502");
        assert!(gateway.contains("HTTP status 502") && gateway.contains("gateway"), "{gateway}");
        let ours = of("h2 protocol error: http2 error: connection error detected: detected excessive load (b\"x\")");
        assert!(ours.contains("this client's HTTP/2 layer") && ours.contains("not the server"), "{ours}");
        let theirs = "h2 protocol error: http2 error: connection error received: not a result of an error";
        assert_eq!(of(theirs), theirs);
    }

    #[test]
    fn codes_for_users() {
        let code = |class| Failure::new(class, "").code();
        assert_eq!(code(Class::Denied), Code::PermissionDenied);
        assert_eq!(code(Class::Credentials), Code::Unauthenticated);
        assert_eq!(code(Class::Retry), Code::Unavailable);
        assert_eq!(code(Class::Broken), Code::Unavailable, "nothing that a user has to correct");
        assert_eq!(code(Class::Compacted(3)), Code::Compacted);
        assert_eq!(code(Class::TooLarge(1)), Code::ResourceExhausted);
    }
}
