//! Generates include/watchcore.h from watchcore-capi/src with cbindgen, and compares it. `WATCHCORE_BLESS=1` rewrites
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The source files in the order of the header. A file whose head has no title belongs to the section of the previous
/// one.
const FILES: [&str; 23] = [
    "bytes",
    "error",
    "codes",
    "process",
    "names",
    "log",
    "declare",
    "cache",
    "key_value",
    "writer",
    "loading",
    "feeder",
    "range",
    "filter",
    "batch",
    "read",
    "snapshot",
    "subscription",
    "subscription_list",
    "wakeset",
    "status",
    "metrics",
    "building",
];

/// Members whose default is not 0.
const DEFAULTS: [(&str, &str, &str); 1] = [("watchcore_read_options", "timeout_ms", "3000")];

/// The version in which each name appeared, a line each: `NAME VERSION`.
const SINCE: &str = "watchcore-capi/header/since";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_default()
}

fn source(file: &str) -> String {
    read(format!("watchcore-capi/src/{file}.rs"))
}

/// An item of the header: the lines of its comment, its declaration, and its name.
struct Item {
    name: String,
    comment: Vec<String>,
    code: Vec<String>,
}

/// Runs cbindgen on the sources and splits its output into items.
fn items() -> Vec<Item> {
    let config = cbindgen::Config::from_file(root().join("cbindgen.toml")).expect("cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in FILES {
        builder = builder.with_src(root().join("watchcore-capi/src").join(file).with_extension("rs"));
    }
    let mut text = Vec::new();
    builder.generate().expect("cbindgen understands watchcore-capi/src").write(&mut text);
    let text = String::from_utf8(text).expect("the header is UTF-8");
    let mut items = Vec::new();
    for block in text.split("\n\n") {
        let lines = block.lines().filter(|line| !line.is_empty() && !line.starts_with("#include"));
        let (comment, code): (Vec<&str>, Vec<&str>) = lines.partition(|line| line.starts_with("//"));
        let Some(name) = name_of(&code) else { continue };
        let own = |lines: Vec<&str>| lines.into_iter().map(str::to_owned).collect();
        items.push(Item { name, comment: own(comment), code: own(code) });
    }
    items
}

fn name_of(code: &[&str]) -> Option<String> {
    let (first, last) = (code.first()?, code.last()?);
    let word =
        |text: &str| text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next().unwrap_or("").to_owned();
    if let Some(rest) = first.strip_prefix("#define ") {
        return Some(word(rest));
    }
    if let Some((_, rest)) = first.split_once("(*") {
        return Some(word(rest));
    }
    if first.starts_with("typedef") {
        let last = last.trim_end_matches(';');
        return Some(last.rsplit(' ').next()?.to_owned());
    }
    first.split('(').next()?.rsplit([' ', '*']).next().map(str::to_owned)
}

