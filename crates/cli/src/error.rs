//! Failures of commands: exit codes and messages.
//!
//! The exit code follows from the kind of an error and never from its text. In JSON mode an error is one object on
//! stderr: `{"error":{"code","message","hint","retryable",…}}`.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use selvedge::items::ItemError;
use selvedge::items::config::ConfigError;
use selvedge::project::ProjectError;
use selvedge_log::keychain::KeyChainError;
use selvedge_log::keys::KeyError;
use selvedge_log::recovery::Finding;
use selvedge_log::scan::{Damage, Flaw};
use selvedge_log::trust::TrustError;
use selvedge_model::error::{Classify, Kind};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::permission;

/// The result of a command.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// The exit codes of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Something failed.
    Failed = 1,
    /// The command line is invalid.
    Usage = 2,
    /// What was named does not exist, or is ambiguous.
    NotFound = 3,
    /// A lease, a status, a mode or a permission forbids it.
    NotAllowed = 4,
    /// Another writer was first.
    Conflict = 5,
    /// Signed or stored data is not what it should be.
    Integrity = 6,
    /// A person must decide.
    Decision = 7,
    /// A limit or a budget would be exceeded.
    Limit = 8,
    /// It was interrupted.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<Kind> for Exit {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Absent => Self::NotFound,
            Kind::Conflict => Self::Conflict,
            Kind::Invalid => Self::Usage,
            Kind::Denied => Self::NotAllowed,
            Kind::Exhausted => Self::Limit,
            Kind::Integrity => Self::Integrity,
            Kind::Broken => Self::Failed,
        }
    }
}

/// A command that failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// The stable code.
    pub(crate) code: &'static str,
    /// What happened and why.
    pub(crate) message: String,
    /// The command that helps.
    pub(crate) hint: Option<String>,
    /// Whether the same request may succeed later.
    pub(crate) retryable: bool,
    /// Values for programs, which need not parse the message.
    pub(crate) details: Map<String, Value>,
}

impl Failure {
    /// A failure without hint or details.
    pub(crate) fn new(exit: Exit, code: &'static str, message: impl Into<String>) -> Self {
        Self { exit, code, message: message.into(), hint: None, retryable: false, details: Map::new() }
    }

    /// An invalid command line.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "usage", message)
    }

    /// The failure for a classified error.
    pub(crate) fn of(error: &impl Classify) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            // Some messages already quote their cause.
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            source = cause.source();
        }
        Self {
            exit: error.kind().into(),
            code: error.code(),
            message,
            hint: error.hint(),
            retryable: error.retryable(),
            details: Map::new(),
        }
    }

    /// A file or folder that could not be used.
    pub(crate) fn io(what: &str, path: &Path, source: &io::Error) -> Self {
        let (exit, code) = match source.kind() {
            io::ErrorKind::NotFound => (Exit::NotFound, "file_not_found"),
            io::ErrorKind::PermissionDenied => (Exit::NotAllowed, "permission_denied"),
            _ => (Exit::Failed, "io"),
        };
        Self::new(exit, code, format!("can't {what} `{}`: {source}", path.display()))
    }

    /// The same failure with what helps.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same failure with one more detail.
    #[must_use]
    pub(crate) fn detail(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    /// The failure as a value, for a list in which something failed.
    pub(crate) fn to_value(&self) -> Value {
        serde_json::from_str::<Value>(&self.to_json()).map(|mut record| record["error"].take()).unwrap_or_default()
    }

    /// The failure as programs read it, on one line.
    pub(crate) fn to_json(&self) -> String {
        let Self { code, message, hint, retryable, details, .. } = self;
        let error = ErrorRecord { code, message, hint: hint.as_deref(), retryable: *retryable, details };
        serde_json::to_string(&Reported { error }).unwrap_or_default()
    }
}

#[derive(Serialize)]
struct Reported<'a> {
    error: ErrorRecord<'a>,
}

#[derive(Serialize)]
struct ErrorRecord<'a> {
    code: &'a str,
    message: &'a str,
    hint: Option<&'a str>,
    retryable: bool,
    #[serde(flatten)]
    details: &'a Map<String, Value>,
}

