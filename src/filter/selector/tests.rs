use super::*;
use crate::error::Code;
use proptest::prelude::*;
use std::time::{Duration, Instant};

fn printed<T: fmt::Display>(requirements: &[T]) -> String {
    requirements.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

fn labels(text: &str) -> String {
    match parse_labels(text.as_bytes()) {
        Ok(requirements) => printed(&requirements),
        Err(error) => panic!("{text:?} is refused: {error}"),
    }
}

fn fields(text: &str) -> String {
    match parse_fields(text.as_bytes()) {
        Ok(requirements) => printed(&requirements),
        Err(error) => panic!("{text:?} is refused: {error}"),
    }
}

/// The position that the refusal names.
fn position<T: fmt::Debug>(text: &[u8], parsed: Result<Vec<T>>) -> usize {
    let error = parsed.expect_err(&format!("{:?} is accepted", String::from_utf8_lossy(text)));
    assert_eq!(error.code(), Code::InvalidArgument);
    let message = error.message();
    let at = message.rfind("\": byte ").expect("names a position") + "\": byte ".len();
    let digits = message[at..].split(':').next().unwrap_or_default();
    digits.parse().unwrap_or_else(|_| panic!("no position in {message}"))
}

#[test]
fn label_selectors_are_accepted() {
    let table = [
        // text, what it means
        ("", ""),
        (" ", ""),
        ("\t\r\n ", ""),
        ("a", "a"),
        ("a ", "a"),
        ("\ra", "a"),
        ("!a", "!a"),
        (" ! a ", "!a"),
        ("a=b", "a=b"),
        ("a==b", "a=b"),
        (" a\t== \n b ", "a=b"),
        ("a!=b", "a!=b"),
        ("a!= b", "a!=b"),
        ("a=", "a="),
        ("a= ", "a="),
        ("a=,b= ", "a=,b="),
        ("a!=", "a!="),
        ("a==,b", "a=,b"),
        ("a>1", "a>1"),
        ("a < 5 , b>0", "a<5,b>0"),
        ("a>007", "a>7"),
        ("a<9223372036854775807", "a<9223372036854775807"),
        // Sets: one value is an equality, and every comma parts two values.
        ("a in (b)", "a=b"),
        ("a notin (b)", "a!=b"),
        ("a in(b)", "a=b"),
        ("a in (c,b)", "a in (b,c)"),
        ("a in ( c , b )", "a in (b,c)"),
        ("a  notin\t\n(c,b)", "a notin (b,c)"),
        ("a in (b,b)", "a=b"),
        ("a in ()", "a="),
        ("a in ( )", "a="),
        ("a notin ( )", "a!="),
        ("a in (,)", "a="),
        ("a in (b,)", "a in (,b)"),
        ("a in (b,,)", "a in (,b)"),
        ("a in (b,,,,,)", "a in (,b)"),
        ("a in (,b)", "a in (,b)"),
        ("a notin (, b)", "a notin (,b)"),
        ("a in (b,,c)", "a in (,b,c)"),
        ("a in (b,,b,,b,,b,,)", "a in (,b)"),
        ("a notin (c,,b),d,e in (),f", "a notin (,b,c),d,e=,f"),
        // Keywords are keys and values too.
        ("in", "in"),
        ("notin", "notin"),
        ("!in", "!in"),
        ("in,notin", "in,notin"),
        ("in in (in)", "in=in"),
        ("notin notin (notin)", "notin!=notin"),
        ("notin=in", "notin=in"),
        ("in!=notin", "in!=notin"),
        ("a in (in,notin)", "a in (in,notin)"),
        ("a in (x,y,notin, z,in)", "a in (in,notin,x,y,z)"),
        ("in>1", "in>1"),
        // Conjunctions, sorted, without doubles; contradictions are no errors.
        ("b,a", "a,b"),
        ("a,a", "a"),
        ("a=b,a==b,a in (b)", "a=b"),
        ("a,!a", "a,!a"),
        ("a=b,a!=b", "a=b,a!=b"),
        ("a=b,a=c", "a=b,a=c"),
        ("b,a in (c)", "a=c,b"),
        // Keys and values.
        ("example.com/a", "example.com/a"),
        ("with-dash.example.com/key-with-dash in (so,what)", "with-dash.example.com/key-with-dash in (so,what)"),
        ("0.1.2.example/99 notin (10.10.100.1, t.c)", "0.1.2.example/99 notin (10.10.100.1,t.c)"),
        ("A_b.c-D=E_f.g-H", "A_b.c-D=E_f.g-H"),
        ("a--b.-_c=d..e", "a--b.-_c=d..e"),
        ("a--b/c", "a--b/c"),
        ("a>1,a>1", "a>1"),
    ];
    for (text, meaning) in table {
        assert_eq!(labels(text), meaning, "{text:?}");
    }
    let (name, prefix) = ("n".repeat(63), "p".repeat(253));
    for text in [format!("{name}={name}"), format!("{prefix}/{name}"), format!("a>{}7", "0".repeat(62))] {
        assert!(parse_labels(text.as_bytes()).is_ok(), "{text}");
    }
}

#[test]
fn label_selectors_are_refused_with_their_position() {
    let table: &[(&str, usize)] = &[
        (",", 0),
        (",a", 0),
        ("a,", 2),
        ("a, ", 3),
        ("a in (b),", 9),
        ("a,,b", 2),
        ("a,,", 2),
        ("a b", 2),
        ("a in (b)c notin ()", 8),
        ("a nott in (b)", 2),
        ("a!", 1),
        ("!", 1),
        ("!!a", 1),
        ("!a=b", 2),
        ("!a in (b)", 3),
        ("!a>1", 2),
        ("! ,a", 2),
        ("a! =b", 1),
        ("a=b=c", 3),
        ("a==b==c", 4),
        ("a===b", 3),
        ("a=!b", 2),
        ("a=!=b", 2),
        ("a=(b)", 2),
        ("a=)", 2),
        ("a=b c", 4),
        ("a=>1", 2),
        ("=b", 0),
        ("==", 0),
        ("!=b", 0),
        (">1", 0),
        ("a=b||c=d", 3),
        ("a||b", 1),
        ("(", 0),
        ("()", 0),
        (")", 0),
        ("(a)", 0),
        ("a (", 2),
        ("a (b)", 2),
        ("a in", 4),
        ("a in b", 5),
        ("a in ,b", 5),
        ("a in=b", 4),
        ("a notin(", 8),
        ("a notin (b", 10),
        ("a in (b c)", 8),
        ("a in (b,", 8),
        ("a in (,", 7),
        ("a in (=)", 6),
        ("a in (b,!c)", 8),
        ("a in ((b))", 6),
        ("a in (b))", 8),
        ("a in (b,>", 8),
        ("a>", 2),
        ("a>,b", 2),
        ("a<b", 2),
        ("a>-1", 2),
        ("a>+1", 2),
        ("a>1.5", 2),
        ("a>1_000", 2),
        ("a>9223372036854775808", 2),
        ("a>(1)", 2),
        // Keys.
        ("-a", 0),
        ("a-", 1),
        ("_a", 0),
        (".", 0),
        ("a/", 2),
        ("/a", 0),
        ("/", 0),
        ("a/b/c", 3),
        ("a/b/", 3),
        ("a//b", 2),
        ("a*b", 1),
        ("A.b/c", 0),
        ("a_b/c", 1),
        ("-a/c", 0),
        ("a-/c", 1),
        ("a..b/c", 1),
        ("a.-b/c", 1),
        ("a-.b/c", 1),
        (".a/c", 0),
        ("a./c", 1),
        ("a\u{b}", 1),
        ("\u{a0}a", 0),
        ("schl\u{fc}ssel", 4),
        // Values.
        ("a=-b", 2),
        ("a=b-", 3),
        ("a=b/c", 3),
        ("a in (b,c:d)", 9),
        ("a=\"b\"", 2),
        ("a=\u{6c34}", 2),
        // A zero byte: no silent end.
        ("\0", 0),
        ("a=b\0,c=d", 3),
    ];
    for (text, at) in table {
        assert_eq!(position(text.as_bytes(), parse_labels(text.as_bytes())), *at, "{text:?}");
    }
    let at = |text: String| position(text.as_bytes(), parse_labels(text.as_bytes()));
    assert_eq!(at("n".repeat(64)), 63);
    assert_eq!(at(format!("a={}", "v".repeat(64))), 2 + 63);
    assert_eq!(at(format!("a/{}", "n".repeat(64))), 2 + 63);
    assert_eq!(at(format!("{}/a", "p".repeat(254))), 253);
    assert_eq!(at(format!("a>{}7", "0".repeat(63))), 2);
    for (text, wrong) in [(&b"a=b\xff"[..], 3), (b"\x80", 0), (b"a in (b,\xe6\xb0)", 8), (b"a\xc0\x80", 1)] {
        assert_eq!(position(text, parse_labels(text)), wrong);
        assert_eq!(position(text, parse_fields(text)), wrong);
    }
}

#[test]
fn label_operators_on_present_and_absent_labels() {
    /// A selector, where it holds, where not.
    type Row = (&'static str, &'static [Option<&'static str>], &'static [Option<&'static str>]);
    let table: &[Row] = &[
        ("a", &[Some("b"), Some("")], &[None]),
        ("!a", &[None], &[Some("b"), Some("")]),
        ("a=b", &[Some("b")], &[None, Some(""), Some("c"), Some("bb")]),
        ("a=", &[Some("")], &[None, Some("b")]),
        ("a!=b", &[None, Some(""), Some("c")], &[Some("b")]),
        ("a!=", &[None, Some("b")], &[Some("")]),
        ("a in (b,c,d)", &[Some("b"), Some("c"), Some("d")], &[None, Some(""), Some("e")]),
        ("a in (b,)", &[Some("b"), Some("")], &[None, Some("c")]),
        ("a notin (b,c)", &[None, Some(""), Some("d")], &[Some("b"), Some("c")]),
        ("a notin ()", &[None, Some("b")], &[Some("")]),
        ("a>1", &[Some("2"), Some("+2"), Some("002")], &[None, Some("1"), Some("-2"), Some("v2"), Some("2.0")]),
        ("a<1", &[Some("0"), Some("-5")], &[None, Some("1"), Some(""), Some("0x0"), Some(" 0")]),
        ("a<1", &[Some("-9223372036854775808")], &[Some("-9223372036854775809")]),
    ];
    for (text, holds, not) in table {
        let requirement = &parse_labels(text.as_bytes()).expect("parses")[0];
        for value in *holds {
            assert!(requirement.holds(value.map(str::as_bytes)), "{text} on {value:?}");
        }
        for value in *not {
            assert!(!requirement.holds(value.map(str::as_bytes)), "{text} on {value:?}");
        }
    }
    let requirement = &parse_labels(b"a>1").expect("parses")[0];
    assert!(!requirement.holds(Some(b"2\xff")));
}

#[test]
fn field_selectors_are_accepted() {
    let table = [
        ("", ""),
        (",", ""),
        (",,,", ""),
        ("=", ""),
        ("!=", ""),
        ("==,a=b", "a=b"),
        ("a=b", "a=b"),
        ("a==b", "a=b"),
        ("a!=b", "a!=b"),
        ("a=", "a="),
        ("a!=", "a!="),
        ("a=b,", "a=b"),
        (",a=b", "a=b"),
        ("a=b,,c!=d", "a=b,c!=d"),
        ("c!=d,a=b", "a=b,c!=d"),
        ("a=b,a=b", "a=b"),
        ("=b", "=b"),
        // White space is text.
        (" a = b ", " a = b "),
        // Escapes, in values only.
        (r"a=\,", r"a=\,"),
        (r"a=\\,b=c", r"a=\\,b=c"),
        (r"a=\\\,,b=c", r"a=\\\,,b=c"),
        (r"a=\=\=b", r"a=\=\=b"),
        (r"a=b||c\=d", r"a=b||c\=d"),
        (r"a==\=b", r"a=\=b"),
        (r"a\,b=c", r"a\,b=c"),
        (r"a\=b", r"a\=b"),
        (r"a\\,b=c", "refused"),
        (r"a=b!c", "a=b!c"),
        ("a=!b", "a=!b"),
        ("a!b=c", "a!b=c"),
        ("a!!=b", "a!!=b"),
        ("metadata.name=x,spec.nodeName!=", "metadata.name=x,spec.nodeName!="),
        ("notin=in", "notin=in"),
        ("\u{6c34}=\u{706b},a=\0", "a=\0,\u{6c34}=\u{706b}"),
    ];
    for (text, meaning) in table {
        if meaning == "refused" {
            assert!(parse_fields(text.as_bytes()).is_err(), "{text:?}");
        } else {
            assert_eq!(fields(text), meaning, "{text:?}");
        }
    }
    let parsed = parse_fields(br"complex=\=value\\\,\\").expect("parses");
    assert_eq!((&*parsed[0].name, parsed[0].equal, &*parsed[0].value), ("complex", true, r"=value\,\"));
}

#[test]
fn field_selectors_are_refused_with_their_position() {
    let table = [
        ("a", 1),
        ("a,b=c", 1),
        ("a=b,c", 5),
        ("a in (b)", 8),
        ("a in (b,c)", 7),
        ("!a", 2),
        ("a>1", 3),
        (" ", 1),
        ("a==b==c", 4),
        ("a=b=c", 3),
        ("a===", 3),
        ("a=b||c=d", 6),
        (r"a=\b", 2),
        (r"a=b\", 3),
        (r"a=\\\", 4),
        (r"a=b\,c=d", 6),
        (r"a=\!", 2),
        (r"a\", 2),
        (r"a\,b", 4),
    ];
    for (text, at) in table {
        assert_eq!(position(text.as_bytes(), parse_fields(text.as_bytes())), at, "{text:?}");
    }
}

#[test]
fn absent_fields_are_the_empty_string() {
    let holds = |text: &str, value: Option<&str>| {
        parse_fields(text.as_bytes()).expect("parses")[0].holds(value.map(str::as_bytes))
    };
    assert!(holds("a!=b", None) && !holds("a!=b", Some("b")) && holds("a!=b", Some("c")));
    assert!(!holds("a=b", None) && holds("a=b", Some("b")) && !holds("a=b", Some("")));
    assert!(holds("a=", None) && holds("a=", Some("")) && !holds("a=", Some("b")));
    assert!(!holds("a!=", None) && !holds("a!=", Some("")) && holds("a!=", Some("b")));
}

#[test]
fn messages_name_the_position_and_what_was_expected() {
    let said = |text: &str| parse_labels(text.as_bytes()).expect_err("is refused").to_string();
    assert_eq!(said("app in (web"), r#"selector "app in (web": byte 11: expected "," or ")", found the end."#);
    assert_eq!(
        said("a b"),
        "selector \"a b\": byte 2: expected \"=\", \"==\", \"!=\", \"in\", \"notin\", \">\", \"<\", \",\" or the end, found \"b\"."
    );
    assert_eq!(
        said("a\n=\u{1b}[2J"),
        "selector \"a\\n=\\u{1b}[2J\": byte 3: expected in the value a letter or digit at both ends, found \"\\u{1b}\"."
    );
    assert_eq!(
        parse_fields(br"a=\x").expect_err("is refused").to_string(),
        r#"field selector "a=\x": byte 2: expected "\" only before "\", "," or "="."#
    );
    // Long ones are shortened to what stands around the position; no character is split.
    for shift in 0..4 {
        let text = format!("a=b{},\u{1d11e}{}", " ".repeat(shift), "\u{1d11e}".repeat(100_000));
        let message = said(&text);
        assert!(message.len() < 400 && !message.contains('\u{fffd}'), "{message}");
        let text = format!("{}a=b c,{}", "a,".repeat(100_000), ",b".repeat(100_000));
        let message = said(&text);
        assert!(
            message.contains("...") && message.contains("byte 200004: expected \",\" or the end, found \"c\"."),
            "{message}"
        );
        assert!(message.len() < 200, "{message}");
    }
    // Characters of three bytes on both sides, so that each cut falls inside one.
    let many = "\u{6c34}".repeat(1000);
    for text in [format!("a {many}"), format!("a=b,{many}"), format!("a  {many}=b")] {
        let message = said(&text);
        assert!(message.len() < 400 && !message.contains('\u{fffd}'), "{message}");
    }
    let message = parse_fields(format!("a={many}=b{many}").as_bytes()).expect_err("is refused").to_string();
    assert!(message.len() < 200 && !message.contains('\u{fffd}') && message.contains("byte 3002: "), "{message}");
    let text = [&b"a"[..], &[0x80; 1000]].concat();
    assert!(parse_labels(&text).expect_err("is refused").message().len() < 400);
}

/// No size or nesting makes it slow or deep. The bound is generous: a quadratic reader needs minutes.
#[test]
fn a_mebibyte_is_read_in_linear_time() {
    let size = 1 << 20;
    let repeated = |part: &str| part.repeat(size / part.len());
    let start = Instant::now();
    for text in [
        repeated("a,") + "a",
        repeated("a=b,") + "a",
        format!("a in ({})", repeated("b,")),
        format!("a in ({})", repeated(",")),
        repeated("("),
        repeated("a in ("),
        repeated("a in (b),") + "a",
        repeated("a"),
        repeated("a/"),
        repeated("a."),
        repeated("!"),
        repeated("="),
        repeated(" "),
        repeated(" a=\n b ,") + "a",
        repeated("\\"),
        repeated("a=\\,"),
        repeated("a\\,"),
        repeated("a=\\=,"),
        repeated("\u{6c34}"),
        format!("a>{}", repeated("1")),
        (0..size / 8).map(|number| format!("k{number},")).collect::<String>() + "a",
        (0..size / 8).rev().map(|number| format!("k{number}=v,")).collect::<String>(),
    ] {
        let _ = parse_labels(text.as_bytes()).map(|requirements| printed(&requirements));
        let _ = parse_fields(text.as_bytes()).map(|requirements| printed(&requirements));
        let mut broken = text.into_bytes();
        broken.push(0xff);
        assert!(parse_labels(&broken).is_err() && parse_fields(&broken).is_err());
    }
    // No figure of speed: what is quadratic takes hours.
    assert!(start.elapsed() < Duration::from_secs(600), "{:?}", start.elapsed());
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-c]",
        2 => "(in|notin)",
        2 => "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
        1 => "[a-z0-9]([-a-z0-9]{0,10}[a-z0-9])?(\\.[a-z0-9]{1,3}){0,2}/[a-z]{1,5}",
        1 => "[0-9]{1,4}",
    ]
}

/// Pieces that nearly make a selector.
fn nearly() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        6 => word(),
        8 => prop::sample::select(vec![",", "=", "==", "!=", "!", "(", ")", " in (", " notin (", ">", "<", " ", "\t"]).prop_map(str::to_owned),
        1 => prop::sample::select(vec!["\\", "\\,", "/", "-", ".", "\u{fc}", "\0", "\"", "in", "1"]).prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

fn requirement() -> impl Strategy<Value = String> {
    let value = || prop_oneof!["[a-c]", "", "[A-Z0-9]{1,63}", "in"];
    let set = || prop::collection::vec(value(), 0..5).prop_map(|values| values.join(","));
    prop_oneof![
        (word(), prop::sample::select(vec!["=", "==", "!=", " = "]), value())
            .prop_map(|(k, o, v)| format!("{k}{o}{v}")),
        (word(), prop::sample::select(vec![" in ", " notin\t"]), set()).prop_map(|(k, o, s)| format!("{k}{o}({s})")),
        (word(), prop::sample::select(vec![">", "<"]), 0..i64::MAX).prop_map(|(k, o, n)| format!("{k}{o}{n}")),
        word(),
        word().prop_map(|k| format!(" !{k} ")),
    ]
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_or_refused(text in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_labels(&text);
        let _ = parse_fields(&text);
    }

    /// What is accepted says the same when it is printed and read again; what is refused is refused
    /// at a position inside the text.
    #[test]
    fn printing_and_reading_again_gives_the_same(text in nearly()) {
        match parse_labels(text.as_bytes()) {
            Ok(parsed) => prop_assert_eq!(&parse_labels(printed(&parsed).as_bytes()).expect("parses"), &parsed),
            refused => prop_assert!(position(text.as_bytes(), refused) <= text.len()),
        }
        match parse_fields(text.as_bytes()) {
            Ok(parsed) => prop_assert_eq!(&parse_fields(printed(&parsed).as_bytes()).expect("parses"), &parsed),
            refused => prop_assert!(position(text.as_bytes(), refused) <= text.len()),
        }
    }

    #[test]
    fn right_selectors_are_accepted_in_any_order(mut parts in prop::collection::vec(requirement(), 0..8)) {
        let parsed = parse_labels(parts.join(",").as_bytes()).expect("parses");
        prop_assert_eq!(&parse_labels(printed(&parsed).as_bytes()).expect("parses"), &parsed);
        parts.reverse();
        prop_assert_eq!(&parse_labels(parts.join(" , ").as_bytes()).expect("parses"), &parsed);
    }

    #[test]
    fn any_value_of_a_field_comes_back(value in "\\PC{0,20}", name in "[a-z.]{1,8}") {
        let wanted = vec![FieldRequirement { name: name.into(), equal: value.len() % 2 == 0, value: value.into() }];
        prop_assert_eq!(parse_fields(printed(&wanted).as_bytes()).expect("parses"), wanted);
    }
}
