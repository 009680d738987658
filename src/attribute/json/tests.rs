use super::*;
use proptest::prelude::*;

/// Fields and labels as text.
type Texts = (Vec<Option<String>>, Vec<(String, String)>);

fn pointer(text: &str) -> Pointer {
    Pointer::parse("test", text).expect("parses")
}

fn read(pointers: &[&str], labels: Option<&str>, text: &[u8]) -> Result<Texts, Malformed> {
    let mut all = Pointers::default();
    for (number, text) in pointers.iter().enumerate() {
        all.add_field(&pointer(text), number);
    }
    if let Some(text) = labels {
        all.set_labels(&pointer(text));
    }
    let mut found = Extracted { fields: vec![None; pointers.len()], labels: Vec::new() };
    all.read(text, &mut found)?;
    let string = |text: Cow<[u8]>| String::from_utf8(text.into_owned()).expect("is UTF-8");
    let mut labels = std::collections::BTreeMap::new();
    for (key, value) in found.labels {
        labels.insert(string(key), value.map(string));
    }
    let labels = labels.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    Ok((found.fields.into_iter().map(|field| field.map(string)).collect(), labels))
}

fn one(pointer: &str, text: &str) -> Result<Option<String>, Malformed> {
    read(&[pointer], None, text.as_bytes()).map(|(mut fields, _)| fields.remove(0))
}

#[test]
fn a_pointer_finds_a_scalar() {
    let text = r#" { "s" : "text" , "n": -1.50e+3, "big":123456789012345678901234567890, "t":true,"f" :false,
        "null":null, "a":["x",[1,{"y":"z"}], {"0":"in"}], "o":{"p":{"q":"deep"}}, "":"nameless",
        "m~n":"tilde", "x/y":"slash", "e\u0073c":"name", "v":"a\"\\\/\b\f\n\r\t\u00fc\ud834\udd1e\u0000", "~1":"both",
        "empty":"", "zero":-0, "utf":"ü水" } "#;
    let table = [
        ("/s", Some("text")),
        ("/n", Some("-1.50e+3")),
        ("/big", Some("123456789012345678901234567890")),
        ("/t", Some("true")),
        ("/f", Some("false")),
        ("/null", None),
        ("/a", None),
        ("/o", None),
        ("", None),
        ("/a/0", Some("x")),
        ("/a/1/0", Some("1")),
        ("/a/1/1/y", Some("z")),
        ("/a/2/0", Some("in")),
        ("/a/3", None),
        ("/a/00", None),
        ("/a/+0", None),
        ("/a/-", None),
        ("/a/-0", None),
        ("/a/99999999999999999999999", None),
        ("/a/", None),
        ("/o/p/q", Some("deep")),
        ("/o/p/q/r", None),
        ("/s/0", None),
        ("/", Some("nameless")),
        ("/m~0n", Some("tilde")),
        ("/x~1y", Some("slash")),
        ("/~01", Some("both")),
        ("/esc", Some("name")),
        ("/v", Some("a\"\\/\u{8}\u{c}\n\r\t\u{fc}\u{1d11e}\0")),
        ("/empty", Some("")),
        ("/zero", Some("-0")),
        ("/utf", Some("\u{fc}\u{6c34}")),
        ("/nowhere", None),
    ];
    for (pointer, value) in table {
        assert_eq!(one(pointer, text), Ok(value.map(str::to_owned)), "{pointer}");
    }
    // All in one pass say the same.
    let pointers: Vec<&str> = table.iter().map(|row| row.0).collect();
    let (fields, labels) = read(&pointers, Some("/a/2"), text.as_bytes()).expect("is JSON");
    assert_eq!(fields, table.map(|row| row.1.map(str::to_owned)));
    assert_eq!(labels, [("0".to_owned(), "in".to_owned())]);
    for (text, value) in
        [("\"x\"", Some("x")), (" 7 ", Some("7")), ("true", Some("true")), ("null", None), ("[]", None)]
    {
        assert_eq!(one("", text), Ok(value.map(str::to_owned)), "{text}");
    }
}