impl From<KeyError> for Failure {
    fn from(error: KeyError) -> Self {
        match &error {
            KeyError::Io { path, source } => permission::denied(path, source).unwrap_or_else(|| Self::of(&error)),
            _ => Self::of(&error),
        }
    }
}

impl From<TrustError> for Failure {
    fn from(error: TrustError) -> Self {
        match &error {
            TrustError::Io { path, source } => permission::denied(path, source).unwrap_or_else(|| Self::of(&error)),
            _ => Self::of(&error),
        }
    }
}

impl From<KeyChainError> for Failure {
    fn from(error: KeyChainError) -> Self {
        match error {
            KeyChainError::Key(error) => error.into(),
            KeyChainError::Trust(error) => error.into(),
            KeyChainError::Io { ref path, ref source } => {
                permission::denied(path, source).unwrap_or_else(|| Self::of(&error))
            }
            error => Self::of(&error),
        }
    }
}

impl From<selvedge::Error> for Failure {
    fn from(error: selvedge::Error) -> Self {
        Self {
            exit: error.kind().into(),
            code: error.code(),
            message: error.to_string(),
            hint: error.hint().map(str::to_owned),
            retryable: error.is_retryable(),
            details: Map::new(),
        }
    }
}

impl From<ItemError> for Failure {
    fn from(error: ItemError) -> Self {
        let failure = Self::of(&error);
        match &error {
            ItemError::Invalid { file, flaw } => {
                failure.detail("file", file.as_str()).detail("line", flaw.line).detail("column", flaw.column)
            }
            ItemError::Unsafe { file, .. }
            | ItemError::TooLarge { file, .. }
            | ItemError::NotTrusted { file, .. }
            | ItemError::Io { file, .. } => failure.detail("file", file.as_str()),
            _ => failure,
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        match error {
            ConfigError::Read(error) => error.into(),
            ConfigError::Invalid { ref file, ref flaw } | ConfigError::Denied { ref file, ref flaw } => {
                let failure = Self::of(&error).detail("file", file.as_str());
                failure.detail("line", flaw.line).detail("column", flaw.column)
            }
            error => Self::of(&error),
        }
    }
}

impl From<ProjectError> for Failure {
    fn from(error: ProjectError) -> Self {
        match error {
            ProjectError::Item(error) => error.into(),
            ProjectError::Interpolation { ref file, ref source } => {
                Self::of(&error).detail("file", file.as_str()).detail("line", source.line() as u64)
            }
            error => Self::of(&error),
        }
    }
}

impl From<selvedge::EngineError> for Failure {
    fn from(error: selvedge::EngineError) -> Self {
        match error {
            selvedge::EngineError::Store(error) => error.into(),
            error => Self::of(&error),
        }
    }
}

impl From<selvedge_store::Error> for Failure {
    fn from(error: selvedge_store::Error) -> Self {
        use selvedge_store::Error;
        let failure = Self::of(&error);
        match &error {
            Error::Conflict { thread, expected, actual } => {
                let failure = failure.detail("thread_id", thread.as_str());
                failure.detail("expected", *expected).detail("actual", *actual)
            }
            Error::LeaseHeld { thread, holder } => {
                let failure = failure.detail("thread_id", thread.as_str()).detail("holder", holder.as_str());
                failure.detail("pid", holder.pid())
            }
            Error::Unsealed { ours, .. } => failure.detail("ours", ours.to_string()),
            Error::OtherSigner { thread, theirs, ours } => {
                let failure = failure.detail("thread_id", thread.as_str());
                failure.detail("theirs", theirs.to_string()).detail("ours", ours.to_string())
            }
            Error::UntrustedKey { key, .. } => failure.detail("key", key.to_string()),
            Error::Log { thread, finding } => {
                let failure = failure.detail("thread_id", thread.as_str());
                match finding {
                    Finding::Damaged(Damage { flaw: Flaw::Untrusted(key) | Flaw::Revoked(key), .. }) => {
                        failure.detail("key", key.to_string())
                    }
                    _ => failure,
                }
            }
            Error::Ambiguous { candidates, .. } => failure.detail("candidates", candidates.clone()),
            _ => failure,
        }
    }
}
