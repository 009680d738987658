//! How many connections the limit of open files has room for.

/// Files beside connections: those of the caches' sources, of the log, and what is read again when it changes.
const OTHERS: usize = 64;

/// The number of connections: as many as are wanted, or as there are file descriptors for. The descriptors that are left
/// over are for the feeder, which must reconnect while clients hold all that they can.
#[cfg(unix)]
pub(super) fn room_for(wanted: usize) -> usize {
    let needed = wanted.saturating_add(super::accept::SPARE).saturating_add(OTHERS);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let Some(limit) = limit.filter(|limit| *limit < needed as u64) else { return wanted };
    let room = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(super::accept::SPARE + OTHERS).max(1);
    tracing::warn!(
        target: "watchcore_http",
        "limits.connections is {wanted}, and {limit} files may be open: no more than {room} connections are taken. Raise the limit of open files (ulimit -n, LimitNOFILE), or lower limits.connections."
    );
    room
}

/// The number of connections, on systems without such a limit.
#[cfg(not(unix))]
pub(super) fn room_for(wanted: usize) -> usize {
    wanted
}