/// The place where a source defines a name.
fn place_in(text: &str, name: &str) -> Option<usize> {
    let ends = |at: usize| !text[at..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    ["pub const ", "pub struct ", "pub type ", "extern \"C\" fn "].iter().find_map(|before| {
        let wanted = format!("{before}{name}");
        text.match_indices(&wanted).map(|(at, _)| at).find(|at| ends(at + wanted.len()))
    })
}

/// The title and text of a section: the part of the file's head that is for the header.
fn section(text: &str) -> Option<(String, Vec<String>)> {
    let head = text.lines().take_while(|line| line.starts_with("//!"));
    let mut lines = head.map(|line| line.trim_start_matches("//!").strip_prefix(' ').unwrap_or("").to_owned());
    let title = lines.find_map(|line| line.strip_prefix("# In the header: ").map(str::to_owned))?;
    let prose: Vec<String> = lines.collect();
    let begin = prose.iter().position(|line| !line.is_empty()).unwrap_or(prose.len());
    Some((title, prose[begin..].to_vec()))
}

/// The initialisers of a struct that begins with its size, or is a plain value.
fn initialisers(item: &Item) -> Vec<String> {
    let plain = ["watchcore_bytes", "watchcore_batch"].contains(&item.name.as_str());
    let members: Vec<&str> = item
        .code
        .iter()
        .map(|line| line.trim())
        .filter(|line| line.ends_with(';') && !line.starts_with(['}', '/']))
        .collect();
    if !plain && members.first() != Some(&"uint32_t size;") {
        return Vec::new();
    }
    let zero = |member: &&str| {
        let name = member.trim_end_matches(';').rsplit([' ', '*']).next().unwrap_or_default();
        let given = DEFAULTS.iter().find(|(of, what, _)| *of == item.name && *what == name);
        match given {
            Some((_, _, value)) => (*value).to_owned(),
            None if *member == "uint32_t size;" => format!("(uint32_t)sizeof({})", item.name),
            None if member.contains('*') => "NULL".to_owned(),
            None if member.starts_with("struct watchcore_bytes") => "{ NULL, 0 }".to_owned(),
            None if member.contains('[') => "{ 0 }".to_owned(),
            None => "0".to_owned(),
        }
    };
    let upper = item.name.to_uppercase();
    let mut lines = vec![format!("#define {upper}_INITIALIZER \\")];
    let mut line = String::from("    {");
    for (at, member) in members.iter().enumerate() {
        let value = format!(" {}{}", zero(member), if at + 1 < members.len() { "," } else { " }" });
        if line.len() + value.len() > 106 {
            lines.push(format!("{line} \\"));
            line = String::from("     ");
        }
        line.push_str(&value);
    }
    lines.push(line);
    lines.push(format!("#define {upper}_INIT WATCHCORE_LITERAL({}) {upper}_INITIALIZER", item.name));
    lines
}

/// The version in which a name appeared; the present version for a new name.
fn since(names: &mut BTreeMap<String, String>, name: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let short = version.strip_suffix(".0").unwrap_or(version);
    names.entry(name.to_owned()).or_insert_with(|| short.to_owned()).clone()
}

/// Folds long lines of a comment: the rest of a line begins the next one, if that continues the same paragraph.
fn folded(comment: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut left: Option<String> = None;
    for line in comment {
        let goes_on = line.strip_prefix("// ").filter(|text| !text.starts_with(' '));
        let mut line = match (left.take(), goes_on) {
            (Some(left), Some(text)) => format!("// {left} {text}"),
            (Some(left), None) => {
                lines.push(format!("// {left}"));
                line
            }
            (None, _) => line,
        };
        while line.chars().count() > 118 {
            let end = line.char_indices().nth(114).map_or(line.len(), |(end, _)| end);
            let at = line[..end].rfind(' ').expect("words");
            let rest = line[at + 1..].to_owned();
            line.truncate(at);
            lines.push(line);
            if rest.chars().count() <= 114 {
                left = Some(rest);
                line = String::new();
            } else {
                line = format!("// {rest}");
            }
        }
        if left.is_none() {
            lines.push(line);
        }
    }
    lines.extend(left.map(|left| format!("// {left}")));
    lines
}

/// A comment, with the version at its end.
fn commented(out: &mut String, comment: &[String], since: &str) {
    let mut lines = folded(comment.iter().cloned());
    let words = format!(" Since {since}.");
    match lines.last_mut() {
        Some(last) if last.len() + words.len() <= 118 => last.push_str(&words),
        _ => lines.push(format!("//{words}")),
    }
    for line in lines {
        out.push_str(&line);
        out.push('\n');
    }
}

/// Generates the header, and the list of the versions in which its names appeared.
fn generate() -> (String, String) {
    let mut names: BTreeMap<String, String> = read(SINCE)
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(n, v)| (n.to_owned(), v.to_owned()))
        .collect();
    let mut items = items();
    let (mut toc, mut body, mut numbers) = (String::new(), String::new(), Vec::new());
    let mut functions: Vec<String> = Vec::new();
    for file in FILES {
        let text = source(file);
        if let Some((title, prose)) = section(&text) {
            list_functions(&mut toc, &mut functions);
            numbers.push(file);
            let number = numbers.len();
            toc.push_str(&format!("//  {number:2}  {title}\n"));
            body.push_str(&format!("\n// {}\n// {number}. {title}\n", "=".repeat(107)));
            if !prose.is_empty() {
                body.push_str("//\n");
            }
            for line in folded(prose.iter().map(|line| format!("// {line}").trim_end().to_owned())) {
                body.push_str(&line);
                body.push('\n');
            }
            body.push_str(&format!("// {}\n", "=".repeat(107)));
        }
        let mut here: Vec<(usize, Item)> = Vec::new();
        for item in std::mem::take(&mut items) {
            match place_in(&text, &item.name) {
                Some(at) => here.push((at, item)),
                None => items.push(item),
            }
        }
        here.sort_by_key(|(at, _)| *at);
        let mut was_constant = false;
        for (_, item) in here {
            let constant = item.code[0].starts_with("#define");
            if !(constant && was_constant) {
                body.push('\n');
            }
            was_constant = constant;
            commented(&mut body, &item.comment, &since(&mut names, &item.name));
            let function = !constant && !item.code[0].starts_with("typedef");
            for line in &item.code {
                // All typedefs precede the functions that use them.
                let line = if function { line.replace("struct watchcore_", "watchcore_") } else { line.clone() };
                body.push_str(&line);
                body.push('\n');
            }
            for line in initialisers(&item) {
                body.push_str(&line);
                body.push('\n');
            }
            if function {
                functions.push(item.name);
            }
        }
        // The inline functions are written by hand.
        if file == "batch" {
            body.push('\n');
            body.push_str(&read("watchcore-capi/header/inline.h"));
            let by_hand =
                called(&read("watchcore-capi/header/inline.h")).into_iter().map(str::to_owned).collect::<Vec<_>>();
            functions.extend(by_hand);
        }
    }
    list_functions(&mut toc, &mut functions);
    assert!(items.is_empty(), "in no file of the list: {:?}", items.iter().map(|i| &i.name).collect::<Vec<_>>());
    let mut overview =
        read("watchcore-capi/header/overview.h").replace("@TOC@\n", &format!("// Contents\n//\n{toc}//\n"));
    for text in [&mut overview, &mut body] {
        for (at, file) in numbers.iter().enumerate() {
            *text = text.replace(&format!("@SECTION:{file}@"), &(at + 1).to_string());
        }
        assert!(!text.contains("@SECTION:"), "a reference to a section that is not there");
    }
    let version = env!("CARGO_PKG_VERSION");
    let header = format!("{overview}{}{body}{}", PRELUDE.replace("@VERSION@", version), POSTLUDE);
    let since = names.iter().fold(String::new(), |text, (name, version)| text + name + " " + version + "\n");
    (header, since)
}

