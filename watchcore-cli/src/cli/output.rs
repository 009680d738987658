//! Standard output: lines are collected in a buffer, which is flushed after every batch.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd;

use super::exit::{Failure, Stop};
use super::json::{LineEvent, Numbers};
use super::options::{Format, Options, Task};
use super::source::Deadline;
use super::{json, text};
use watchcore::{Error, KeyValue, Resync};

/// A buffer this long is written out before its batch is complete.
const FLUSH_BYTES: usize = 256 * 1024;

pub(crate) struct Output {
    pub(crate) format: Format,
    /// Whether values are omitted.
    keys_only: bool,
    /// Whether text shows long values in full: not on a terminal, where a person would have to scroll.
    whole: bool,
    /// The subscriber of the next lines, if a watch has several.
    pub(crate) subscriber: Option<u64>,
    buffer: Vec<u8>,
    sink: Box<dyn Write>,
    deadline: Deadline,
}

impl Output {
    /// The process's standard output, without the line buffer of `std`.
    pub(crate) fn standard(options: &Options) -> io::Result<Output> {
        let stdout = io::stdout();
        // `get` asks for a single value, so it is shown in full.
        let whole = matches!(options.task, Task::Get { .. }) || !stdout.is_terminal();
        let sink = Box::new(File::from(stdout.as_fd().try_clone_to_owned()?));
        let (format, keys_only, deadline) = (options.format, options.keys_only, Deadline::of(options));
        Ok(Output { format, keys_only, whole, subscriber: None, buffer: Vec::new(), sink, deadline })
    }

    #[cfg(test)]
    pub(crate) fn to(format: Format, sink: impl Write + 'static) -> Output {
        let (sink, deadline) = (Box::new(sink), Deadline::after(None));
        Output { format, keys_only: false, whole: true, subscriber: None, buffer: Vec::new(), sink, deadline }
    }

    pub(crate) fn event(&mut self, event: &LineEvent<'_>) -> Result<(), Stop> {
        let whole = self.whole;
        let event = if self.keys_only { &LineEvent { value: None, prev_value: None, ..*event } } else { event };
        self.in_format(|line, of| json::event(line, of, event), |line| text::event(line, event, whole))
    }

    pub(crate) fn bookmark(&mut self, revision: u64, initial_state_end: bool) -> Result<(), Stop> {
        self.in_format(
            |line, of| json::bookmark(line, of, revision, initial_state_end),
            |line| text::bookmark(line, revision, initial_state_end),
        )
    }

    pub(crate) fn resync(&mut self, resync: &Resync) -> Result<(), Stop> {
        self.in_format(|line, of| json::resync(line, of, resync), |line| text::resync(line, resync))
    }

    pub(crate) fn lagged(&mut self, error: &Error) -> Result<(), Stop> {
        self.in_format(|line, of| json::lagged(line, of, error), |line| text::lagged(line, error))
    }

