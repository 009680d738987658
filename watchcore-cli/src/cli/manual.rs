//! The man pages of the command, made of what clap knows of it. `man/` has them, for `make install-command`;
//! `WATCHCORE_BLESS=1 cargo test -p watchcore-cli manual` writes them anew.

use super::options;
use std::collections::BTreeMap;
use std::path::Path;

/// The page of the command, and one of each of its own commands.
fn pages() -> BTreeMap<String, Vec<u8>> {
    let mut command = options::command().name("watchcore");
    command.build();
    let mut pages = BTreeMap::new();
    let mut left = vec![command];
    while let Some(command) = left.pop() {
        left.extend(
            command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help").cloned(),
        );
        let name = command.get_display_name().unwrap_or_else(|| command.get_name()).replace(' ', "-");
        let mut page = Vec::new();
        clap_mangen::Man::new(command).date("").manual("watchcore").render(&mut page).unwrap();
        pages.insert(format!("{name}.1"), page);
    }
    pages
}

#[test]
fn manual_is_what_the_options_say() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("man");
    let pages = pages();
    if std::env::var_os("WATCHCORE_BLESS").is_some() {
        std::fs::create_dir_all(&directory).unwrap();
        for entry in std::fs::read_dir(&directory).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        for (name, page) in &pages {
            std::fs::write(directory.join(name), page).unwrap();
        }
    }
    let committed = std::fs::read_dir(&directory).unwrap().map(|entry| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    });
    let committed: BTreeMap<_, _> = committed.collect();
    for (name, page) in &pages {
        let same = committed.get(name) == Some(page);
        assert!(same, "man/{name} is another. Run: WATCHCORE_BLESS=1 cargo test -p watchcore-cli manual");
    }
    assert_eq!(committed.len(), pages.len(), "a page of no command is in man/");
}
