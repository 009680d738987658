//! The Rust of README.md compiles as it stands there, and runs where it needs no etcd; the functions
//! that docs/API.md names exist.

use watchcore::{Attribute, Cache, Change, Index, Labels, OnLag, Range, Read, ReadOptions, Result, Start, etcd};

const README: &str = include_str!("../../README.md");

#[rustfmt::skip]
#[allow(dead_code, unused_variables, reason = "it follows an etcd for ever")]
fn follow() -> Result<()> {
    let cache = Cache::builder("/registry/").build()?;
    let feeder = etcd::Feeder::new(["http://127.0.0.1:2379"]).start(cache.writer()?)?;
    let mut pods = cache.subscribe(Start::State).prefix("/registry/pods/").open()?;
    while let Some(batch) = pods.next()? {
        for event in &batch {
            println!("{} {} {:?} {:?}", event.revision(), event.kind().name(), event.key(), event.value());
        }
    }
    Ok(())
}

#[rustfmt::skip]
#[test]
fn filters_policies_and_pages() -> Result<()> {
    let cache = Cache::builder("/registry/")
        .labels(Labels::json("/metadata/labels")?)
        .field(Attribute::json("spec.nodeName", "/spec/nodeName")?)
        .index(Index::field("spec.nodeName"))
        .build()?;
    let pod = r#"{"metadata":{"labels":{"app":"web"}},"spec":{"nodeName":"node-7"}}"#;
    cache.writer()?.apply(17, [Change::put("/registry/pods/a", pod), Change::put("/registry/pods/b", "{}")])?;
    let mut mine = cache
        .subscribe(Start::State)
        .prefix("/registry/pods/")
        .labels("app in (web, api)")?
        .fields("spec.nodeName=node-7")?         // reads the bucket of node-7 only
        .on_lag(OnLag::Resnapshot)               // told what was lost, then brought back to the state
        .open()?;
    let page = cache.list_with(&Range::prefix("/registry/pods/"), &ReadOptions::new(Read::Any).limit(500))?;
    let next = page.continue_token();            // later pages are of exactly the same revision
    assert_eq!((page.len(), next), (2, None));
    let batch = mine.poll(10)?;
    assert_eq!((batch.len(), batch.events()[0].key()), (2, &b"/registry/pods/a"[..]));
    Ok(())
}

#[test]
fn the_program_writes_itself() -> Result<()> {
    let cache = Cache::builder("/").build()?;
    cache.writer()?.apply(17, [Change::put("/a", "1")])?;
    assert_eq!(cache.position().revision, 17);
    assert!(README.contains(r#"`cache.writer()?.apply(17, [Change::put("/a", "1")])?`"#));
    Ok(())
}

/// Every Rust line of README.md stands in this file, in that order.
#[test]
fn the_snippets_are_those_above() {
    let blocks = README.split("```rust\n").skip(1).map(|rest| rest.split("```").next().expect("it ends"));
    let mut here = include_str!("readme.rs").lines().map(str::trim);
    let mut lines = 0;
    for line in blocks.flat_map(str::lines).map(str::trim).filter(|line| !line.is_empty()) {
        assert!(here.any(|own| own == line), "README.md has {line:?}, which is not compiled here");
        lines += 1;
    }
    assert!(lines > 15, "{lines} lines");
}

/// The functions of the source, all of them: `fn NAME`.
fn functions(directory: &std::path::Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).expect("readable").map(|entry| entry.expect("readable").path()) {
        if entry.is_dir() {
            functions(&entry, found);
        } else if entry.extension().is_some_and(|kind| kind == "rs") {
            let text = std::fs::read_to_string(&entry).expect("readable");
            let name = |after: &str| after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            found.extend(text.split("fn ").skip(1).map(name));
        }
    }
}

#[test]
fn the_functions_of_the_api_exist() {
    let mut source = Vec::new();
    functions(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut source);
    let code = include_str!("../../docs/API.md").split("```").nth(1).expect("a block of code");
    let mut named = 0;
    for before in code.split('(') {
        let before = before.strip_suffix("::<T>").unwrap_or(before);
        let start = before.rfind(|c: char| !(c.is_alphanumeric() || c == '_')).map_or(0, |at| at + 1);
        let name = &before[start..];
        // Variants, types and what stands in comments begin otherwise.
        let is_name = name.starts_with(|c: char| c.is_ascii_lowercase());
        if is_name && !matches!(name, "repr" | "derive") {
            assert!(source.iter().any(|known| known == name), "docs/API.md names {name}, which is no function");
            named += 1;
        }
    }
    assert!(named > 150, "{named} functions");
}