    /// Appends a subscriber's line in the chosen format.
    fn in_format(
        &mut self,
        json: impl FnOnce(&mut Vec<u8>, Option<u64>),
        text: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Stop> {
        match self.format {
            Format::Json => json(&mut self.buffer, self.subscriber),
            Format::Text => text(self.of_subscriber()),
            Format::Quiet => return Ok(()),
        }
        self.limit()
    }

    pub(crate) fn key_value(&mut self, kv: &KeyValue) -> Result<(), Stop> {
        let value = (!self.keys_only).then(|| kv.value().unwrap_or_default());
        match self.format {
            Format::Json => json::key_value(&mut self.buffer, kv.key(), value, Numbers::of(kv)),
            Format::Text => text::key_value(&mut self.buffer, kv.mod_revision(), kv.key(), value, self.whole),
            Format::Quiet => return Ok(()),
        }
        self.limit()
    }

    /// Appends the ERROR line, in JSON only: people read standard error.
    pub(crate) fn error(&mut self, failure: &Failure) -> Result<(), Stop> {
        if self.format == Format::Json && failure.is_a_line() {
            json::error(&mut self.buffer, failure);
        }
        self.flush()
    }

    /// Appends any other output of a command, written by `write`.
    pub(crate) fn line(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), Stop> {
        write(&mut self.buffer);
        self.limit()
    }

    /// The buffer, with the subscriber of the next line prepended for people.
    fn of_subscriber(&mut self) -> &mut Vec<u8> {
        if let Some(subscriber) = self.subscriber {
            let _ = write!(self.buffer, "[{subscriber}] ");
        }
        &mut self.buffer
    }

    /// Flushes a long buffer, and ends the output between two lines when the time limit has passed.
    fn limit(&mut self) -> Result<(), Stop> {
        if self.buffer.len() < FLUSH_BYTES {
            return Ok(());
        }
        self.flush()?;
        if self.deadline.has_passed() {
            return Err(self.deadline.failure("what it prints was not taken").into());
        }
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> Result<(), Stop> {
        if !self.buffer.is_empty() {
            let written = self.sink.write_all(&self.buffer);
            self.buffer.clear();
            written?;
        }
        Ok(())
    }
}

/// A writer that keeps everything it receives.
#[cfg(test)]
#[derive(Clone, Default)]
pub(crate) struct Captured(pub(crate) std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

#[cfg(test)]
impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use watchcore::Code;

    struct Gone;
    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn output(format: Format) -> (Output, Captured) {
        let shared = Captured::default();
        (Output::to(format, shared.clone()), shared)
    }

    #[test]
    fn nothing_is_written_before_the_flush_and_all_after() {
        let (mut out, shared) = output(Format::Json);
        out.bookmark(3, false).unwrap();
        assert!(shared.0.lock().unwrap().is_empty());
        out.flush().unwrap();
        assert_eq!(&*shared.0.lock().unwrap(), b"{\"type\":\"BOOKMARK\",\"revision\":3}\n");
        for _ in 0..FLUSH_BYTES {
            out.bookmark(3, false).unwrap();
        }
        assert!(out.buffer.len() < FLUSH_BYTES, "a long batch does not pile up");
    }

    #[test]
    fn quiet_is_quiet_and_errors_are_lines_of_json_only() {
        let failure = Failure::new(Code::Timeout, "late");
        for (format, expected) in [(Format::Quiet, 0), (Format::Text, 0), (Format::Json, 1)] {
            let (mut out, shared) = output(format);
            out.error(&failure).unwrap();
            out.error(&Failure::new(Code::NotFound, "absent")).unwrap();
            let lines = shared.0.lock().unwrap().iter().filter(|&&byte| byte == b'\n').count();
            assert_eq!(lines, expected, "{format:?}");
        }
        let (mut out, shared) = output(Format::Quiet);
        out.bookmark(3, true).unwrap();
        out.flush().unwrap();
        assert!(shared.0.lock().unwrap().is_empty());
    }

    /// The output written before the time limit ends with a whole line.
    #[test]
    fn long_outputs_end_with_the_time() {
        let (mut out, shared) = output(Format::Json);
        out.deadline = Deadline::after(Some(std::time::Duration::ZERO));
        let written = (0..FLUSH_BYTES).find_map(|_| out.bookmark(3, false).err());
        assert!(matches!(written, Some(Stop::Failure(failure)) if failure.exit() == super::super::exit::TIMEOUT));
        assert!(shared.0.lock().unwrap().ends_with(b"}\n"));
        out.error(&Failure::new(Code::Timeout, "late")).unwrap();
        assert!(shared.0.lock().unwrap().ends_with(b"\"message\":\"late\"}\n"), "the reason is a line still");
    }

    #[test]
    fn a_closed_pipe_stops() {
        let mut out = Output::to(Format::Json, Gone);
        out.bookmark(3, false).unwrap();
        assert!(matches!(out.flush(), Err(Stop::ClosedPipe)));
        assert!(out.flush().is_ok(), "what could not be written is not tried again");
    }
}
