//! All entries of knowledge, with what is known of each.

use selvedge_model::digest::Digest;
use serde::Serialize;

use super::{Knowledge, Metadata};
use crate::error::ItemError;
use crate::library::{Entry, Kind, Layer, Library};
use crate::signature::SignatureVerdict;

/// What a signature says about an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// Signed by a trusted key, and unchanged since.
    SignedAndIntact,
    /// Not signed, or in a form that does not cover all of it.
    Unsigned,
    /// Signed by a key that is not trusted.
    Untrusted,
    /// Changed since it was signed, or not readable.
    Damaged,
}

impl Condition {
    fn of(verdict: &SignatureVerdict) -> Self {
        match verdict {
            SignatureVerdict::BuiltIn | SignatureVerdict::Trusted { .. } => Self::SignedAndIntact,
            SignatureVerdict::Unsigned { .. } => Self::Unsigned,
            SignatureVerdict::Untrusted { .. } => Self::Untrusted,
            SignatureVerdict::Broken { .. } => Self::Damaged,
        }
    }

    /// As words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SignedAndIntact => "signed and intact",
            Self::Unsigned => "unsigned",
            Self::Untrusted => "signed by an untrusted key",
            Self::Damaged => "damaged",
        }
    }
}

/// An entry of knowledge, whatever its condition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KnowledgeEntry {
    /// Its id.
    pub id: String,
    /// Where it is.
    pub layer: Layer,
    /// Whether an entry of the same id in an earlier layer hides it.
    pub shadowed: bool,
    /// What its signature says.
    pub condition: Condition,
    /// SHA-256 of its file, if that can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Its file.
    pub file: String,
    /// Its metadata, as far as they can be read.
    pub metadata: Metadata,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flaws: Vec<String>,
    /// Its text.
    #[serde(skip)]
    pub body: String,
}

impl Library {
    /// The entries of knowledge of project and user, by id; nothing is read of them.
    pub fn knowledge_ids(&self) -> Result<Vec<Entry>, ItemError> {
        self.list(Kind::Knowledge)
    }

    /// The bytes of an entry as they are on disk, for a search that asks for the entry itself afterwards; none if they can't be read.
    pub fn knowledge_bytes(&self, entry: &Entry) -> Option<Vec<u8>> {
        entry.readable().and_then(|()| self.bytes_in(Kind::Knowledge, &entry.id, entry.layer)).ok().flatten()
    }

    /// An entry as it is on disk, for display. Nothing of it is trusted: what may be used is returned by [`Library::knowledge`].
    pub fn knowledge_entry(&self, entry: &Entry) -> KnowledgeEntry {
        let mut shown = KnowledgeEntry {
            id: entry.id.clone(),
            layer: entry.layer,
            shadowed: entry.hidden,
            condition: Condition::Damaged,
            digest: None,
            file: String::new(),
            metadata: Metadata::default(),
            flaws: Vec::new(),
            body: String::new(),
        };
        let found = entry.readable().and_then(|()| self.look_in(Kind::Knowledge, &entry.id, entry.layer));
        let found = match found {
            Ok(Some(found)) => found,
            Ok(None) => {
                shown.flaws.push("it was removed meanwhile".to_owned());
                return shown;
            }
            Err(error) => {
                shown.flaws.push(error.to_string());
                return shown;
            }
        };
        shown.condition = Condition::of(&found.source.verdict);
        shown.digest = Some(found.source.hash);
        shown.file.clone_from(&found.source.file);
        if let SignatureVerdict::Broken { why } = &found.source.verdict {
            shown.flaws.push(why.clone());
        }
        match Metadata::read(&found.text) {
            Ok(metadata) => {
                shown.flaws.extend(metadata.misfits(&entry.id));
                shown.metadata = metadata;
            }
            Err(flaw) => shown.flaws.push(flaw.why),
        }
        match Knowledge::parse(&found.text) {
            Ok(knowledge) => shown.body = knowledge.body,
            Err(flaw) => shown.flaws.push(flaw.why),
        }
        shown.flaws.dedup();
        shown
    }
}
