//! The page's markup. Whatever is not written here goes through [`Escaped`].

use super::sample::{CacheSample, Sample, ServerSample};
use std::fmt::{self, Display, Write as _};
use std::time::Duration;
use watchcore::{State, SubscriptionInfo};

/// Text in markup, or in an attribute between quotes.
struct Escaped<'t>(&'t str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // Control characters, and those that turn the direction of text round.
                '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                    f.write_char('\u{fffd}')?;
                }
                c if c.is_control() => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A number with its thousands apart.
struct Counted(u64);

impl Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                f.write_char(',')?;
            }
            f.write_char(digit)?;
        }
        Ok(())
    }
}

/// Bytes, as large as people say them.
struct Bytes(u64);

impl Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        for unit in ["B", "KiB", "MiB", "GiB"] {
            if value < 1024.0 {
                let digits = if unit == "B" || value >= 100.0 { 0 } else { 1 };
                return write!(f, "{value:.digits$} {unit}");
            }
            value /= 1024.0;
        }
        write!(f, "{value:.1} TiB")
    }
}

/// How long ago.
struct Age(Duration);

impl Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0 if self.0.is_zero() => f.write_str("0 s"),
            0 => write!(f, "{} ms", self.0.as_millis().max(1)),
            1..120 => write!(f, "{seconds} s"),
            120..7200 => write!(f, "{} min", seconds / 60),
            7200..172_800 => write!(f, "{} h", seconds / 3600),
            _ => write!(f, "{} d", seconds / 86_400),
        }
    }
}

/// The whole page.
pub(super) fn document(sample: &Sample, events: &str, style: &str, script: &str) -> String {
    let figures = figures(sample);
    let events = Escaped(events);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>watchcore</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>\n<style>{style}</style>\n</head>\n<body>\n\
         <header><h1>watchcore</h1><p id=\"live\" role=\"status\">as of when it was loaded</p></header>\n\
         <main id=\"figures\" data-events=\"{events}\">{figures}</main>\n\
         <script>{script}</script>\n</body>\n</html>\n"
    )
}

/// What changes: the inside of `main`.
pub(super) fn figures(sample: &Sample) -> String {
    let mut out = String::with_capacity(8 << 10);
    // Writing to a string does not fail.
    let _ = write_figures(&mut out, sample);
    out
}

fn write_figures(out: &mut String, sample: &Sample) -> fmt::Result {
    let ServerSample { watches, connections, events, bytes, refused } = sample.server;
    out.push_str("<section class=\"server\"><h2>Server</h2><dl>");
    pair(out, "watches", Counted(watches as u64))?;
    // They are counted by the crate's own server only, and this page came on one.
    if connections > 0 {
        pair(out, "connections", Counted(connections as u64))?;
    }
    pair(out, "events sent", Counted(events))?;
    pair(out, "bytes sent", Bytes(bytes))?;
    pair(out, "watches refused", Counted(refused))?;
    out.push_str("</dl></section>");
    for cache in &sample.caches {
        write_cache(out, cache)?;
    }
    if !sample.resources.is_empty() {
        out.push_str(
            "<section><h2>Resources</h2><div class=\"wide\"><table><thead><tr><th>resource</th><th>keys</th>\
             <th>requests</th><th>events framed</th><th>frames shared</th><th>values left out</th></tr></thead><tbody>",
        );
        for resource in &sample.resources {
            write!(
                out,
                "<tr><td>{}</td><td class=\"key\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                Escaped(&resource.name),
                Escaped(&resource.prefix),
                Counted(resource.requests),
                Counted(resource.frames_made),
                Counted(resource.frames_found),
                Counted(resource.left_out)
            )?;
        }
        out.push_str("</tbody></table></div>");
        if sample.more_resources > 0 {
            let more = Counted(sample.more_resources as u64);
            write!(out, "<p class=\"more\">and {more} more with no more requests</p>")?;
        }
        out.push_str("</section>");
    }
    Ok(())
}

fn pair(out: &mut String, name: &str, value: impl Display) -> fmt::Result {
    write!(out, "<div><dt>{name}</dt><dd>{value}</dd></div>")
}

