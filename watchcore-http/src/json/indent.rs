//! JSON with line breaks and indents, for people: the parameter `pretty`.

/// Formats JSON that arrives in pieces, two spaces per level, as Go's `json.Indent` does.
///
/// Input that is not JSON gives unspecified output, but no error.
#[derive(Default)]
pub(crate) struct Indent {
    depth: usize,
    /// Inside a string; `escaped`: after a backslash in it.
    string: bool,
    escaped: bool,
    /// A bracket was just opened: a line break follows unless it is closed at once.
    opened: bool,
}

impl Indent {
    /// Formats the next piece and appends it until `out` holds `most` bytes. Returns how many bytes of `text` were
    /// consumed: at least one if `out` was empty. Indents grow with depth, so two bytes of a malicious value may become
    /// hundreds.
    pub(crate) fn write(&mut self, text: &[u8], most: usize, out: &mut Vec<u8>) -> usize {
        for (at, byte) in text.iter().enumerate() {
            // The most that one byte adds: a line break and indent before it and, in input that is not JSON, another
            // after it.
            if !out.is_empty() && out.len() + 4 * self.depth + 4 > most {
                return at;
            }
            if self.string {
                self.in_string(*byte);
                out.push(*byte);
                continue;
            }
            match byte {
                b' ' | b'\n' | b'\r' | b'\t' => {}
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if !std::mem::take(&mut self.opened) {
                        self.line(out);
                    }
                    out.push(*byte);
                }
                _ => {
                    if std::mem::take(&mut self.opened) {
                        self.line(out);
                    }
                    out.push(*byte);
                    match byte {
                        b'"' => self.string = true,
                        b'{' | b'[' => (self.depth, self.opened) = (self.depth + 1, true),
                        b',' => self.line(out),
                        b':' => out.push(b' '),
                        _ => {}
                    }
                }
            }
        }
        text.len()
    }

    fn in_string(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => self.string = false,
            _ => {}
        }
    }

    fn line(&self, out: &mut Vec<u8>) {
        out.push(b'\n');
        out.extend(std::iter::repeat_n(b"  ", self.depth).flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn indented(text: &str, at: usize) -> String {
        let (mut indent, mut out) = (Indent::default(), Vec::new());
        let (one, two) = text.as_bytes().split_at(at.min(text.len()));
        for text in [one, two] {
            assert_eq!(indent.write(text, usize::MAX, &mut out), text.len());
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn brackets_without_contents_stay_together() {
        assert_eq!(indented("{ }", 1), "{}");
        assert_eq!(
            indented(r#"{"a":[],"b":[1,{"c" : {}}],"d":"{\"x\\"}"#, 7),
            "{\n  \"a\": [],\n  \"b\": [\n    1,\n    {\n      \"c\": {}\n    }\n  ],\n  \"d\": \"{\\\"x\\\\\"\n}"
        );
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i32>().prop_map(Value::from),
            "[a\"\\\\{}:,é ]{0,6}".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a\"\\\\]{0,2}", inner, 0..4).prop_map(|members| json!(members)),
            ]
        })
    }

    proptest! {
        /// serde_json's pretty form equals Go's.
        #[test]
        fn pieces_are_formatted_as_the_whole(value in any_value(), at in 0usize..200) {
            prop_assert_eq!(indented(&value.to_string(), at), serde_json::to_string_pretty(&value).unwrap());
        }
    }
}
