//! The pages of `docs/`, and the README: the example at the start of each is run as it is written there, with the real binary.
//!
//! An example is everything before the first `##` heading of a page. It begins in an empty project after `selvedge init`.
//!
//! - a fenced block whose info string has a path (`yaml .ai/tools/pay.yaml`) is a file of the project;
//! - a `console` block has commands (`$ selvedge …`) with what they write to the terminal. `# exit 7` at the end of a command is the
//!   exit code that it must have; without it the code must be 0. `pay-…` in a command stands for the newest id of that form that the
//!   commands before it showed.
//!
//! In expected output `…` and `[..]` stand for any characters of one line, and a line that is only `…` for any number of lines.
//!
//! `SELVEDGE_WRITE_DOCS=1` writes what the commands say now into the pages, in the place of what does not match.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Sandbox, masked};

/// Pages that are generated, or that are for developers: they are listed under this heading and need no example.
const WITHOUT_EXAMPLES: &str = "## Reference";

/// The README of the project, and the section of it that has an example.
const FRONT_PAGE: &str = "../README.md";
const USING_IT: &str = "\n## Using it\n";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// The pages that `docs/README.md` links to: those that must have an example, and the others.
fn listed() -> (Vec<String>, Vec<String>) {
    let index = fs::read_to_string(docs().join("README.md")).unwrap();
    let (guide, reference) = index.split_once(WITHOUT_EXAMPLES).unwrap();
    (links(guide), links(reference))
}

/// The pages of the same folder that a text links to.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| target.ends_with(".md") && !target.contains('/')).map(str::to_owned).collect()
}

#[test]
fn every_page_is_listed_and_every_listed_page_exists() {
    let (guide, reference) = listed();
    let mut listed: Vec<String> = guide.into_iter().chain(reference).chain(["README.md".to_owned()]).collect();
    let mut present: Vec<String> = fs::read_dir(docs())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".md"))
        .collect();
    listed.sort();
    listed.dedup();
    present.sort();
    assert_eq!(listed, present, "docs/README.md lists what docs/ has");
}

#[test]
fn every_link_to_a_file_leads_to_one() {
    let root = docs().join("..");
    let pages = [root.clone(), docs()].into_iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let pages = pages.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|end| end == "md"));
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let leads = target.is_empty() || target.contains("://") || page.with_file_name(target).exists();
            assert!(leads, "{}: {target}", page.display());
        }
    }
}

