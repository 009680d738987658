//! Rows as text: contract/README.md says what each part means. Every language has this parser.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

/// A step that takes this long has failed.
const BOUND: Duration = Duration::from_secs(60);

/// A file of contract/.
pub(crate) struct Row {
    pub(crate) name: String,
    faces: Vec<String>,
    file: String,
    cases: Vec<Case>,
}

/// Steps that share nothing with those before. `each` are the values of one name, with which they run again.
struct Case {
    name: String,
    each: Vec<String>,
    steps: Vec<Step>,
}

struct Step {
    line: usize,
    text: String,
    expected: Vec<String>,
}

/// What a step prints, and what runs it.
pub(crate) trait Machine: Default {
    fn run(&mut self, words: &[String]) -> Vec<String>;
}

impl Row {
    /// The rows of a folder that a language claims.
    ///
    /// # Panics
    /// For a file that is none.
    pub(crate) fn all(folder: &Path, face: &str) -> Vec<Row> {
        let files = std::fs::read_dir(folder).expect("rows").map(|entry| entry.expect("a file").path());
        let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "txt")).collect();
        files.sort();
        files.iter().map(|path| Row::read(path)).filter(|row| row.faces.iter().any(|one| one == face)).collect()
    }

    fn read(path: &Path) -> Row {
        let text = std::fs::read_to_string(path).expect("a file");
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let file = path.display().to_string();
        let mut lines = (1..).zip(text.lines());
        let mut faces = Vec::new();
        for (_, line) in lines.by_ref().take_while(|(_, line)| !line.is_empty()) {
            if let Some(list) = line.strip_prefix("faces: ") {
                let list = list.split(';').next().unwrap_or_default();
                faces = list.split_whitespace().map(str::to_owned).collect();
            }
        }
        let mut cases = vec![Case { name: String::new(), each: vec![String::new()], steps: Vec::new() }];
        for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let steps = &mut cases.last_mut().expect("the first").steps;
            if let Some(line) = line.strip_prefix("  ") {
                let step = steps.last_mut().unwrap_or_else(|| panic!("{file}:{number}: nothing prints this"));
                step.expected.push(line.to_owned());
            } else if let Some(case) = line.strip_prefix("case ") {
                let (name, each) = match case.split_once(" in ") {
                    Some((name, each)) if !name.contains(' ') => {
                        (name.to_owned(), each.split_whitespace().map(str::to_owned).collect())
                    }
                    _ => (String::new(), vec![String::new()]),
                };
                cases.push(Case { name, each, steps: Vec::new() });
            } else {
                steps.push(Step { line: number, text: line.to_owned(), expected: Vec::new() });
            }
        }
        Row { name, faces, file, cases }
    }

    /// # Errors
    /// File, line, and the difference, where a step prints something else.
    pub(crate) fn run<M: Machine>(&self) -> Result<(), String> {
        for case in &self.cases {
            for value in &case.each {
                let mut names = BTreeMap::from([(case.name.clone(), value.clone())]);
                let mut machine = M::default();
                for step in &case.steps {
                    let run = AssertUnwindSafe(|| step.run(&mut machine, &mut names));
                    catch_unwind(run).unwrap_or_else(|panic| Err(text_of(&*panic))).map_err(|difference| {
                        let with = if value.is_empty() { String::new() } else { format!(" with {value}") };
                        format!("{}:{}{with}: {}\n{difference}", self.file, step.line, step.text)
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// Why a step could not be run.
fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|&text| text.to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

impl Step {
    fn run<M: Machine>(&self, machine: &mut M, names: &mut BTreeMap<String, String>) -> Result<(), String> {
        let text = with_names(&self.text, names);
        let (kept, text) = match text.strip_prefix("let ").and_then(|text| text.split_once(" = ")) {
            Some((name, step)) => (Some(name), step),
            None => (None, &*text),
        };
        let (is_awaited, text) = text.strip_prefix("eventually ").map_or((false, text), |step| (true, step));
        let mut run = || -> Vec<String> { each(text).iter().flat_map(|step| machine.run(&words(step))).collect() };
        let mut printed = run();
        if let Some(name) = kept {
            let [one] = &*printed else { return Err(format!("it printed {} lines", printed.len())) };
            names.insert(name.to_owned(), one.clone());
            return Ok(());
        }
        let expected: Vec<String> = self
            .expected
            .iter()
            .flat_map(|line| each(&with_names(line, names)))
            .flat_map(|line| braces(&line))
            .collect();
        let begin = Instant::now();
        while is_awaited && !matches(&expected, &printed) && begin.elapsed() < BOUND {
            std::thread::yield_now();
            printed = run();
        }
        if matches(&expected, &printed) { Ok(()) } else { Err(difference(&expected, &printed)) }
    }
}

/// `$NAME`, `$NAME+1` and `$NAME-1`.
fn with_names(text: &str, names: &BTreeMap<String, String>) -> String {
    let mut all = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        let end = after.find(|byte: char| !byte.is_ascii_alphanumeric()).unwrap_or(after.len());
        let value = names.get(&after[..end]).unwrap_or_else(|| panic!("${} is kept nowhere", &after[..end]));
        all.push_str(before);
        let (value, length) = computed(value, &after[end..]);
        all.push_str(&value);
        rest = &after[end + length..];
    }
    all + rest
}

/// A value, and `+1`, `-1` or `%5` behind it, if that follows; how long that was.
fn computed(value: &str, rest: &str) -> (String, usize) {
    let digits = rest.get(1..).unwrap_or_default();
    let digits = &digits[..digits.find(|byte: char| !byte.is_ascii_digit()).unwrap_or(digits.len())];
    let (Ok(number), Ok(by)) = (value.parse::<u64>(), digits.parse::<u64>()) else { return (value.to_owned(), 0) };
    let number = match rest.as_bytes()[0] {
        b'+' => number + by,
        b'-' => number - by,
        b'%' => number % by,
        _ => return (value.to_owned(), 0),
    };
    (number.to_string(), 1 + digits.len())
}

/// `each A..B TEXT` is TEXT for each number, and `TEXT ; TEXT` one after the other; anything else is itself.
fn each(text: &str) -> Vec<String> {
    let Some((range, text)) = text.strip_prefix("each ").and_then(|rest| rest.split_once(' ')) else {
        return vec![text.to_owned()];
    };
    let (from, to) = range.split_once("..").expect("each A..B");
    let (from, to): (u64, u64) = (from.parse().expect("a number"), to.parse().expect("a number"));
    let steps = |number: u64| numbered(text, &number.to_string()).split(" ; ").map(str::to_owned).collect::<Vec<_>>();
    (from..=to).flat_map(steps).collect()
}

/// `#`, `#+1`, `#-1` and `#%5`.
fn numbered(text: &str, number: &str) -> String {
    let mut parts = text.split('#');
    let mut all = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (value, length) = computed(number, part);
        all += &value;
        all += &part[length..];
    }
    all
}

/// `a{08..10}b` is three words, `a{x*3}b` is axxxb; a word may have several of them.
fn braces(word: &str) -> Vec<String> {
    let Some((before, inside, after)) = word
        .split_once('{')
        .and_then(|(before, rest)| rest.split_once('}').map(|(inside, after)| (before, inside, after)))
    else {
        return vec![word.to_owned()];
    };
    let number = |digits: &str| digits.parse::<usize>().ok();
    let some = match (inside.split_once('*'), inside.split_once("..")) {
        (Some((text, count)), _) => number(count).map(|count| vec![text.repeat(count)]),
        (_, Some((from, to))) => number(from)
            .zip(number(to))
            .map(|(first, last)| (first..=last).map(|one| format!("{one:0width$}", width = from.len())).collect()),
        _ => None,
    };
    let ends = braces(after);
    let all = some.unwrap_or_else(|| vec![format!("{{{inside}}}")]);
    all.iter().flat_map(|one| ends.iter().map(move |end| format!("{before}{one}{end}"))).collect()
}

/// Words between spaces; one that begins with a quote ends with the next.
fn words(step: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut rest = step.trim_start();
    while !rest.is_empty() {
        let quoted = rest.strip_prefix('"').and_then(|rest| rest.split_once('"'));
        if let Some((word, after)) = quoted {
            all.push(word.to_owned());
            rest = after.trim_start();
        } else {
            let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
            all.extend(braces(word));
            rest = after.trim_start();
        }
    }
    all
}

/// `...` stands for any lines.
fn matches(mut expected: &[String], mut printed: &[String]) -> bool {
    while let Some((first, rest)) = expected.split_first() {
        if first == "..." {
            return (0..=printed.len()).any(|skipped| matches(rest, &printed[skipped..]));
        }
        match printed.split_first() {
            Some((line, more)) if line == first => (expected, printed) = (rest, more),
            _ => return false,
        }
    }
    printed.is_empty()
}

/// Lines that are in one of the two, between those that both begin and end with.
fn difference(expected: &[String], printed: &[String]) -> String {
    let same = expected.iter().zip(printed).take_while(|(one, other)| one == other).count();
    let (expected, printed) = (&expected[same..], &printed[same..]);
    let tail = expected.iter().rev().zip(printed.iter().rev()).take_while(|(one, other)| one == other).count();
    let mut all = format!("  {same} lines are as expected\n");
    for (mark, lines) in [("- ", expected), ("+ ", printed)] {
        for line in &lines[..lines.len() - tail] {
            let _ = writeln!(all, "{mark}{line}");
        }
    }
    all
}