fn write_cache(out: &mut String, cache: &CacheSample) -> fmt::Result {
    let CacheSample { status, stats, .. } = cache;
    let class = match status.state {
        State::Ready => "good",
        State::NotReady | State::Stale { .. } => "warn",
        _ => "bad",
    };
    write!(
        out,
        "<section class=\"cache\"><h2>Cache {} <span class=\"key\">{}</span> <span class=\"state {class}\">{}</span></h2><dl>",
        Escaped(&status.name),
        Escaped(&cache.prefix),
        Escaped(status.state.name())
    )?;
    pair(out, "revision", Counted(status.position.revision))?;
    pair(out, "oldest", Counted(status.oldest))?;
    let revisions = (status.position.revision + 1).saturating_sub(status.oldest);
    let window = format!("{} revisions, {}, {}", Counted(revisions), Age(status.window_age), Bytes(stats.window_bytes));
    pair(out, "window", window)?;
    pair(out, "objects", Counted(status.objects))?;
    pair(out, "memory", Bytes(status.bytes))?;
    match cache.events_per_second {
        Some(rate) => pair(out, "events/s", Counted(rate.round() as u64))?,
        None => pair(out, "events/s", "not known yet")?,
    }
    pair(out, "events", Counted(stats.events))?;
    let mut resyncs = Counted(cache.resyncs).to_string();
    for (reason, count) in &cache.reasons {
        write!(resyncs, " · {} {}", Counted(*count), Escaped(reason))?;
    }
    pair(out, "resyncs", resyncs)?;
    pair(out, "reconnects", Counted(status.source.reconnects))?;
    if !status.source.endpoint.is_empty() {
        pair(out, "source", Escaped(&status.source.endpoint))?;
    }
    out.push_str("</dl>");
    if let Some(error) = &status.last_error {
        write!(out, "<p class=\"error\">last error: {}</p>", Escaped(error.message()))?;
    }
    write_watchers(out, cache, revisions)?;
    out.push_str("</section>");
    Ok(())
}

fn write_watchers(out: &mut String, cache: &CacheSample, window: u64) -> fmt::Result {
    if cache.watchers.is_empty() {
        out.push_str("<p class=\"none\">Nobody watches it.</p>");
        return Ok(());
    }
    out.push_str(
        "<div class=\"wide\"><table><caption>Watchers, the furthest behind first</caption><thead><tr><th>watcher</th>\
         <th>state</th><th>lag, of the window</th><th>events behind</th><th>for</th><th>revision</th>\
         <th>handed out</th><th>last poll</th><th>losses</th></tr></thead><tbody>",
    );
    // An event is at least a revision's share of the window; a lag beyond it has been lost.
    let most = cache.watchers.iter().map(|info| info.lag.events).fold(window.max(1), u64::max);
    for info in &cache.watchers {
        write_watcher(out, info, most)?;
    }
    out.push_str("</tbody></table></div>");
    if cache.more_watchers > 0 {
        write!(out, "<p class=\"more\">and {} more with no more lag</p>", Counted(cache.more_watchers as u64))?;
    }
    Ok(())
}

fn write_watcher(out: &mut String, info: &SubscriptionInfo, most: u64) -> fmt::Result {
    let name = if info.name.is_empty() { "without a name" } else { &info.name };
    write!(
        out,
        "<tr><td>{} <small>#{}</small></td><td>{}</td>\
         <td><meter min=\"0\" max=\"{most}\" low=\"{}\" high=\"{}\" optimum=\"0\" value=\"{}\">{}</meter></td>\
         <td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
        Escaped(name),
        info.id,
        Escaped(info.state.name()),
        most / 4,
        most / 2,
        info.lag.events,
        info.lag.events,
        Counted(info.lag.events),
        Age(info.lag.age),
        Counted(info.position.revision),
        Counted(info.handed_out),
        info.last_poll.map_or_else(|| "never".to_owned(), |age| format!("{} ago", Age(age))),
        Counted(info.lagged)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_name_is_markup() {
        let text = Escaped("<script>\"a\" & 'b'\u{202e}\n</script>").to_string();
        assert_eq!(text, "&lt;script&gt;&quot;a&quot; &amp; &#39;b&#39;\u{fffd}\u{fffd}&lt;/script&gt;");
        for turns in ['\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{2069}', '\u{9b}'] {
            assert_eq!(Escaped(&turns.to_string()).to_string(), "\u{fffd}", "{turns:?}");
        }
    }

    #[test]
    fn figures_are_said_as_people_say_them() {
        assert_eq!([0, 999, 1000, 1_234_567].map(|n| Counted(n).to_string()), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0, 1023, 1024, 200 << 20, 3 << 40].map(|n| Bytes(n).to_string()),
            ["0 B", "1023 B", "1.0 KiB", "200 MiB", "3.0 TiB"]
        );
        let ages = [0, 1, 1500, 119_000, 120_000, 7_200_000, 200_000_000];
        assert_eq!(
            ages.map(|ms| Age(Duration::from_millis(ms)).to_string()),
            ["0 s", "1 ms", "1 s", "119 s", "2 min", "2 h", "2 d"]
        );
    }
}
