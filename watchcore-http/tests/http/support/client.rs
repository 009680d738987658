//! An HTTP/1.1 client that exposes raw details: heads and chunks as they arrived, and whether the connection is still
//! open.

use super::{BOUND, within};
use serde_json::Value;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One connection.
pub(crate) struct Client {
    stream: TcpStream,
    /// Bytes that were read and not used yet.
    unread: Vec<u8>,
    closed: bool,
}

/// The head of a response.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) code: u16,
    /// Names in lower case, in the order of arrival.
    pub(crate) headers: Vec<(String, String)>,
    /// The raw head with its final empty line.
    pub(crate) text: String,
}

/// A whole response.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
}

impl Head {
    /// Returns a header by its lower-case name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(there, _)| there == name).map(|(_, value)| value.as_str())
    }

    /// Whether the body is chunked.
    pub(crate) fn is_chunked(&self) -> bool {
        self.header("transfer-encoding") == Some("chunked")
    }
}

impl Answer {
    pub(crate) fn code(&self) -> u16 {
        self.head.code
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("a body of text")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("no JSON ({error}): {:?}", self.text()))
    }

    /// Checks that the body is a Status, and returns its code and reason.
    pub(crate) fn status(&self) -> (u16, String) {
        let status = self.json();
        assert_eq!(status["kind"], "Status", "{status}");
        assert_eq!(status["apiVersion"], "v1", "{status}");
        assert_eq!(status["status"], "Failure", "{status}");
        assert_eq!(status["code"], self.code(), "{status}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        (self.code(), text_of(&status["reason"]))
    }

    /// Returns the message of the Status.
    pub(crate) fn message(&self) -> String {
        text_of(&self.json()["message"])
    }

    /// Returns the names of a list's items, with their namespaces: `shop/a`, or `n1`.
    pub(crate) fn names(&self) -> Vec<String> {
        let list = self.json();
        assert_eq!(self.code(), 200, "{list}");
        list["items"].as_array().unwrap_or_else(|| panic!("no items: {list}")).iter().map(name_of).collect()
    }
}

/// Returns `namespace/name` of an object, or its name.
pub(crate) fn name_of(object: &Value) -> String {
    let name = text_of(&object["metadata"]["name"]);
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name,
    }
}

/// Returns a JSON string as text.
pub(crate) fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no string: {value}")).to_owned()
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Client {
        let stream = within("connect", TcpStream::connect(address)).await.expect("connects");
        stream.set_nodelay(true).expect("a socket");
        Client { stream, unread: Vec::new(), closed: false }
    }

    /// Sends raw bytes.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        within("send", self.stream.write_all(bytes.as_ref())).await.expect("is sent");
    }

    /// Sends raw bytes, and returns an error if the connection is closed.
    pub(crate) async fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        within("send", self.stream.write_all(bytes)).await
    }

    /// Sends the head of a request. Its Host is the address, unless the headers contain another.
    pub(crate) async fn request(&mut self, method: &str, target: &str, headers: &[(&str, &str)]) {
        let mut head = format!("{method} {target} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str(&format!("Host: {}\r\n", self.stream.peer_addr().expect("a peer")));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.send(head).await;
    }

    /// Reads once; `false` if the server has closed its side.
    async fn read(&mut self) -> bool {
        let mut bytes = vec![0; 64 << 10];
        // A reset connection counts as closed.
        let count = within("read", self.stream.read(&mut bytes)).await.unwrap_or_default();
        if count == 0 {
            self.closed = true;
            return false;
        }
        self.unread.extend_from_slice(&bytes[..count]);
        true
    }

    /// Returns the bytes up to and including `end`.
    async fn until(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.unread.windows(end.len()).position(|window| window == end) {
                return Some(self.unread.drain(..at + end.len()).collect());
            }
            if !self.read().await {
                return None;
            }
        }
    }

    async fn exactly(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.unread.len() < count {
            if !self.read().await {
                return None;
            }
        }
        Some(self.unread.drain(..count).collect())
    }

    /// Returns the head of the next response, ignoring informational ones; `None` if the connection is closed.
    pub(crate) async fn head(&mut self) -> Option<Head> {
        loop {
            let text = String::from_utf8(self.until(b"\r\n\r\n").await?).expect("a head of text");
            let mut lines = text.split("\r\n");
            let code = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok());
            let headers = lines
                .filter_map(|line| line.split_once(':'))
                .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
                .collect();
            let head = Head { code: code.unwrap_or_else(|| panic!("no head: {text:?}")), headers, text };
            if head.code >= 200 || head.code == 101 {
                return Some(head);
            }
        }
    }

    /// Returns the next chunk of a body, decoded; `None` after the last chunk, or if the connection was cut off, which
    /// [`Client::is_closed`] tells apart.
    pub(crate) async fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = self.until(b"\r\n").await?;
        let size = std::str::from_utf8(&line[..line.len() - 2]).expect("a size");
        let size = usize::from_str_radix(size, 16).unwrap_or_else(|_| panic!("no size of a chunk: {size:?}"));
        let mut bytes = self.exactly(size + 2).await?;
        assert!(bytes.ends_with(b"\r\n"), "a chunk longer than it says");
        bytes.truncate(size);
        (size > 0).then_some(bytes)
    }

    /// Returns the whole body after a head. Fails the test if the body is cut off.
    pub(crate) async fn body(&mut self, head: &Head) -> Vec<u8> {
        if head.is_chunked() {
            let mut body = Vec::new();
            while let Some(chunk) = self.chunk().await {
                body.extend(chunk);
            }
            assert!(!self.closed, "a body that was cut off behind {} bytes", body.len());
            return body;
        }
        match head.header("content-length") {
            Some(length) => {
                let length = length.parse().expect("a length");
                self.exactly(length).await.expect("a whole body")
            }
            None => {
                while self.read().await {}
                std::mem::take(&mut self.unread)
            }
        }
    }

    /// Sends a request on this connection, and returns the whole response.
    pub(crate) async fn answer(&mut self, method: &str, target: &str, headers: &[(&str, &str)]) -> Answer {
        self.request(method, target, headers).await;
        let head = self.head().await.expect("an answer");
        let empty = method == "HEAD" || head.code == 204 || head.code == 304;
        let body = if empty { Vec::new() } else { self.body(&head).await };
        Answer { head, body }
    }
    /// Whether the server was seen to close the connection.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Waits until the server closes, and returns what it still sent.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        while self.read().await {}
        std::mem::take(&mut self.unread)
    }

    /// Returns the socket, and what was read ahead from it.
    pub(crate) fn into_stream(self) -> (TcpStream, Vec<u8>) {
        (self.stream, self.unread)
    }
}

