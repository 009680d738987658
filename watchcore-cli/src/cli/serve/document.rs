//! The text of a configuration file, and the places of errors in it.
//!
//! An error has the span of the text that it is about. Line and column are counted in the text. The key is the
//! innermost one of the document whose own text, or whose value's text, contains the span.

use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::cli::exit::Failure;
use watchcore::Code;

/// A file that was read, and its name in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Document {
    path: PathBuf,
    text: String,
}

impl Document {
    pub(crate) fn read(path: &Path) -> Result<Document, Failure> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let what = format!(
                "{}: the configuration cannot be read: {error}. Name a file of TOML with --config",
                path.display()
            );
            Failure::new(Code::InvalidArgument, what)
        })?;
        Ok(Document::new(path, text))
    }

    pub(crate) fn new(path: impl Into<PathBuf>, text: impl Into<String>) -> Document {
        Document { path: path.into(), text: text.into() }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Resolves a path of the file, which is relative to the file itself.
    pub(crate) fn resolve(&self, path: &Path) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    /// Formats an error as `file:line:column: key: message`.
    pub(crate) fn at(&self, span: &Range<usize>, message: &str) -> Failure {
        let (line, column) = self.line_and_column(span.start);
        let key = match &*self.key(span.start).join(".") {
            "" => String::new(),
            key => format!("{key}: "),
        };
        Failure::new(Code::InvalidArgument, format!("{}:{line}:{column}: {key}{message}", self.path.display()))
    }

    /// Makes a message of an error of the parser or of a value's type.
    pub(crate) fn error(&self, error: &toml::de::Error, example: impl Fn(&str) -> Option<&'static str>) -> Failure {
        let span = error.span().unwrap_or(0..0);
        let said = error.message().trim_end_matches('.');
        let (key, line) = (self.key(span.start), |key: &str| example(key).map(|line| format!(": {line}")));
        let (said, advice) = if let Some(rest) = said.strip_prefix("unknown field ") {
            (format!("unknown key {rest}"), "Correct its name, or remove it".to_owned())
        } else if let Some(rest) = said.strip_prefix("missing field ") {
            let whole: Vec<&str> = key.iter().map(String::as_str).chain([rest.trim_matches('`')]).collect();
            (format!("missing key {rest}"), format!("Add it{}", line(&whole.join(".")).unwrap_or_default()))
        } else if said == "duplicate key" {
            let name = self.text.get(span.clone()).unwrap_or_default();
            (format!("{name}: {said}"), "Remove one of the two".to_owned())
        } else {
            match line(&key.join(".")) {
                Some(line) => (said.to_owned(), format!("Write it such as{line}")),
                None => (said.to_owned(), "The form is that of TOML 1.0, https://toml.io".to_owned()),
            }
        };
        self.at(&span, &format!("{said}. {advice}"))
    }

    /// Line and column, both from 1; columns count characters.
    fn line_and_column(&self, offset: usize) -> (usize, usize) {
        let before = self.text.get(..offset).unwrap_or(&self.text);
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
    }

    /// The names of the keys that lead to an offset. A table in an array has no number: the line number identifies it.
    fn key(&self, offset: usize) -> Vec<String> {
        let (table, _) = DeTable::parse_recoverable(&self.text);
        let mut names = Vec::new();
        if !enter(table.get_ref(), offset, &mut names) {
            names.extend(self.key_of_line(offset));
        }
        names
    }

    /// The text before the `=` of a line that the parser could not parse.
    fn key_of_line(&self, offset: usize) -> Option<String> {
        let before = self.text.get(..offset)?;
        let (name, _) = before[before.rfind('\n').map_or(0, |end| end + 1)..].split_once('=')?;
        let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        Some(name.trim()).filter(|name| !name.is_empty() && name.chars().all(is_bare)).map(str::to_owned)
    }
}

/// Whether the offset lies in this table; then `names` leads to it.
fn enter(table: &DeTable<'_>, offset: usize, names: &mut Vec<String>) -> bool {
    for (name, value) in table {
        names.push(name.get_ref().to_string());
        if within(value, offset, names) || name.span().contains(&offset) {
            return true;
        }
        names.pop();
    }
    false
}

fn within(value: &Spanned<DeValue<'_>>, offset: usize, names: &mut Vec<String>) -> bool {
    let inside = match value.get_ref() {
        DeValue::Table(table) => enter(table, offset, names),
        DeValue::Array(array) => array.iter().any(|one| within(one, offset, names)),
        _ => false,
    };
    inside || value.span().contains(&offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a = 1\nb = { c = \"ü\", d = [2, 3] }\n\n[[e]]\nf = 4\n[[e]]\n  g = 5\n[h.i]\nj = 6\n";

    fn says(needle: &str) -> String {
        let start = TEXT.find(needle).expect("it is there");
        Document::new("x.toml", TEXT).at(&(start..start + 1), "no").message
    }

    #[test]
    fn a_place_has_line_column_and_key() {
        for (needle, expected) in [
            ("1", "x.toml:1:5: a: no"),
            ("a", "x.toml:1:1: a: no"),
            ("\"ü", "x.toml:2:11: b.c: no"),
            ("d =", "x.toml:2:16: b.d: no"),
            ("3", "x.toml:2:24: b.d: no"),
            ("[[e]]", "x.toml:4:1: e: no"),
            ("4", "x.toml:5:5: e.f: no"),
            ("g", "x.toml:7:3: e.g: no"),
            ("[h.i]", "x.toml:8:1: h.i: no"),
            ("6", "x.toml:9:5: h.i.j: no"),
        ] {
            assert_eq!(says(needle), expected, "{needle}");
        }
    }

    #[test]
    fn a_path_lies_beside_the_file() {
        let beside = |file: &str, path: &str| Document::new(file, "").resolve(Path::new(path));
        assert_eq!(beside("/etc/watchcore/x.toml", "server.crt"), Path::new("/etc/watchcore/server.crt"));
        assert_eq!(beside("/etc/watchcore/x.toml", "/run/server.crt"), Path::new("/run/server.crt"));
        assert_eq!(beside("x.toml", "server.crt"), Path::new("server.crt"));
    }
}
