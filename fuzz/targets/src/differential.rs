//! Compares the verifier here with the one in Python, which was written from `FORMAT.md` alone.
//!
//! On the same bytes both find the same version up to which a log is unchanged, and the same verdict, with and without a head. Bytes that
//! begin like a line are sealed first (see [`sealed_log`](crate::sealed_log)), so that damage reaches the rules after the signatures. One
//! Python process verifies them all; without Python nothing is compared.
//!
//! Whether this program understands the signed events is another question, and is not compared.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};

use selvedge_log::Head;
use selvedge_log::recovery::{Evidence, Finding, Mode, judge};
use selvedge_log::scan::{Examined, Flaw, Scanner, Signatures, examine};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::golden::{self, SIGNER, THREAD, TRUST};
use crate::sealed_log::seal;

struct Python {
    /// Ends when its input is closed.
    _child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
    file: PathBuf,
    _folder: TempDir,
}

static PYTHON: LazyLock<Option<Mutex<Python>>> = LazyLock::new(|| Python::start().map(Mutex::new));
static HEAD: LazyLock<Head> = LazyLock::new(|| {
    let head = crate::log::scan(golden::TRANSCRIPT, Signatures::Every).head().cloned();
    head.expect("the golden log is valid")
});

impl Python {
    fn start() -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python/verify.py");
        let mut command = Command::new("python3");
        let started = command.arg(script).arg("--batch").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.ok()?;
        let asks = child.stdin.take()?;
        let answers = BufReader::new(child.stdout.take()?);
        let folder = tempfile::tempdir().ok()?;
        Some(Self { _child: child, asks, answers, file: folder.path().join("log"), _folder: folder })
    }

    fn verify(&mut self, head: Option<&Head>) -> Value {
        let job = json!({"path": self.file, "thread": &*THREAD, "keys": [SIGNER.public().to_text()], "head": head});
        writeln!(self.asks, "{job}").expect("Python listens");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("Python answers");
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("Python returned no JSON ({error}): {answer}"))
    }
}

/// Whether Python is available.
pub fn is_possible() -> bool {
    PYTHON.is_some()
}

/// Verifies a log with both. The first byte decides whether it is sealed first.
pub fn run(bytes: &[u8]) {
    let Some(python) = &*PYTHON else { return };
    let bytes = match bytes.first() {
        Some(b'{') => seal(bytes),
        _ => bytes.to_vec(),
    };
    let mut python = python.lock().unwrap_or_else(PoisonError::into_inner);
    fs::write(&python.file, &bytes).expect("the folder can be written");
    for head in [None, Some(&*HEAD)] {
        let theirs = python.verify(head);
        let (version, verdict) = ours(&bytes, head);
        let their_version = theirs["unchanged_up_to"].as_u64();
        assert_eq!(their_version, version, "head {}: {theirs}, ours {verdict}", head.is_some());
        assert_eq!(theirs["verdict"], verdict, "head {}: {theirs}", head.is_some());
    }
}

/// Our verdict, in the terms of the other verifier.
fn ours(bytes: &[u8], head: Option<&Head>) -> (Option<u64>, &'static str) {
    let scanner = Scanner::new(&THREAD, &TRUST, Signatures::Every).watching(head.map(|head| head.version));
    // Whether this program understands the signed events is another question.
    let examined = Examined { unread: None, ..examine(bytes, scanner, |_| {}).expect("memory can be read") };
    let version = examined.verified.as_ref().map(|head| head.version);
    let verdict = match head {
        Some(_) => match judge(&examined, Evidence { head, ..Evidence::default() }, Mode::Strict).finding {
            Finding::Sound => "sound",
            Finding::Foreign { .. } => "foreign",
            Finding::DatabaseBehind { .. } => "ahead",
            Finding::Damaged(_) => "damaged",
            Finding::Truncated { .. } => "truncated",
            // The others concern files beside a log, which are not checked here.
            _ => "unsigned",
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
