//! Recorded calls: the exact bytes of requests and responses in a folder, and a model that answers from them, offline.
//!
//! ```text
//! 0001.call.json      host, format, model, dialect, path and headers of the request
//! 0001.request.json   the body of the request
//! 0001.response       status line, headers, an empty line, the body; absent if there was no response
//! ```
//!
//! - Numbers follow the order in which requests were sent, also with several models or processes on one folder.
//! - Credentials are left out, and known secrets are replaced by `[redacted]`.
//! - Only the owner can read the files: they contain the conversation.
//! - A recorded response belongs to its request. A request that differs from every recorded one that is left is refused.

mod recorded;
mod writer;

use std::io;
use std::path::PathBuf;

use selvedge_model::{Classify, Kind};
use serde::{Deserialize, Serialize};

use crate::http::Format;
use crate::wire::Dialect;

pub use recorded::Recorded;
pub(crate) use recorded::ResponsePlayer;
pub(crate) use writer::{CallWriter, Recorder};

/// The version of the layout.
const VERSION: u32 = 1;

/// Why calls can't be recorded or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file or the folder can't be read or written.
    #[error("`{}` can't be {verb}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What was tried: `read` or `written`.
        verb: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A file is not what a recording has.
    #[error("`{}` is not part of a recording: {why}", path.display())]
    Invalid {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The folder has no recorded call.
    #[error("`{}` has no recorded call", path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
}

impl Classify for RecordError {
    fn kind(&self) -> Kind {
        match self {
            Self::File { .. } => Kind::Broken,
            Self::Invalid { .. } | Self::Empty { .. } => Kind::Invalid,
        }
    }

    fn code(&self) -> &'static str {
        "recording_invalid"
    }
}

/// What `NNNN.call.json` has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Call {
    version: u32,
    host: String,
    format: Format,
    model: String,
    dialect: Dialect,
    path: String,
    headers: Vec<(String, String)>,
}

/// The files of one call.
struct Files {
    call: PathBuf,
    request: PathBuf,
    response: PathBuf,
}

impl Files {
    fn of(folder: &std::path::Path, number: u32) -> Self {
        let file = |end: &str| folder.join(format!("{number:04}.{end}"));
        Self { call: file("call.json"), request: file("request.json"), response: file("response") }
    }
}
