//! What an error of etcd means for the feeder: the classes, and the text for people.

use super::integrity::Violation;
use super::server_text;
use super::tls::Refusal;
use etcd_client::Error as ClientError;
use std::error::Error as _;
use watchcore::Code;

/// What to do about a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// Try again, with backoff.
    Retry,
    /// This member cannot serve now, others may: the next endpoint, at once.
    OtherEndpoint,
    /// The token is no longer good: authenticate again.
    Authenticate,
    /// Authentication is off in etcd: continue without a user.
    AuthenticationOff,
    /// Name or password are wrong.
    Credentials,
    /// The user may not read the range.
    Denied,
    /// The revision asked for is gone; the number is the revision that etcd is compacted at, 0 if
    /// unknown. The state at it can still be read.
    Compacted(u64),
    /// The revision asked for has not happened.
    Future,
    /// A message is longer than the limit of one side; the number is its length, 0 if unknown.
    TooLarge(u64),
    /// A proxy or server is out of something that it does not name. A shorter answer may pass; otherwise it is
    /// tried again, with backoff.
    Exhausted,
    /// An endpoint, or a limit of the cache: only the user can mend it.
    Refused,
    /// The server broke a rule of etcd's API ([`Violation`]): what it says is not believed. A listing replaces what came,
    /// and an endpoint that does it again is left.
    Broken,
    /// A certificate, or TLS otherwise: only a person can mend it, and other endpoints may be well. The code is what
    /// users see.
    Tls(Code),
    /// The cache was closed: nothing is left to do.
    Closed,
}

/// A failed call: its class, and what happened in words (never with a password in it).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    pub(super) class: Class,
    /// Clean: [`Failure::new`] alone sets it.
    text: String,
    /// What it is, where the text has figures of the moment in it.
    pub(super) kind: Option<&'static str>,
}

/// What the transport calls each of its failures.
const TRANSPORT: &str = "transport error";

// The codes of gRPC that are looked at.
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const UNAUTHENTICATED: i32 = 16;

impl Failure {
    /// The text may hold what a server wrote: it is cleaned here, for every failure.
    pub(super) fn new(class: Class, text: impl AsRef<str>) -> Failure {
        Failure { class, text: server_text::clean(text.as_ref()), kind: None }
    }

    /// The same, with what it is where the text has figures of the moment in it.
    pub(super) fn of_kind(self, kind: &'static str) -> Failure {
        Failure { kind: Some(kind), ..self }
    }

    /// What happened, in one line without control characters.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// A call that did not come back in time.
    pub(super) fn timeout(what: &'static str, seconds: f64) -> Failure {
        let failure = Failure::new(Class::Retry, format!("{what} did not answer within {seconds:.1} s"));
        Failure { kind: Some(what), ..failure }
    }

    /// A call that failed.
    pub(super) fn of(error: &ClientError) -> Failure {
        match error {
            ClientError::GRpcStatus(status) => {
                let class = class_of(status.code() as i32, status.message());
                // Its causes say what it was.
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
                Failure::new(class, explained(&text).unwrap_or(text))
            }
            ClientError::InvalidArgs(_) | ClientError::InvalidUri(_) | ClientError::InvalidMetadataValue(_) => {
                Failure::new(Class::Refused, error.to_string())
            }
            ClientError::TransportError(cause) => {
                // Calls fail with a status; this one comes from building the endpoint.
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

    /// A watch that the server ended by a message on the stream.
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

    /// What TLS says of it, where that is its cause.
    pub(super) fn explained(self, refusal: Option<Refusal>) -> Failure {
        match (self.class, refusal) {
            // What etcd itself answered came over a connection that TLS let through.
            (Class::Retry | Class::Refused | Class::OtherEndpoint, Some(refusal)) => {
                Failure { kind: refusal.kind, ..Failure::new(Class::Tls(refusal.code), refusal.text) }
            }
            _ => self,
        }
    }

    /// Whether it may be how a port that speaks TLS alone ends a connection without TLS: by an alert, which is no frame of
    /// HTTP/2, or by closing the connection, of which this end learns as it writes or as it reads.
    pub(super) fn may_want_tls(&self) -> bool {
        let ends = [NO_HTTP2, "broken pipe", "connection reset", "connection closed", "Connection reset"];
        self.class == Class::Retry && ends.iter().any(|end| self.text.contains(end))
    }

    /// The error code for users.
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

/// In words, what the layers below gRPC call by the symptom that they see; `None` where their text says it.
fn explained(text: &str) -> Option<String> {
    const NO_GRPC: &str = "the answer is not gRPC";
    if let Some((_, flag)) = text.split_once("invalid compression flag: ") {
        // The first byte of an answer that is a page is taken for the flag that begins a message of gRPC.
        let page = if first_number(flag) == u64::from(b'<') { ": it is an HTML page" } else { "" };
        return Some(format!("{NO_GRPC}{page}. A gateway or a web server answered in etcd's place"));
    }
    if let Some((_, status)) = text.split_once("grpc-status header missing, mapped from HTTP status code ") {
        let status = first_number(status);
        return Some(format!(
            "{NO_GRPC}, but HTTP status {status}. A gateway or a web server answered in etcd's place"
        ));
    }
    // "Detected" is an error that this end of the connection found, "received" one that the server named.
    if let Some((_, reason)) = text.split_once("connection error detected: ") {
        if reason.contains(NO_HTTP2) {
            return Some(format!("the server does not speak HTTP/2 on this port ({reason})"));
        }
        return Some(format!("this client's HTTP/2 layer ended the connection, not the server: {reason}"));
    }
    None
}

/// How HTTP/2 takes bytes that are none of its frames, such as an alert of TLS or an answer in HTTP/1.
const NO_HTTP2: &str = "frame with invalid size";

impl From<Violation> for Failure {
    fn from(violation: Violation) -> Failure {
        let text = format!("the server broke a rule of etcd's API: {violation}");
        Failure::new(Class::Broken, text).of_kind(violation.what)
    }
}

/// The class of a gRPC code and message. The message goes first: etcd uses the codes loosely, and a
/// watch is refused in words only.
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
    // etcd says what it is out of, and no length of an answer is among it.
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
            Failure::new(Class::Retry, "").explained(Some(refusal)),
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
