//! The library's log messages on standard error.

use std::io::Write;

use super::stderr;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Starts logging. Unreadable directives are reported and ignored, because the variable is shared with other programs.
pub(crate) fn to_stderr(verbosity: u8, directives: Option<&str>) {
    let (filter, complaint) = match targets(verbosity, directives) {
        Ok(filter) => (filter, None),
        Err(complaint) => (of_verbosity(verbosity), Some(complaint)),
    };
    let lines = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_writer(|| Careless);
    let _ = lines.with_target(verbosity > 0 || directives.is_some()).finish().with(filter).try_init();
    if let Some(complaint) = complaint {
        stderr::say(&complaint);
    }
}

/// The levels to log. Without `-v`, RUST_LOG alone decides; with it, its directives are added.
fn targets(verbosity: u8, directives: Option<&str>) -> Result<Targets, String> {
    let Some(directives) = directives else { return Ok(of_verbosity(verbosity)) };
    let asked: Targets = directives.parse().map_err(|error| {
        format!("warning: RUST_LOG={directives} is ignored: {error}. Write it such as RUST_LOG=watchcore=debug,h2=info")
    })?;
    if verbosity == 0 {
        return Ok(asked);
    }
    let mut targets = of_verbosity(verbosity);
    if let Some(level) = asked.default_level() {
        targets = targets.with_default(level);
    }
    Ok(targets.with_targets(asked.iter()))
}

/// The library's own level rises with `-v`; its transport (h2, hyper, tower) stays at warnings.
fn of_verbosity(verbosity: u8) -> Targets {
    let (own, others) = match verbosity {
        0 => (LevelFilter::WARN, LevelFilter::ERROR),
        1 => (LevelFilter::DEBUG, LevelFilter::WARN),
        _ => (LevelFilter::TRACE, LevelFilter::WARN),
    };
    Targets::new().with_target("watchcore", own).with_default(others)
}

/// A writer to standard error for which a closed or unread pipe is no error. Each write is one line.
struct Careless;

impl Write for Careless {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        super::stderr::log(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::filter::LevelFilter as Level;

    const TARGETS: [&str; 4] = ["watchcore::cache", "watchcore_etcd::session", "h2::client", "tower::buffer"];

    fn levels(verbosity: u8, directives: Option<&str>) -> [Level; 4] {
        let targets = targets(verbosity, directives).expect("can be read");
        let highest = |target: &str| {
            let would = |level: &Level| level.into_level().is_some_and(|level| targets.would_enable(target, &level));
            let levels = [Level::TRACE, Level::DEBUG, Level::INFO, Level::WARN, Level::ERROR];
            levels.into_iter().find(would).unwrap_or(Level::OFF)
        };
        TARGETS.map(highest)
    }

    #[test]
    fn the_transport_stays_at_warnings() {
        assert_eq!(levels(0, None), [Level::WARN, Level::WARN, Level::ERROR, Level::ERROR]);
        assert_eq!(levels(1, None), [Level::DEBUG, Level::DEBUG, Level::WARN, Level::WARN]);
        assert_eq!(levels(2, None), [Level::TRACE, Level::TRACE, Level::WARN, Level::WARN]);
        assert_eq!(levels(9, None), levels(2, None));
    }

    #[test]
    fn rust_log_decides_alone_or_is_added() {
        let debug = Some("h2=debug,watchcore_etcd=error");
        assert_eq!(levels(0, debug), [Level::OFF, Level::ERROR, Level::DEBUG, Level::OFF]);
        assert_eq!(levels(2, debug), [Level::TRACE, Level::ERROR, Level::DEBUG, Level::WARN]);
        assert_eq!(levels(0, Some("error")), [Level::ERROR; 4]);
        assert_eq!(levels(1, Some("info")), [Level::DEBUG, Level::DEBUG, Level::INFO, Level::INFO]);
        let complaint = targets(0, Some("a[b{c=d}]=debug=7")).expect_err("no directive");
        assert!(complaint.contains("RUST_LOG=a[b{c=d}]=debug=7"), "{complaint}");
    }
}
