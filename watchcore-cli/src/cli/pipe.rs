//! Notices a reader of standard output that goes away while there is nothing to write.

/// Calls `gone` on its own thread once nobody reads the pipe that is standard output. If standard output is no pipe, or
/// the system cannot tell, only the next write notices.
#[cfg(target_os = "linux")]
pub(crate) fn when_its_reader_goes(gone: impl FnOnce() + Send + 'static) {
    use std::os::fd::AsFd as _;
    let Ok(output) = std::io::stdout().as_fd().try_clone_to_owned() else { return };
    let wait = move || {
        if closed(output).is_ok() {
            gone();
        }
    };
    let _ = std::thread::Builder::new().name("reader-gone".to_owned()).spawn(wait);
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn when_its_reader_goes(_: impl FnOnce() + Send + 'static) {}

/// Waits until the other end of a pipe is closed; returns an error if `output` is a file.
#[cfg(target_os = "linux")]
fn closed(output: std::os::fd::OwnedFd) -> std::io::Result<()> {
    use tokio::io::Interest;
    use tokio::net::unix::pipe::Sender;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        // The descriptor stays blocking and is never written to: the command's writers share it.
        let pipe = Sender::from_owned_fd_unchecked(output)?;
        while !pipe.ready(Interest::ERROR).await?.is_error() {}
        Ok(())
    })
}