#[test]
fn the_example_of_every_page_does_what_the_page_shows() {
    let is_writing = std::env::var_os("SELVEDGE_WRITE_DOCS").is_some();
    let mut wrong = String::new();
    let (mut pages, _) = listed();
    pages.push(FRONT_PAGE.to_owned());
    for name in pages {
        let file = docs().join(&name);
        let text = fs::read_to_string(&file).unwrap();
        // The front page has its example in a section of its own.
        let before = if name == FRONT_PAGE { text.find(USING_IT).unwrap() + USING_IT.len() } else { 0 };
        let (before, page) = text.split_at(before);
        let written = match played(page) {
            Ok(written) => written,
            Err(why) => {
                writeln!(wrong, "docs/{name}: {why}").unwrap();
                continue;
            }
        };
        if written.page != page && is_writing {
            fs::write(&file, format!("{before}{}", written.page)).unwrap();
        }
        for difference in written.differences {
            writeln!(wrong, "docs/{name}: {difference}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}\nif that is as it should be, run this test with SELVEDGE_WRITE_DOCS=1");
}

/// The first screen of the README is what the demo shows, up to its end.
#[test]
fn the_readme_shows_what_the_demo_shows() {
    const COMMAND: &str = "$ cargo run --release -- demo\n";
    let file = docs().join(FRONT_PAGE);
    let readme = fs::read_to_string(&file).unwrap();
    let (before, rest) = readme.split_once(COMMAND).unwrap();
    let (written, after) = rest.split_at(rest.find("```").unwrap());

    let sandbox = Sandbox::empty();
    let folder = format!("{}/", sandbox.project().to_str().unwrap());
    let ran = sandbox.run(&["demo"]);
    let shown = ran.stdout.replace(&folder, "./");
    let shown = &shown[..shown.find("\n\nEverything worked as promised").unwrap() + 1];
    // Ids, processes and sizes differ from run to run, and so does the writer who wins the race.
    let differs = |word: &str| ["ann", "bob"].contains(&word) || word.contains(|one: char| one.is_ascii_digit());
    let words = |text: &str| {
        let word = |word: &str| if differs(word) { "#" } else { word }.to_owned();
        text.lines().map(|line| line.split_whitespace().map(word).collect()).collect::<Vec<Vec<String>>>()
    };
    let same = words(written) == words(shown);
    if !same && std::env::var_os("SELVEDGE_WRITE_DOCS").is_some() {
        fs::write(&file, format!("{before}{COMMAND}{shown}{after}")).unwrap();
    }
    assert!(same, "README.md is not up to date: run this test with SELVEDGE_WRITE_DOCS=1\n{shown}");
}

/// A page after its example was run.
struct Played {
    /// The page with what the commands said, in the place of what did not match.
    page: String,
    /// What did not match.
    differences: Vec<String>,
}

/// Runs the example of a page in a sandbox of its own.
fn played(page: &str) -> Result<Played, String> {
    let sandbox = Sandbox::new();
    let mut played = Played { page: String::new(), differences: Vec::new() };
    let mut seen = String::new();
    let mut commands = 0;
    let mut lines = page.split_inclusive('\n');
    while let Some(line) = lines.next() {
        played.page.push_str(line);
        if line.starts_with("## ") {
            break;
        }
        let Some(info) = line.strip_prefix("```") else { continue };
        let mut block = String::new();
        let close = loop {
            match lines.next() {
                Some(line) if line.trim_end() == "```" => break line,
                Some(line) => block.push_str(line),
                None => return Err("a fenced block of the example is not closed".to_owned()),
            }
        };
        match info.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["console"] => {
                commands += block.lines().filter(|line| line.starts_with("$ selvedge ")).count();
                let shown = console(&block, &sandbox, &mut seen, &mut played.differences);
                played.page.push_str(&shown);
            }
            [_, path] => {
                put(&sandbox, path, &block);
                played.page.push_str(&block);
            }
            _ => return Err(format!("```{} is neither a file with its path nor `console`", info.trim_end())),
        }
        played.page.push_str(close);
    }
    if commands == 0 {
        return Err("it has no example before its first `##` heading".to_owned());
    }
    played.page.extend(lines);
    Ok(played)
}

fn put(sandbox: &Sandbox, path: &str, text: &str) {
    let file = sandbox.project().join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, text).unwrap();
}

/// Runs the commands of a block and gives the block as it should be; `seen` is all that the example showed so far.
fn console(block: &str, sandbox: &Sandbox, seen: &mut String, differences: &mut Vec<String>) -> String {
    let mut shown = String::new();
    let mut rest = block;
    while let Some(line) = rest.lines().next() {
        rest = &rest[(line.len() + 1).min(rest.len())..];
        let Some(command) = line.strip_prefix("$ ") else {
            differences.push(format!("`{line}` is the output of no command"));
            continue;
        };
        let end = if rest.starts_with("$ ") { 0 } else { rest.find("\n$ ").map_or(rest.len(), |at| at + 1) };
        let (expected, after) = rest.split_at(end);
        rest = after;
        let code = command.rsplit_once("# exit ").map_or(0, |(_, code)| code.trim().parse().unwrap());
        let ran = sandbox.shell(&with_ids(command, seen));
        // What the shell itself says of a command that was killed differs from shell to shell.
        let said: String = ran.stdout.split_inclusive('\n').filter(|line| line.trim_end() != "Killed").collect();
        let output = merged(&lines(expected), &lines(&said), sandbox);
        seen.push_str(&said);
        shown.push_str(&format!("{line}\n"));
        if ran.code != Some(code) {
            differences.push(format!("`{command}` ended with {:?}, not with {code}:\n{output}", ran.code));
        }
        if matches(&lines(expected), &lines(&said)) {
            shown.push_str(expected);
        } else {
            differences.push(format!("`{command}` says\n{output}where the page has\n{expected}"));
            shown.push_str(&output);
        }
    }
    shown
}

