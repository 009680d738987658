//! Section 9: the numbers of the errors.

use crate::tools::*;
use watchcore::*;

#[test]
fn codes_numbers_retry_and_http() {
    // number, name, retry, HTTP with its reason and the seconds of Retry-After, exit of the command line
    let table = [
        (0, "OK", false, 200, "", 0, 0),
        (1, "INVALID_ARGUMENT", false, 400, "BadRequest", 0, 2),
        (2, "NOT_FOUND", false, 404, "NotFound", 0, 3),
        (3, "NOT_READY", true, 503, "ServiceUnavailable", 1, 1),
        (4, "TIMEOUT", true, 504, "Timeout", 1, 4),
        (5, "CLOSED", false, 503, "ServiceUnavailable", 0, 1),
        (6, "BUSY", true, 409, "Conflict", 0, 1),
        (7, "UNSUPPORTED", false, 501, "", 0, 2),
        (8, "OUT_OF_ORDER", false, 409, "Conflict", 0, 1),
        (10, "COMPACTED", false, 410, "Expired", 0, 5),
        (11, "LAGGED", false, 410, "Expired", 0, 5),
        (12, "FUTURE_REVISION", true, 504, "Timeout", 1, 4),
        (13, "RESYNCED", false, 410, "Expired", 0, 5),
        (20, "UNAUTHENTICATED", false, 401, "Unauthorized", 0, 1),
        (21, "PERMISSION_DENIED", true, 403, "Forbidden", 0, 1),
        (22, "UNAVAILABLE", true, 503, "ServiceUnavailable", 1, 1),
        (23, "RESOURCE_EXHAUSTED", true, 429, "TooManyRequests", 1, 1),
        (90, "PANIC", false, 500, "InternalError", 0, 1),
        (91, "INTERNAL", false, 500, "InternalError", 0, 1),
    ];
    assert_eq!(Code::ALL.len(), table.len());
    for (number, name, retry, http, reason, wait, exit) in table {
        let code = Code::from_i32(number).unwrap();
        let after = code.retry_after().map_or(0, |after| after.as_secs());
        assert_eq!((code.reason(), after, code.exit_code()), (reason, wait, exit), "{name}");
        assert_eq!((code as i32, code.name(), code.http_status()), (number, name, http));
        assert_eq!(code.is_retryable(), retry, "{name}");
        assert!(!code.text().is_empty());
    }
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

/// What was asked, what holds, what to do next; the numbers of the text are fields.
#[test]
fn each_error_says_what_was_asked_what_holds_and_what_to_do() {
    let (cache, mut writer) = tiny();
    let mut slow = cache.subscribe(Start::Now).open().unwrap();
    write(&mut writer, 1..=1000);
    let oldest = cache.oldest();
    let short = std::time::Duration::from_millis(1);
    let rows = [
        (cache.subscribe(Start::After(3)).open().err(), vec![3, oldest, 1000]),
        (cache.get("/k", Read::Exact(4)).err(), vec![4, oldest, 1000]),
        (cache.get_with("/k", &ReadOptions::new(Read::AtLeast(2000)).timeout(short)).err(), vec![2000, 1000]),
        (cache.wait_until(2000, short).err(), vec![2000, 1000]),
        (slow.poll(1).err(), vec![1, oldest - 1, oldest, 1000]),
        (writer.apply(7, [Change::put("/k", "")]).err(), vec![7, 1000]),
        (writer.compact(2000).err(), vec![2000, 1000]),
        (writer.apply(1001, [Change::delete("/absent")]).err(), vec![]),
        (writer.apply(1001, [Change::put("outside", "")]).err(), vec![]),
        (cache.writer().err(), vec![]),
        (slow.poll(1).err(), vec![]),
    ];
    for (error, numbers) in rows {
        let error = error.expect("refused");
        let text = error.to_string();
        for number in numbers {
            assert!(text.contains(&number.to_string()), "{number} is missing: {text}");
        }
        assert_eq!(text, error.message());
        assert!(text.len() > 20 && text.ends_with(|c: char| c == '.' || c.is_alphanumeric() || c == '"'), "{text}");
        assert_eq!(format!("{error:?}"), format!("{}: {text}", error.code().name()));
        assert_eq!(error.is_retryable(), error.code().is_retryable());
        assert_eq!(error.is_fatal(), error.code().is_fatal());
    }
}

#[test]
fn the_numbers_of_an_error_are_fields() {
    let error = Error::new(Code::Lagged, "text")
        .with_asked(1)
        .with_oldest(2)
        .with_current(3)
        .with_lost(4, 5)
        .with_position(Position { epoch: 6, revision: 7 });
    let numbers = [error.asked(), error.oldest(), error.current(), error.lost_from(), error.lost_to()];
    assert_eq!((numbers, error.position()), ([1, 2, 3, 4, 5], Position { epoch: 6, revision: 7 }));
    let none = Error::new(Code::Timeout, "text");
    assert_eq!(
        [none.asked(), none.oldest(), none.current(), none.lost_from(), none.lost_to(), none.position().epoch],
        [0; 6]
    );
}
