//! A sandbox with a project and a home, and ways to run the command in it.

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use selvedge_log::keys::KeyFolder;
use selvedge_log::{Signer, Trust};
use selvedge_store_local::disk::RealDisk;
use selvedge_store_local::system::{SystemClock, SystemIds};
use selvedge_store_local::{Access, LocalStore, Options};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const HELLO: &str = r#"{"reason":"UserMessage","messages":[{"role":"user","content":"hello"}]}"#;

/// A folder with a project and a home for keys, removed when dropped.
pub(crate) struct Sandbox {
    root: TempDir,
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn of(child: Child) -> Self {
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// The same of a process whose stdout was read elsewhere.
    pub(crate) fn of_rest(mut child: Child) -> Self {
        drop(child.stdout.take());
        Self::of(child)
    }

    /// The one JSON object on stdout of a command that succeeded.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Every JSON object on stdout.
    #[track_caller]
    pub(crate) fn records(&self) -> Vec<Value> {
        self.stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {self:?}")))
            .collect()
    }

    /// The JSON error of a command that failed with `code`, `word`, and nothing on stdout.
    #[track_caller]
    pub(crate) fn error(&self, code: i32, word: &str) -> Value {
        assert_eq!((self.code, self.stdout.as_str()), (Some(code), ""), "{self:?}");
        self.error_beside_data(code, word)
    }

    /// The same, for a command that has something to show although it fails.
    #[track_caller]
    pub(crate) fn error_beside_data(&self, code: i32, word: &str) -> Value {
        let last = self.stderr.lines().last().unwrap_or_default();
        let error: Value = serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        assert_eq!((self.code, error["error"]["code"].as_str()), (Some(code), Some(word)), "{self:?}");
        assert!(error["error"]["message"].is_string() && error["error"].get("hint").is_some(), "{self:?}");
        error["error"].clone()
    }
}

impl Sandbox {
    /// An empty project, and no key yet.
    pub(crate) fn empty() -> Self {
        let sandbox = Self { root: tempfile::tempdir().unwrap() };
        fs::create_dir(sandbox.project()).unwrap();
        sandbox
    }

    /// The same in memory if there is room: for tests that open a store a thousand times and don't depend on what is durable.
    pub(crate) fn empty_in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        let has_room = rustix::fs::statvfs(memory).is_ok_and(|found| found.f_bavail * found.f_frsize > 1 << 30);
        let root = if has_room { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let sandbox = Self { root: root.unwrap() };
        fs::create_dir(sandbox.project()).unwrap();
        sandbox
    }

    /// A project with a store and a key, and nothing to begin with.
    pub(crate) fn new() -> Self {
        let sandbox = Self::empty();
        assert_eq!(sandbox.run(&["init", "--bare"]).code, Some(0));
        sandbox
    }

    /// A project with a store, a key, and one thread at version 0.
    pub(crate) fn with_thread() -> (Self, String) {
        let sandbox = Self::new();
        let thread = sandbox.new_thread("scribe");
        (sandbox, thread)
    }

    pub(crate) fn root(&self) -> PathBuf {
        fs::canonicalize(self.root.path()).unwrap()
    }

    pub(crate) fn project(&self) -> PathBuf {
        self.root().join("project")
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.root().join("home")
    }

    pub(crate) fn threads(&self) -> PathBuf {
        self.project().join(".ai/agent/threads")
    }

    pub(crate) fn transcript(&self, thread: &str) -> PathBuf {
        self.threads().join(thread).join("transcript.jsonl")
    }

    pub(crate) fn new_thread(&self, agent: &str) -> String {
        self.run(&["thread", "new", "--agent", agent, "--json"]).json()["thread_id"].as_str().unwrap().to_owned()
    }

    /// The command with its folders set, not started.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_selvedge"));
        command.args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A program in the project, with the variables of the sandbox.
    pub(crate) fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        for name in [
            "SELVEDGE_DIR",
            "SELVEDGE_JSON",
            "SELVEDGE_STORE",
            "PGPASSWORD",
            "NO_COLOR",
            "CLICOLOR_FORCE",
            "XDG_CONFIG_HOME",
        ] {
            command.env_remove(name);
        }
        for name in ["ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL"] {
            command.env_remove(name);
        }
        command.env("SELVEDGE_HOME", self.home()).env("HOME", self.root()).env("TZ", "UTC").env("COLUMNS", "100");
        command.current_dir(self.project());
        command
    }

