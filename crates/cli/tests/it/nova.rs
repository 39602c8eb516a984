//! Nova files: `selvedge import --format nova` and back, killed on the way, and within bounded memory.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Ran, Sandbox, contents, feed};

const MANIFEST: &str = r#"{"id":"pear","agentId":"gardener","title":"Pears","createdAt":"c","updatedAt":"u"}"#;

fn said(number: u64) -> String {
    format!(r#"{{"role":"user","text":"message {number}","timestamp":"t{number}"}}"#)
}

fn write(sandbox: &Sandbox, text: &str) -> PathBuf {
    let path = sandbox.root().join("pear.jsonl");
    fs::write(&path, text).unwrap();
    path
}

fn import(sandbox: &Sandbox, path: &Path, flags: &[&str]) -> Ran {
    let file = path.to_str().unwrap();
    sandbox.run(&[&["import", file, "--format", "nova", "--json"], flags].concat())
}

fn exported(sandbox: &Sandbox, thread: &str) -> String {
    let ran = sandbox.run(&["export", thread, "--format", "nova"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.stdout
}

/// A file of about this many bytes, written as it is made.
fn write_large(path: &Path, bytes: u64) {
    let mut out = BufWriter::new(fs::File::create(path).unwrap());
    writeln!(out, "{MANIFEST}").unwrap();
    let mut written = 0;
    let mut number = 0_u64;
    let mut line = String::new();
    let words = "pears and plums ".repeat(20);
    let dug = "deeper ".repeat(30);
    while written < bytes {
        line.clear();
        match number % 3 {
            0 => write!(line, r#"{{"role":"user","text":"{number} {words}","timestamp":"t{number}"}}"#),
            1 => {
                write!(line, r#"{{"type":"tool_use","name":"dig","input":{{"how":"{dug}"}},"timestamp":"t{number}"}}"#)
            }
            _ => write!(line, r#"{{"type":"message","role":"assistant","text":"{words}","timestamp":"t{number}"}}"#),
        }
        .unwrap();
        writeln!(out, "{line}").unwrap();
        written += line.len() as u64 + 1;
        number += 1;
    }
    out.into_inner().unwrap();
}

fn threads(sandbox: &Sandbox) -> Vec<String> {
    let listed = sandbox.run(&["thread", "list", "--json"]).json();
    listed["threads"].as_array().unwrap().iter().map(|one| one["thread_id"].as_str().unwrap().to_owned()).collect()
}

/// Every file of the store but those that SQLite makes for a reader too.
fn kept(sandbox: &Sandbox) -> Vec<(PathBuf, Vec<u8>)> {
    let is_for_readers = |path: &Path| ["-shm", "-wal"].iter().any(|end| path.to_string_lossy().ends_with(end));
    contents(&sandbox.threads()).into_iter().filter(|(path, _)| !is_for_readers(path)).collect()
}

#[test]
fn a_file_is_imported_once_and_its_thread_says_so() {
    let sandbox = Sandbox::new();
    let path = write(&sandbox, &format!("{MANIFEST}\n{}\n{{\"type\":\"mes{}\n", said(1), said(2)));
    let before = kept(&sandbox);
    let looked = import(&sandbox, &path, &["--dry-run"]).json();
    assert!(kept(&sandbox) == before, "a dry run writes nothing");
    assert_eq!((&looked["outcome"], &looked["version"]), (&json!("would_import"), &Value::Null));
    let done = import(&sandbox, &path, &[]).json();
    assert_eq!((&done["outcome"], &done["thread_id"]), (&json!("imported"), &json!("pear")));
    assert_eq!((&done["counts"], &done["messages_added"]), (&looked["counts"], &looked["messages_added"]));
    assert_eq!((&done["counts"]["repaired_joined"], &done["counts"]["skipped_torn"]), (&json!(1), &json!(1)));
    let again = import(&sandbox, &path, &[]).json();
    assert_eq!((&again["outcome"], &again["version"]), (&json!("unchanged"), &done["version"]));

    let sentence = "not witnessed; the signature proves only what was imported and when";
    for command in [["thread", "show", "pear"].as_slice(), &["verify", "pear"]] {
        let shown = sandbox.run(command);
        assert!(shown.stdout.contains("imported from pear.jsonl on ") && shown.stdout.contains(sentence), "{shown:?}");
        let record = sandbox.run(&[command, &["--json"]].concat()).json();
        assert_eq!(
            (&record["imported"]["source"], &record["imported"]["witnessed"]),
            (&json!("pear.jsonl"), &json!(false))
        );
    }
    let ours = sandbox.new_thread("scribe");
    assert!(sandbox.run(&["verify", &ours, "--json"]).json().get("imported").is_none());
}

#[test]
fn a_grown_file_adds_its_end_and_another_one_is_refused() {
    let sandbox = Sandbox::new();
    let first = format!("{MANIFEST}\n{}\n", said(1));
    let path = write(&sandbox, &first);
    import(&sandbox, &path, &[]).json();
    let grown = format!("{}{}\n", first.replace("\"u\"", "\"later\""), said(2));
    write(&sandbox, &grown);
    let done = import(&sandbox, &path, &[]).json();
    assert_eq!((&done["outcome"], &done["messages_added"]), (&json!("extended"), &json!(1)));
    assert_eq!(exported(&sandbox, "pear"), grown);
    write(&sandbox, &grown.replace("message 1", "massage 1"));
    for flags in [&[][..], &["--dry-run"]] {
        let refused = import(&sandbox, &path, flags);
        let error = refused.error_beside_data(5, "import_diverged");
        assert!(error["hint"].as_str().unwrap().contains("selvedge export pear --format nova"));
        assert_eq!(refused.records()[0]["outcome"], "refused");
    }
    assert_eq!(exported(&sandbox, "pear"), grown);
}

#[test]
fn the_same_file_under_another_name_is_reported_as_imported() {
    let sandbox = Sandbox::new();
    let manifest = MANIFEST.replace(r#""id":"pear","#, "");
    let path = write(&sandbox, &format!("{manifest}\n{}\n", said(1)));
    import(&sandbox, &path, &[]).json();
    let copy = sandbox.root().join("copy.jsonl");
    fs::copy(&path, &copy).unwrap();
    let before = kept(&sandbox);
    let again = import(&sandbox, &copy, &[]).json();
    assert_eq!((&again["outcome"], &again["thread_id"]), (&json!("unchanged"), &json!("pear")));
    let text = sandbox.run(&["import", copy.to_str().unwrap()]);
    assert!(text.code == Some(0) && text.stdout.contains("already imported as thread `pear`"), "{text:?}");
    let is_of_thread = |(path, _): &(PathBuf, Vec<u8>)| path.parent().unwrap() != sandbox.threads();
    let of_threads = |files: Vec<_>| files.into_iter().filter(is_of_thread).collect::<Vec<_>>();
    assert!(of_threads(kept(&sandbox)) == of_threads(before), "nothing is added, and no thread is made");
    // Grown under the other name, its end goes to the same thread; the database may be rebuilt in between.
    assert_eq!(sandbox.run(&["reindex"]).code, Some(0));
    fs::write(&copy, format!("{}{}\n", fs::read_to_string(&copy).unwrap(), said(2))).unwrap();
    let grown = import(&sandbox, &copy, &[]).json();
    assert_eq!(
        (&grown["outcome"], &grown["thread_id"], &grown["messages_added"]),
        (&json!("extended"), &json!("pear"), &json!(1))
    );
    assert_eq!(threads(&sandbox), ["pear"]);
}

#[test]
fn two_processes_that_import_one_file_at_once_make_one_thread() {
    let sandbox = Sandbox::new();
    let manifest = MANIFEST.replace(r#""id":"pear","#, "");
    let lines: String = (0..3_000).map(|number| said(number) + "\n").collect();
    let paths = ["pear", "plum"].map(|name| {
        let path = sandbox.root().join(format!("{name}.jsonl"));
        fs::write(&path, format!("{manifest}\n{lines}")).unwrap();
        path.to_str().unwrap().to_owned()
    });
    let running = [&paths[0], &paths[1], &paths[0]]
        .map(|path| feed(sandbox.command(&["import", path, "--format", "nova", "--json"]).spawn().unwrap(), b""));
    let done = running.map(|child| Ran::of(child).json());
    let threads = threads(&sandbox);
    let [thread] = threads.as_slice() else { panic!("{threads:?}") };
    for one in &done {
        assert_eq!(one["thread_id"], thread.as_str(), "{one}");
    }
    assert_eq!(exported(&sandbox, thread).lines().count(), 3_001);
    assert_eq!(sandbox.run(&["verify", thread]).code, Some(0));
}

#[test]
fn lossy_conversions_of_an_import_are_reported() {
    let sandbox = Sandbox::new();
    let odd = r#"{"type":"result","inputTokens":18446744073709551617,"timestamp":"t"}"#;
    let path = write(&sandbox, &format!("{MANIFEST}\n{odd}\n{{\"role\":\"user\",\"text\":\"\\ud83c\"}}\n"));
    let shown = sandbox.run(&["import", path.to_str().unwrap()]).stdout;
    assert!(shown.contains("2 repaired") && shown.contains("line 2: number out of range"), "{shown}");
    assert!(shown.contains("line 3: unpaired surrogate"), "{shown}");
    assert!(exported(&sandbox, "pear").contains("\u{fffd}"));
}

#[test]
fn an_export_says_which_lines_were_witnessed_here() {
    let sandbox = Sandbox::new();
    let path = write(&sandbox, &format!("{MANIFEST}\n{}\n", said(1)));
    import(&sandbox, &path, &[]).json();
    sandbox.append("pear", "any", crate::support::HELLO);
    let ran = sandbox.run(&["export", "pear", "--format", "nova", "-o", "-"]);
    assert!(ran.stderr.contains("1 line imported, 1 line recorded here"), "{ran:?}");
    let lines: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines[1].get("witnessedIn").is_none() && lines[2]["witnessedIn"].is_string(), "{lines:?}");
    assert!(!sandbox.project().join("-").exists());
}

#[test]
fn one_refused_file_does_not_affect_the_others() {
    let sandbox = Sandbox::new();
    let good = write(&sandbox, &format!("{MANIFEST}\n{}\n", said(1)));
    let bad = sandbox.root().join("bad.jsonl");
    fs::write(&bad, "plain words\n").unwrap();
    let missing = sandbox.root().join("missing.jsonl");
    let files = [bad.to_str().unwrap(), good.to_str().unwrap(), missing.to_str().unwrap()];
    let ran = sandbox.run(&[&["import", "--format", "nova", "--json"], &files[..]].concat());
    assert_eq!(ran.code, Some(2), "{ran:?}");
    let outcomes: Vec<_> = ran.records().iter().map(|record| record["outcome"].as_str().unwrap().to_owned()).collect();
    assert_eq!(outcomes, ["refused", "imported", "refused"]);
}

#[test]
fn an_export_is_a_new_file_and_comes_back_the_same() {
    let sandbox = Sandbox::new();
    let text =
        format!("{MANIFEST}\n{}\n{}\n", said(1), r#"{"type":"tool_use","name":"dig","input":{"n":1},"timestamp":"t"}"#);
    import(&sandbox, &write(&sandbox, &text), &[]).json();
    let copy = sandbox.root().join("copy.jsonl");
    let args = ["export", "pear", "--format", "nova", "--json", "-o", copy.to_str().unwrap()];
    let done = sandbox.run(&args).json();
    assert_eq!((&done["events"], &done["bytes"]), (&json!(2), &json!(text.len())));
    assert_eq!(fs::read_to_string(&copy).unwrap(), text);
    sandbox.run(&args).error(5, "file_exists");
    let other = Sandbox::new();
    assert_eq!(import(&other, &copy, &[]).json()["thread_id"], "pear");
    assert_eq!(exported(&other, "pear"), text);
}

#[test]
fn a_killed_import_continues_when_it_is_run_again() {
    let whole = Sandbox::new();
    let path = whole.root().join("pear.jsonl");
    write_large(&path, 2_000_000);
    import(&whole, &path, &[]).json();
    let expected = exported(&whole, "pear");
    let sandbox = Sandbox::new();
    let mut kills = 0;
    for wait in [20, 40, 80, 120, 160, 240, 320] {
        let file = path.to_str().unwrap();
        let mut child = sandbox.command(&["import", file, "--format", "nova"]).spawn().unwrap();
        thread::sleep(Duration::from_millis(wait));
        child.kill().unwrap();
        kills += u32::from(Ran::of(feed(child, b"")).code != Some(0));
    }
    assert!(kills > 0);
    import(&sandbox, &path, &[]).json();
    assert_eq!(exported(&sandbox, "pear"), expected);
    assert_eq!(sandbox.run(&["verify", "pear"]).code, Some(0));
}

/// The most memory that importing this file took, in KiB. The kernel keeps the peak, so the last look is near enough.
fn peak_of_import(sandbox: &Sandbox, path: &Path) -> u64 {
    let mut child = sandbox.command(&["import", path.to_str().unwrap(), "--format", "nova", "-q"]).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let now = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        peak = now.unwrap_or(peak).max(peak);
        thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    peak
}

/// What a file of this size takes beyond what a small one does.
fn growth_of_memory(bytes: u64) -> u64 {
    let sandbox = Sandbox::new();
    let small = sandbox.root().join("small.jsonl");
    let large = sandbox.root().join("large.jsonl");
    write_large(&small, 1_000_000);
    let text = fs::read_to_string(&small).unwrap();
    fs::write(&small, text.replacen("\"pear\"", "\"small\"", 1)).unwrap();
    write_large(&large, bytes);
    let before = peak_of_import(&sandbox, &small);
    peak_of_import(&sandbox, &large).saturating_sub(before)
}

/// A program that held the whole file, or all its events, would need at least its size in memory.
#[test]
fn memory_does_not_grow_with_the_file() {
    let growth = growth_of_memory(36_000_000);
    assert!(growth < 24 * 1024, "36 MB took {growth} KiB more than 1 MB");
}

/// Not in the ordinary run: it takes more than a minute, and 600 MB of disk for the file, its blobs and its log.
#[test]
fn memory_does_not_grow_with_a_file_of_200_mb() {
    if std::env::var_os("SELVEDGE_TEST_LARGE").is_none() {
        return;
    }
    let growth = growth_of_memory(200_000_000);
    assert!(growth < 24 * 1024, "200 MB took {growth} KiB more than 1 MB");
}
