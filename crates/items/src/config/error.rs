//! Errors of the configuration.

use selvedge_model::error::{Classify, Kind};

use crate::error::{Flaw, ItemError};

/// Why a configuration can't be loaded, or a key not be found.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file has an invalid content.
    #[error("`{file}` can't be used: {flaw}")]
    Invalid {
        /// The file.
        file: String,
        /// What is wrong, and where.
        flaw: Flaw,
    },
    /// A project's file sets what only the user can set.
    #[error("`{file}` can't be used: {flaw}")]
    Denied {
        /// The file.
        file: String,
        /// What it may not set, and where.
        flaw: Flaw,
    },
    /// A file extends itself.
    #[error("`{}` extends itself: {}", .chain.first().map_or("", String::as_str), .chain.join(" → "))]
    Cycle {
        /// The files in the cycle, the first one again at the end.
        chain: Vec<String>,
    },
    /// There is no such key.
    #[error("there is no key `{}`", .key.escape_debug())]
    UnknownKey {
        /// The key.
        key: String,
        /// A similar key that exists.
        nearest: Option<String>,
    },
    /// A file can't be read.
    #[error(transparent)]
    Read(#[from] ItemError),
}

impl Classify for ConfigError {
    fn kind(&self) -> Kind {
        match self {
            Self::Invalid { .. } | Self::Cycle { .. } => Kind::Invalid,
            Self::Denied { .. } => Kind::Denied,
            Self::UnknownKey { .. } => Kind::Absent,
            Self::Read(error) => error.kind(),
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "config_invalid",
            Self::Denied { .. } => "config_denied",
            Self::Cycle { .. } => "config_cycle",
            Self::UnknownKey { .. } => "config_key_not_found",
            Self::Read(error) => error.code(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Invalid { flaw, .. } | Self::Denied { flaw, .. } => flaw.hint.clone(),
            Self::Cycle { .. } => Some("remove `extends` from one of them".to_owned()),
            Self::UnknownKey { nearest: Some(near), .. } => Some(format!("did you mean `{near}`?")),
            Self::UnknownKey { nearest: None, .. } => Some("`selvedge config list` shows every key".to_owned()),
            Self::Read(error) => error.hint(),
        }
    }
}
