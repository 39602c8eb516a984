//! The tombstone of a deleted thread: what its deletion signs, and the one way to read it back.

use std::io::{self, BufRead};

use selvedge_log::document::{self, DocumentError, DocumentKind};
use selvedge_log::{Signer, Trust, line, lines};
use selvedge_model::ThreadId;
use selvedge_model::account::replay::DeletedPostings;

use crate::contract::Tombstone;
use crate::error::{Error, Result};

/// The document kind of a tombstone's signature.
pub const KIND: DocumentKind = DocumentKind::new("tombstone");

impl BadTombstone {
    /// The error of a command that needs the tombstone; `what` names it, `hint` says what helps.
    pub fn into_error(self, what: String, hint: impl FnOnce() -> String) -> Error {
        match self {
            Self::Document(error) => Error::of_document(what, &error, hint),
            Self::Content(why) => Error::Integrity { what, why, hint: Some(hint()) },
        }
    }
}

impl Tombstone {
    /// The signed document, which a backend keeps as it is.
    pub fn sign(&self, signer: &Signer) -> Result<String> {
        let unwritable = |why: String| Error::Integrity { what: "a tombstone".to_owned(), why, hint: None };
        let value = serde_json::to_value(self).map_err(|error| unwritable(error.to_string()))?;
        let thread = self.manifest.thread_id.as_str();
        document::sign_json(KIND, thread, value, signer, self.deleted_at).map_err(|error| unwritable(error.to_string()))
    }

    /// The tombstone in a document, if that was signed with a trusted key for this thread.
    pub fn verify(thread: &ThreadId, document: &[u8], trust: &Trust) -> Result<Self, BadTombstone> {
        let verified = document::verify_json(KIND, thread.as_str(), document, trust).map_err(BadTombstone::Document)?;
        serde_json::from_value(verified.value).map_err(|error| BadTombstone::Content(error.to_string()))
    }
}

/// Why a document is no tombstone.
#[derive(Debug, thiserror::Error)]
pub enum BadTombstone {
    /// Its signature, or its form.
    #[error(transparent)]
    Document(DocumentError),
    /// It is signed, and not understood.
    #[error("{0}")]
    Content(String),
}

/// The postings of a log, for its tombstone. Unreadable lines are skipped, so that a damaged log can be deleted.
pub fn postings_of(mut log: impl BufRead) -> io::Result<Vec<DeletedPostings>> {
    let mut bytes = Vec::new();
    let mut found = Vec::new();
    while lines::next_line(&mut log, &mut bytes)? {
        if let Ok(line) = line::decode(bytes.strip_suffix(b"\n").unwrap_or(&bytes))
            && let Some((_, record)) = line.event.posting()
        {
            found.push(record.clone());
        }
    }
    Ok(DeletedPostings::of(&found))
}