    /// Runs a line in a shell that finds `selvedge`; what it writes to stderr comes in its place on stdout.
    pub(crate) fn shell(&self, line: &str) -> Ran {
        let folder = Path::new(env!("CARGO_BIN_EXE_selvedge")).parent().unwrap().to_str().unwrap();
        let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
        let mut command = self.program("sh");
        command.args(["-c", &format!("exec 2>&1\n{line}")]).env("PATH", path);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // `sh` may become its last command; a signal that ends it counts as a shell counts it.
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        let code = output.status.code().or(output.status.signal().map(|signal| 128 + signal));
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ran { code, stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Runs the command with nothing on stdin.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.run_with(args, b"")
    }

    /// Runs the command with these bytes on stdin.
    pub(crate) fn run_with(&self, args: &[&str], input: &[u8]) -> Ran {
        Ran::of(feed(self.command(args).spawn().unwrap(), input))
    }

    /// Appends and gives the version.
    #[track_caller]
    pub(crate) fn append(&self, thread: &str, expect: &str, changeset: &str) -> u64 {
        let ran = self.run_with(&["append", thread, "--expect", expect, "--json"], changeset.as_bytes());
        ran.json()["version"].as_u64().unwrap()
    }

    /// Opens the store in this process to look at it.
    pub(crate) fn open_to_look(&self) -> LocalStore {
        LocalStore::open(Options {
            project: self.project(),
            access: Access::ReadOnly,
            signer: None,
            trust: Trust::load(&self.home().join("keys/trusted")).unwrap(),
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            disk: Arc::new(RealDisk),
        })
        .unwrap()
    }

    /// Opens the store in this process, as another program would.
    pub(crate) fn open(&self) -> LocalStore {
        let signer = KeyFolder::load(&self.home().join("keys/signing")).unwrap();
        self.open_with(signer, Trust::load(&self.home().join("keys/trusted")).unwrap())
    }

    /// The same, with these keys.
    pub(crate) fn open_with(&self, signer: Signer, trust: Trust) -> LocalStore {
        LocalStore::open(Options {
            project: self.project(),
            access: Access::ReadWrite,
            signer: Some(signer),
            trust,
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            disk: Arc::new(RealDisk),
        })
        .unwrap()
    }
}

/// Gives a process its input. One that does not want to read it all is none the worse for it.
pub(crate) fn feed(mut child: Child, input: &[u8]) -> Child {
    let _ = child.stdin.take().unwrap().write_all(input);
    child
}

/// Every file below a folder with its bytes.
pub(crate) fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(contents(&path)) } else { found.push((path.clone(), fs::read(path).unwrap())) }
    }
    found.sort();
    found
}

/// Copies a folder and all below it.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

/// What a screen shows, with everything masked that differs from run to run.
pub(crate) fn masked(text: &str, sandbox: &Sandbox) -> String {
    let text = text.replace(env!("CARGO_BIN_EXE_selvedge"), "selvedge");
    let text = text.replace(sandbox.root().to_str().unwrap(), "[DIR]");
    mask_times(&mask_hex(&text))
}

/// Masks runs of 12, 16 or 64 hex characters that hold a digit.
fn mask_hex(text: &str) -> String {
    let mut masked = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let is_word = |c: char| c.is_ascii_alphanumeric();
        let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(length);
        let is_hex =
            word.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) && word.bytes().any(|b| b.is_ascii_digit());
        match word.len() {
            12 | 16 | 64 if is_hex => masked.push_str(&format!("[HEX{}]", word.len())),
            _ => masked.push_str(word),
        }
        let next = after.find(is_word).unwrap_or(after.len());
        masked.push_str(&after[..next]);
        rest = &after[next..];
    }
    masked
}

/// Masks `2026-11-15 03:28` and `2026-11-15 03:28:58`.
fn mask_times(text: &str) -> String {
    let fits = |bytes: &[u8], pattern: &str| {
        bytes.len() >= pattern.len()
            && bytes.iter().zip(pattern.bytes()).all(|(b, p)| if p == b'0' { b.is_ascii_digit() } else { *b == p })
    };
    let mut masked = Vec::new();
    let mut rest = text.as_bytes();
    while let Some(first) = rest.first() {
        let length = ["0000-00-00 00:00:00", "0000-00-00 00:00"].into_iter().find(|p| fits(rest, p)).map(str::len);
        match length {
            Some(length) => {
                masked.extend(b"[TIME]");
                rest = &rest[length..];
            }
            None => {
                masked.push(*first);
                rest = &rest[1..];
            }
        }
    }
    String::from_utf8(masked).unwrap()
}
