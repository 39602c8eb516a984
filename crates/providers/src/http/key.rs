//! The key of a host: given, in a file that only its owner can read, or printed by a command.
//!
//! A key is read when it is first needed, kept in memory as a secret, and read again once after the host has refused it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use secrecy::{ExposeSecret, SecretString};
use selvedge_model::blocking::on_thread;
use tokio::sync::Mutex;

/// The most bytes of a key.
const KEY_BYTES_MAX: u64 = 64 * 1024;
/// How long a command may take to print the key: it may ask its user for a passphrase.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(60);

/// Where the key of a host comes from.
#[derive(Clone)]
pub enum Key {
    /// The key itself.
    Value(SecretString),
    /// A file that has it: a regular file without access for group and others.
    File(PathBuf),
    /// A command and its arguments; its output is the key.
    Command(Vec<String>),
}

impl fmt::Debug for Key {
    /// Shows neither the key nor the arguments of a command.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(_) => f.write_str("Value([redacted])"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Command(command) => f.debug_tuple("Command").field(&program(command)).finish(),
        }
    }
}

/// Why a key can't be had. Never contains a part of the key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file can't be read.
    #[error("the key file `{}` can't be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not safe.
    #[error("the key file `{}` is refused: {why}", path.display())]
    Unsafe {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The command did not give a key.
    #[error("the key command `{program}` failed: {why}")]
    Command {
        /// The program.
        program: String,
        /// Why.
        why: String,
    },
    /// There is a key, and it can't be sent.
    #[error("the key of {origin} {why}")]
    Invalid {
        /// Where it is from.
        origin: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl Key {
    /// Reads the key. This blocks.
    pub(super) fn read(&self) -> Result<SecretString, KeyError> {
        let (text, origin) = match self {
            Self::Value(value) => (value.clone(), "the configuration".to_owned()),
            Self::File(path) => (from_file(path)?, format!("the file `{}`", path.display())),
            Self::Command(command) => (from_command(command)?, format!("the command `{}`", program(command))),
        };
        let key = text.expose_secret().trim();
        let why = if key.is_empty() {
            "is empty"
        } else if key.chars().any(|character| character.is_control()) {
            "has more than one line or a control character"
        } else if !key.is_ascii() {
            "has characters that are not ASCII"
        } else {
            return Ok(SecretString::from(key));
        };
        Err(KeyError::Invalid { origin, why })
    }
}

fn from_file(path: &Path) -> Result<SecretString, KeyError> {
    let unreadable = |source| KeyError::Unreadable { path: path.to_owned(), source };
    let refused = |why: String| KeyError::Unsafe { path: path.to_owned(), why };
    // Opening a pipe must not wait for its writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(rustix::io::Errno::LOOP) => return Err(refused("it is a symbolic link".to_owned())),
        other => other.map_err(|error| unreadable(error.into()))?,
    };
    let file = File::from(opened);
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(refused("it is not a regular file".to_owned()));
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(refused(format!("its mode is {mode:04o}; run `chmod 600` on it")));
    }
    let mut text = String::new();
    file.take(KEY_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    Ok(SecretString::from(text))
}

fn program(command: &[String]) -> &str {
    command.first().map_or("", String::as_str)
}

/// Runs a command for its output. Its standard error is not shown, because it may contain a part of the key.
fn from_command(command: &[String]) -> Result<SecretString, KeyError> {
    let failed = |why: String| KeyError::Command { program: program(command).to_owned(), why };
    let Some((program, arguments)) = command.split_first() else {
        return Err(failed("it is empty".to_owned()));
    };
    let mut prepared = Command::new(program);
    prepared.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = prepared.spawn().map_err(|error| failed(error.to_string()))?;
    let (send, printed) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        // A thread of its own: a process that outlives the command may keep the pipe open.
        drop(on_thread(move || {
            let mut text = String::new();
            let read = output.take(KEY_BYTES_MAX).read_to_string(&mut text);
            _ = send.send(read.map(|_| SecretString::from(text)));
        }));
    }
    let until = Instant::now() + COMMAND_TIME_MAX;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => {
                _ = child.kill();
                _ = child.wait();
                return Err(failed(format!("it took longer than {} s", COMMAND_TIME_MAX.as_secs())));
            }
            Err(error) => return Err(failed(error.to_string())),
        }
    };
    if !status.success() {
        return Err(failed(format!("{status}; run it yourself to see its message")));
    }
    let left = until.saturating_duration_since(Instant::now());
    match printed.recv_timeout(left) {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(_) => Err(failed("its output did not end".to_owned())),
    }
}

/// A key that is read when it is first needed.
pub(super) struct Keyring {
    source: Key,
    /// The key, once read. An asynchronous lock: it is held while the key is read, so that a command runs once.
    read: Mutex<Option<SecretString>>,
}

impl Keyring {
    pub(super) fn new(source: Key) -> Self {
        Self { source, read: Mutex::new(None) }
    }

    /// The key.
    pub(super) async fn get(&self) -> Result<SecretString, KeyError> {
        let mut read = self.read.lock().await;
        if let Some(key) = &*read {
            return Ok(key.clone());
        }
        let key = self.read_again().await?;
        *read = Some(key.clone());
        Ok(key)
    }

    /// The key after the host has refused `refused`; `None` if there is no other.
    pub(super) async fn replace(&self, refused: &SecretString) -> Result<Option<SecretString>, KeyError> {
        let is_other = |key: &SecretString| key.expose_secret() != refused.expose_secret();
        let mut read = self.read.lock().await;
        if let Some(key) = read.as_ref().filter(|key| is_other(key)) {
            return Ok(Some(key.clone()));
        }
        if matches!(self.source, Key::Value(_)) {
            return Ok(None);
        }
        let key = self.read_again().await?;
        *read = Some(key.clone());
        Ok(Some(key).filter(is_other))
    }

    async fn read_again(&self) -> Result<SecretString, KeyError> {
        let source = self.source.clone();
        on_thread(move || source.read()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(script: &str) -> Key {
        Key::Command(["sh", "-c", script].map(str::to_owned).to_vec())
    }

    #[test]
    fn the_output_of_a_command_is_trimmed() {
        let key = command("echo; echo ' sk-1 '").read().unwrap();
        assert_eq!(key.expose_secret(), "sk-1");
    }

    #[test]
    fn a_command_that_fails_is_named_without_its_output() {
        let error = command("echo canary; echo canary >&2; exit 3").read().unwrap_err().to_string();
        assert!(error.contains("`sh`") && error.contains('3') && !error.contains("canary"), "{error}");
        let error = Key::Command(vec!["/nonexistent/helper".to_owned()]).read().unwrap_err().to_string();
        assert!(error.contains("/nonexistent/helper"), "{error}");
        assert!(Key::Command(Vec::new()).read().is_err());
    }

    #[test]
    fn a_key_that_is_no_header_value_is_refused_without_showing_it() {
        for text in ["canary\nmore", "canary\u{7}", "canaryé", "  "] {
            let error = Key::Value(text.into()).read().unwrap_err().to_string();
            assert!(!error.contains("canary") && error.contains("the configuration"), "{error}");
        }
        assert_eq!(format!("{:?}", Key::Value("canary".into())).matches("canary").count(), 0);
    }
}
