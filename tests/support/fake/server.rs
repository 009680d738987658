//! gRPC by hand: HTTP/2 with a frame of five bytes before each message, and the status in the trailers.

use super::faults::{self, Fault};
use super::{State, World};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use etcd_client::proto::{PbKeyValue, PbRangeResponse, PbRangeStreamResponse, PbStatusResponse, PbWatchResponse};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// The requests. Those of the client are hidden where it builds no server.
#[derive(Clone, Message)]
struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    limit: i64,
    #[prost(int64, tag = "4")]
    revision: i64,
    #[prost(bool, tag = "8")]
    keys_only: bool,
    #[prost(bool, tag = "9")]
    count_only: bool,
    #[prost(int64, tag = "10")]
    min_mod_revision: i64,
}

#[derive(Clone, Message)]
struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    create: Option<WatchCreateRequest>,
    #[prost(message, optional, tag = "2")]
    cancel: Option<Empty>,
    #[prost(message, optional, tag = "3")]
    progress: Option<Empty>,
}

#[derive(Clone, Message)]
struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    start_revision: i64,
}

#[derive(Clone, Message)]
struct Empty {}

/// A gRPC status: its code, and its text.
type Refusal = (u32, &'static str);
const COMPACTED: Refusal = (11, "etcdserver: mvcc: required revision has been compacted");
const FUTURE: Refusal = (11, "etcdserver: mvcc: required revision is a future revision");
const UNIMPLEMENTED: Refusal = (12, "unknown method");

const PAGE: &[u8] = b"<html><head><title>An error</title></head><body>There is no such page.</body></html>";

/// The caller has gone.
struct Gone;

impl<T: std::error::Error> From<T> for Gone {
    fn from(_: T) -> Gone {
        Gone
    }
}

pub(super) async fn serve(listener: TcpListener, world: Arc<World>) {
    while let Ok((socket, _)) = listener.accept().await {
        let _ = socket.set_nodelay(true);
        let mut cuts = world.cuts.subscribe();
        let connection = connection(socket, world.clone());
        tokio::spawn(async move {
            tokio::select! {
                _ = connection => {}
                _ = cuts.changed() => {}
            }
        });
    }
}

async fn connection(socket: TcpStream, world: Arc<World>) -> Result<(), Gone> {
    let mut connection = h2::server::handshake(socket).await?;
    let mut calls = tokio::task::JoinSet::new();
    while let Some(accepted) = connection.accept().await {
        let (request, respond) = accepted?;
        calls.spawn(call(request, respond, world.clone()));
    }
    Ok(())
}

async fn call(request: Request<RecvStream>, mut respond: SendResponse<Bytes>, world: Arc<World>) -> Result<(), Gone> {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let html = {
        let mut state = world.state();
        *state.calls.entry(method.clone()).or_default() += 1;
        let pages = [(Fault::GatewayPage, 502), (Fault::WebPage, 200)];
        pages.into_iter().find(|(fault, _)| state.uses(*fault))
    };
    if let Some((_, status)) = html {
        let head = Response::builder().status(status).header("content-type", "text/html").body(())?;
        respond.send_response(head, false)?.send_data(Bytes::from_static(PAGE), true)?;
        return Ok(());
    }
    let mut requests = Requests { body: request.into_body(), buffer: BytesMut::new() };
    let mut answer = Answer { world: world.clone(), method: method.clone(), respond, stream: None, is_slow: false };
    match method.as_str() {
        "Status" => {
            let status = {
                let header = Some(world.state().header());
                PbStatusResponse {
                    header,
                    version: "3.7.3".to_owned(),
                    leader: 7,
                    raft_term: 2,
                    ..PbStatusResponse::default()
                }
            };
            answer.message(&status).await?;
            answer.end(Ok(()))
        }
        "Range" => {
            let Some(request) = requests.next::<RangeRequest>().await? else { return Ok(()) };
            let page = page(&mut world.state(), &request);
            match page {
                Ok(page) => {
                    answer.message(&page).await?;
                    answer.end(Ok(()))
                }
                Err(refusal) => answer.end(Err(refusal)),
            }
        }
        "RangeStream" => {
            let Some(request) = requests.next::<RangeRequest>().await? else { return Ok(()) };
            let end = stream(&world, &request, &mut answer).await?;
            answer.end(end)
        }
        "Watch" => {
            world.change(|state| state.watches += 1);
            let end = watch(&world, &mut requests, &mut answer).await;
            world.change(|state| state.watches -= 1);
            end
        }
        _ => answer.end(Err(UNIMPLEMENTED)),
    }
}

/// The messages of a caller.
struct Requests {
    body: RecvStream,
    buffer: BytesMut,
}

impl Requests {
    async fn next<M: Message + Default>(&mut self) -> Result<Option<M>, Gone> {
        loop {
            if self.buffer.len() >= 5 {
                let length = u32::from_be_bytes(self.buffer[1..5].try_into()?) as usize;
                if self.buffer.len() >= 5 + length {
                    self.buffer.advance(5);
                    return Ok(Some(M::decode(self.buffer.split_to(length))?));
                }
            }
            let Some(data) = self.body.data().await else { return Ok(None) };
            let data = data?;
            self.body.flow_control().release_capacity(data.len())?;
            self.buffer.extend_from_slice(&data);
        }
    }
}

/// What a caller gets.
struct Answer {
    world: Arc<World>,
    method: String,
    respond: SendResponse<Bytes>,
    stream: Option<SendStream<Bytes>>,
    is_slow: bool,
}

impl Answer {
    fn head() -> Response<()> {
        Response::builder().header("content-type", "application/grpc").body(()).expect("a head")
    }

    /// Sends a message, as fast as the caller takes it.
    async fn message(&mut self, message: &impl Message) -> Result<(), Gone> {
        let message = faults::encoded(&mut self.world.state(), message, &self.method);
        let mut frame = BytesMut::with_capacity(5 + message.len());
        frame.put_u8(0);
        frame.put_u32(message.len() as u32);
        frame.extend_from_slice(&message);
        let mut frame = frame.freeze();
        if self.stream.is_none() {
            self.stream = Some(self.respond.send_response(Answer::head(), false)?);
        }
        let stream = self.stream.as_mut().expect("set above");
        while !frame.is_empty() {
            let piece = if self.is_slow { 1000.min(frame.len()) } else { frame.len() };
            stream.reserve_capacity(piece);
            let capacity = std::future::poll_fn(|context| stream.poll_capacity(context)).await.ok_or(Gone)??;
            stream.send_data(frame.split_to(capacity.min(piece)), false)?;
            if self.is_slow {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        Ok(())
    }

    fn end(mut self, end: Result<(), Refusal>) -> Result<(), Gone> {
        let (code, text) = end.err().unwrap_or((0, ""));
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", code.to_string().parse()?);
        trailers.insert("grpc-message", text.parse()?);
        match &mut self.stream {
            Some(stream) => stream.send_trailers(trailers)?,
            None => {
                let mut head = Answer::head();
                head.headers_mut().extend(trailers);
                self.respond.send_response(head, true)?;
            }
        }
        Ok(())
    }
}

/// The answer to Range.
fn page(state: &mut State, request: &RangeRequest) -> Result<PbRangeResponse, Refusal> {
    let mut header = state.header();
    if state.uses(Fault::LargeRevision) {
        header.revision = 1 << 52;
    }
    let newest = state.store.revision();
    if request.revision > newest && request.revision < 1 << 52 {
        state.waits += 1;
        return Err(FUTURE);
    }
    let is_compacted = request.revision > 0 && request.revision < state.store.compacted();
    if is_compacted || request.revision > 0 && state.uses(Fault::CompactedReads) {
        return Err(COMPACTED);
    }
    let at = if request.revision > 0 { request.revision.min(newest) } else { newest };
    let mut kvs = state.store.range(&request.key, &request.range_end, at);
    let mut response = PbRangeResponse { header: Some(header), count: kvs.len() as i64, ..PbRangeResponse::default() };
    if request.count_only {
        return Ok(response);
    }
    kvs.retain(|kv| kv.mod_revision >= request.min_mod_revision);
    if request.limit > 0 && kvs.len() > request.limit as usize {
        kvs.truncate(request.limit as usize);
        response.more = true;
    }
    if request.keys_only {
        kvs.iter_mut().for_each(|kv| kv.value.clear());
    }
    response.kvs = kvs;
    // A listing; other reads ask for one key, or for keys alone.
    if !request.keys_only && is_range(request) {
        if state.uses(Fault::EndlessPages) {
            response.kvs = state.store.range(b"\0", b"\0", at);
            (response.more, response.count) = (true, i64::MAX);
        }
        let count = response.kvs.len();
        faults::answer(state, &mut response);
        response.count += (response.kvs.len() - count) as i64;
    }
    Ok(response)
}

/// Whether more than one key is asked for.
fn is_range(request: &RangeRequest) -> bool {
    !request.range_end.is_empty()
}

/// The answer to RangeStream: so many keys a message, the header in the last one.
async fn stream(world: &World, request: &RangeRequest, answer: &mut Answer) -> Result<Result<(), Refusal>, Gone> {
    const KEYS: usize = 100;
    let (page, fault) = {
        let mut state = world.state();
        if state.uses(Fault::NoStreams) {
            return Ok(Err(UNIMPLEMENTED));
        }
        answer.is_slow = state.uses(Fault::Slow);
        let faults = [Fault::EndlessStream, Fault::RepeatingStream, Fault::RisingStream, Fault::CompactedStreams];
        (page(&mut state, request), faults.into_iter().find(|fault| state.uses(*fault)))
    };
    let mut page = match page {
        Ok(page) => page,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let message = |kvs| PbRangeStreamResponse { range_response: Some(PbRangeResponse { kvs, ..Default::default() }) };
    let last = page.kvs.last().cloned().unwrap_or_default();
    while page.kvs.len() > KEYS || fault.is_some() && !page.kvs.is_empty() {
        let rest = page.kvs.split_off(KEYS.min(page.kvs.len()));
        answer.message(&message(std::mem::replace(&mut page.kvs, rest))).await?;
    }
    match fault {
        None => {
            answer.message(&PbRangeStreamResponse { range_response: Some(page) }).await?;
            return Ok(Ok(()));
        }
        Some(Fault::CompactedStreams) => return Ok(Err(COMPACTED)),
        Some(Fault::EndlessStream) => loop {
            answer.message(&message(Vec::new())).await?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        },
        Some(Fault::RepeatingStream) => loop {
            let value = vec![b'v'; 1 << 20];
            answer.message(&message(vec![PbKeyValue { value, ..last.clone() }])).await?;
        },
        Some(_) => {
            for number in 0.. {
                let key = [&last.key[..], format!("{number:020}").as_bytes()].concat();
                answer.message(&message(vec![PbKeyValue { key, ..last.clone() }])).await?;
            }
        }
    }
    Ok(Ok(()))
}

/// One watch on its stream, and the next revision that it delivers.
struct Watcher {
    key: Vec<u8>,
    end: Vec<u8>,
    next: i64,
    /// Whose events these are.
    history: u64,
    /// How many messages of the test's own it has had.
    sent: usize,
}

async fn watch(world: &World, requests: &mut Requests, answer: &mut Answer) -> Result<(), Gone> {
    let mut changed = world.changed.subscribe();
    let mut watcher: Option<Watcher> = None;
    loop {
        changed.borrow_and_update();
        if let Some(watcher) = &mut watcher {
            let messages = news(&mut world.state(), watcher, answer)?;
            for message in messages {
                answer.message(&message).await?;
            }
        }
        tokio::select! {
            request = requests.next::<WatchRequest>() => {
                let Some(request) = request? else { return Ok(()) };
                // Under one lock: progress to a revision comes behind the events of that revision.
                let messages = {
                    let mut state = world.state();
                    let mut messages = match &mut watcher {
                        Some(watcher) => news(&mut state, watcher, answer)?,
                        None => Vec::new(),
                    };
                    messages.extend(asked(&mut state, request, &mut watcher));
                    messages
                };
                for message in messages {
                    answer.message(&message).await?;
                }
            }
            change = changed.changed() => change?,
        }
    }
}

/// The messages that a change of the state makes. A watch of a history that was replaced ends.
fn news(state: &mut State, watcher: &mut Watcher, answer: &mut Answer) -> Result<Vec<PbWatchResponse>, Gone> {
    if watcher.history != state.history {
        return Err(Gone);
    }
    let mut messages = Vec::new();
    let events = state.store.events(&watcher.key, &watcher.end, watcher.next);
    if !events.is_empty() && !state.faults.contains_key(&Fault::OldProgress) {
        answer.is_slow = state.uses(Fault::Slow);
        watcher.next = state.store.revision() + 1;
        let message = PbWatchResponse { header: Some(state.header()), events, ..PbWatchResponse::default() };
        messages = faults::messages(state, message);
    }
    messages.extend_from_slice(&state.sent[watcher.sent..]);
    watcher.sent = state.sent.len();
    Ok(messages)
}

/// The messages that answer a request.
fn asked(state: &mut State, request: WatchRequest, watcher: &mut Option<Watcher>) -> Vec<PbWatchResponse> {
    let mut header = state.header();
    if let Some(create) = request.create {
        let created = PbWatchResponse { header: Some(header), created: true, ..PbWatchResponse::default() };
        let compacted = state.store.compacted();
        let newest = state.store.revision();
        let is_compacted = create.start_revision > 0 && create.start_revision < compacted;
        if is_compacted || state.uses(Fault::CompactedWatches) {
            let compact_revision = if is_compacted { compacted } else { newest };
            let canceled = PbWatchResponse { canceled: true, created: false, compact_revision, ..created.clone() };
            return vec![created, canceled];
        }
        let next = if create.start_revision > 0 { create.start_revision } else { newest + 1 };
        *watcher = Some(Watcher {
            key: create.key,
            end: create.range_end,
            next,
            history: state.history,
            sent: state.sent.len(),
        });
        state.waits += 1;
        return vec![created];
    }
    if request.progress.is_some() && watcher.is_some() && !state.uses(Fault::NoProgress) {
        if state.uses(Fault::OldProgress) {
            header.revision = state.faulty_since;
        }
        return vec![PbWatchResponse { header: Some(header), watch_id: -1, ..PbWatchResponse::default() }];
    }
    Vec::new()
}
