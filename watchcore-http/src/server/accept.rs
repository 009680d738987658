//! Accepting connections, and shutting down all of them.

use super::connection::{self, Accepted};
use super::descriptors::SPARE;
use super::shared::{CUT, Shared};
use crate::clients::{Activity, ClientId};
use crate::counters::Reason;
use socket2::{SockRef, TcpKeepalive};
use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, Sleep};

/// How long accepting pauses when the system cannot provide another connection.
const PAUSE: Duration = Duration::from_millis(100);

/// TCP keepalive: a client that vanished silently is detected within two minutes while nothing is sent to it.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(20)).with_retries(3);

/// Most unsent bytes that the kernel buffers per client. By default it buffers megabytes for a client that never reads,
/// and the limit for all sockets is shared.
const MAX_UNSENT: u32 = 128 << 10;

/// Accepts connections until told to stop, then shuts down the existing ones.
pub(super) async fn run(listener: TcpListener, shared: Arc<Shared>, mut stopped: oneshot::Receiver<Duration>) {
    let mut connections = JoinSet::new();
    let mut acceptor = Acceptor::default();
    let grace = {
        let mut looking = std::pin::pin!(shared.clock.run());
        loop {
            tokio::select! {
                biased;
                grace = &mut stopped => break grace.unwrap_or_default(),
                Some(ended) = connections.join_next() => log_panic(ended),
                () = pause_ended(&mut acceptor.pause) => acceptor.pause = None,
                // Polled before the listener, which under load is always ready, so that the clock can cut off
                // connections.
                () = &mut looking => {}
                accepted = listener.accept(), if acceptor.pause.is_none() => match accepted {
                    Ok((stream, address)) => acceptor.connect(stream, address, &shared, &mut connections),
                    Err(error) => acceptor.failed(&error, &shared),
                },
            }
        }
    };
    drop(listener);
    shut_down(connections, &shared, grace).await;
}

async fn pause_ended(pause: &mut Option<Pin<Box<Sleep>>>) {
    match pause {
        Some(pause) => pause.as_mut().await,
        None => pending().await,
    }
}

/// The state of the accepting task.
#[derive(Default)]
struct Acceptor {
    pause: Option<Pin<Box<Sleep>>>,
    /// Whether accepting failed, and no connection was accepted since.
    is_stuck: bool,
    spare: VecDeque<(ClientId, Weak<Activity>)>,
}

impl Acceptor {
    fn connect(&mut self, stream: TcpStream, address: SocketAddr, shared: &Arc<Shared>, all: &mut JoinSet<()>) {
        if std::mem::take(&mut self.is_stuck) {
            tracing::info!(target: "watchcore_http", "connections are accepted again");
        }
        let client = ClientId::at(address.ip());
        let permit = shared.permits.acquire(&client).ok();
        let only_health = permit.is_none();
        prepare(&stream);
        let connection = shared.clock.enter(address, permit, shared.tls.is_some());
        if only_health {
            shared.counters().refused(Reason::connections);
            self.spare(client, connection.activity());
        }
        if !shared.requires_authentication {
            connection.activity().is_known();
        }
        let accepted = Accepted { stream, address, connection, only_health };
        all.spawn(connection::run(accepted, shared.clone()));
    }

    /// Registers a connection beyond the limit. If there are too many, the client with most of them loses its oldest
    /// one, so a health probe is answered first, however many connections another client opens.
    fn spare(&mut self, client: ClientId, activity: &Arc<Activity>) {
        self.spare.retain(|(_, activity)| activity.strong_count() > 0);
        self.spare.push_back((client, Arc::downgrade(activity)));
        if self.spare.len() <= SPARE {
            return;
        }
        let mut counts: HashMap<&ClientId, usize> = HashMap::new();
        for (client, _) in &self.spare {
            *counts.entry(client).or_default() += 1;
        }
        let most = counts.values().copied().max();
        let oldest = self.spare.iter().position(|(client, _)| counts.get(client).copied() == most);
        let oldest = oldest.and_then(|oldest| self.spare.remove(oldest));
        if let Some(activity) = oldest.and_then(|(_, activity)| activity.upgrade()) {
            activity.cut();
        }
    }

    /// Handles an error of accept. A client that disconnected before it was accepted is ignored. Other errors mean that
    /// file descriptors or memory are used up, and retrying at once would only burn CPU.
    fn failed(&mut self, error: &Error, shared: &Shared) {
        use ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
        if matches!(error.kind(), ConnectionAborted | ConnectionReset | ConnectionRefused) {
            return;
        }
        shared.counters().refused(Reason::accept);
        if !std::mem::replace(&mut self.is_stuck, true) {
            tracing::warn!(target: "watchcore_http", "cannot accept connections: {error}. Raise the limit of open files, or lower limits.connections.");
        }
        self.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
    }
}

/// Sets socket options: no delay for events, keepalive probes for vanished clients, and a bound on the kernel's send
/// buffer. Errors are ignored: if the socket is closed already, the next read reports it.
fn prepare(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&KEEPALIVE);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = socket.set_tcp_notsent_lowat(MAX_UNSENT);
}

/// Logs a panic of a connection's task, which affects no other connection.
fn log_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(target: "watchcore_http", "the task of a connection: {error}");
    }
}

/// Shuts down: watches are ended over three quarters of the grace time; the rest is for their last bytes.
async fn shut_down(mut connections: JoinSet<()>, shared: &Arc<Shared>, grace: Duration) {
    let begin = Instant::now();
    shared.api.begin_end();
    shared.clock.close_all();
    let drained = async {
        shared.api.drain(grace / 4 * 3).await;
        pending::<()>().await;
    };
    let deadline = begin.checked_add(grace);
    let over = async {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => pending().await,
        }
    };
    tokio::select! {
        biased;
        () = shared.clock.none() => {}
        () = shared.clock.run() => {}
        () = drained => {}
        () = over => {}
    }
    shared.clock.cut_all();
    let cut = async {
        while let Some(ended) = connections.join_next().await {
            log_panic(ended);
        }
        shared.clock.none().await;
        shared.alive.none().await;
    };
    if tokio::time::timeout(CUT, cut).await.is_err() {
        tracing::warn!(target: "watchcore_http", "requests of cut connections are still being answered");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_system_holds_little_for_who_never_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        prepare(&stream);
        stream.writable().await.unwrap();
        let mut held = 0;
        while let Ok(written) = stream.try_write(&[0; 16 << 10]) {
            held += written;
            assert!(held < 1 << 20, "{held} bytes for a client that reads none of them");
        }
    }
}
