//! `thread.json`: the signed manifest of a thread, a projection of its log that people and other programs can read.
//!
//! It names the version and hash of the log it shows. Who writes it, where, and when it is written anew is the backend's affair; what is
//! signed, and what one is worth, is told here.

use selvedge_log::document::{self, DocumentError, DocumentKind};
use selvedge_log::recovery::Remembered;
use selvedge_log::{Head, Signer, Trust};
use selvedge_model::{Digest, Manifest, ThreadId, Timestamp};
use serde_json::Value;

use crate::error::{Error, Result};

/// What it is called.
pub const NAME: &str = "thread.json";
/// What a `thread.json` is signed as.
pub const KIND: DocumentKind = DocumentKind::new("thread");
/// How long one may be.
pub const BYTES_MAX: u64 = 64 << 20;

/// What a `thread.json` shows.
pub struct Shown {
    /// What it remembers of the log.
    pub memory: Remembered,
    /// The manifest, if it is one that this program understands.
    pub manifest: Option<Manifest>,
}

/// Signs the manifest of a thread whose log ends at `head`.
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

/// Understands the bytes of a manifest, if they are rightly signed; of a key that does not count it is [`Error::Unbelieved`].
pub fn parse(bytes: &[u8], trust: &Trust, thread: &ThreadId) -> Result<Shown> {
    let verified =
        document::verify_json(KIND, thread.as_str(), bytes, trust).map_err(|error| refused(thread, &error))?;
    let version = verified.value.get("log_version").and_then(Value::as_u64);
    let hash = verified.value.get("log_hash").and_then(Value::as_str).and_then(|hash| hash.parse::<Digest>().ok());
    let version = version.ok_or_else(|| damaged(thread, "it does not say which version of the log it shows"))?;
    let memory = Remembered { by: NAME.to_owned(), version, hash };
    Ok(Shown { memory, manifest: serde_json::from_value(verified.value).ok() })
}

impl Shown {
    /// Refuses one that says of what a thread may do something else than its verified log, `recorded`, does. `known` is what the backend
    /// has of the thread, at `version`: what a thread may spend can be raised after it was shown.
    pub fn check(&self, recorded: &Manifest, known: &Manifest, version: u64) -> Result<()> {
        let thread = &recorded.thread_id;
        let Some(manifest) = &self.manifest else {
            return Err(damaged(thread, "it is signed, but can't be understood"));
        };
        let is_of_now = self.memory.version == version;
        match may_same(manifest, recorded) && (!is_of_now || manifest.limits == known.limits) {
            true => Ok(()),
            false => Err(damaged(thread, "it says that the thread may do something else than its log says")),
        }
    }
}

/// Whether two manifests say the same of what a thread may do, for as long as it lives.
pub fn may_same(one: &Manifest, other: &Manifest) -> bool {
    let may = |of: &Manifest| {
        (of.capabilities.clone(), of.acknowledged.clone(), of.parent_id.clone(), of.chain_root_id.clone())
    };
    may(one) == may(other)
}

/// What is said of one that was there and is not any more.
pub fn missing(thread: &ThreadId) -> String {
    format!("{} was not there any more, and is written anew by what its log says", named(thread))
}

/// The error of one that can't be used, because of this.
pub fn damaged(thread: &ThreadId, why: &str) -> Error {
    Error::Integrity { what: named(thread), why: why.to_owned(), hint: Some(anew(thread)) }
}

fn refused(thread: &ThreadId, error: &DocumentError) -> Error {
    Error::of_document(named(thread), error, || anew(thread))
}

/// How it is named in a sentence.
pub fn named(thread: &ThreadId) -> String {
    format!("`{NAME}` of `{thread}`")
}

fn anew(thread: &ThreadId) -> String {
    format!("it is a projection of the log: `selvedge repair {thread}` keeps it aside and writes it anew")
}
