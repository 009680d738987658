//! Servers that deliver a watch without known loss of events.

/// The oldest release of each line without known loss: (minor, patch) of major 3.
const MINIMUM: [(u64, u64); 3] = [(4, 38), (5, 24), (6, 6)];

/// The minimum of a server's release line, as text, if the server is below it. A version that cannot be parsed is
/// skipped.
pub(super) fn too_old(version: &str) -> Option<String> {
    let mut parts = version.trim().trim_start_matches('v').split('.');
    let major: u64 = parts.next()?.parse().ok()?;
    let minor: u64 = parts.next()?.parse().ok()?;
    let rest = parts.next()?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let patch: u64 = rest[..digits].parse().ok()?;
    let below = |(least, of)| (major, minor, patch) < (3, least, of);
    // A line older than all known ones is below the first minimum.
    let of_line = MINIMUM.iter().find(|(line, _)| (major, minor) == (3, *line));
    let minimum = *of_line.unwrap_or(&MINIMUM[0]);
    below(minimum).then(|| format!("3.{}.{}", minimum.0, minimum.1))
}

#[cfg(test)]
mod tests {
    use super::too_old;

    #[test]
    fn each_line_has_its_minimum() {
        for (version, minimum) in [
            ("3.4.23", "3.4.38"),
            ("3.4.37", "3.4.38"),
            ("3.5.23", "3.5.24"),
            ("3.6.5", "3.6.6"),
            ("3.3.27", "3.4.38"),
            ("2.3.8", "3.4.38"),
            ("3.6.0-rc.1", "3.6.6"),
        ] {
            assert_eq!(too_old(version).as_deref(), Some(minimum), "{version}");
        }
    }

    #[test]
    fn new_enough() {
        for version in ["3.4.38", "3.5.24", "3.5.35", "3.6.6", "3.6.16", "3.7.0", "3.7.3", "3.8.0-alpha.0", "4.0.0"] {
            assert_eq!(too_old(version), None, "{version}");
        }
    }

    #[test]
    fn unreadable_versions_are_passed_over() {
        for version in ["", "kine", "3", "3.5", "3.x.1"] {
            assert_eq!(too_old(version), None, "{version}");
        }
    }
}
