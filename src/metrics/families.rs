//! The text format: families of series, each with its HELP and TYPE once, whatever order the series come in.

use std::fmt::{self, Write};
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FamilyKind {
    /// Its name gets `_total`.
    Counter,
    Gauge,
    Histogram,
}

/// The value of a series.
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

#[derive(Debug)]
struct Family {
    name: String,
    kind: FamilyKind,
    help: String,
    series: String,
}

/// Families of series, for metrics of a program's own in an answer that has those of its caches.
///
/// They come in the order of their first series. Each name gets the prefix, and has its `HELP` and `TYPE` once, whatever
/// order the series come in.
///
/// ```
/// use watchcore::metrics::{Families, Histogram};
///
/// let mut families = Families::with_prefix("shop_");
/// families.counter("orders", "Orders that were taken.", &[("paid", "yes")], 17);
/// families.gauge("carts", "Carts that are open.", &[], 3);
/// let mut prices = Histogram::new(&[1.0, 10.0]);
/// prices.observe(2.5);
/// families.histogram("price", "What an order costs.", &[], &prices);
/// let text = families.text();
/// assert!(text.starts_with("# HELP shop_orders_total Orders that were taken.\n# TYPE shop_orders_total counter\n"));
/// assert!(text.contains("\nshop_orders_total{paid=\"yes\"} 17\n"));
/// assert!(text.contains("\nshop_price_bucket{le=\"1.0\"} 0\nshop_price_bucket{le=\"10.0\"} 1\n"));
/// ```
#[derive(Debug)]
pub struct Families {
    prefix: &'static str,
    all: Vec<Family>,
    /// The index after the family that was added to last: the caches bring theirs in the same order.
    next: usize,
}

impl Families {
    /// No families yet; `prefix` begins each name.
    pub fn with_prefix(prefix: &'static str) -> Families {
        Families { prefix, all: Vec::new(), next: 0 }
    }

    /// Adds a series that only rises. Its name ends in `_total`.
    pub fn counter(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: u64) {
        self.add(name, FamilyKind::Counter, help, labels, value);
    }

    /// Adds a series that may fall.
    pub fn gauge(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: u64) {
        self.add(name, FamilyKind::Gauge, help, labels, value);
    }

    /// Adds a series of a duration, which may fall.
    pub fn seconds(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: Duration) {
        self.add(name, FamilyKind::Gauge, help, labels, value);
    }

    /// Adds a histogram.
    pub fn histogram(&mut self, name: &str, help: &str, labels: &[(&str, &str)], histogram: &Histogram) {
        let family = self.family(name, FamilyKind::Histogram, help);
        let bounds = histogram.bounds.iter().map(|bound| format!("{bound:?}")).chain(["+Inf".to_owned()]);
        let mut below = 0;
        for (bound, count) in bounds.zip(&histogram.counts) {
            below += count;
            family.sample("_bucket", &[labels, &[("le", &bound)]].concat(), below);
        }
        family.sample("_sum", labels, histogram.sum);
        family.sample("_count", labels, below);
    }

    /// Adds a series.
    pub(super) fn add(
        &mut self,
        name: &str,
        kind: FamilyKind,
        help: &str,
        labels: &[(&str, &str)],
        value: impl Into<Value>,
    ) {
        self.family(name, kind, help).sample("", labels, value.into());
    }

    /// A metric of the process: the newest value counts.
    pub(super) fn once(&mut self, name: &str, kind: FamilyKind, help: &str, value: u64) {
        let family = self.family(name, kind, help);
        family.series.clear();
        family.sample("", &[], Value::from(value));
    }

    fn family(&mut self, name: &str, kind: FamilyKind, help: &str) -> &mut Family {
        let count = self.all.len();
        let suffix = if kind == FamilyKind::Counter { "_total" } else { "" };
        let prefix = self.prefix;
        let base = |family: &Family| family.name.strip_prefix(prefix)?.strip_suffix(suffix).map(|base| base == name);
        let wanted = |family: &Family| kind == family.kind && base(family) == Some(true);
        // The one before for the next label, the one behind it for the next name.
        let before = self.next.saturating_sub(1);
        let found = (before..count).chain(0..before).find(|at| wanted(&self.all[*at]));
        let at = found.unwrap_or_else(|| {
            let name = format!("{prefix}{name}{suffix}");
            self.all.push(Family { name, kind, help: escaped(help, false), series: String::new() });
            count
        });
        self.next = at + 1;
        &mut self.all[at]
    }

    /// All of them as text, of the type [`CONTENT_TYPE`](super::CONTENT_TYPE).
    pub fn text(&self) -> String {
        let mut text = String::new();
        for Family { name, kind, help, series } in &self.all {
            let kind = match kind {
                FamilyKind::Counter => "counter",
                FamilyKind::Gauge => "gauge",
                FamilyKind::Histogram => "histogram",
            };
            // Writing to a string cannot fail.
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{series}");
        }
        text
    }
}

impl Family {
    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl fmt::Display) {
        let Family { name, series, .. } = self;
        // Writing to a string cannot fail.
        let _ = write!(series, "{name}{suffix}");
        for (i, (label, text)) in labels.iter().enumerate() {
            let _ = write!(series, "{}{label}=\"{}\"", if i == 0 { '{' } else { ',' }, escaped(text, true));
        }
        let _ = writeln!(series, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }
}

/// How many observations lie at or below each of some bounds, and their sum.
///
/// ```
/// use watchcore::metrics::{Families, Histogram};
///
/// let mut sizes = Histogram::new(&[64.0]);
/// [64.0, 65.0].into_iter().for_each(|size| sizes.observe(size));
/// let mut families = Families::with_prefix("shop_");
/// families.histogram("bytes", "Bytes of an answer.", &[], &sizes);
/// assert!(families.text().ends_with("{le=\"64.0\"} 1\nshop_bytes_bucket{le=\"+Inf\"} 2\nshop_bytes_sum 129\nshop_bytes_count 2\n"));
/// ```
#[derive(Clone, Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// Between each bound and the one before; the last is of what lies above all.
    counts: Box<[u64]>,
    sum: f64,
}

impl Histogram {
    /// A histogram of these bounds, which rise, without observations.
    pub fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1].into(), sum: 0.0 }
    }

    /// Adds an observation.
    pub fn observe(&mut self, value: f64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)] += 1;
        self.sum += value;
    }
}

/// Escapes a text for the format; in labels the quote, too.
fn escaped(text: &str, is_label: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if is_label { text.replace('"', "\\\"") } else { text }
}
