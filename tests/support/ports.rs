//! Ports for servers that cannot choose their own: nobody else takes one between its choice and its use.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// A TCP port of the loopback, reserved for as long as the value lives.
///
/// The UDP socket of the same number is the reservation: all who choose ports here ask for it first,
/// in this process and in others, and it goes with the process. The ports lie outside of the range
/// that the system gives to outgoing connections: else a client that tries again while a server is
/// away could take the server's port.
pub(crate) struct Port {
    pub(crate) number: u16,
    _reserved: UdpSocket,
}

impl Port {
    pub(crate) fn reserve() -> Port {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let outgoing = outgoing();
        let start = std::process::id().wrapping_mul(7919);
        for _ in 0..100_000 {
            let step = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(101);
            let number = 10_000 + (start.wrapping_add(step) % 55_000) as u16;
            if outgoing.contains(&number) {
                continue;
            }
            let Ok(reserved) = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)) else { continue };
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Port { number, _reserved: reserved };
            }
        }
        panic!("no free port on the loopback");
    }
}

/// What the system gives to outgoing connections.
fn outgoing() -> std::ops::RangeInclusive<u16> {
    let read = || {
        let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
        let mut bounds = text.split_whitespace().map(str::parse);
        Some(bounds.next()?.ok()?..=bounds.next()?.ok()?)
    };
    // A range that leaves nothing is as good as none.
    read().filter(|range| *range.start() > 11_000 || *range.end() < 64_000).unwrap_or(32_768..=60_999)
}
