//! include/watchcore.h is what cbindgen makes of watchcore-capi/src. `WATCHCORE_BLESS=1` rewrites it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// In the order in which they stand in the header.
const FILES: [&str; 20] = [
    "bytes",
    "error",
    "declare",
    "cache",
    "writer",
    "loading",
    "feeder",
    "key_value",
    "range",
    "read",
    "filter",
    "snapshot",
    "subscription",
    "subscription_list",
    "batch",
    "wakeset",
    "status",
    "metrics",
    "log",
    "process",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
}

fn generate() -> String {
    let config =
        cbindgen::Config::from_file(root().join("watchcore-capi/cbindgen.toml")).expect("cbindgen.toml is readable");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in FILES {
        builder = builder.with_src(root().join("watchcore-capi/src").join(file).with_extension("rs"));
    }
    let mut text = Vec::new();
    builder.generate().expect("cbindgen understands watchcore-capi/src").write(&mut text);
    String::from_utf8(text).expect("the header is UTF-8")
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_default()
}

#[test]
fn header_is_what_the_source_says() {
    let generated = generate();
    if std::env::var_os("WATCHCORE_BLESS").is_some() {
        std::fs::write(root().join("include/watchcore.h"), &generated).expect("the header is writable");
    }
    let committed = read("include/watchcore.h");
    let differs = generated.lines().zip(committed.lines()).position(|(new, old)| new != old);
    let line = differs.unwrap_or(generated.lines().count().min(committed.lines().count())) + 1;
    assert!(
        generated == committed,
        "include/watchcore.h is not what watchcore-capi/src says, from line {line} on. Run: WATCHCORE_BLESS=1 cargo test -p watchcore-capi --test header"
    );
}

/// The words of a text that begin with `watchcore_` and are followed by `(`.
fn called(text: &str) -> BTreeSet<&str> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    text.match_indices('(')
        .filter_map(|(at, _)| text[..at].rsplit(word).next())
        .filter(|name| name.starts_with("watchcore_"))
        .collect()
}

#[test]
fn every_exported_function_is_counted_and_declared() {
    let mut exported = BTreeSet::new();
    for entry in std::fs::read_dir(root().join("watchcore-capi/src")).expect("watchcore-capi/src is there") {
        let text = std::fs::read_to_string(entry.expect("readable").path()).expect("readable");
        for after in text.split("#[unsafe(no_mangle)]").skip(1) {
            let name = after.split("fn ").nth(1).and_then(|rest| rest.split('(').next()).expect("a function follows");
            exported.insert(name.to_owned());
        }
    }
    exported.retain(|name| !name.starts_with("watchcore_debug_"));
    assert!(exported.len() > 70, "only {} exported functions were found", exported.len());

    let header = read("include/watchcore.h");
    let code: String =
        header.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let declared: BTreeSet<String> = called(&code).into_iter().map(str::to_owned).collect();
    assert_eq!(declared, exported, "declared in the header, and exported");

    let count = read("watchcore-capi/src/count.rs");
    let list =
        count.split("functions! {").nth(1).and_then(|rest| rest.split('}').next()).expect("the list of functions");
    let counted: BTreeSet<String> = list.split_whitespace().map(str::to_owned).collect();
    assert_eq!(counted, exported, "counted in watchcore-capi/src/count.rs, and exported");
}

/// Compilers warn of an initialiser that names fewer fields than its struct has.
#[test]
fn initialisers_name_every_field() {
    let header = read("include/watchcore.h");
    let mut found = 0;
    for definition in header.split("#define WATCHCORE_").skip(1) {
        let Some((name, rest)) = definition.split_once("_INIT ") else { continue };
        if !name.bytes().all(|c| c.is_ascii_uppercase() || c == b'_') {
            continue;
        }
        let mut end = rest.len();
        for (at, line) in rest.match_indices('\n') {
            if !rest[..at].ends_with('\\') {
                end = at;
                break;
            }
            assert_eq!(line, "\n");
        }
        // At depth 1, the commas between the elements.
        let mut depth = 0;
        let mut elements = 1;
        for c in rest[..end].chars() {
            match c {
                '{' | '(' => depth += 1,
                '}' | ')' => depth -= 1,
                ',' if depth == 1 => elements += 1,
                _ => {}
            }
        }
        let name = format!("watchcore_{}", name.to_lowercase());
        let body = header
            .split(&format!("typedef struct {name} {{\n"))
            .nth(1)
            .and_then(|rest| rest.split("\n}").next())
            .unwrap_or_else(|| panic!("{name} is in the header"));
        let fields = body.lines().filter(|line| line.ends_with(';')).count();
        assert_eq!(elements, fields, "elements of the initialiser of {name}, and its fields");
        found += 1;
    }
    assert!(found > 15, "only {found} initialisers were found");
}

#[test]
fn versions_agree() {
    let version = format!("#define WATCHCORE_VERSION \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(read("include/watchcore.h").contains(&version), "the header lacks {version}: set it in cbindgen.toml");
}

#[test]
fn comments_say_what_a_caller_must_know() {
    let header = read("include/watchcore.h");
    let mut comment = String::new();
    let mut lacking = Vec::new();
    let hand_written = header.find("// Initialisers:").expect("the hand-written part");
    for line in header[..hand_written].lines() {
        if let Some(text) = line.strip_prefix("//") {
            comment.push_str(text);
            continue;
        }
        let function = called(line).into_iter().next().filter(|_| !line.starts_with("typedef"));
        if let Some(name) = function {
            let takes_error = header
                .split(&format!("{name}("))
                .nth(1)
                .and_then(|r| r.split(';').next())
                .is_some_and(|r| r.contains("watchcore_error *error"));
            for (word, needed) in [("lock", true), ("thread", true), ("Codes:", takes_error)] {
                if needed && !comment.contains(word) {
                    lacking.push(format!("{name} lacks {word:?}"));
                }
            }
        }
        if !line.is_empty() {
            comment.clear();
        }
    }
    assert!(
        lacking.is_empty(),
        "comments that do not say whether they block, on which threads, and which codes: {lacking:#?}"
    );
}
