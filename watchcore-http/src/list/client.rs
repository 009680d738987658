//! The client of a list.

use crate::clients::{BlockingPool, ClientId};
use crate::request::accepts_gzip;
use crate::state::ApiState;
use http::request::Parts;
use std::sync::Arc;
use std::time::Duration;

/// The client of a list, and how it takes the list.
pub(crate) struct ListClient {
    /// Whether the client accepts gzip.
    pub(crate) gzip: bool,
    /// The client, for blocking reads.
    pub(crate) reader: Reader,
    /// How long the whole list may take.
    pub(crate) time_limit: Duration,
}

/// A client, and the pool in which its reads of large caches run.
pub(crate) struct Reader {
    pub(crate) client: ClientId,
    pub(crate) pool: Arc<BlockingPool>,
}

impl ListClient {
    /// Returns the sender of a request.
    pub(crate) fn of(request: &Parts, state: &ApiState) -> ListClient {
        let reader = Reader { client: ClientId::of(request), pool: state.list_pool.clone() };
        ListClient { gzip: accepts_gzip(&request.headers), reader, time_limit: state.limits.list }
    }
}
