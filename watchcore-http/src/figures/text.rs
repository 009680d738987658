//! The registry as text of Prometheus, format 0.0.4.
//!
//! prometheus-client writes OpenMetrics. The two differ in what can stand beside the figures of the caches, which are in
//! the older format: there the family of a counter has the name of its series, with `_total`; no line says a unit; and
//! no `# EOF` ends it.

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;
use std::fmt::Write;

/// Everything that is registered.
pub(crate) fn prometheus_text(registry: &Registry) -> String {
    let mut metrics = String::new();
    // Writing to a string does not fail, nor do the figures of this crate.
    let _ = encode_registry(&mut metrics, registry);
    converted(&metrics)
}

fn converted(metrics: &str) -> String {
    let mut text = String::with_capacity(metrics.len());
    let mut help = None;
    for line in metrics.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ');
        } else if let Some(typed) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = typed.split_once(' ') else { continue };
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, said)) = help.take().filter(|(described, _)| *described == name) {
                let _ = writeln!(text, "# HELP {name}{suffix} {said}");
            }
            let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') && !line.is_empty() {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_named_as_their_series() {
        let metrics = "# HELP a_b Words.\n# TYPE a_b counter\n# UNIT a_b b\na_b_total{c=\"d e\"} 1\n# HELP g G.\n# TYPE g gauge\ng 2\n# EOF\n";
        let text = "# HELP a_b_total Words.\n# TYPE a_b_total counter\na_b_total{c=\"d e\"} 1\n# HELP g G.\n# TYPE g gauge\ng 2\n";
        assert_eq!(converted(metrics), text);
    }
}
