//! A TCP proxy that can cut, refuse, stall, forge, hold and swallow what passes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// Which messages of the server wait in the proxy.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Holds {
    #[default]
    None,
    /// Those of the first connection that was passed on.
    First,
    All,
}

#[derive(Default)]
struct State {
    stalled: bool,
    holds: Holds,
    connections: Vec<TcpStream>,
}

struct Shared {
    to: Mutex<SocketAddr>,
    /// Where all connections but the first go, if not there.
    others: Option<SocketAddr>,
    refuse: AtomicBool,
    over: AtomicBool,
    accepted: AtomicU64,
    forge: Option<(Vec<u8>, Vec<u8>)>,
    /// How often it may still forge.
    forgeries: AtomicU64,
    /// Messages of the server with these bytes in them do not pass, and are counted.
    swallow: Option<Vec<u8>>,
    swallows: AtomicBool,
    swallowed: AtomicU64,
    held: AtomicU64,
    /// Messages of clients on other connections than the first.
    asked: AtomicU64,
    /// How many bytes the server may still say before the connections stall.
    stalls_after: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

/// Listens on a loopback port of its own and passes bytes on, until it is set otherwise.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    pub(crate) fn to(to: SocketAddr) -> Proxy {
        Proxy::new(to, None, 0, None)
    }

    /// Passes the first connection on to `first`, and all others to `others`: an address behind which somebody
    /// exchanges the server.
    pub(crate) fn switching(first: SocketAddr, others: SocketAddr) -> Proxy {
        Proxy::listening(first, Some(others), None, 0, None)
    }

    /// Replaces `from` by `by` (of the same length) in what the server says.
    pub(crate) fn forging(to: SocketAddr, from: &str, by: &str) -> Proxy {
        assert_eq!(from.len(), by.len());
        Proxy::new(to, Some((from.into(), by.into())), u64::MAX, None)
    }

    /// The same, but only where `from` comes first.
    pub(crate) fn forging_once(to: SocketAddr, from: &[u8], by: &[u8]) -> Proxy {
        assert_eq!(from.len(), by.len());
        Proxy::new(to, Some((from.into(), by.into())), 1, None)
    }

    /// Once it is asked to, swallows messages of the server that contain `part`: a client that watches
    /// sees a stream that is whole, with events missing from it.
    pub(crate) fn swallowing(to: SocketAddr, part: &str) -> Proxy {
        Proxy::new(to, None, 0, Some(part.into()))
    }

    fn new(to: SocketAddr, forge: Option<(Vec<u8>, Vec<u8>)>, forgeries: u64, swallow: Option<Vec<u8>>) -> Proxy {
        Proxy::listening(to, None, forge, forgeries, swallow)
    }

    fn listening(
        to: SocketAddr,
        others: Option<SocketAddr>,
        forge: Option<(Vec<u8>, Vec<u8>)>,
        forgeries: u64,
        swallow: Option<Vec<u8>>,
    ) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared {
            to: Mutex::new(to),
            others,
            refuse: AtomicBool::new(false),
            over: AtomicBool::new(false),
            accepted: AtomicU64::new(0),
            forge,
            forgeries: AtomicU64::new(forgeries),
            swallow,
            swallows: AtomicBool::new(false),
            swallowed: AtomicU64::new(0),
            held: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            stalls_after: AtomicU64::new(u64::MAX),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let of_thread = shared.clone();
        thread::spawn(move || accept(&listener, &of_thread));
        Proxy { address, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many connections were passed on so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Cuts all connections; new ones are passed on.
    pub(crate) fn cut(&self) {
        let connections = std::mem::take(&mut self.shared.state.lock().unwrap().connections);
        for connection in connections {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Cuts the first connection of those that were not cut yet: of a feeder, that of its reads.
    pub(crate) fn cut_first(&self) {
        for connection in self.shared.state.lock().unwrap().connections.drain(..2) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Cuts, and closes new connections at once.
    pub(crate) fn refuse(&self) {
        self.shared.refuse.store(true, Ordering::SeqCst);
        self.cut();
    }

    pub(crate) fn allow(&self) {
        self.shared.refuse.store(false, Ordering::SeqCst);
    }

    /// Connections stay, nothing passes any more in either direction.
    pub(crate) fn stall(&self, stalled: bool) {
        self.shared.state.lock().unwrap().stalled = stalled;
        self.shared.changed.notify_all();
    }

    pub(crate) fn swallow(&self, swallows: bool) {
        self.shared.swallows.store(swallows, Ordering::SeqCst);
    }

    /// Messages of the server come as far as to here: what they answer has happened, and nobody knows
    /// it. Only for a proxy that swallows.
    pub(crate) fn hold(&self, holds: bool) {
        self.set_holds(if holds { Holds::All } else { Holds::None });
    }

    /// The same for the first connection only: of a feeder, that of its reads.
    pub(crate) fn hold_first(&self, holds: bool) {
        self.set_holds(if holds { Holds::First } else { Holds::None });
    }

    fn set_holds(&self, holds: Holds) {
        self.shared.state.lock().unwrap().holds = holds;
        self.shared.changed.notify_all();
    }

    /// How many messages were held so far.
    pub(crate) fn held(&self) -> u64 {
        self.shared.held.load(Ordering::SeqCst)
    }

    /// How many messages were swallowed so far.
    pub(crate) fn swallowed(&self) -> u64 {
        self.shared.swallowed.load(Ordering::SeqCst)
    }

    /// How many messages clients have sent on other connections than the first: of a feeder, what its
    /// watch was asked, to begin and each time for progress.
    pub(crate) fn asked(&self) -> u64 {
        self.shared.asked.load(Ordering::SeqCst)
    }

    /// Stalls when the server has said so many more bytes.
    pub(crate) fn stall_after(&self, bytes: u64) {
        self.shared.stalls_after.store(bytes, Ordering::SeqCst);
    }

    pub(crate) fn is_stalled(&self) -> bool {
        self.shared.state.lock().unwrap().stalled
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.refuse();
        self.stall(false);
        self.hold(false);
        // The listener looks up.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    /// True when so many bytes are the last that the server may say.
    fn spend(&self, bytes: u64) -> bool {
        let spend = |left: u64| (left < u64::MAX).then(|| left.checked_sub(bytes).unwrap_or(u64::MAX));
        let before = self.stalls_after.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend);
        before.is_ok_and(|before| before < bytes)
    }
}

/// The length of an HTTP/2 frame's header: 24 bits of length, type, flags, 32 bits of stream.
const FRAME_HEADER: usize = 9;

impl Shared {
    /// Takes the whole frames from the front of `held`, and gives those that pass.
    fn sieve(&self, held: &mut Vec<u8>, part: &[u8], is_first: bool) -> Vec<u8> {
        let mut passing = Vec::new();
        while held.len() >= FRAME_HEADER {
            let length = FRAME_HEADER + u32::from_be_bytes([0, held[0], held[1], held[2]]) as usize;
            if held.len() < length {
                break;
            }
            let frame: Vec<u8> = held.drain(..length).collect();
            let (header, message) = frame.split_at(FRAME_HEADER);
            // Data, not the last of its stream, and one gRPC message: 1 byte, 32 bits of length, the rest.
            let alone = header[3] == 0
                && header[4] == 0
                && message.len() >= 5
                && u32::from_be_bytes(message[1..5].try_into().unwrap()) as usize == message.len() - 5;
            let mut state = self.state.lock().unwrap();
            let holds = |state: &State| state.holds == Holds::All || state.holds == Holds::First && is_first;
            if alone && holds(&state) {
                self.held.fetch_add(1, Ordering::SeqCst);
                while holds(&state) {
                    state = self.changed.wait(state).unwrap();
                }
            }
            drop(state);
            let meant = || message.windows(part.len()).any(|window| window == part);
            if alone && self.swallows.load(Ordering::SeqCst) && meant() {
                self.swallowed.fetch_add(1, Ordering::SeqCst);
            } else {
                passing.extend(frame);
            }
        }
        passing
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.over.load(Ordering::SeqCst) {
            return;
        }
        let Ok(client) = client else { continue };
        if shared.refuse.load(Ordering::SeqCst) {
            let _ = client.shutdown(Shutdown::Both);
            continue;
        }
        let first = *shared.to.lock().unwrap();
        let to = if shared.accepted.load(Ordering::SeqCst) == 0 { first } else { shared.others.unwrap_or(first) };
        let Ok(server) = TcpStream::connect(to) else {
            let _ = client.shutdown(Shutdown::Both);
            continue;
        };
        let is_first = shared.accepted.fetch_add(1, Ordering::SeqCst) == 0;
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let pair = || Some((client.try_clone().ok()?, server.try_clone().ok()?));
        let (Some(up), Some(down), Some(held)) = (pair(), pair(), pair()) else { continue };
        {
            let mut state = shared.state.lock().unwrap();
            state.connections.extend([held.0, held.1]);
            // A thread that forbade it in between saw the list without these two.
            if shared.refuse.load(Ordering::SeqCst) {
                drop(state);
                let _ = client.shutdown(Shutdown::Both);
                continue;
            }
        }
        let (of_up, of_down) = (shared.clone(), shared.clone());
        thread::spawn(move || pass(up.0, up.1, &of_up, Side::Client { is_first }));
        thread::spawn(move || pass(down.1, down.0, &of_down, Side::Server { is_first }));
    }
}

/// Who speaks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// On the first connection, or on another.
    Client {
        is_first: bool,
    },
    Server {
        is_first: bool,
    },
}

/// What a client says when it opens a connection, before its frames: "PRI * HTTP/2.0" and so on.
const PREFACE: usize = 24;

/// Counts the frames of data that a client sends: each is a message, for those of a feeder are short.
struct Counted {
    /// Bytes to come of the preface, or of the frame that was counted last.
    skip: usize,
    header: Vec<u8>,
}

impl Counted {
    fn new() -> Counted {
        Counted { skip: PREFACE, header: Vec::new() }
    }

    fn take(&mut self, mut bytes: &[u8]) -> u64 {
        let mut count = 0;
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            (self.skip, bytes) = (self.skip - skipped, &bytes[skipped..]);
            let missing = (FRAME_HEADER - self.header.len()).min(bytes.len());
            self.header.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            if self.header.len() == FRAME_HEADER {
                self.skip = u32::from_be_bytes([0, self.header[0], self.header[1], self.header[2]]) as usize;
                // Data that is not empty: an empty frame ends a stream.
                count += u64::from(self.header[3] == 0 && self.skip > 0);
                self.header.clear();
            }
        }
        count
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, shared: &Shared, side: Side) {
    let from_server = matches!(side, Side::Server { .. });
    let mut counted = Counted::new();
    let mut buffer = vec![0; 64 << 10];
    let mut held = Vec::new();
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut state = shared.state.lock().unwrap();
        while state.stalled {
            state = shared.changed.wait(state).unwrap();
        }
        drop(state);
        let bytes = &mut buffer[..count];
        if let Some((old, new)) = shared.forge.as_ref().filter(|_| from_server) {
            while let Some(at) = bytes.windows(old.len()).position(|window| window == old)
                && shared.forgeries.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
            {
                bytes[at..at + new.len()].copy_from_slice(new);
            }
        }
        let written = match shared.swallow.as_ref().filter(|_| from_server) {
            Some(part) => {
                held.extend_from_slice(bytes);
                to.write_all(&shared.sieve(&mut held, part, side == Side::Server { is_first: true }))
            }
            None => to.write_all(bytes),
        };
        if written.is_err() {
            break;
        }
        // After they went on: the server has them.
        if side == (Side::Client { is_first: false }) {
            shared.asked.fetch_add(counted.take(&buffer[..count]), Ordering::SeqCst);
        }
        if from_server && shared.spend(count as u64) {
            shared.state.lock().unwrap().stalled = true;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
