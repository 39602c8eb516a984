//! Compares this verifier with the one in `tests/python`, which was written from `FORMAT.md` alone.
//!
//! On good and damaged logs both must report the same version up to which a file is unchanged and, given the head, the
//! same verdict. Skipped with a message if there is no Python 3.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::{env, fs};

use selvedge_log::recovery::{Evidence, Finding, Mode, judge};
use selvedge_log::scan::{Examined, Flaw, Scanner, Signatures, examine};
use selvedge_log::{Head, Signer, Trust};
use selvedge_model::ThreadId;
use serde_json::{Value, json};

use crate::golden;

pub(crate) struct Python {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
    file: PathBuf,
}

impl Python {
    pub(crate) fn start() -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python/verify.py");
        let started =
            Command::new("python3").arg(script).arg("--batch").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let Ok(mut child) = started else {
            eprintln!("skipped: there is no python3 on this machine");
            return None;
        };
        let asks = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mine = format!("selvedge-python-{}-{:?}.jsonl", std::process::id(), std::thread::current().id());
        let file = env::temp_dir().join(mine);
        Some(Self { child, asks, answers, file })
    }

    pub(crate) fn verify(&mut self, bytes: &[u8], thread: &ThreadId, signer: &Signer, head: Option<&Head>) -> Value {
        fs::write(&self.file, bytes).unwrap();
        let job = json!({"path": self.file, "thread": thread, "keys": [signer.public().to_text()], "head": head});
        writeln!(self.asks, "{job}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        _ = fs::remove_file(&self.file);
    }
}

/// The judgement of this crate, in the words of the other verifier; whether the content is understood does not matter.
pub(crate) fn ours(
    bytes: &[u8],
    thread: &ThreadId,
    signer: &Signer,
    head: Option<&Head>,
) -> (Option<u64>, &'static str) {
    let trust = Trust::of(&[signer.public()]);
    let scanner = Scanner::new(thread, &trust, Signatures::Every).watching(head.map(|head| head.version));
    let examined = Examined { unread: None, ..examine(bytes, scanner, |_| {}).unwrap() };
    let version = examined.verified.as_ref().map(|head| head.version);
    let verdict = match head {
        Some(_) => match judge(&examined, Evidence { head, ..Evidence::default() }, Mode::Strict).finding {
            Finding::Sound => "sound",
            Finding::Foreign { .. } => "foreign",
            Finding::DatabaseBehind { .. } => "ahead",
            Finding::Damaged(_) => "damaged",
            Finding::Truncated { .. } => "truncated",
            Finding::Unsigned => "unsigned",
            finding => panic!("{finding:?}"),
        },
        None => match (version, &examined.damage) {
            (Some(_), None) => "unchanged",
            (None, None) => "unsigned",
            (_, Some(damage)) if damage.flaw != Flaw::Torn => "damaged",
            (None, Some(_)) => "unsigned",
            (Some(_), Some(_)) => "tail",
        },
    };
    (version, verdict)
}

