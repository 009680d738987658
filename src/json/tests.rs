use super::*;
use proptest::prelude::*;

/// Every byte at every place among eight, beside bytes from which one is borrowed and others.
#[test]
fn a_stop_is_found_at_every_place_of_a_word() {
    for byte in 0..=255u8 {
        for around in [b'a', 0x21, 0x23, 0x22 ^ 0x80, b'[', b']', 0x20, 0x7f, 0x80, 0xff] {
            for place in 0..8 {
                for second in [b'a', b'"', b'\\', 0, 0x1f] {
                    let mut bytes = [around; 8];
                    bytes[7] = second;
                    bytes[place] = byte;
                    let first = bytes.iter().position(|b| *b < 0x20 || *b == b'"' || *b == b'\\');
                    assert_eq!(stops(&bytes).trailing_zeros() as usize / 8, first.unwrap_or(8), "{bytes:x?}");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn strings_are_what_their_escapes_say(one in r#"[ab"\\né]{0,4}"#, two in r#"[ab"\\né]{0,4}"#, escaped in any::<bool>()) {
        let text = match escaped {
            false => serde_json::to_string(&one).unwrap(),
            true => format!("\"{}\"", one.chars().map(|c| format!("\\u{:04x}", u32::from(c))).collect::<String>()),
        };
        let string = JsonScan::new(text.as_bytes()).string().unwrap();
        prop_assert_eq!(&*string.text().unwrap(), one.as_bytes(), "{}", text);
        prop_assert!(string.is(&one), "{}", text);
        prop_assert_eq!(string.is(&two), one == two, "{}", text);
    }

    /// What is skipped ends where a walk into all of it ends, and is refused where that is.
    #[test]
    fn skipping_ends_where_walking_ends(text in r#"[ ]?[\[\]{}",:0-9a\\tru e-]{0,24}"#) {
        fn walk(scan: &mut JsonScan<'_>) -> Option<()> {
            match scan.peek()? {
                b'{' => scan.members(|scan, _| walk(scan)),
                b'[' => scan.elements(walk),
                _ => scan.pass(),
            }
        }
        for text in [text.clone(), format!("[{text}] ,")] {
            let (mut walked, mut skipped) = (JsonScan::new(text.as_bytes()), JsonScan::new(text.as_bytes()));
            let (walk, value) = (walk(&mut walked), skipped.value());
            prop_assert_eq!(walk.is_some(), value.is_some(), "{}", text);
            if let Some(value) = value {
                prop_assert_eq!(walked.place(), skipped.place(), "{}", text);
                prop_assert!(text.as_bytes()[..skipped.place()].ends_with(value), "{}", text);
            }
        }
    }
}
