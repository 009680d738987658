//! Standard error: a queue of lines, and the thread that writes them.
//!
//! Standard error may be a pipe that nobody reads, and a thread that has a message must not block there: a feeder that
//! warns, a server thread that logs a request, the end of the process. So a line is only queued, and one thread writes
//! the queue, however long that takes.
//!
//! - A log line that does not fit the queue is dropped and counted. The count is printed in the place of the dropped lines.
//! - The command's own messages (an error, the summary) always fit: they are few.
//! - The process ends when everything is written; a forced end waits only for a moment.

use std::io::Write as _;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::progress;

/// The size of the queue in bytes. A log line beyond it is dropped.
const QUEUE_BYTES: usize = 1 << 20;

static LINES: Lines = Lines::new();

/// Starts the writing thread. Before that, each thread writes its own lines.
pub(crate) fn start() -> std::io::Result<()> {
    let write = || {
        loop {
            let bytes = LINES.wait_and_take();
            print(&bytes);
            LINES.written();
        }
    };
    std::thread::Builder::new().name("stderr".to_owned()).spawn(write)?;
    LINES.lock().has_writer = true;
    Ok(())
}

/// Queues a message of the command itself, which always fits.
pub(crate) fn say(line: &str) {
    enqueue(format!("{line}\n").as_bytes(), usize::MAX);
}

/// Queues a log line, or another line that may be repeated without bound.
pub(crate) fn log(line: &[u8]) {
    enqueue(line, QUEUE_BYTES);
}

/// Waits until everything queued is written, but at most for `most`.
pub(crate) fn drain(most: Duration) {
    LINES.drain(most);
}

fn enqueue(line: &[u8], room: usize) {
    let mut waiting = LINES.lock();
    if waiting.has_writer {
        waiting.push(line, room);
        LINES.filled.notify_one();
    } else {
        drop(waiting);
        print(line);
    }
}

/// Writes to standard error. A closed pipe is no error.
fn print(bytes: &[u8]) {
    let _ = progress::aside(|| std::io::stderr().write_all(bytes));
}

struct Lines {
    unwritten: Mutex<Unwritten>,
    filled: Condvar,
    emptied: Condvar,
}

struct Unwritten {
    bytes: Vec<u8>,
    /// How many lines were dropped since the last line that fit.
    dropped: u64,
    /// Whether the writing thread is still writing what it took.
    writing: bool,
    has_writer: bool,
}

impl Lines {
    const fn new() -> Lines {
        let unwritten = Unwritten { bytes: Vec::new(), dropped: 0, writing: false, has_writer: false };
        Lines { unwritten: Mutex::new(unwritten), filled: Condvar::new(), emptied: Condvar::new() }
    }

    /// Locks the queue. Held only to copy a line.
    fn lock(&self) -> MutexGuard<'_, Unwritten> {
        self.unwritten.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for queued lines and takes all of them.
    fn wait_and_take(&self) -> Vec<u8> {
        let is_empty = |waiting: &mut Unwritten| waiting.is_empty();
        let mut waiting = self.filled.wait_while(self.lock(), is_empty).unwrap_or_else(PoisonError::into_inner);
        waiting.report_dropped();
        waiting.writing = true;
        std::mem::take(&mut waiting.bytes)
    }

    fn written(&self) {
        self.lock().writing = false;
        self.emptied.notify_all();
    }

    fn drain(&self, most: Duration) {
        let unfinished = |waiting: &mut Unwritten| waiting.writing || !waiting.is_empty();
        drop(self.emptied.wait_timeout_while(self.lock(), most, unfinished));
    }
}

impl Unwritten {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.dropped == 0
    }

    fn push(&mut self, line: &[u8], room: usize) {
        if self.bytes.len().saturating_add(line.len()) > room {
            self.dropped += 1;
            return;
        }
        self.report_dropped();
        self.bytes.extend_from_slice(line);
    }

    /// Appends how many lines were dropped here.
    fn report_dropped(&mut self) {
        if self.dropped > 0 {
            let dropped = std::mem::take(&mut self.dropped);
            let _ = writeln!(
                self.bytes,
                "warning: {dropped} lines of the log were dropped here: standard error was not read for too long"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static LONG: [u8; QUEUE_BYTES / 2] = [b'x'; QUEUE_BYTES / 2];

    #[test]
    fn lines_without_room_are_counted_in_their_place() {
        let lines = Lines::new();
        for line in [&LONG[..], &LONG, b"no room\n", b"no room\n"] {
            lines.lock().push(line, QUEUE_BYTES);
        }
        lines.lock().push(b"error: always\n", usize::MAX);
        lines.lock().push(b"no room\n", QUEUE_BYTES);
        let taken = lines.wait_and_take();
        let text = String::from_utf8_lossy(&taken[QUEUE_BYTES..]);
        let said: Vec<&str> = text.lines().collect();
        let [first, error, second] = said[..] else { panic!("{text}") };
        assert!(first.starts_with("warning: 2 lines of the log were dropped here"), "{text}");
        assert!(error == "error: always" && second.starts_with("warning: 1 lines "), "{text}");
        lines.lock().push(b"room again\n", QUEUE_BYTES);
        assert_eq!(lines.wait_and_take(), b"room again\n");
    }

    /// Taken and dropped lines count as unwritten.
    #[test]
    fn draining_ends_when_all_is_written() {
        let lines = Lines::new();
        lines.drain(Duration::MAX);
        lines.lock().push(b"line\n", QUEUE_BYTES);
        let is_unfinished = || {
            lines.drain(Duration::ZERO);
            let waiting = lines.lock();
            waiting.writing || !waiting.is_empty()
        };
        assert!(is_unfinished());
        lines.wait_and_take();
        assert!(is_unfinished());
        std::thread::scope(|scope| {
            scope.spawn(|| lines.written());
            lines.drain(Duration::MAX);
        });
        assert!(!is_unfinished());
    }
}
