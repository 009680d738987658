//! The limit of open files: each connection is one, and the usual soft limit of 1024 would be reached first.

use rustix::process::{Resource as Limit, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one, and logs the result.
pub(crate) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Limit::Nofile);
    let shown = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    if current == maximum {
        tracing::debug!(limit = shown(current), "limit of open files");
        return;
    }
    match setrlimit(Limit::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::info!(from = shown(current), to = shown(maximum), "limit of open files raised"),
        Err(error) => tracing::warn!(limit = shown(current), %error, "the limit of open files cannot be raised"),
    }
}
