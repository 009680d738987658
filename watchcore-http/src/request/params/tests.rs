use super::*;

fn params(query: &str) -> Params {
    Params::parse(Some(query)).unwrap_or_else(|refusal| panic!("{query}: {refusal}"))
}

/// Encodes a query; a value of `-` omits its parameter.
fn query(pairs: &[(&str, &str)]) -> String {
    let given = pairs.iter().filter(|(_, value)| *value != "-");
    given.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

/// Every combination of a list's parameters, compared with the forbidden ones and with the table of the others.
#[test]
fn lists_begin_as_the_table_says() {
    for version in ["-", "", "0", "7"] {
        for matched in ["-", "", "Exact", "NotOlderThan", "Other"] {
            for limit in ["-", "0", "3"] {
                for token in ["-", "", "t"] {
                    for initial in ["-", "true", "false"] {
                        let query = query(&[
                            ("resourceVersion", version),
                            ("resourceVersionMatch", matched),
                            ("limit", limit),
                            ("continue", token),
                            ("sendInitialEvents", initial),
                        ]);
                        let start = params(&query).list_start().map_err(|refusal| refusal.code());
                        assert_eq!(start, list_by_table(version, matched, limit, token, initial), "{query}");
                    }
                }
            }
        }
    }
}

fn list_by_table(version: &str, matched: &str, limit: &str, token: &str, initial: &str) -> Result<ListStart, u16> {
    let (has_version, has_match, has_token) = (version > "-", matched > "-", token == "t");
    let forbidden = [
        initial != "-",
        has_match && !has_version,
        has_match && has_token,
        matched == "Other",
        matched == "Exact" && version == "0",
    ];
    if forbidden.contains(&true) {
        return Err(422);
    }
    if has_token && version == "7" {
        return Err(400);
    }
    Ok(match (version, matched, limit, token) {
        (_, _, _, "t") => ListStart::Continue("t".into()),
        ("-" | "", _, _, _) => ListStart::Consistent,
        ("0", _, _, _) => ListStart::Any,
        ("7", "NotOlderThan", _, _) | ("7", "-" | "", "-" | "0", _) => ListStart::AtLeast(7),
        ("7", "Exact", _, _) | ("7", "-" | "", "3", _) => ListStart::Exact(7),
        other => panic!("no row for {other:?}"),
    })
}

#[test]
fn gets_begin_as_the_table_says() {
    for other in ["", "&limit=2&resourceVersionMatch=Exact&sendInitialEvents=1"] {
        let start = |version: &str| params(&format!("{version}{other}")).get_start();
        assert_eq!(start(""), Ok(GetStart::Consistent));
        assert_eq!(start("resourceVersion="), Ok(GetStart::Consistent));
        assert_eq!(start("resourceVersion=0"), Ok(GetStart::Any));
        assert_eq!(start("resourceVersion=7"), Ok(GetStart::AtLeast(7)));
        assert_eq!(start("resourceVersion=x").map_err(|refusal| refusal.code()), Err(400));
    }
}

/// Every combination of a watch's parameters, for both shapes of its path.
#[test]
fn watches_begin_as_the_table_says() {
    for version in ["-", "", "0", "7", "4503599627370496"] {
        for matched in ["-", "", "Exact", "NotOlderThan", "Other"] {
            for token in ["-", "t"] {
                for initial in ["-", "true", "false", ""] {
                    for bookmarks in ["-", "true", "false"] {
                        let query = query(&[
                            ("watch", "1"),
                            ("resourceVersion", version),
                            ("resourceVersionMatch", matched),
                            ("continue", token),
                            ("sendInitialEvents", initial),
                            ("allowWatchBookmarks", bookmarks),
                        ]);
                        let params = params(&query);
                        let code = |refusal: Refusal| refusal.code();
                        let expected = watch_by_table(version, matched, token, initial, bookmarks);
                        assert_eq!(params.watch_start().map_err(code), expected, "{query}");
                        // With `watch` in the query, the deprecated path follows the rules of a watch.
                        let old = watch_by_table(version, matched, token, initial, bookmarks).map(|start| {
                            match (initial, version) {
                                ("-", "-" | "") => WatchFrom::State(StateWait::None),
                                _ => start.from,
                            }
                        });
                        let old = old.map(|from| WatchStart { from, end_mark: false });
                        assert_eq!(params.old_watch_start().map_err(code), old, "{query}");
                    }
                }
            }
        }
    }
}

fn watch_by_table(
    version: &str,
    matched: &str,
    token: &str,
    initial: &str,
    bookmarks: &str,
) -> Result<WatchStart, u16> {
    let has_match = matched > "-";
    let forbidden = [
        initial == "-" && has_match,
        initial != "-" && matched != "NotOlderThan",
        has_match && matched != "NotOlderThan",
        (has_match || initial == "-" && ["-", "", "0"].contains(&version)) && token == "t",
    ];
    if forbidden.contains(&true) {
        return Err(422);
    }
    // An empty value is true.
    let initial = if initial.is_empty() { "true" } else { initial };
    let state = |wait| (WatchFrom::State(wait), bookmarks == "true");
    let (from, end_mark) = match (version, initial) {
        ("-" | "", "-" | "true") => state(StateWait::Consistent),
        ("0", "-" | "true") => state(StateWait::None),
        ("7", "true") => state(StateWait::AtLeast(7)),
        ("4503599627370496", "true") => state(StateWait::AtLeast(1 << 52)),
        ("-" | "", "false") => (WatchFrom::AfterConsistent, false),
        ("0", "false") => (WatchFrom::Now, false),
        ("7", "-" | "false") => (WatchFrom::After(7), false),
        ("4503599627370496", "-" | "false") => (WatchFrom::After(1 << 52), false),
        other => panic!("no row for {other:?}"),
    };
    Ok(WatchStart { from, end_mark })
}

#[test]
fn no_timeout_is_a_timeout_of_zero() {
    assert_eq!(params("").timeout, None);
    assert_eq!(params("timeoutSeconds=0").timeout, None);
    assert_eq!(params("timeoutSeconds=2").timeout, Some(Duration::from_secs(2)));
    assert_eq!(Params::parse(None), Ok(params("")));
}
