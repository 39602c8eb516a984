//! Errors of items: the file, the position in it, the reason, and what to do.

use std::fmt;
use std::io;

use selvedge_model::error::{Classify, Kind};
use selvedge_model::id::InvalidId;
use selvedge_model::shell;

/// The maximum length of a reason, even if it quotes a long text.
const WHY_CHARS_MAX: usize = 300;

/// Why a file is not read that is neither a regular file nor a link.
pub(crate) const NOT_PLAIN: &str = "it is not a regular file";

/// What is wrong with a text, and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The line, from 1, if it is known.
    pub line: Option<u64>,
    /// The column, from 1, if it is known.
    pub column: Option<u64>,
    /// What is wrong.
    pub why: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Flaw {
    /// A flaw without a position. A long reason is truncated, and control characters are removed.
    pub fn new(why: impl Into<String>) -> Self {
        let mut why = why.into().replace(char::is_control, " ");
        if let Some((end, _)) = why.char_indices().nth(WHY_CHARS_MAX) {
            why.truncate(end);
            why.push('…');
        }
        Self { line: None, column: None, why, hint: None }
    }

    /// The same, on this line.
    #[must_use]
    pub fn on_line(self, line: u64) -> Self {
        Self { line: Some(line), ..self }
    }

    /// The same, at this position.
    #[must_use]
    pub fn at(self, line: u64, column: u64) -> Self {
        Self { line: Some(line), column: Some(column), ..self }
    }

    /// The same, with a hint.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// The position as editors understand it after a file's name, then the reason.
impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.column) {
            (Some(line), Some(column)) => write!(f, "line {line}, column {column}: {}", self.why),
            (Some(line), None) => write!(f, "line {line}: {}", self.why),
            _ => f.write_str(&self.why),
        }
    }
}

/// Why an item can't be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ItemError {
    /// Its content is invalid.
    #[error("`{file}` is not valid: {flaw}")]
    Invalid {
        /// The file.
        file: String,
        /// What is wrong, and where.
        flaw: Flaw,
    },
    /// There is no item with this name.
    #[error("there is no {what} `{id}`")]
    NotFound {
        /// The kind of item.
        what: &'static str,
        /// Its name.
        id: String,
        /// A similar name that exists.
        nearest: Option<String>,
    },
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] InvalidId),
    /// It is a link, or not a regular file.
    #[error("`{file}` is not read: {why}")]
    Unsafe {
        /// The file.
        file: String,
        /// The reason.
        why: &'static str,
    },
    /// It is larger than an item may be.
    #[error("`{file}` is too large: an item has at most {} bytes", .bytes_max)]
    TooLarge {
        /// The file.
        file: String,
        /// The most bytes of an item.
        bytes_max: usize,
    },
    /// It extends itself.
    #[error("`{}` extends itself: {}", .chain.first().map_or("", String::as_str), .chain.join(" → "))]
    Cycle {
        /// The names in the cycle, the first one again at the end.
        chain: Vec<String>,
    },
    /// Its signature does not allow it to run.
    #[error("`{file}` may not run: {why}")]
    NotTrusted {
        /// The file.
        file: String,
        /// The kind of item.
        what: &'static str,
        /// The id that a signature must name.
        place: String,
        /// What is known about its signature.
        why: String,
    },
    /// It can't be read.
    #[error("`{file}` can't be read: {source}")]
    Io {
        /// The file.
        file: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl Classify for ItemError {
    fn kind(&self) -> Kind {
        match self {
            Self::Invalid { .. } | Self::TooLarge { .. } | Self::Name(_) | Self::Cycle { .. } => Kind::Invalid,
            Self::NotFound { .. } => Kind::Absent,
            Self::Unsafe { .. } | Self::NotTrusted { .. } => Kind::Denied,
            Self::Io { .. } => Kind::Broken,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "item_invalid",
            Self::NotFound { .. } => "item_not_found",
            Self::Name(_) => "item_name_invalid",
            Self::Unsafe { .. } => "item_unsafe",
            Self::TooLarge { .. } => "item_too_large",
            Self::Cycle { .. } => "item_cycle",
            Self::NotTrusted { .. } => "item_not_trusted",
            Self::Io { .. } => "item_io",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Invalid { flaw, .. } => flaw.hint.clone(),
            Self::NotFound { nearest: Some(near), .. } => Some(format!("did you mean `{near}`?")),
            Self::NotFound { what, id, .. } if id.ends_with(".md") || id.ends_with(".yaml") => {
                let (name, _) = id.rsplit_once('.').unwrap_or((id, ""));
                Some(format!("name a {what} without its file extension: `{name}`"))
            }
            Self::NotFound { what: "knowledge", id, .. } => Some(format!("create `.ai/knowledge/{id}.md`")),
            Self::NotFound { what, .. } => Some(format!("`selvedge {what} list` shows all of them")),
            Self::Name(_) => Some("use its path below its folder, without extension: `reports/weekly`".to_owned()),
            Self::Unsafe { why: NOT_PLAIN, .. } => Some("put a regular file there".to_owned()),
            Self::Unsafe { .. } => Some("put the file itself there; links are not followed".to_owned()),
            Self::TooLarge { .. } => {
                Some("shorten it, or move long material into knowledge and refer to it".to_owned())
            }
            Self::Cycle { .. } => Some("remove `extends` from one of them".to_owned()),
            Self::NotTrusted { file, what, place, .. } => {
                let file = shell::word(file);
                let place = shell::word(place);
                Some(format!("read it, and sign it with `selvedge sign {file} --kind {what} --id {place}`"))
            }
            Self::Io { .. } => None,
        }
    }
}
