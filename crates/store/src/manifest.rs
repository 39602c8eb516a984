//! `thread.json`: the signed manifest of a thread, derived from its log, for people and other programs to read.
//!
//! It records the version and hash of the log that it shows. The backend decides where and when it is written; what is signed, and how it
//! is verified, is defined here.

use selvedge_log::document::{self, DocumentError, DocumentKind};
use selvedge_log::recovery::Remembered;
use selvedge_log::{Head, Signer, Trust};
use selvedge_model::{Digest, Manifest, ThreadId, Timestamp};
use serde_json::Value;

use crate::error::{Error, Result};

/// Its file name.
pub const NAME: &str = "thread.json";
/// The document kind of its signature.
pub const KIND: DocumentKind = DocumentKind::new("thread");
/// Its maximum length.
pub const BYTES_MAX: u64 = 64 << 20;

/// The content of a `thread.json`.
pub struct ParsedManifest {
    /// The version and hash of the log that it records.
    pub memory: Remembered,
    /// The manifest, if this program can parse it.
    pub manifest: Option<Manifest>,
}

/// Signs the manifest of a thread whose log has the head `head`.
pub fn sign(manifest: &Manifest, head: &Head, signer: &Signer, now: Timestamp) -> Result<String> {
    let thread = &manifest.thread_id;
    let mut value = serde_json::to_value(manifest).map_err(|error| damaged(thread, &error.to_string()))?;
    if let Value::Object(fields) = &mut value {
        fields.insert("log_id".to_owned(), head.log_id.as_str().into());
        fields.insert("log_version".to_owned(), head.version.into());
        fields.insert("log_hash".to_owned(), head.hash.to_string().into());
    }
    document::sign_json(KIND, thread.as_str(), value, signer, now).map_err(|error| refused(thread, &error))
}

/// Parses and verifies a manifest; one of an untrusted key is [`Error::UntrustedKey`].
pub fn parse(bytes: &[u8], trust: &Trust, thread: &ThreadId) -> Result<ParsedManifest> {
    let verified =
        document::verify_json(KIND, thread.as_str(), bytes, trust).map_err(|error| refused(thread, &error))?;
    let version = verified.value.get("log_version").and_then(Value::as_u64);
    let hash = verified.value.get("log_hash").and_then(Value::as_str).and_then(|hash| hash.parse::<Digest>().ok());
    let version = version.ok_or_else(|| damaged(thread, "it does not record a version of the log"))?;
    let memory = Remembered { by: NAME.to_owned(), version, hash };
    Ok(ParsedManifest { memory, manifest: serde_json::from_value(verified.value).ok() })
}

impl ParsedManifest {
    /// Refuses one that grants a thread other capabilities than its verified log, `recorded`. `known` is the backend's manifest of the
    /// thread, at `version`: limits can be raised after the file was written.
    pub fn check(&self, recorded: &Manifest, known: &Manifest, version: u64) -> Result<()> {
        let thread = &recorded.thread_id;
        let Some(manifest) = &self.manifest else {
            return Err(damaged(thread, "it is signed, but can't be parsed"));
        };
        let is_current = self.memory.version == version;
        let is_same = grants_same(manifest, recorded) && (!is_current || manifest.limits == known.limits);
        if !is_same {
            return Err(damaged(thread, "it grants the thread other capabilities than its log"));
        }
        Ok(())
    }
}

/// Whether two manifests grant a thread the same capabilities, for its whole life.
pub fn grants_same(one: &Manifest, other: &Manifest) -> bool {
    let may = |of: &Manifest| {
        (of.capabilities.clone(), of.acknowledged.clone(), of.parent_id.clone(), of.chain_root_id.clone())
    };
    may(one) == may(other)
}

/// The notice for a missing one.
pub fn missing(thread: &ThreadId) -> String {
    format!("{} was missing, and is written again from its log", named(thread))
}

/// An error for one that can't be used.
pub fn damaged(thread: &ThreadId, why: &str) -> Error {
    Error::Integrity { what: named(thread), why: why.to_owned(), hint: Some(repair_hint(thread)) }
}

fn refused(thread: &ThreadId, error: &DocumentError) -> Error {
    Error::of_document(named(thread), error, || repair_hint(thread))
}

/// How it is named in a sentence.
pub fn named(thread: &ThreadId) -> String {
    format!("`{NAME}` of `{thread}`")
}

fn repair_hint(thread: &ThreadId) -> String {
    format!("it is derived from the log: `selvedge repair {thread}` moves it aside and writes it again")
}
