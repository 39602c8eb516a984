//! The verifier in `FORMAT.md` itself, extracted from the page and run.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use selvedge_model::Event;
use serde_json::{Value, json};

use crate::golden;
use crate::python::ours;

/// Reads a job and a log per line, and prints the version up to which each is unchanged.
const DRIVER: &str = r#"
import sys
sys.path.insert(0, sys.argv[1])
import ed25519
for text in sys.stdin:
    job = json.loads(text)
    keys = {hashlib.sha256(key).hexdigest(): key for key in [bytes.fromhex(job["key"])]}
    print(json.dumps(unchanged_up_to(bytes.fromhex(job["log"]), job["thread"], keys, ed25519.verify)))
"#;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The results of the verifier on the page for each log; `None` if there is no Python.
fn page(logs: &[Vec<u8>]) -> Option<Vec<Option<u64>>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("FORMAT.md")).unwrap();
    let (_, code) = text.split_once("```python\n").expect("the page has a verifier");
    let code = code.split("```").next().unwrap();
    let (_, core) = code.split_once("\ndef ").expect("the verifier is one function");
    assert!(core.lines().count() <= 30, "the verifier on the page grew beyond thirty lines");
    // Two tests of one process may be here at once.
    let name = format!("selvedge-page-{}-{:?}.py", std::process::id(), std::thread::current().id());
    let script = std::env::temp_dir().join(name);
    fs::write(&script, format!("{code}\n{DRIVER}")).unwrap();
    let started = Command::new("python3")
        .arg(&script)
        .arg(root.join("tests/python"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = started else {
        eprintln!("skipped: there is no python3 on this machine");
        return None;
    };
    let key = hex(golden::transcript().2.public().as_bytes());
    let jobs: Vec<String> = logs
        .iter()
        .map(|log| json!({"log": hex(log), "thread": golden::thread(), "key": key}).to_string() + "\n")
        .collect();
    let mut asks = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || jobs.iter().for_each(|job| asks.write_all(job.as_bytes()).unwrap()));
    let answered = child.wait_with_output().unwrap();
    writer.join().unwrap();
    fs::remove_file(&script).unwrap();
    assert!(answered.status.success());
    let answers = String::from_utf8(answered.stdout).unwrap();
    Some(answers.lines().map(|line| serde_json::from_str::<Value>(line).unwrap().as_u64()).collect())
}

/// It claimed all but the strictness of JSON, and took unknown events, lists as payloads, other times and numbers that are none.
#[test]
fn the_verifier_on_the_page_judges_odd_logs_as_the_page_says() {
    let samples = crate::odd::samples();
    let logs: Vec<Vec<u8>> = samples.iter().map(|(_, bytes, ..)| bytes.clone()).collect();
    let Some(said) = page(&logs) else { return };
    assert_eq!(said.len(), samples.len());
    for ((what, _, version, _), said) in samples.iter().zip(said) {
        assert_eq!(said, *version, "{what}");
    }
}

/// A log with an event that a verifier doesn't know ends there: each that the program writes is in all three.
#[test]
fn every_event_of_the_program_is_on_the_page_and_in_both_verifiers_in_python() {
    let unknown =
        serde_json::from_value::<Event>(json!({"event_type": "none", "payload": {}})).unwrap_err().to_string();
    let names: Vec<&str> = unknown.split('`').skip(1).step_by(2).filter(|name| *name != "none").collect();
    assert!(names.contains(&"thread_created") && names.len() > 40, "{unknown}");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("FORMAT.md")).unwrap();
    let (_, core) = page.split_once("```python\n").expect("the page has a verifier");
    let core = core.split("TIME =").next().unwrap();
    let (_, table) = page.split_once("\n## Events\n").expect("the page has a table of events");
    let table = table.split("\n## ").next().unwrap();
    let python = fs::read_to_string(root.join("tests/python/verify.py")).unwrap();
    let words = |text: &str| -> HashSet<String> {
        text.split(|c: char| !c.is_ascii_lowercase() && c != '_').map(str::to_owned).collect()
    };
    for (place, text) in [("the verifier on the page", core), ("its table", table), ("tests/python/verify.py", &python)]
    {
        let known = words(text);
        let lacking: Vec<_> = names.iter().filter(|name| !known.contains(**name)).collect();
        assert!(lacking.is_empty(), "{place} lacks {lacking:?}");
    }
}

#[test]
fn the_verifier_on_the_page_proves_what_this_one_proves() {
    let (bytes, _, signer) = golden::transcript();
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let mut logs = vec![bytes.clone(), Vec::new()];
    for at in (0..bytes.len()).step_by(13) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        logs.push(flipped);
        logs.push(bytes[..at].to_vec());
    }
    for at in 0..lines.len() {
        for count in [0, 2] {
            let kept =
                lines.iter().enumerate().flat_map(|(index, line)| vec![*line; if index == at { count } else { 1 }]);
            logs.push(kept.collect::<Vec<_>>().concat());
        }
    }
    logs.extend(crate::gap::samples().into_iter().map(|(_, bytes, _)| bytes));
    let Some(said) = page(&logs) else { return };
    assert_eq!(said.len(), logs.len());
    for (log, said) in logs.iter().zip(said) {
        assert_eq!(said, ours(log, &golden::thread(), &signer, None).0, "{}", String::from_utf8_lossy(log));
    }
}