/// Lists the functions of a section below its title in the contents.
fn list_functions(toc: &mut String, functions: &mut Vec<String>) {
    let mut line = String::new();
    for name in functions.drain(..) {
        let name = name.trim_start_matches("watchcore_");
        if line.len() + name.len() > 96 {
            toc.push_str(&format!("//        {}\n", line.trim_end()));
            line.clear();
        }
        line.push_str(name);
        line.push_str("  ");
    }
    if !line.is_empty() {
        toc.push_str(&format!("//        {}\n", line.trim_end()));
    }
}

const PRELUDE: &str = "
#ifndef WATCHCORE_H
#define WATCHCORE_H

#include <stddef.h>
#include <stdint.h>

// The version of this header; watchcore_version() is the library's.
#define WATCHCORE_VERSION \"@VERSION@\"

// The bit of an event type in watchcore_subscription_options.types.
#define WATCHCORE_MASK(type) ((uint32_t)1 << (type))

// Makes a value from an initialiser, for the _INIT macros.
#ifdef __cplusplus
#define WATCHCORE_LITERAL(type) type
#else
#define WATCHCORE_LITERAL(type) (type)
#endif

#ifdef __cplusplus
extern \"C\" {
#endif
";

const POSTLUDE: &str = "
#ifdef __cplusplus
} // extern \"C\"
#endif

#endif // WATCHCORE_H
";

#[test]
fn header_is_what_the_source_says() {
    let (header, since) = generate();
    for (path, generated) in [("include/watchcore.h", header), (SINCE, since)] {
        if std::env::var_os("WATCHCORE_BLESS").is_some() {
            std::fs::write(root().join(path), &generated).expect("it is writable");
        }
        let committed = read(path);
        let differs = generated.lines().zip(committed.lines()).position(|(new, old)| new != old);
        let line = differs.unwrap_or(generated.lines().count().min(committed.lines().count())) + 1;
        assert!(
            generated == committed,
            "{path} is not what watchcore-capi says, from line {line} on. Run: WATCHCORE_BLESS=1 cargo test -p watchcore-capi --test header"
        );
    }
}

/// The words of a text that begin with `watchcore_` and are followed by `(`.
fn called(text: &str) -> BTreeSet<&str> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    text.match_indices('(')
        .filter_map(|(at, _)| text[..at].rsplit(word).next())
        .filter(|name| name.starts_with("watchcore_"))
        .collect()
}

/// The texts of all source files of the crate.
fn sources(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("readable").path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false => vec![std::fs::read_to_string(path).expect("readable")],
        })
        .collect()
}

/// Every exported function: its name, and the text of its definition.
fn exported() -> BTreeMap<String, String> {
    let mut exported = BTreeMap::new();
    for text in sources(&root().join("watchcore-capi/src")) {
        for begin in ["#[unsafe(no_mangle)]\n", "accessor! {\n"] {
            for (at, _) in text.match_indices(begin) {
                let after = &text[at + begin.len()..];
                let body = &after[..after.find("\n}\n").expect("it ends")];
                let name =
                    body.split("fn ").nth(1).and_then(|rest| rest.split('(').next()).expect("a function follows");
                exported.insert(name.to_owned(), format!("{begin}{body}"));
            }
        }
    }
    // This name belongs to the macro's definition.
    exported.retain(|name, _| name != "$fun" && !name.starts_with("watchcore_debug_"));
    assert!(exported.len() > 70, "only {} exported functions were found", exported.len());
    exported
}

