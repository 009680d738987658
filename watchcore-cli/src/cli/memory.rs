//! Checks memory demands, for a clear error instead of an abort.

use super::exit::{Failure, Stop};
use watchcore::Code;

/// Whether the system would allocate this many bytes. They are freed at once: the check only finds demands that can
/// never be met.
pub(crate) fn check(what: &str, bytes: u128) -> Result<(), Stop> {
    let fits = usize::try_from(bytes).is_ok_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok());
    if fits {
        return Ok(());
    }
    let message = format!("{what} need about {bytes} bytes, which this machine does not give. Ask for less");
    Err(Failure::new(Code::ResourceExhausted, message).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::exit;

    #[test]
    fn what_no_machine_has_is_refused() {
        assert!(check("some objects", 1 << 20).is_ok());
        for bytes in [1 << 62, u128::MAX] {
            let Err(Stop::Failure(failure)) = check("the objects", bytes) else { panic!("{bytes} bytes") };
            assert_eq!(failure.exit(), exit::ERROR);
            assert!(failure.message.starts_with("the objects need about"), "{}", failure.message);
        }
    }
}
