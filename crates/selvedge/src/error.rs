//! The error of the façade.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::Path;

use selvedge_engine::snapshot::SchemaError;
use selvedge_items::ItemError;
use selvedge_items::capability::InvalidCapability;
use selvedge_items::config::ConfigError;
use selvedge_log::keychain::KeyChainError;
use selvedge_log::keys::KeyError;
use selvedge_log::trust::TrustError;
use selvedge_model::error::{Classify, Kind};
use selvedge_model::id::InvalidId;
use selvedge_tools::InvalidTool;
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::project::ProjectError;

/// The result of a call of [`Selvedge`](crate::Selvedge).
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call of [`Selvedge`](crate::Selvedge) failed.
///
/// A program acts on [`code`](Error::code), [`kind`](Error::kind) and [`is_retryable`](Error::is_retryable), never on the text. Codes are
/// stable and the same in every interface: `selvedge help CODE` prints the page of one. As JSON an error is
/// `{"code", "message", "hint", "retryable"}`, as the command line writes it.
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    code: &'static str,
    message: String,
    hint: Option<String>,
    retryable: bool,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of the façade itself.
    pub(crate) fn new(kind: Kind, code: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, code, message: message.into(), hint: None, retryable: false, source: None }))
    }

    /// The same error, with what to do about it.
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Wraps an error of one of the crates below.
    fn of(error: impl Classify + Send + Sync + 'static) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(source) = cause {
            let text = source.to_string();
            // Some messages already quote their cause.
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = source.source();
        }
        Self(Box::new(Inner {
            kind: error.kind(),
            code: error.code(),
            message,
            hint: error.hint(),
            retryable: error.retryable(),
            source: Some(Box::new(error)),
        }))
    }

    /// A file or folder that could not be used.
    pub(crate) fn io(what: &str, path: &Path, source: io::Error) -> Self {
        let (kind, code) = match source.kind() {
            io::ErrorKind::NotFound => (Kind::Absent, "file_not_found"),
            io::ErrorKind::PermissionDenied => (Kind::Denied, "permission_denied"),
            _ => (Kind::Broken, "io"),
        };
        let mut error = Self::new(kind, code, format!("can't {what} `{}`: {source}", path.display()));
        error.0.source = Some(Box::new(source));
        error
    }

    /// The stable code of this error, such as `thread_not_found`.
    pub fn code(&self) -> &'static str {
        self.0.code
    }

    /// The kind of error, for callers to act on.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// What to do about it. Commands in it are those of the `selvedge` command line.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// Whether the same call may succeed later without a change.
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Error");
        shown.field("code", &self.0.code).field("message", &self.0.message).field("hint", &self.0.hint).finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut record = serializer.serialize_struct("Error", 4)?;
        record.serialize_field("code", self.code())?;
        record.serialize_field("message", &self.0.message)?;
        record.serialize_field("hint", &self.0.hint)?;
        record.serialize_field("retryable", &self.0.retryable)?;
        record.end()
    }
}

/// New runs are refused, because the program is shutting down.
#[derive(Debug, thiserror::Error)]
#[error("new runs are refused: this program is shutting down")]
pub(crate) struct ShutDown;

impl Classify for ShutDown {
    fn kind(&self) -> Kind {
        Kind::Denied
    }

    fn code(&self) -> &'static str {
        "shut_down"
    }

    fn hint(&self) -> Option<String> {
        Some("send the request to the next process that opens the project".to_owned())
    }
}

macro_rules! from {
    ($($source:ty),+ $(,)?) => {
        $(impl From<$source> for Error {
            fn from(error: $source) -> Self {
                Self::of(error)
            }
        })+
    };
}

from!(
    selvedge_engine::Error,
    selvedge_store::Error,
    ProjectError,
    ItemError,
    ConfigError,
    KeyError,
    TrustError,
    KeyChainError,
    InvalidTool,
    InvalidCapability,
    SchemaError,
    selvedge_store::search::QueryError,
    ShutDown,
);

impl From<InvalidId> for Error {
    fn from(error: InvalidId) -> Self {
        let mut own = Self::new(Kind::Invalid, "usage", error.to_string());
        own.0.source = Some(Box::new(error));
        own
    }
}
