//! TLS: trusted authorities, the client's certificate, and explanations of failures.
//!
//! | module | holds |
//! | --- | --- |
//! | `options` | the options |
//! | `credentials` | the files, read again for each connection, and the last usable content |
//! | `expiry` | when the client's certificate expires |
//! | `connector` | the handshake, and failures after it |
//! | `refusal` | the text for each way in which TLS fails |
//!
//! A connection uses the certificates that the files held when it was opened: the handshake is the only moment at
//! which either side checks them. So nothing watches the files, and an open connection outlives its certificates. See
//! docs/internals/feeder.md.

mod connector;
mod credentials;
mod expiry;
mod options;
mod refusal;

pub(super) use connector::TlsConnector;
pub(super) use credentials::Credentials;
pub use options::{Tls, TlsVersion};
pub(super) use refusal::{RecordedRefusal, Refusal};
