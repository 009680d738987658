//! Section 9: the numbers of the errors.

use crate::tools::*;
use watchcore::*;

/// The rest of their table is row 9.1.
#[test]
fn codes_have_exits_and_texts() {
    let exits: Vec<(i32, u8)> = Code::ALL.iter().map(|&code| (code as i32, code.exit_code())).collect();
    let (early, late) = exits.split_at(9);
    assert_eq!(early, [(0, 0), (1, 2), (2, 3), (3, 1), (4, 4), (5, 1), (6, 1), (7, 2), (8, 1)]);
    assert_eq!(late, [(10, 5), (11, 5), (12, 4), (13, 5), (20, 1), (21, 1), (22, 1), (23, 1), (90, 1), (91, 1)]);
    assert!(Code::ALL.iter().all(|&code| !code.text().is_empty() && Code::from_i32(code as i32) == Some(code)));
    assert_eq!((Code::Ok.name(), Code::Ok.http_status(), Code::Ok.is_retryable()), ("OK", 200, false));
    for unknown in [-1, 9, 14, 24, 92] {
        assert_eq!(Code::from_i32(unknown), None);
    }
    for kind in [(Kind::Added, 1, "ADDED"), (Kind::Modified, 2, "MODIFIED"), (Kind::Deleted, 3, "DELETED")] {
        assert_eq!((kind.0 as u32, kind.0.name()), (kind.1, kind.2));
    }
    for kind in [(Kind::Bookmark, 4), (Kind::Resync, 5), (Kind::Put, 6), (Kind::Delete, 7)] {
        assert_eq!(kind.0 as u32, kind.1);
    }
    let reasons: Vec<&str> = (1..=6).map(|number| ResyncReason::from_u32(number).unwrap().name()).collect();
    assert_eq!(reasons, ["Compacted", "HistoryReset", "ChainBroken", "TooFarBehind", "Requested", "Lagged"]);
    assert!(ResyncReason::from_u32(0).is_none() && ResyncReason::from_u32(7).is_none());
}

/// What it says is row 9.3.
#[test]
fn text_of_an_error_is_its_message() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [5]);
    for error in [refused(cache.writer(), Code::Busy), refused(writer.progress(4), Code::OutOfOrder)] {
        let text = error.to_string();
        assert_eq!(text, error.message());
        assert!(text.len() > 20 && text.ends_with(|c: char| c == '.' || c.is_alphanumeric() || c == '"'), "{text}");
        assert_eq!(format!("{error:?}"), format!("{}: {text}", error.code().name()));
        assert_eq!((error.is_retryable(), error.is_fatal()), (error.code().is_retryable(), error.code().is_fatal()));
    }
}
