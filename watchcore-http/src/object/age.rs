//! Ages in words, as Kubernetes prints them in tables.

use std::time::SystemTime;
use time::{Date, Month, OffsetDateTime};

/// Shown for a missing time; `INVALID` for a text that is not a time.
pub(super) const UNKNOWN: &str = "<unknown>";
pub(super) const INVALID: &str = "<invalid>";

/// Go's longest duration in nanoseconds: Go clamps differences of times to it.
const LONGEST: i128 = i64::MAX as i128;

/// Go's zero time, 1 January of the year 1, in nanoseconds since 1970.
const ZERO: i128 = -62_135_596_800_000_000_000;

/// Formats the age of an RFC 3339 time like `duration.HumanDuration` (k8s.io/apimachinery). Returns `<unknown>` for the
/// empty text and Go's zero time, and `<invalid>` for a malformed time or one more than two seconds in the future.
pub(super) fn age(text: &str, now: SystemTime) -> String {
    if text.is_empty() || text == "null" {
        return UNKNOWN.into();
    }
    let Some(moment) = nanoseconds(text) else { return INVALID.into() };
    if moment == ZERO {
        return UNKNOWN.into();
    }
    let now = OffsetDateTime::from(now).unix_timestamp_nanos();
    human((now - moment).clamp(-LONGEST, LONGEST) as i64)
}

/// Formats a duration in nanoseconds with about two significant parts.
fn human(duration: i64) -> String {
    // Rounds towards zero: less than two seconds in the future is attributed to clock skew.
    let seconds = duration / 1_000_000_000;
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    let two = |large: i64, unit: &str, small: i64, part: &str| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{part}"),
    };
    match () {
        () if seconds < -1 => INVALID.into(),
        () if seconds < 0 => "0s".into(),
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, "d", hours % 24, "h"),
        () if years < 2 => format!("{days}d"),
        () if years < 8 => two(years, "y", days % 365, "d"),
        () => format!("{years}y"),
    }
}

/// Parses an RFC 3339 time into nanoseconds since 1970, by the rules of Go's `time.Parse`.
fn nanoseconds(text: &str) -> Option<i128> {
    let text = text.as_bytes();
    let number = |from: usize, to: usize| {
        let digits = text.get(from..to)?;
        digits
            .iter()
            .all(u8::is_ascii_digit)
            .then(|| digits.iter().fold(0, |n, digit| n * 10 + i64::from(digit - b'0')))
    };
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if !marks.iter().all(|(at, mark)| text.get(*at) == Some(mark)) {
        return None;
    }
    let small = |at: usize| number(at, at + 2)?.try_into().ok();
    let date = Date::from_calendar_date(number(0, 4)? as i32, Month::try_from(small(5)?).ok()?, small(8)?).ok()?;
    let moment = date.with_hms(small(11)?, small(14)?, small(17)?).ok()?.assume_utc();
    let (mut at, mut fraction) = (19, 0);
    if matches!(text.get(at), Some(b'.' | b',')) {
        let digits = text[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        // Digits below a nanosecond are cut off.
        fraction = number(at + 1, at + 1 + digits.min(9))? * 10i64.pow(9 - digits.min(9) as u32);
        at += 1 + digits;
    }
    let offset = match &text[at..] {
        b"Z" => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let (hours, minutes) = (number(at + 1, at + 3)?, number(at + 4, at + 6)?);
            if hours > 24 || minutes > 60 {
                return None;
            }
            (hours * 60 + minutes) * if *sign == b'-' { -60 } else { 60 }
        }
        _ => return None,
    };
    Some(moment.unix_timestamp_nanos() - i128::from(offset) * 1_000_000_000 + i128::from(fraction))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    /// The table of `duration_test.go` in k8s.io/apimachinery.
    #[test]
    fn durations_read_as_in_kubernetes() {
        let (second, minute) = (1_000_000_000, 60_000_000_000);
        let (hour, day, year) = (60 * minute, 24 * 60 * minute, 365 * 24 * 60 * minute);
        let table = [
            (0, "0s"),
            (-second, "0s"),
            (-2 * second, "<invalid>"),
            (-2 * second + 1, "0s"),
            (second - 1_000_000, "0s"),
            (second, "1s"),
            (2 * minute - 1_000_000, "119s"),
            (2 * minute, "2m"),
            (2 * minute + second, "2m1s"),
            (10 * minute - second, "9m59s"),
            (10 * minute, "10m"),
            (10 * minute + second, "10m"),
            (3 * hour - minute, "179m"),
            (3 * hour, "3h"),
            (3 * hour + minute, "3h1m"),
            (8 * hour - 1_000_000, "7h59m"),
            (8 * hour, "8h"),
            (8 * hour + 59 * minute, "8h"),
            (2 * day - 1_000_000, "47h"),
            (2 * day, "2d"),
            (2 * day + hour, "2d1h"),
            (8 * day - 1_000_000, "7d23h"),
            (8 * day, "8d"),
            (8 * day + 23 * hour, "8d"),
            (2 * year - 1_000_000, "729d"),
            (2 * year, "2y"),
            (2 * year + 23 * hour, "2y"),
            (2 * year + day, "2y1d"),
            (8 * year - 1_000_000, "7y364d"),
            (8 * year, "8y"),
            (8 * year + 364 * day, "8y"),
            (9 * year, "9y"),
        ];
        for (duration, words) in table {
            assert_eq!(human(duration), words, "{duration}");
        }
    }

    #[test]
    fn moments_are_parsed_as_in_go() {
        let seconds = |text: &str| nanoseconds(text).map(|moment| moment as f64 / 1e9);
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0.0));
        assert_eq!(seconds("2000-02-29T12:30:15.25+02:00"), Some(951_820_215.25));
        assert_eq!(seconds("2026-07-28T08:00:00-05:30"), Some(1_785_245_400.0));
        assert_eq!(seconds("0001-01-01T00:00:00Z"), Some(-62_135_596_800.0));
        assert_eq!(nanoseconds("1970-01-01T00:00:00.1234567899Z"), Some(123_456_789));
        for text in [
            "2001-02-29T00:00:00Z",
            "2000-13-01T00:00:00Z",
            "2000-00-01T00:00:00Z",
            "2000-01-32T00:00:00Z",
            "2000-01-01T24:00:00Z",
            "2000-01-01T00:00:60Z",
            "2000-01-01 00:00:00Z",
            "2000-01-01T00:00:00",
            "2000-01-01T00:00:00.Z",
            "2000-01-01T00:00:00+0200",
            "2000-01-01T00:00:00+25:00",
            "2000-01-01T00:00:00Zz",
            "2000-01-01",
            "+000-01-01T00:00:00Z",
            "ä000-01-01T00:00:00Z",
        ] {
            assert_eq!(nanoseconds(text), None, "{text}");
        }
    }

    #[test]
    fn ages_are_known_unknown_or_invalid() {
        let now = UNIX_EPOCH + Duration::from_secs(1_785_245_400);
        for (text, words) in [
            ("2026-07-28T13:25:00Z", "5m"),
            ("2026-07-28T13:31:00Z", INVALID),
            ("2026-07-28T13:30:01Z", "0s"),
            ("", UNKNOWN),
            ("null", UNKNOWN),
            ("0001-01-01T00:00:00Z", UNKNOWN),
            ("yesterday", INVALID),
            ("1000-01-01T00:00:00Z", "292y"),
        ] {
            assert_eq!(age(text, now), words, "{text}");
        }
    }
}