#[test]
fn labels_are_the_scalars_of_an_object() {
    let text =
        r#"{"metadata":{"labels":{"b":"1","a":"x","n":7,"t":true,"z":null,"l":[],"o":{"a":"y"},"\u0065":"\n"}}}"#;
    let (fields, labels) = read(
        &["/metadata/labels/a", "/metadata/labels/o/a", "/metadata/labels/l", "/metadata/labels"],
        Some("/metadata/labels"),
        text.as_bytes(),
    )
    .expect("is JSON");
    assert_eq!(fields, [Some("x".into()), Some("y".into()), None, None]);
    let labels: Vec<(&str, &str)> = labels.iter().map(|(key, value)| (&**key, &**value)).collect();
    assert_eq!(labels, [("a", "x"), ("b", "1"), ("e", "\n"), ("n", "7"), ("t", "true")]);
    for text in [r#"{"metadata":{"labels":["a"]}}"#, r#"{"metadata":{"labels":"a"}}"#, r#"{"metadata":null}"#, "{}"] {
        assert_eq!(read(&[], Some("/metadata/labels"), text.as_bytes()), Ok((vec![], vec![])), "{text}");
    }
}

#[test]
fn of_members_with_the_same_name_the_last_holds() {
    for (text, value) in [
        (r#"{"a":{"b":"1"},"a":{"b":"2"}}"#, Some("2")),
        (r#"{"a":{"b":"1","b":"2"}}"#, Some("2")),
        (r#"{"a":{"b":"1"},"a":{}}"#, None),
        (r#"{"a":{"b":"1"},"a":null}"#, None),
        (r#"{"a":{"b":"1","b":[]}}"#, None),
        (r#"{"a":["0","1"],"a":{"b":"2"}}"#, Some("2")),
        (r#"{"a":{"b":"1"},"\u0061":{"b":"2"}}"#, Some("2")),
    ] {
        assert_eq!(one("/a/b", text), Ok(value.map(str::to_owned)), "{text}");
    }
    for (text, labels) in [
        (r#"{"a":{"k":"1","l":"2","k":"3"}}"#, &[("k", "3"), ("l", "2")][..]),
        (r#"{"a":{"k":"1","k":null}}"#, &[]),
        (r#"{"a":{"k":"1"},"a":{"l":"2"}}"#, &[("l", "2")]),
        (r#"{"a":{"k":"1"},"a":"x"}"#, &[]),
    ] {
        let found = read(&[], Some("/a"), text.as_bytes()).expect("is JSON").1;
        let wanted: Vec<(String, String)> = labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        assert_eq!(found, wanted, "{text}");
    }
}

#[test]
fn what_is_not_json_is_malformed_wherever_it_stands() {
    for text in ["", " ", r#"{"a":}"#, r#"{"a": }"#] {
        assert_eq!(one("/a", text), Err(Malformed), "{text}");
    }
    let table: &[&[u8]] = &[
        b"{",
        b"}",
        b"{\"a\"}",
        b"{\"a\":}",
        b"{\"a\":1,}",
        b"{,}",
        b"{a:1}",
        b"{\"a\":1 \"b\":2}",
        b"{\"a\" 1}",
        b"[",
        b"[1,]",
        b"[,1]",
        b"[1 2]",
        b"[1}",
        b"{\"a\":1]",
        b"{\"a\":[}]",
        b"nul",
        b"truex",
        b"True",
        b"01",
        b"-",
        b"1.",
        b".5",
        b"+1",
        b"1e",
        b"1e+",
        b"0x1",
        b"NaN",
        b"'a'",
        b"\"a",
        b"\"a\nb\"",
        b"\"\\x\"",
        b"\"\\u12g4\"",
        b"\"\\u12\"",
        b"\"\\",
        b"1 2",
        b"{} {}",
        b"{}x",
        b"\xef\xbb\xbf{}",
        b"\xff",
    ];
    for text in table {
        let shown = String::from_utf8_lossy(text);
        for (before, after) in [("", ""), (r#"{"a":"x","s":["#, "]}"), (r#"{"s":{"t":"#, r#"},"a":"x"}"#)] {
            let text = [before.as_bytes(), text, after.as_bytes()].concat();
            for pointers in [&["/a"][..], &["/s"], &["/s/0"], &["/s/t"], &["/s/t", "/s/0", "", "/s/t/a"]] {
                assert_eq!(read(pointers, None, &text), Err(Malformed), "{shown} {pointers:?}");
                assert_eq!(read(pointers, Some("/s"), &text), Err(Malformed), "{shown} {pointers:?}");
            }
        }
    }
}

/// Bytes that are no text matter only where they are asked for.
#[test]
fn text_is_checked_where_it_is_asked_for() {
    for wrong in [&b"\xff"[..], b"\\ud834", b"\\ud834x", b"\\ud834\\u0041", b"\\udd1e"] {
        let text = [b"{\"a\":{\"b\":\"", wrong, b"\"},\"c\":\"x\"}"].concat();
        assert_eq!(read(&["/c"], None, &text).map(|found| found.0), Ok(vec![Some("x".into())]));
        assert_eq!(read(&["/a/b"], None, &text), Err(Malformed));
        assert_eq!(read(&["/c"], Some("/a"), &text), Err(Malformed));
    }
    assert_eq!(read(&[], Some("/a"), b"{\"a\":{\"\xff\":\"\"}}"), Err(Malformed));
}

#[test]
fn nesting_has_a_limit_and_no_recursion() {
    let nested = |open: &str, close: &str, depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
    for (open, close, part) in [("[", "]", "/0"), ("{\"a\":", "}", "/a")] {
        let longest = part.repeat(MAX_JSON_DEPTH);
        for pointer in ["", "/x", part, &part.repeat(50), &longest] {
            assert!(one(pointer, &nested(open, close, MAX_JSON_DEPTH)).is_ok(), "{pointer}");
            assert_eq!(one(pointer, &nested(open, close, MAX_JSON_DEPTH + 1)), Err(Malformed), "{pointer}");
        }
        assert_eq!(one(&longest, &nested(open, close, MAX_JSON_DEPTH)), Ok(Some("1".into())));
        assert_eq!(one("/x", &open.repeat(1 << 20)), Err(Malformed));
    }
}

#[test]
fn malformed_pointers_are_refused_with_their_position() {
    let long = "/a".repeat(MAX_JSON_DEPTH + 1);
    let table = [
        ("a", 0),
        ("a/b", 0),
        ("#/a", 0),
        (" /a", 0),
        ("/a~", 2),
        ("/~2", 1),
        ("/a/b~c", 4),
        ("/a~0~/b", 4),
        ("/~~0", 1),
        ("/ü~", 3),
        (&*long, MAX_JSON_DEPTH * 2),
    ];
    for (text, at) in table {
        let message = Pointer::parse("JSON pointer", text).expect_err(text).to_string();
        assert!(
            message.starts_with("JSON pointer \"") && message.contains(&format!("\": byte {at}: expected ")),
            "{text}: {message}"
        );
    }
    let tokens = |text: &str| pointer(text).tokens().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(tokens(""), [""; 0]);
    assert_eq!(tokens("/"), [""]);
    assert_eq!(tokens("//a~1~0b~01/"), ["", "a/~b~1", ""]);
}

/// JSON text with doubled names, odd spaces and escapes.
#[cfg(feature = "json")]
fn json() -> impl Strategy<Value = String> {
    let string = || {
        prop::collection::vec(
            prop::sample::select(vec![
                "a",
                "b",
                "/",
                "~",
                "\\n",
                "\\\"",
                "\\\\",
                "\\u0061",
                "\\ud834\\udd1e",
                "ü",
                "\u{1d11e}",
                "0123456789",
                "{",
                "]",
                ",",
                ":",
            ]),
            0..6,
        )
        .prop_map(|parts| format!("\"{}\"", parts.concat()))
    };
    let scalar = prop_oneof![
        string(),
        prop::sample::select(vec!["null", "true", "false", "0", "-1", "42", "18446744073709551615"])
            .prop_map(str::to_owned),
    ];
    let name = move || {
        prop_oneof![
            6 => prop::sample::select(vec!["\"a\"", "\"b\"", "\"0\"", "\"1\"", "\"\\u0061\"", "\"m~n\"", "\"x/y\"", "\"\""]).prop_map(str::to_owned),
            1 => string(),
        ]
    };
    let space = || prop::sample::select(vec!["", "", "", " ", "\n\t", "\r "]);
    scalar.prop_recursive(5, 60, 6, move |inner| {
        prop_oneof![
            2 => prop::collection::vec((space(), name(), space(), inner.clone()), 0..6).prop_map(|members| {
                let members: Vec<String> = members.iter().map(|(s, k, t, v)| format!("{s}{k}{t}:{s}{v}{t}")).collect();
                format!("{{{}}}", members.join(","))
            }),
            1 => prop::collection::vec((space(), inner), 0..4).prop_map(|members| {
                let members: Vec<String> = members.iter().map(|(s, v)| format!("{s}{v}{s}")).collect();
                format!("[{}]", members.join(","))
            }),
        ]
    })
}

#[cfg(feature = "json")]
fn scalar(value: Option<&serde_json::Value>) -> Option<String> {
    match value? {
        serde_json::Value::String(text) => Some(text.clone()),
        value @ (serde_json::Value::Number(_) | serde_json::Value::Bool(_)) => Some(value.to_string()),
        _ => None,
    }
}

#[cfg(feature = "json")]
const POINTERS: &[&str] =
    &["", "/a", "/a/b", "/b", "/a/a/a", "/a/0", "/0/1/a", "/b/1", "/m~0n", "/x~1y/a", "/", "//a", "/a/b/0"];

#[cfg(feature = "json")]
proptest! {
    /// The same as from a whole tree.
    #[test]
    fn pointers_find_what_a_tree_holds(text in json(), labels in prop::sample::select(vec!["", "/a", "/a/b", "/0"])) {
        let tree: serde_json::Value = serde_json::from_str(&text).expect("is JSON");
        let (fields, found) = read(POINTERS, Some(labels), text.as_bytes()).expect("is JSON");
        for (pointer, field) in POINTERS.iter().zip(fields) {
            prop_assert_eq!(field, scalar(tree.pointer(pointer)), "{}", pointer);
        }
        let members = tree.pointer(labels).and_then(serde_json::Value::as_object).into_iter().flatten();
        let members: Vec<_> = members.filter_map(|(key, value)| Some((key.clone(), scalar(Some(value))?))).collect();
        prop_assert_eq!(found, members);
    }

    /// Cut, doubled and overwritten anywhere, it is JSON exactly where it is for another reader.
    #[test]
    fn nearly_json_is_malformed_as_for_a_tree(text in json(), cuts in prop::collection::vec((any::<prop::sample::Index>(), "[]{}\\[,:\" 01tfn.eE+-]{0,2}", 0..3usize), 1..3)) {
        let mut text: Vec<char> = text.chars().collect();
        for (at, piece, remove) in cuts {
            let at = at.index(text.len() + 1);
            text.splice(at..(at + remove).min(text.len()), piece.chars());
        }
        let text: String = text.into_iter().collect();
        let tree = serde_json::from_str::<serde_json::Value>(&text);
        // Halves of surrogate pairs and numbers out of range are no errors where they are skipped.
        prop_assume!(!tree.as_ref().is_err_and(|error| error.to_string().contains("surrogate") || error.to_string().contains("hex escape") || error.to_string().contains("out of range")));
        for pointers in [&["/nowhere"][..], POINTERS] {
            prop_assert_eq!(read(pointers, None, text.as_bytes()).is_ok(), tree.is_ok(), "{} {:?}", text, tree);
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_malformed(text in prop::collection::vec(any::<u8>(), 0..300), object in any::<bool>()) {
        let text = if object { [b"{\"a\":", &text[..], b"}"].concat() } else { text };
        let _ = read(&["", "/a", "/a/b", "/a/0"], None, &text);
    }
}

/// Strings of every length, from every distance to the end of the text, with anything at every place:
/// names, values that are skipped, and values and names that are asked for.
#[test]
fn strings_of_every_length_end_where_they_end() {
    // What stands in the text; the same as text, or nothing where it is malformed.
    let pieces: [(&str, Option<&str>); 16] = [
        ("", Some("")),
        ("!", Some("!")),
        ("#", Some("#")),
        ("\u{7f}", Some("\u{7f}")),
        ("ü", Some("ü")),
        ("水", Some("水")),
        ("\u{10ffff}", Some("\u{10ffff}")),
        ("\\\"", Some("\"")),
        ("\\\\", Some("\\")),
        ("\\u00e9", Some("é")),
        ("\\ud834\\udd1e", Some("\u{1d11e}")),
        ("\n", None),
        ("\u{1f}", None),
        ("\\", None),
        ("\\u00g0", None),
        ("\\x", None),
    ];
    for length in 0..=17 {
        for place in 0..=length {
            for (piece, plain) in pieces {
                let (before, after) = ("b".repeat(place), "a".repeat(length - place));
                let string = format!("\"{before}{piece}{after}\"");
                let wanted = plain.map(|plain| format!("{before}{plain}{after}"));
                for behind in [0, 1, 6, 7, 8, 9] {
                    let space = " ".repeat(behind);
                    let what = format!("{string} and {behind}");
                    let value = read(&[""], None, format!("{string}{space}").as_bytes());
                    assert_eq!(value.ok().and_then(|mut found| found.0.remove(0)), wanted, "{what}");
                    for skipped in [
                        format!("{{\"s\":[{string}{space}]}}"),
                        format!("{{\"s\":{{{string}:{string},{string}:0{space}}}}}"),
                        format!("{{{string}:{string}{space}}}"),
                        format!("[{string}, {string}{space}]"),
                        format!("{string}{space}"),
                    ] {
                        for pointer in ["/none", "/0/none", "/s/none"] {
                            assert_eq!(one(pointer, &skipped).is_ok(), wanted.is_some(), "{what}: {skipped}");
                        }
                    }
                    let found = read(&[], Some("/s"), format!("{{\"s\":{{{string}:\"x\"}}{space}}}").as_bytes());
                    let name = found.ok().map(|(_, mut labels)| labels.remove(0).0);
                    assert_eq!(name, wanted, "{what}");
                }
                // Cut anywhere it is malformed.
                for cut in (1..string.len()).filter(|cut| string.is_char_boundary(*cut)) {
                    assert_eq!(one("/none", &string[..cut]), Err(Malformed), "{string} to {cut}");
                    assert_eq!(one("", &string[..cut]), Err(Malformed), "{string} to {cut}");
                }
            }
        }
    }
}

/// Each kind of token after each other, also where they do not belong; the shorter rows with spaces, too.
#[cfg(feature = "json")]
#[test]
fn every_short_row_of_tokens_is_json_as_for_a_tree() {
    let tokens = ["{", "}", "[", "]", ",", ":", "\"a\"", "1", "true", "null", "-"];
    for length in 1..=5u32 {
        for number in 0..tokens.len().pow(length) {
            let row = (0..length).map(|place| tokens[number / tokens.len().pow(place) % tokens.len()]);
            let row: Vec<&str> = row.collect();
            for between in ["", " "].iter().take(if length < 5 { 2 } else { 1 }) {
                let text = row.join(between);
                let wanted = serde_json::from_str::<serde_json::Value>(&text).is_ok();
                for pointers in [&["/none"][..], &["/a"], &["/0/a", "/a/0"]] {
                    assert_eq!(read(pointers, None, text.as_bytes()).is_ok(), wanted, "{text} {pointers:?}");
                }
            }
        }
    }
}

/// Which of them are objects is known to the deepest, in any mixture.
#[test]
fn each_end_is_of_the_kind_of_its_beginning() {
    for seed in 1..=40u128 {
        let kinds = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834).rotate_left(seed as u32);
        let object = |level: usize| kinds >> level & 1 == 1;
        let open: String = (0..MAX_JSON_DEPTH).map(|level| if object(level) { "{\"a\":" } else { "[" }).collect();
        let ends: Vec<&str> = (0..MAX_JSON_DEPTH).rev().map(|level| if object(level) { "}" } else { "]" }).collect();
        for pointer in ["/none", "/a", "/0", "/a/a/0/0/a"] {
            assert!(one(pointer, &format!("{open}1{}", ends.concat())).is_ok(), "{open}");
            for wrong in 0..MAX_JSON_DEPTH {
                let mut ends = ends.clone();
                ends[wrong] = if ends[wrong] == "}" { "]" } else { "}" };
                assert_eq!(one(pointer, &format!("{open}1{}", ends.concat())), Err(Malformed), "{open} {wrong}");
            }
        }
    }
}
