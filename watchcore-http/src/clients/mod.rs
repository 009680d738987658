//! The limits that are divided between clients, so that no client takes the share of the others.
//!
//! A client is a user, or an address where users are not authenticated ([`ClientId`]). Three resources are divided:
//! `permits` (connections and watches), `blocking` (threads that read large caches), `unread` (bytes of answers that
//! were produced and not yet taken). Each file gives its rule and the reason.

mod activity;
mod blocking;
mod permits;
mod unread;

pub(crate) use activity::{Activity, Answering, State};
pub(crate) use blocking::{BlockingPool, is_large, read_deadline};
pub(crate) use permits::{ClientPermit, ClientPermits, Full};
pub(crate) use unread::{Account, Holder, ProducedBytes, Unread, UnreadAnswer, UnreadBytes};

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// The client to whose share a use counts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ClientId {
    User(Arc<str>),
    /// An IPv6 address counts by its first 64 bits: one client usually controls all addresses below them.
    Address(IpAddr),
    /// The router is nested in a program that does not say where requests come from.
    Unknown,
}

impl ClientId {
    /// Returns the client that connects from an address.
    pub(crate) fn at(address: IpAddr) -> ClientId {
        ClientId::Address(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
            address => address,
        })
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientId::User(name) => write!(f, "user {name:?}"),
            ClientId::Address(address) => write!(f, "address {address}"),
            ClientId::Unknown => f.write_str("all clients together"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_client_are_one() {
        let at = |text: &str| ClientId::at(text.parse().unwrap());
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:1"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
        assert_ne!(at("10.0.0.2"), at("10.0.0.1"));
    }
}