/// A command with whole ids for those that end in `…`.
fn with_ids(command: &str, seen: &str) -> String {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let mut whole = String::new();
    for (index, piece) in command.split('…').enumerate() {
        if index > 0 {
            let beginning = whole.rfind(|letter| !is_part(letter)).map_or(&*whole, |at| &whole[at + 1..]);
            let is_meant = |id: &&str| id.len() > beginning.len() && id.starts_with(beginning);
            let newest = seen.split(|letter| !is_part(letter)).rfind(is_meant);
            let rest = newest.map_or("…", |id| &id[beginning.len()..]).to_owned();
            whole.push_str(&rest);
        }
        whole.push_str(piece);
    }
    whole
}

/// What a command said; a line that the page had keeps the form that it has there.
fn merged(expected: &[&str], said: &[&str], sandbox: &Sandbox) -> String {
    let known = |line: &str| expected.iter().find(|known| **known != "…" && line_matches(known, line));
    let line = |line: &&str| known(line).map_or_else(|| shortened(line, sandbox), |known| (*known).to_owned());
    said.iter().map(|one| line(one) + "\n").collect()
}

/// A line of output with `…` for what differs from run to run.
fn shortened(line: &str, sandbox: &Sandbox) -> String {
    let mut line = masked(line, sandbox);
    for mask in ["[HEX12]", "[HEX16]", "[HEX64]", "[TIME]", "[DIR]"] {
        line = line.replace(mask, "…");
    }
    match line.rsplit_once(", ") {
        Some((rest, time)) if is_seconds(time) => format!("{rest}, … s"),
        _ => line,
    }
}

/// Whether a text is a time such as `0.2 s`.
fn is_seconds(text: &str) -> bool {
    text.strip_suffix(" s").is_some_and(|number| number.parse::<f64>().is_ok())
}

/// Lines without what can't be seen at their ends; a screen that ends in an empty line ends before it.
fn lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    while lines.last().is_some_and(|line| line.is_empty()) {
        lines.pop();
    }
    lines
}

/// Whether lines are as expected.
fn matches(expected: &[&str], lines: &[&str]) -> bool {
    match expected.split_first() {
        None => lines.is_empty(),
        Some((&"…", rest)) => (0..=lines.len()).any(|skipped| matches(rest, &lines[skipped..])),
        Some((first, rest)) => {
            lines.split_first().is_some_and(|(line, after)| line_matches(first, line) && matches(rest, after))
        }
    }
}

/// Whether one line is as expected.
fn line_matches(expected: &str, line: &str) -> bool {
    let expected = expected.replace("[..]", "…");
    let mut pieces = expected.split('…');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let mut pieces: Vec<&str> = pieces.collect();
    let Some(last) = pieces.pop() else { return rest.is_empty() };
    for piece in pieces {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn a_changed_word_a_missing_line_and_a_page_without_an_example_are_detected() {
    assert!(line_matches("run pay-… ended", "run pay-0123 ended") && line_matches("[..]: 5", "cost: 5"));
    assert!(!line_matches("run pay-… ended", "run pay-0123 began") && !line_matches("one", "one more"));
    assert!(matches(&["a", "…", "d"], &["a", "b", "c", "d"]) && matches(&["…"], &[]));
    assert!(!matches(&["a"], &["a", "b"]) && !matches(&["a", "b"], &["a"]));

    assert_eq!(with_ids("cat x/pay-…/y give-…", "pay-1 then pay-2: a"), "cat x/pay-2/y give-…");

    let differences = |page: &str| played(page).map(|played| played.differences.len());
    assert_eq!(differences("# A\n\n```console\n$ selvedge log x  # exit 3\n…\n```\n"), Ok(0));
    assert_eq!(differences("# A\n\n```console\n$ selvedge log x\n…\n```\n"), Ok(1), "another exit code");
    assert_eq!(differences("# A\n\n```console\n$ selvedge --version\nselvedge 9\n```\n"), Ok(1), "another output");
    assert!(differences("# A\n\nText.\n\n## More\n\n```console\n$ selvedge --version\n…\n```\n").is_err());
}