/// Only the frame calls the bodies of exported functions, so no thread is cancelled inside, and no panic leaves.
/// `accessor!` accepts only a `const fn` body, which has no cancellation point.
#[test]
fn every_exported_function_runs_in_the_frame() {
    for (name, body) in exported() {
        let frames = ["frame!(", "read!(", "free!(", "answer(Fun::"].map(|frame| format!("{frame}{name}"));
        let framed = body.starts_with("accessor!") || frames.iter().any(|frame| body.contains(frame.as_str()));
        assert!(framed, "{name} runs outside of the frame: {body}");
    }
}

#[test]
fn every_exported_function_is_counted_and_declared() {
    let exported: BTreeSet<String> = exported().into_keys().collect();
    let header = read("include/watchcore.h");
    let code: String =
        header.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let declared: BTreeSet<String> = called(&code).into_iter().map(str::to_owned).collect();
    assert_eq!(declared, exported, "declared in the header, and exported");

    let count = read("watchcore-capi/src/frame/count.rs");
    let list =
        count.split("functions! {").nth(1).and_then(|rest| rest.split('}').next()).expect("the list of functions");
    let counted: BTreeSet<String> = list.split_whitespace().map(str::to_owned).collect();
    assert_eq!(counted, exported, "counted in watchcore-capi/src/frame/count.rs, and exported");
}

/// Every set of numbers that the library returns is named completely, and every constant of the header belongs to a
/// known set: one that only the caller uses, or one with names.
#[test]
fn every_number_that_is_answered_has_a_name() {
    /// Constants without names: arguments, bits, numbers of texts, codes (which have their own function), and limits.
    const WITHOUT: [&str; 20] = [
        "ATTRIBUTE_",
        "INDEX_",
        "CHANGE_",
        "RANGE_",
        "READ_ANY",
        "READ_AT_LEAST",
        "READ_EXACT",
        "START_",
        "ON_LAG_",
        "WANT_",
        "TEXT_",
        "NAME_",
        "FLAG_",
        "BATCH_",
        "MESSAGE_BYTES",
        "REVISION_MAX",
        "VERSION",
        "MASK",
        "LITERAL",
        "H",
    ];
    let names = source("names");
    let table = names.split("\nnames! {").nth(1).expect("the table");
    let named: BTreeSet<&str> =
        table.split_whitespace().map(|word| word.trim_matches(|c: char| !c.is_ascii_uppercase() && c != '_')).collect();
    let prefixes: Vec<&str> = table.split('"').skip(1).step_by(2).take(6).collect();
    let header = read("include/watchcore.h");
    let codes = source("error");
    let mut found = 0;
    for line in header.lines().filter_map(|line| line.strip_prefix("#define WATCHCORE_")) {
        let name = line.split([' ', '(']).next().unwrap_or_default();
        let whole = format!("WATCHCORE_{name}");
        let is_code = codes.contains(&format!("pub const {whole}: i32"));
        if is_code || name.ends_with("_INIT") || name.ends_with("_INITIALIZER") {
            continue;
        }
        if prefixes.iter().any(|prefix| whole.starts_with(prefix)) {
            assert!(named.contains(whole.as_str()), "{whole} has no name in watchcore-capi/src/names.rs");
            found += 1;
        } else {
            assert!(
                WITHOUT.iter().any(|prefix| name.starts_with(prefix)),
                "{whole}: is it answered? Then it wants a name."
            );
        }
    }
    assert!(found > 30, "only {found} constants with names were found");
}

/// Each struct of the caller has an initialiser, in both forms.
#[test]
fn sized_structs_have_initialisers() {
    let header = read("include/watchcore.h");
    let mut found = 0;
    for rest in header.split("typedef struct ").skip(1) {
        let Some((name, body)) = rest.split_once(" {\n") else { continue };
        if body.lines().nth(1) == Some("    uint32_t size;") {
            let upper = name.to_uppercase();
            for form in
                [format!("#define {upper}_INITIALIZER \\"), format!("#define {upper}_INIT WATCHCORE_LITERAL({name}) ")]
            {
                assert!(header.contains(&form), "the header lacks {form}");
            }
            found += 1;
        }
    }
    assert!(found > 15, "only {found} structs with a size were found");
}

#[test]
fn versions_agree() {
    let version = format!("#define WATCHCORE_VERSION \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(read("include/watchcore.h").contains(&version), "the header lacks {version}");
}

#[test]
fn comments_say_what_a_caller_must_know() {
    let header = read("include/watchcore.h");
    let mut comment = String::new();
    let mut lacking = Vec::new();
    for line in header.replace(&read("watchcore-capi/header/inline.h"), "").lines() {
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
