//! The text format: families of series, each with its HELP and TYPE once, whatever order the series come in.

use std::fmt::{self, Write};
use std::time::Duration;

/// Of each name.
const PREFIX: &str = "watchcore_";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FamilyKind {
    /// Its name gets `_total`.
    Counter,
    Gauge,
}

/// What a series is at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Count(u64),
    Seconds(Duration),
}

impl From<u64> for Value {
    fn from(count: u64) -> Value {
        Value::Count(count)
    }
}

impl From<Duration> for Value {
    fn from(time: Duration) -> Value {
        Value::Seconds(time)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Count(count) => count.fmt(f),
            // Never with an exponent, and never NaN.
            Value::Seconds(time) => time.as_secs_f64().fmt(f),
        }
    }
}

struct Family {
    name: String,
    kind: FamilyKind,
    help: String,
    series: String,
}

/// Families in the order in which their first series came.
#[derive(Default)]
pub(super) struct Families {
    all: Vec<Family>,
    /// Behind the family that was added to last: the caches bring theirs in the same order.
    next: usize,
}

impl Families {
    /// One more series.
    pub(super) fn add(
        &mut self,
        name: &str,
        kind: FamilyKind,
        help: &str,
        labels: &[(&str, &str)],
        value: impl Into<Value>,
    ) {
        let family = self.family(name, kind, help);
        // Writing to a string cannot fail.
        let _ = family.sample(labels, value.into());
    }

    /// A figure of the process: the newest value counts.
    pub(super) fn once(&mut self, name: &str, kind: FamilyKind, help: &str, value: u64) {
        let family = self.family(name, kind, help);
        family.series.clear();
        let _ = family.sample(&[], value.into());
    }

    fn family(&mut self, name: &str, kind: FamilyKind, help: &str) -> &mut Family {
        let count = self.all.len();
        let suffix = if kind == FamilyKind::Counter { "_total" } else { "" };
        let base = |family: &Family| family.name.strip_prefix(PREFIX)?.strip_suffix(suffix).map(|base| base == name);
        let wanted = |family: &Family| kind == family.kind && base(family) == Some(true);
        // The one before for the next label, the one behind it for the next name.
        let before = self.next.saturating_sub(1);
        let found = (before..count).chain(0..before).find(|at| wanted(&self.all[*at]));
        let at = found.unwrap_or_else(|| {
            let name = format!("{PREFIX}{name}{suffix}");
            self.all.push(Family { name, kind, help: escaped(help, false), series: String::new() });
            count
        });
        self.next = at + 1;
        &mut self.all[at]
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for Family { name, kind, help, series } in &self.all {
            let kind = if *kind == FamilyKind::Counter { "counter" } else { "gauge" };
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{series}");
        }
        text
    }
}

impl Family {
    fn sample(&mut self, labels: &[(&str, &str)], value: Value) -> fmt::Result {
        let Family { name, series, .. } = self;
        series.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            write!(series, "{}{label}=\"{}\"", if i == 0 { '{' } else { ',' }, escaped(text, true))?;
        }
        writeln!(series, "{} {value}", if labels.is_empty() { "" } else { "}" })
    }
}

/// As the format wants it: of labels the quote too.
fn escaped(text: &str, is_label: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if is_label { text.replace('"', "\\\"") } else { text }
}
