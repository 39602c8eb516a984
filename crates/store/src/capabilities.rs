//! `capabilities.md`: what a thread may call, as of its first run, signed, for people and other programs.
//!
//! Written once and never changed. The log records what a thread may call, so an edited file changes nothing; but the edit is a sign of
//! tampering, and the thread is not run until a person has checked it.

use selvedge_log::document::{Comment, DocumentError, DocumentKind, sign_text, verify_text};
use selvedge_log::{Signer, Trust};
use selvedge_model::{ThreadId, Timestamp};

use crate::error::{Error, Result};

/// Its file name.
pub const NAME: &str = "capabilities.md";
/// The document kind of its signature.
pub const KIND: DocumentKind = DocumentKind::new("capabilities");
/// Its maximum length.
pub const BYTES_MAX: u64 = 64 << 20;

/// Signs the capabilities of a thread.
pub fn sign(thread: &ThreadId, body: &str, signer: &Signer, now: Timestamp) -> String {
    sign_text(KIND, thread.as_str(), Comment::Html, body, signer, now)
}

/// Verifies the capabilities file of an archive; an untrusted key is its own error.
pub fn check(thread: &ThreadId, bytes: &[u8], trust: &Trust) -> Result<()> {
    verified(thread, bytes, trust)
        .map_err(|error| Error::of_document(named(thread), &error, || "ask for the file again".to_owned()))
}

/// Verifies the capabilities file of a thread in a store; an untrusted key is its own error.
pub fn check_kept(thread: &ThreadId, bytes: &[u8], trust: &Trust) -> Result<()> {
    verified(thread, bytes, trust).map_err(|error| Error::of_document(named(thread), &error, || repair_hint(thread)))
}

/// What is wrong with a file that was read and verified, if anything, as the end of a sentence.
pub fn bad(checked: Result<()>) -> Result<Option<String>> {
    match checked {
        Ok(()) => Ok(None),
        Err(Error::Integrity { why, .. }) => Ok(Some(why)),
        Err(Error::UntrustedKey { key, .. }) => Ok(Some(format!("key {} is not trusted", key.short()))),
        Err(error) => Err(error),
    }
}

/// An error for a file that can't be used.
pub fn damaged(thread: &ThreadId, why: &str) -> Error {
    Error::Integrity { what: named(thread), why: why.to_owned(), hint: Some(repair_hint(thread)) }
}

fn verified(thread: &ThreadId, bytes: &[u8], trust: &Trust) -> Result<(), DocumentError> {
    verify_text(KIND, thread.as_str(), Comment::Html, bytes, trust).map(|_| ())
}

fn named(thread: &ThreadId) -> String {
    format!("`{NAME}` of `{thread}`")
}

fn repair_hint(thread: &ThreadId) -> String {
    format!(
        "`selvedge repair {thread}` moves it aside; the log records what the thread may call, and the next run writes the file again"
    )
}
