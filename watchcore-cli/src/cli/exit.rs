//! Exit codes of commands, and the failures that they stand for.

use watchcore::{Code, Error};

/// The command succeeded.
pub(crate) const DONE: u8 = Code::Ok.exit_code();
/// Any error without a code of its own.
pub(crate) const ERROR: u8 = Code::Internal.exit_code();
/// The command line is invalid.
pub(crate) const USAGE: u8 = Code::InvalidArgument.exit_code();
/// The time limit passed.
pub(crate) const TIMEOUT: u8 = Code::Timeout.exit_code();
/// The revision is compacted, or the subscription fell behind.
pub(crate) const GONE: u8 = Code::Compacted.exit_code();

/// The exit code after a signal, by the convention of shells.
pub(crate) fn of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(ERROR)
}

/// A failure as it is printed on standard error and in an ERROR line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
    /// The oldest available revision, 0 if unknown.
    pub(crate) oldest: u64,
    /// The token with which a list continues in the newest state.
    pub(crate) token: Option<String>,
    /// The subscriber that failed, if a watch has several.
    pub(crate) subscriber: Option<u64>,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into(), oldest: 0, token: None, subscriber: None }
    }

    pub(crate) fn exit(&self) -> u8 {
        self.code.exit_code()
    }

    /// Whether `--format json` also prints this failure as a line on standard output.
    pub(crate) fn is_a_line(&self) -> bool {
        matches!(self.exit(), ERROR | TIMEOUT | GONE)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure {
            oldest: error.oldest(),
            token: error.continue_token().map(str::to_owned),
            ..Failure::new(error.code(), error.message())
        }
    }
}

/// Why a command stopped before it was done.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A failure that is printed and sets the exit code.
    Failure(Failure),
    /// The reader of standard output has gone: the command ends quietly.
    ClosedPipe,
    /// A signal asked for the end.
    Interrupted,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failure(failure)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failure(error.into())
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Stop::ClosedPipe;
        }
        let message = format!(
            "writing to standard output failed: {error}. What was printed is not complete; free some room or choose another place"
        );
        Stop::Failure(Failure::new(Code::Internal, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_the_exit_of_the_contract() {
        let table = [
            (0, 0),
            (1, 2),
            (2, 3),
            (3, 1),
            (4, 4),
            (5, 1),
            (6, 1),
            (7, 2),
            (8, 1),
            (10, 5),
            (11, 5),
            (12, 4),
            (13, 5),
            (20, 1),
            (21, 1),
            (22, 1),
            (23, 1),
            (90, 1),
            (91, 1),
        ];
        for (number, exit) in table {
            let code = Code::from_i32(number).expect("a code of the contract");
            assert_eq!(code.exit_code(), exit, "{}", code.name());
        }
        let known = (0..100).filter(|&number| Code::from_i32(number).is_some()).count();
        assert_eq!(known, table.len(), "a code without a row here");
    }

    #[test]
    fn signals_are_128_and_more() {
        assert_eq!(of_signal(2), 130);
        assert_eq!(of_signal(15), 143);
    }

    #[test]
    fn only_exits_1_4_and_5_are_lines() {
        for (code, line) in [
            (Code::Internal, true),
            (Code::Timeout, true),
            (Code::Compacted, true),
            (Code::InvalidArgument, false),
            (Code::NotFound, false),
        ] {
            assert_eq!(Failure::new(code, "x").is_a_line(), line, "{}", code.name());
        }
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let pipe = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert!(matches!(Stop::from(pipe), Stop::ClosedPipe));
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        assert!(matches!(Stop::from(full), Stop::Failure(failure) if failure.exit() == ERROR));
    }
}
