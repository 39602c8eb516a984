//! `capabilities.md`: what a thread was offered to call when it first ran, signed, for people and other programs.
//!
//! Written once and never again. What a thread may call stands in its log; so an edited page changes nothing; but the edit is
//! a sign of tampering, and the thread is not run until a person has looked.

use selvedge_log::document::{Comment, DocumentError, DocumentKind, sign_text, verify_text};
use selvedge_log::{Signer, Trust};
use selvedge_model::{ThreadId, Timestamp};

use crate::error::{Error, Result};

/// What it is called.
pub const NAME: &str = "capabilities.md";
/// What a `capabilities.md` is signed as.
pub const KIND: DocumentKind = DocumentKind::new("capabilities");
/// How long one may be.
pub const BYTES_MAX: u64 = 64 << 20;

/// Signs the page of a thread.
pub fn sign(thread: &ThreadId, body: &str, signer: &Signer, now: Timestamp) -> String {
    sign_text(KIND, thread.as_str(), Comment::Html, body, signer, now)
}

/// What is wrong with the page of a thread that came from elsewhere; of a key that does not count, that is said.
pub fn check(thread: &ThreadId, bytes: &[u8], trust: &Trust) -> Result<()> {
    verified(thread, bytes, trust)
        .map_err(|error| Error::of_document(named(thread), &error, || "ask for the file again".to_owned()))
}

/// What is wrong with the page of a thread that a store keeps; of a key that does not count, that is said.
pub fn check_kept(thread: &ThreadId, bytes: &[u8], trust: &Trust) -> Result<()> {
    verified(thread, bytes, trust).map_err(|error| Error::of_document(named(thread), &error, || anew(thread)))
}

/// What is wrong with a page that was read and checked, if anything is, as the end of a sentence.
pub fn bad(checked: Result<()>) -> Result<Option<String>> {
    match checked {
        Ok(()) => Ok(None),
        Err(Error::Integrity { why, .. }) => Ok(Some(why)),
        Err(Error::Unbelieved { key, .. }) => Ok(Some(format!("key {} does not count", key.short()))),
        Err(error) => Err(error),
    }
}

/// The error of one that can't be used, because of this.
pub fn damaged(thread: &ThreadId, why: &str) -> Error {
    Error::Integrity { what: named(thread), why: why.to_owned(), hint: Some(anew(thread)) }
}

fn verified(thread: &ThreadId, bytes: &[u8], trust: &Trust) -> Result<(), DocumentError> {
    verify_text(KIND, thread.as_str(), Comment::Html, bytes, trust).map(|_| ())
}

fn named(thread: &ThreadId) -> String {
    format!("`{NAME}` of `{thread}`")
}

fn anew(thread: &ThreadId) -> String {
    format!(
        "`selvedge repair {thread}` keeps it aside; what the thread may call stands in its log, and the next run writes it down anew"
    )
}
