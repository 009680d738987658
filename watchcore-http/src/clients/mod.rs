//! The shares of the server that each client has, so that no client takes those of the others.
//!
//! A client is a user, or an address where nobody is known ([`Who`]). Three things are divided between clients, each in
//! one place: `places` (connections and watches), `turns` (threads that read large caches), `unread` (bytes of answers
//! that were made and not yet taken). docs/internals/http.md has the rules and why they are these.

mod activity;
mod places;
mod turns;
mod unread;

pub(crate) use activity::{Activity, Answering, State};
pub(crate) use places::{ClientPlace, ClientPlaces, Full};
pub(crate) use turns::{Turns, is_large, soon};
pub(crate) use unread::{Account, Answered, Holder, MadeBytes, Unread, UnreadBytes};

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Whose share something counts in.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Who {
    User(Arc<str>),
    /// An address of IPv6 counts by its first 64 bits: a client has as many addresses behind these as it likes.
    Address(IpAddr),
    /// The router is nested into a program that does not say where requests come from.
    Somebody,
}

impl Who {
    /// The client that connects from this address.
    pub(crate) fn at(address: IpAddr) -> Who {
        Who::Address(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
            address => address,
        })
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::User(name) => write!(f, "user {name:?}"),
            Who::Address(address) => write!(f, "address {address}"),
            Who::Somebody => f.write_str("all clients together"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_client_are_one() {
        let at = |text: &str| Who::at(text.parse().unwrap());
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:1"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
        assert_ne!(at("10.0.0.2"), at("10.0.0.1"));
    }
}
