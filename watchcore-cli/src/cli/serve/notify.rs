//! Notifies systemd, for a unit of Type=notify: sends a datagram to the socket that NOTIFY_SOCKET names.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends a state if NOTIFY_SOCKET is set. A failure is only logged: the server works without it.
pub(crate) fn send_state(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return };
    if let Err(error) = send(name.as_bytes(), state) {
        tracing::warn!(socket = %name.to_string_lossy(), %error, "NOTIFY_SOCKET does not take messages");
    }
}

fn send(name: &[u8], state: &str) -> std::io::Result<()> {
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address(name)?).map(drop)
}

/// Parses a path or, after an `@`, an abstract socket name.
fn address(name: &[u8]) -> std::io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    if let Some(name) = name.strip_prefix(b"@") {
        return <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name);
    }
    SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(name: &[u8]) {
        let socket = UnixDatagram::bind_addr(&address(name).expect("a name")).expect("a free name");
        send(name, "READY=1").expect("somebody listens");
        let mut buffer = [0; 16];
        let length = socket.recv(&mut buffer).expect("a datagram");
        assert_eq!(&buffer[..length], b"READY=1");
    }

    #[test]
    fn both_kinds_of_sockets_are_told() {
        let path = std::env::temp_dir().join(format!("watchcore-notify-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        heard(path.as_os_str().as_bytes());
        let _ = std::fs::remove_file(&path);
        if cfg!(target_os = "linux") {
            heard(format!("@watchcore-notify-{}", std::process::id()).as_bytes());
        }
        assert!(send(b"/no/such/socket", "READY=1").is_err());
    }
}
