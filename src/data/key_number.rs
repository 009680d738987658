//! Keys as numbers: eight bytes of one compare in one step, in the order in which keys do.

#![forbid(unsafe_code)]

/// The first eight bytes in the order in which keys are compared, filled up with zeros.
///
/// The key with the lower number is the lower key; equal numbers decide nothing, because zeros that fill up count as bytes.
#[inline]
pub(crate) fn key_number(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => short_number(bytes),
    }
}

/// The number of a key of less than eight bytes.
#[inline]
fn short_number(bytes: &[u8]) -> u64 {
    let length = bytes.len();
    match (bytes.first_chunk(), bytes.last_chunk()) {
        // The last four are taken as they lie, also where they are some of the first.
        (Some(first), Some(last)) => {
            u64::from(u32::from_be_bytes(*first)) << 32 | u64::from(u32::from_be_bytes(*last)) << (64 - 8 * length)
        }
        _ => bytes.iter().rev().fold(0, |number, byte| number >> 8 | u64::from(*byte) << 56),
    }
}

/// How many bytes two keys have in common.
pub(crate) fn common_bytes(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn number_is_that_of_the_bytes_and_zeros() {
        for length in 0..12u8 {
            let bytes: Vec<u8> = (0..length).map(|at| 0x81 + 7 * at).collect();
            let mut filled = [0; 8];
            filled.iter_mut().zip(&bytes).for_each(|(to, from)| *to = *from);
            assert_eq!(key_number(&bytes), u64::from_be_bytes(filled), "{length} bytes");
        }
    }
}