/// Sends one GET on a new connection.
pub(crate) async fn get(address: SocketAddr, target: &str) -> Answer {
    request(address, "GET", target, &[]).await
}

/// Sends one request on a new connection.
pub(crate) async fn request(address: SocketAddr, method: &str, target: &str, headers: &[(&str, &str)]) -> Answer {
    Client::connect(address).await.answer(method, target, headers).await
}

/// A watch: the lines of a chunked response.
pub(crate) struct Watching {
    pub(crate) client: Client,
    pub(crate) head: Head,
    /// Bytes of chunks that are not a complete line yet.
    unread: Vec<u8>,
    /// The length of each chunk so far.
    pub(crate) chunks: Vec<usize>,
}

impl Watching {
    /// Opens a watch on a new connection, and waits for its head. Fails unless the answer is 200.
    pub(crate) async fn open(address: SocketAddr, target: &str) -> Watching {
        Watching::open_with(address, target, &[]).await
    }

    /// Like [`open`](Self::open), with headers.
    pub(crate) async fn open_with(address: SocketAddr, target: &str, headers: &[(&str, &str)]) -> Watching {
        let mut client = Client::connect(address).await;
        client.request("GET", target, headers).await;
        let head = client.head().await.expect("an answer");
        if head.code != 200 {
            let body = client.body(&head).await;
            panic!("{target}: {} {}", head.code, String::from_utf8_lossy(&body));
        }
        Watching::over(client, head)
    }

    /// Continues a watch whose head was read.
    pub(crate) fn over(client: Client, head: Head) -> Watching {
        Watching { client, head, unread: Vec::new(), chunks: Vec::new() }
    }

    /// Returns the next line with its line feed, without keep-alive bytes; `None` if the stream has ended.
    pub(crate) async fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            let blanks = self.unread.iter().take_while(|byte| **byte == b' ').count();
            self.unread.drain(..blanks);
            if let Some(at) = self.unread.iter().position(|b| *b == b'\n') {
                return Some(self.unread.drain(..=at).collect());
            }
            match self.client.chunk().await {
                Some(chunk) => {
                    self.chunks.push(chunk.len());
                    self.unread.extend(chunk);
                }
                None => {
                    assert!(self.unread.is_empty(), "the stream ends within a line: {:?}", self.unread);
                    return None;
                }
            }
        }
    }

    /// Returns the next event. Fails if the stream has ended, or the line is not an event.
    pub(crate) async fn event(&mut self) -> Value {
        let line = self.line().await.expect("an event, not the end");
        let event: Value = serde_json::from_slice(&line)
            .unwrap_or_else(|error| panic!("no event ({error}): {:?}", String::from_utf8_lossy(&line)));
        let members = event.as_object().expect("an object");
        assert!(members.len() == 2 && members.contains_key("type") && members.contains_key("object"), "{event}");
        event
    }

    /// Returns the next event as `TYPE namespace/name@revision`; a bookmark as `BOOKMARK @revision`, the mark at the
    /// end of the initial state as `END @revision`, an error as `ERROR code reason`.
    pub(crate) async fn next_event(&mut self) -> String {
        let event = self.event().await;
        let (kind, object) = (text_of(&event["type"]), &event["object"]);
        let revision = || text_of(&object["metadata"]["resourceVersion"]);
        match kind.as_str() {
            "ERROR" => format!("ERROR {} {}", object["code"], text_of(&object["reason"])),
            "BOOKMARK" if object["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true" => {
                format!("END @{}", revision())
            }
            "BOOKMARK" => format!("BOOKMARK @{}", revision()),
            kind => format!("{kind} {}@{}", name_of(object), revision()),
        }
    }

    /// Returns the next `count` events in this form.
    pub(crate) async fn next_events(&mut self, count: usize) -> Vec<String> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(self.next_event().await);
        }
        all
    }

    /// Waits for the clean end of the stream: the last chunk.
    pub(crate) async fn ended(&mut self) {
        if let Some(line) = self.line().await {
            panic!("not the end, but {}", String::from_utf8_lossy(&line));
        }
        assert!(!self.client.is_closed(), "the stream was cut off, within {BOUND:?}");
    }
}
