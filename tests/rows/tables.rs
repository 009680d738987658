//! The tables of docs/: printed from contract/, and compared with it. `make tables` writes them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// An area of contract/, the document that has its tables, and all faces of the area.
const AREAS: [(&str, &str, &str); 3] = [
    ("core", "docs/CONTRACT.md", "rust c go cli"),
    ("toolkit", "docs/TOOLKIT.md", "rust go"),
    ("http", "docs/HTTP.md", "http"),
];

#[derive(Default)]
struct Promise {
    text: String,
    faces: String,
    /// Rows that run, and files with tests.
    kept: Vec<String>,
    /// A fault would not show by itself, so a mutant proves that a test sees it.
    silent: bool,
    mutants: Vec<String>,
}

/// By area and id.
type Promises = BTreeMap<(&'static str, Vec<Part>), (String, Promise)>;

/// A piece of an id: `RF-7` stands before `RF-10`.
#[derive(Eq, Ord, PartialEq, PartialOrd)]
enum Part {
    Number(u64),
    Text(String),
}

fn key(id: &str) -> Vec<Part> {
    let part = |part: &str| part.parse().map_or_else(|_| Part::Text(part.to_owned()), Part::Number);
    id.split(['.', '-', ',']).map(part).collect()
}

/// Everything that does not hold.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let mut wrong = String::new();
    let mut promises = promises(root, &mut wrong);
    mutants(root, &mut promises, &mut wrong);
    for (id, promise) in promises.values() {
        if promise.text.is_empty() {
            let _ = writeln!(wrong, "{id}: it promises nothing");
        }
        if promise.kept.is_empty() && !promise.text.starts_with('–') {
            let _ = writeln!(wrong, "{id}: nothing keeps it");
        }
        for file in promise.kept.iter().filter(|file| !root.join(file).exists()) {
            let _ = writeln!(wrong, "{id}: there is no {file}");
        }
        if promise.silent && promise.mutants.is_empty() {
            let _ = writeln!(wrong, "{id}: a fault here is silent, so it needs a patch in tests/mutants");
        }
    }
    for (area, document, every) in AREAS {
        let file = root.join(document);
        let text = fs::read_to_string(&file).expect("a document");
        let printed = print(&text, area, every, &promises);
        if printed == text {
            continue;
        }
        if std::env::var_os("WRITE_TABLES").is_some() {
            fs::write(&file, printed).expect("a document");
        } else {
            let _ = writeln!(wrong, "{document} is not what contract/{area} says: make tables");
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

fn promises(root: &Path, wrong: &mut String) -> Promises {
    let mut all = Promises::new();
    for (area, ..) in AREAS {
        let folder = root.join("contract").join(area);
        let rows = fs::read_to_string(folder.join("rows.list")).unwrap_or_default();
        for line in rows.lines() {
            let mut cells = line.split(" | ");
            let mut next = || cells.next().unwrap_or_default().to_owned();
            let (id, text, faces) = (next(), next(), next());
            let kept = next().split_whitespace().map(str::to_owned).collect();
            let promise = Promise { text, faces, kept, silent: next() == "silent", mutants: Vec::new() };
            if all.insert((area, key(&id)), (id.clone(), promise)).is_some() {
                let _ = writeln!(wrong, "{id} stands twice");
            }
        }
        let mut files: Vec<_> =
            fs::read_dir(&folder).into_iter().flatten().map(|entry| entry.expect("a file")).collect();
        files.sort_by_key(fs::DirEntry::file_name);
        for file in files.iter().filter(|file| file.path().extension().is_some_and(|extension| extension == "txt")) {
            let text = fs::read_to_string(file.path()).expect("a row");
            let head = |name: &str| {
                let lines = text.lines().take_while(|line| !line.is_empty());
                lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).next().unwrap_or_default()
            };
            let entry = all.entry((area, key(head("id"))));
            let (_, promise) = entry.or_insert_with(|| (head("id").to_owned(), Promise::default()));
            promise.kept.push(format!("contract/{area}/{}", file.file_name().to_string_lossy()));
            promise.kept.extend(head("kept").split_whitespace().map(str::to_owned));
            promise.silent |= head("fault") == "silent";
            if promise.text.is_empty() {
                promise.text = head("promise").to_owned();
                promise.faces = head("faces").to_owned();
            }
        }
    }
    all
}

/// The first line of a patch names the row that it breaks.
fn mutants(root: &Path, promises: &mut Promises, wrong: &mut String) {
    let mut files: Vec<_> = fs::read_dir(root.join("tests/mutants")).expect("patches").flatten().collect();
    files.sort_by_key(fs::DirEntry::file_name);
    for file in files {
        let text = String::from_utf8_lossy(&fs::read(file.path()).expect("a patch")).into_owned();
        let name = file.file_name().to_string_lossy().trim_end_matches(".patch").to_owned();
        let row = text.strip_prefix("# row ").and_then(|head| head.split_once("; "));
        let Some((row, _)) = row else {
            let _ = writeln!(wrong, "tests/mutants/{name}: its first line is not \"# row ID; COMMAND\"");
            continue;
        };
        let named = promises.values_mut().find(|(id, _)| id.split(", ").any(|id| id == row));
        match named {
            Some((_, promise)) => promise.mutants.push(name),
            None => {
                let _ = writeln!(wrong, "tests/mutants/{name}: there is no row {row}");
            }
        }
    }
}

/// The document, with a table behind each `<!-- rows PREFIX... -->`, up to its `<!-- end -->`.
fn print(text: &str, area: &str, every: &str, promises: &Promises) -> String {
    let mut all = String::new();
    let mut inside = false;
    for line in text.lines() {
        inside &= line != "<!-- end -->";
        if !inside {
            let _ = writeln!(all, "{line}");
        }
        let Some(prefixes) = line.strip_prefix("<!-- rows ").and_then(|line| line.strip_suffix(" -->")) else {
            continue;
        };
        inside = true;
        // An area of one face has no column for it.
        let has_faces = every.contains(' ');
        all += if has_faces {
            "\n| row | promise | faces |\n| --- | --- | --- |\n"
        } else {
            "\n| row | promise |\n| --- | --- |\n"
        };
        for ((of, _), (id, promise)) in promises {
            let prefix = id.split(['.', '-']).next().unwrap_or_default();
            if *of != area || !prefixes.split(' ').any(|each| each == prefix) {
                continue;
            }
            let faces = promise.faces.replace(every, "all");
            let faces = if has_faces { format!(" {faces} |") } else { String::new() };
            let _ = writeln!(all, "| {id} | {} |{faces}", promise.text);
        }
        all.push('\n');
    }
    all
}
