//! Accepting connections, and ending all of them.

use super::connection::{self, Stage};
use super::{Place, Server, Shared};
use crate::figures::Reason;
use socket2::{SockRef, TcpKeepalive};
use std::future::pending;
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, Sleep};

/// How long nothing is accepted where the system has no room for one more connection.
const PAUSE: Duration = Duration::from_millis(100);

/// How the system finds out that a client is gone which never said so: within two minutes, while nothing is sent to it.
const ALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(20)).with_retries(3);

/// Bytes of a client that the system holds unsent, at most. Left to itself it holds megabytes for a client that
/// never reads, and it has one limit for all sockets together.
const UNSENT: u32 = 128 << 10;

/// Accepts until told to stop, then ends what is there.
pub(super) async fn run(
    listener: TcpListener,
    shared: Arc<Shared>,
    mut staged: UnboundedReceiver<Stage>,
    mut stopped: oneshot::Receiver<Duration>,
) {
    let mut connections = JoinSet::new();
    let mut pause: Option<Pin<Box<Sleep>>> = None;
    let grace = loop {
        tokio::select! {
            biased;
            grace = &mut stopped => break grace.unwrap_or_default(),
            Some(stage) = staged.recv() => drop(connections.spawn(stage)),
            Some(ended) = connections.join_next() => note(ended),
            () = over(&mut pause) => pause = None,
            accepted = listener.accept(), if pause.is_none() => match accepted {
                Ok((stream, address)) => connect(stream, address, &shared, &mut connections),
                Err(error) => pause = failed(&error, &shared),
            },
        }
    };
    drop(listener);
    end(connections, staged, &shared, grace).await;
}

async fn over(pause: &mut Option<Pin<Box<Sleep>>>) {
    match pause {
        Some(pause) => pause.as_mut().await,
        None => pending().await,
    }
}

fn connect(stream: TcpStream, address: SocketAddr, shared: &Arc<Shared>, connections: &mut JoinSet<()>) {
    let figures = shared.figures();
    if !figures.connect(shared.limits().connections) {
        figures.refused(Reason::connections);
        return;
    }
    let place = Place(figures.clone());
    prepare(&stream);
    let shared = shared.clone();
    if shared.tls.is_some() {
        connections.spawn(connection::secure(stream, address, shared, place));
    } else {
        connections.spawn(connection::plain(stream, address, shared, place));
    }
}

/// An event goes out when it is there; a client whose machine is gone says nothing, so the system asks for it; what a
/// client does not take stays here. Where the socket has closed already, that is found when it is read.
fn prepare(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&ALIVE);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = socket.set_tcp_notsent_lowat(UNSENT);
}

/// A client that has gone before it was accepted is nothing. All else is the system's: file descriptors or memory are
/// used up, and trying at once again would only burn a processor.
fn failed(error: &Error, shared: &Shared) -> Option<Pin<Box<Sleep>>> {
    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused)
    {
        return None;
    }
    shared.figures().refused(Reason::accept);
    tracing::warn!(target: "watchcore_http", "cannot accept a connection: {error}. Raise the limit of open files, or lower limits.connections.");
    Some(Box::pin(tokio::time::sleep(PAUSE)))
}

/// A connection that panics takes nobody with it.
fn note(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(target: "watchcore_http", "the task of a connection: {error}");
    }
}

/// Watches are told to end over most of the grace time; the rest is for their last bytes.
async fn end(
    mut connections: JoinSet<()>,
    mut staged: UnboundedReceiver<Stage>,
    shared: &Arc<Shared>,
    grace: Duration,
) {
    let begin = Instant::now();
    shared.api.begin_end();
    shared.ending.send_replace(true);
    let all_gone = async {
        loop {
            tokio::select! {
                // A task sends what it goes on with before it ends: who has seen the end sees that, too.
                biased;
                Some(stage) = staged.recv() => drop(connections.spawn(stage)),
                ended = connections.join_next() => match ended {
                    Some(ended) => note(ended),
                    None => return,
                },
            }
        }
    };
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
        () = all_gone => {}
        () = drained => {}
        () = over => {}
    }
    connections.shutdown().await;
    drop(staged); // with the connections that were on their way from one task to the next
    if tokio::time::timeout(Server::CUT, shared.alive.none()).await.is_err() {
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
