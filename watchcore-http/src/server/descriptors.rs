//! Fits the number of connections to the limit on open files.

/// File descriptors besides connections: the caches' sources, the log, and files that are read again when they change.
const OTHERS: usize = 64;

/// Connections beyond the limit, on which only health probes are answered.
pub(super) const SPARE: usize = 32;

/// Returns the wanted number of connections, or as many as there are file descriptors for. Some descriptors are
/// reserved for the feeder, which must be able to reconnect while clients hold all permits.
#[cfg(unix)]
pub(super) fn room_for(wanted: usize) -> usize {
    let needed = wanted.saturating_add(SPARE).saturating_add(OTHERS);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let Some(limit) = limit.filter(|limit| *limit < needed as u64) else { return wanted };
    let room = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(SPARE + OTHERS).max(1);
    tracing::warn!(
        target: "watchcore_http",
        "limits.connections is {wanted}, and {limit} files may be open: no more than {room} connections are taken. Raise the limit of open files (ulimit -n, LimitNOFILE), or lower limits.connections."
    );
    room
}

/// Returns the wanted number: this system has no such limit.
#[cfg(not(unix))]
pub(super) fn room_for(wanted: usize) -> usize {
    wanted
}
