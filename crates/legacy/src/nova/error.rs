//! The errors of importing and exporting files of the older format.

use std::io;

use selvedge_model::error::{Classify, Kind};
use selvedge_model::{Digest, ThreadId};
use selvedge_store::Error;

/// An error of an import or export.
#[derive(Debug, thiserror::Error)]
pub enum NovaError {
    /// The store refused.
    #[error(transparent)]
    Store(#[from] Error),
    /// The file could not be read, or the export could not be written.
    #[error("can't {what} `{name}`: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        name: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is not of this format.
    #[error("`{name}` has neither a manifest nor an event of the older format")]
    NotNova {
        /// The file.
        name: String,
    },
    /// The file is not a grown version of the imported one.
    #[error(
        "`{name}` is not a longer version of the file that thread `{thread}` was imported from: {}",
        match .found {
            Some(found) => format!(
                "its first {kept} bytes after the manifest have SHA-256 {}, the imported ones have {}",
                found.short(), .expected.short(),
            ),
            None => format!("it has fewer bytes after the manifest than the {kept} imported ones"),
        }
    )]
    Diverged {
        /// The file.
        name: String,
        /// The thread.
        thread: ThreadId,
        /// How many bytes were stored.
        kept: u64,
        /// Their hash.
        expected: Digest,
        /// The hash of the same number of bytes of this file, if it has them.
        found: Option<Digest>,
    },
    /// A thread of this id exists and was not imported.
    #[error(
        "`{name}` would be imported as thread `{thread}`, which exists already and was not imported from such a file"
    )]
    Taken {
        /// The file.
        name: String,
        /// The thread.
        thread: ThreadId,
    },
    /// The file changed while it was read.
    #[error("`{name}` changed while it was read")]
    Changed {
        /// The file.
        name: String,
    },
}

impl NovaError {
    pub(super) fn reading(name: &str) -> impl FnOnce(io::Error) -> Self {
        let name = name.to_owned();
        |source| match source.downcast::<Error>() {
            // A blob is read like a file; a store error is returned unchanged.
            Ok(error) => Self::Store(error),
            Err(source) => Self::Io { what: "read", name, source },
        }
    }
}

impl Classify for NovaError {
    fn kind(&self) -> Kind {
        match self {
            Self::Store(error) => error.kind(),
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => Kind::Absent,
                io::ErrorKind::PermissionDenied => Kind::Denied,
                _ => Kind::Broken,
            },
            Self::NotNova { .. } => Kind::Invalid,
            Self::Diverged { .. } | Self::Taken { .. } | Self::Changed { .. } => Kind::Conflict,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Store(error) => error.code(),
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => "file_not_found",
                io::ErrorKind::PermissionDenied => "permission_denied",
                _ => "io",
            },
            Self::NotNova { .. } => "import_not_nova",
            Self::Diverged { .. } => "import_diverged",
            Self::Taken { .. } => "import_id_taken",
            Self::Changed { .. } => "import_changed",
        }
    }

    fn retryable(&self) -> bool {
        match self {
            Self::Store(error) => error.retryable(),
            Self::Changed { .. } => true,
            _ => false,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Store(error) => error.hint(),
            Self::Io { .. } => None,
            Self::NotNova { .. } => Some(
                "each line of such a file is a JSON object; the first has `agentId`, the others `type` or `role`"
                    .to_owned(),
            ),
            Self::Diverged { thread, .. } => Some(format!(
                "`selvedge export {thread} --format nova` shows what was imported; to import this file as a thread of its own, \
                 give it another `id` in its first line, or another name if it has none there"
            )),
            Self::Taken { .. } => {
                Some("give the file another `id` in its first line, or another name if it has none there".to_owned())
            }
            Self::Changed { .. } => Some("run the same command again: it continues where it stopped".to_owned()),
        }
    }
}
