//! What is wrong with an item: the file, the place in it, the reason, and what to do.

use std::fmt;
use std::io;

use selvedge_model::error::{Classify, Kind};
use selvedge_model::id::InvalidId;
use selvedge_model::shell;

/// What is wrong is said in a few lines, however long what is wrong is.
const WHY_CHARS_MAX: usize = 300;

/// What is wrong with a text, and where in it.
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
    /// Something is wrong, nobody knows where. A reason that quotes too much is cut, and has one line.
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

    /// The same, at this place.
    #[must_use]
    pub fn at(self, line: u64, column: u64) -> Self {
        Self { line: Some(line), column: Some(column), ..self }
    }

    /// The same, with something to do about it.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// The place as editors understand it behind a file's name, then the reason.
impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.column) {
            (Some(line), Some(column)) => write!(f, "line {line}, column {column}: {}", self.why),
            (Some(line), None) => write!(f, "line {line}: {}", self.why),
            _ => f.write_str(&self.why),
        }
    }
}

/// Why an item can't be had.
#[derive(Debug, thiserror::Error)]
pub enum ItemError {
    /// It is not written as it must be.
    #[error("`{file}` is not valid: {flaw}")]
    Invalid {
        /// The file.
        file: String,
        /// What is wrong, and where.
        flaw: Flaw,
    },
    /// There is none of this name.
    #[error("there is no {what} `{id}`")]
    NotFound {
        /// What was looked for.
        what: &'static str,
        /// Its name.
        id: String,
        /// One that was perhaps meant.
        nearest: Option<String>,
    },
    /// The name can't be one.
    #[error(transparent)]
    Name(#[from] InvalidId),
    /// It is a link, or no plain file.
    #[error("`{file}` is not read: {why}")]
    Unsafe {
        /// The file.
        file: String,
        /// What it is.
        why: &'static str,
    },
    /// It goes back to itself.
    #[error("`{}` extends itself: {}", .chain.first().map_or("", String::as_str), .chain.join(" → "))]
    Cycle {
        /// The names on the way, the first one again at the end.
        chain: Vec<String>,
    },
    /// It must not run, by what is known of its signature.
    #[error("`{file}` may not run: {why}")]
    NotTrusted {
        /// The file.
        file: String,
        /// What kind of item it is.
        what: &'static str,
        /// The place that a signature must name.
        place: String,
        /// What is known of its signature.
        why: String,
    },
    /// It can't be read.
    #[error("`{file}` can't be read: {source}")]
    Io {
        /// The file.
        file: String,
        /// What the operating system said.
        source: io::Error,
    },
}

impl Classify for ItemError {
    fn kind(&self) -> Kind {
        match self {
            Self::Invalid { .. } | Self::Name(_) | Self::Cycle { .. } => Kind::Invalid,
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
            Self::Cycle { .. } => "item_cycle",
            Self::NotTrusted { .. } => "item_not_trusted",
            Self::Io { .. } => "item_io_failed",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Invalid { flaw, .. } => flaw.hint.clone(),
            Self::NotFound { nearest: Some(near), .. } => Some(format!("did you mean `{near}`?")),
            Self::NotFound { what: "knowledge", id, .. } => Some(format!("write it to `.ai/knowledge/{id}.md`")),
            Self::NotFound { what, .. } => Some(format!("`selvedge {what} list` shows what there is")),
            Self::Name(_) => Some("name it by its path below its folder, without ending: `reports/weekly`".to_owned()),
            Self::Unsafe { .. } => Some("put the file itself there; links are not followed".to_owned()),
            Self::Cycle { .. } => Some("take `extends` out of one of them".to_owned()),
            Self::NotTrusted { file, what, place, .. } => {
                let (file, place) = (shell::word(file), shell::word(place));
                Some(format!("read it, and sign it with `selvedge sign {file} --kind {what} --id {place}`"))
            }
            Self::Io { .. } => None,
        }
    }
}