#[test]
fn the_verifier_in_python_agrees_on_good_and_damaged_logs() {
    let Some(mut python) = Python::start() else { return };
    let (bytes, tail, signer) = golden::transcript();
    let thread = golden::thread();
    let head = tail.head.unwrap();
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let mut samples: Vec<(String, Vec<u8>)> =
        vec![("whole".to_owned(), bytes.clone()), ("empty".to_owned(), Vec::new())];
    for at in (0..bytes.len()).step_by(7) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        samples.push((format!("bit {} of byte {at} flipped", at % 8), flipped));
    }
    let lengths = (1..bytes.len()).step_by(41).chain((1..lines.len()).map(|count| lines[..count].concat().len()));
    samples.extend(lengths.map(|length| (format!("cut at {length}"), bytes[..length].to_vec())));
    for at in 0..lines.len() {
        let mut removed = lines.clone();
        removed.remove(at);
        samples.push((format!("line {at} removed"), removed.concat()));
        let mut doubled = lines.clone();
        doubled.insert(at, lines[at]);
        samples.push((format!("line {at} doubled"), doubled.concat()));
        let mut swapped = lines.clone();
        swapped.swap(at, (at + 1) % lines.len());
        samples.push((format!("lines around {at} swapped"), swapped.concat()));
    }
    let stripped = lines.iter().filter(|line| !line.windows(10).any(|part| part == b"checkpoint"));
    samples.push(("no checkpoints".to_owned(), stripped.copied().collect::<Vec<_>>().concat()));
    for tail in [&b"garbage"[..], b"garbage\n", b"{}\n", b"\n", b"\xff\xfe\n", lines[2], b"{\"seq\":1e999}\n"] {
        samples.push((format!("with {} foreign bytes", tail.len()), [&bytes, tail].concat()));
    }
    // Lines that were inserted into a log: what follows them is still signed.
    for (at, line) in [b"garbage\n", &b"garbage"[..], b"{}\n", &vec![b'x'; 9 << 20]].into_iter().enumerate() {
        for count in 0..=lines.len() {
            let inserted = [&lines[..count].concat(), line, &lines[count..].concat()].concat();
            samples.push((format!("line {at} put before line {count}"), inserted));
        }
    }
    samples.extend(crate::gap::samples().into_iter().map(|(what, bytes, _)| (what.to_owned(), bytes)));
    // The head of a version that was lost afterwards.
    let lost = Head { version: 4, ..head.clone() };
    for (what, sample) in &samples {
        for head in [None, Some(&head), Some(&lost)] {
            let theirs = python.verify(sample, &thread, &signer, head);
            let (version, verdict) = ours(sample, &thread, &signer, head);
            // Both treat garbage without a line end as one torn line; only the page's table distinguishes torn lines.
            assert_eq!(theirs["unchanged_up_to"].as_u64(), version, "{what}, head {}: {theirs}", head.is_some());
            assert_eq!(theirs["verdict"], verdict, "{what}, head {}: {theirs}", head.is_some());
        }
    }
    let outdated = Head { version: 1, ..prefix_head(&bytes, &lines, &head) };
    assert_eq!(python.verify(&bytes, &thread, &signer, Some(&outdated))["verdict"], "ahead");
    assert_eq!(ours(&bytes, &thread, &signer, Some(&outdated)).1, "ahead");
}

/// It was reported as truncated before, and a truncated log can be accepted as a loss.
#[test]
fn the_first_line_of_another_log_is_not_this_log_cut_off() {
    let (bytes, tail, signer) = golden::transcript();
    let thread = golden::thread();
    let head = tail.head.unwrap();
    let text = String::from_utf8(bytes)
        .unwrap()
        .replace("00112233445566778899aabbccddeeff", "0f112233445566778899aabbccddeeff");
    let torn = &text.as_bytes()[..text.find('\n').unwrap() + 40];
    assert_eq!(ours(torn, &thread, &signer, Some(&head)), (None, "damaged"));
    if let Some(mut python) = Python::start() {
        assert_eq!(python.verify(torn, &thread, &signer, Some(&head))["verdict"], "damaged");
    }
}

/// The head after version 1 of the worked example.
fn prefix_head(bytes: &[u8], lines: &[&[u8]], head: &Head) -> Head {
    let length = lines[..4].concat().len();
    Head { lines: 4, bytes: length as u64, hash: selvedge_log::hash::sha256(&bytes[..length]), ..head.clone() }
}

/// It refused every log with a `request_answered`: the event had been added to this verifier only.
#[test]
fn it_knows_every_event() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let events = fs::read_to_string(here.join("../model/src/event.rs")).unwrap();
    let (_, events) = events.split_once("pub enum Event {").unwrap();
    let variants = events.split("\n}").next().unwrap().lines().filter_map(|line| line.trim().split_once('('));
    let names: Vec<String> = variants.map(|(variant, _)| variant).filter(|name| is_variant(name)).map(snake).collect();
    assert!(names.len() > 35 && names.contains(&"run_finished".to_owned()), "the sources are read: {names:?}");
    let verifier = fs::read_to_string(here.join("../../tests/python/verify.py")).unwrap();
    let (_, places) = verifier.split_once("PLACES = {}").unwrap();
    let places = places.split("class Bad").next().unwrap();
    let known: Vec<&str> = places.split(|c: char| !c.is_ascii_lowercase() && c != '_').collect();
    let unknown: Vec<&String> = names.iter().filter(|name| !known.contains(&name.as_str())).collect();
    assert!(unknown.is_empty(), "tests/python/verify.py does not know {unknown:?}");
    let placeless: Vec<&String> = names.iter().filter(|name| selvedge_log::line::place_of(name).is_none()).collect();
    assert!(placeless.is_empty(), "this crate does not know where {placeless:?} stand in a changeset");
}

fn is_variant(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase()) && name.chars().all(|c| c.is_ascii_alphanumeric())
}

fn snake(variant: &str) -> String {
    let mut name = String::new();
    for c in variant.chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}
