//! The pages agree with the errors.

use std::io;
use std::path::PathBuf;

use selvedge_log::document::DocumentError;
use selvedge_log::keychain::KeyChainError;
use selvedge_log::keys::{BadSignature, InvalidKey, KeyError};
use selvedge_log::line::LineError;
use selvedge_log::recovery::Finding;
use selvedge_log::scan::{Damage, Flaw};
use selvedge_log::strict::StrictError;
use selvedge_log::trust::TrustError;
use selvedge_model::account::{AccountId, PostingError};
use selvedge_model::error::Classify;
use selvedge_model::fold::FoldError;
use selvedge_model::{CommitKey, Digest, MessageId, OwnerId, RequestId, ThreadId};
use selvedge_store::Error;

use super::{FINDINGS, PAGES, Page, Retry, WORDS};
use crate::error::Exit;

#[track_caller]
fn agrees(error: &dyn Classify) {
    let page = Page::find(error.code()).unwrap_or_else(|| panic!("`{}` has no page", error.code()));
    let exit = Exit::from(error.kind());
    assert!(page.exits.contains(&exit), "`{}` exits with {exit:?}: {error}", page.code);
    match page.retry {
        Retry::Never => assert!(!error.retryable(), "`{}` is retryable", page.code),
        Retry::Helps => assert!(error.retryable(), "`{}` is not retryable", page.code),
        Retry::Perhaps => {}
    }
}

fn thread() -> ThreadId {
    "tea".parse().unwrap()
}

fn digest() -> Digest {
    Digest([7; 32])
}

fn failed() -> io::Error {
    io::Error::other("it failed")
}

#[test]
fn every_error_of_a_store_exits_as_its_page_says() {
    let id = || RequestId::new("n1").unwrap();
    let text = || "tea".to_owned();
    let errors = [
        Error::NoStore { path: text() },
        Error::NoThread(text()),
        Error::Ambiguous { prefix: text(), candidates: vec![] },
        Error::NoVersion { thread: thread(), version: 2, latest: 1 },
        Error::VersionLost { thread: thread(), version: 2 },
        Error::NoBlob { thread: thread(), blob: digest() },
        Error::Deleted(thread()),
        Error::Exists(thread()),
        Error::Conflict { thread: thread(), expected: 1, actual: 2 },
        Error::StaleEpoch { thread: thread(), held: 1, current: 2 },
        Error::LeaseHeld { thread: thread(), holder: OwnerId::new("o1").unwrap() },
        Error::RequestsPending { thread: thread(), count: 1 },
        Error::KeyReused(CommitKey::new("k1").unwrap()),
        Error::RequestReused { thread: thread(), id: id() },
        Error::RequestGone { thread: thread(), id: id() },
        Error::NoVerdict { thread: thread(), id: id() },
        Error::MessageChanged { thread: thread(), message: MessageId::new("m1").unwrap() },
        Error::BadBatch,
        Error::BadBirth,
        Error::Fold { thread: thread(), source: FoldError::NotBorn },
        Error::Running(thread()),
        Error::AccountBusy(account()),
        Error::OtherSigner { thread: thread(), theirs: digest(), ours: digest() },
        Error::Unsealed { what: "thread `t`".to_owned(), ours: digest() },
        Error::Integrity { what: text(), why: text(), hint: None },
        Error::UntrustedKey { what: text(), key: digest(), is_revoked: false },
        Error::UntrustedKey { what: text(), key: digest(), is_revoked: true },
        Error::Unusable { what: text(), why: text(), hint: None },
        Error::Io { what: "read", path: PathBuf::new(), source: failed() },
        Error::Io { what: "read", path: PathBuf::new(), source: io::ErrorKind::PermissionDenied.into() },
        Error::Database { why: text(), retryable: true },
        Error::OutcomeUnknown { why: text() },
    ];
    for error in &errors {
        agrees(error);
    }
}

#[test]
fn every_finding_in_a_log_exits_as_its_page_says() {
    let damaged =
        |flaw| Finding::Damaged(Damage { line: 1, lines_before: 0, byte: 0, version: 0, flaw, signed_ahead: None });
    let findings = [
        Finding::Foreign { bytes: 1 },
        Finding::DatabaseBehind { database: 1, file: 2 },
        damaged(Flaw::Torn),
        damaged(Flaw::Untrusted(digest())),
        damaged(Flaw::Revoked(digest())),
        damaged(Flaw::Format { found: 9 }),
        Finding::Unsigned,
        Finding::Unread(Box::new(Damage {
            line: 1,
            lines_before: 0,
            byte: 0,
            version: 0,
            flaw: Flaw::Torn,
            signed_ahead: None,
        })),
        Finding::Database { why: String::new() },
    ];
    for finding in findings {
        agrees(&Error::Log { thread: thread(), finding });
    }
}

fn account() -> AccountId {
    thread()
}

#[test]
fn every_error_of_keys_and_documents_exits_as_its_page_says() {
    let path = PathBuf::new;
    let why = String::new;
    let errors: Vec<Box<dyn Classify>> = vec![
        Box::new(KeyError::Absent { path: path() }),
        Box::new(KeyError::Lost { path: path(), fingerprint: digest() }),
        Box::new(KeyError::Exists { path: path() }),
        Box::new(KeyError::Unsafe { path: path(), why: why() }),
        Box::new(KeyError::Damaged { path: path(), why: why() }),
        Box::new(KeyError::Io { path: path(), source: failed() }),
        Box::new(TrustError::Refused { path: path(), why: why() }),
        Box::new(TrustError::Unsafe { path: path(), why: why() }),
        Box::new(TrustError::Revoked { fingerprint: digest() }),
        Box::new(TrustError::Unknown { fingerprint: digest() }),
        Box::new(TrustError::Owner),
        Box::new(TrustError::Io { path: path(), source: failed() }),
        Box::new(KeyChainError::Refused { path: path(), why: why() }),
        Box::new(KeyChainError::Unsafe { path: path(), why: why() }),
        Box::new(KeyChainError::Busy { path: path() }),
        Box::new(KeyChainError::Io { path: path(), source: failed() }),
        Box::new(BadSignature),
        Box::new(InvalidKey::Pem),
        Box::new(DocumentError::Unsigned),
        Box::new(DocumentError::Malformed { why: "tea" }),
        Box::new(DocumentError::WrongKind { expected: why(), found: why() }),
        Box::new(DocumentError::HashMismatch { signed: digest(), actual: digest() }),
        Box::new(DocumentError::UntrustedKey { fingerprint: digest() }),
        Box::new(DocumentError::RevokedKey { fingerprint: digest() }),
        Box::new(DocumentError::BadSignature),
        Box::new(DocumentError::NotStrict(StrictError::TooDeep { depth_max: 1 })),
        Box::new(StrictError::Syntax { why: why() }),
        Box::new(LineError::TooLong { bytes: 1 }),
        Box::new(LineError::TooDeep { depth: 1 }),
        Box::new(LineError::NotStrict(StrictError::TooDeep { depth_max: 1 })),
        Box::new(PostingError::UnknownAccount { account: account() }),
        Box::new(PostingError::AccountExists { account: account() }),
        Box::new(PostingError::AccountClosed { account: account() }),
        Box::new(PostingError::OwnChild { account: account() }),
    ];
    for error in &errors {
        agrees(error.as_ref());
    }
}

#[test]
fn pages_are_in_order_and_refer_to_each_other() {
    assert!(PAGES.is_sorted_by(|one, next| one.code < next.code), "the table is in alphabetical order");
    assert!(FINDINGS.is_sorted_by(|one, next| one.code < next.code), "so is the second one");
    assert!(WORDS.is_sorted_by(|one, next| one.code < next.code), "and the third");
    for page in Page::all() {
        assert_eq!(Page::all().filter(|other| other.code == page.code).count(), 1, "`{}` has one page", page.code);
        // A note has no exit code, and a status may have several.
        let is_of = |table: &[Page]| table.iter().any(|found| found.code == page.code);
        let is_note = page.exits.is_empty() && is_of(FINDINGS);
        assert!(is_of(WORDS) || page.exits.len() + usize::from(is_note) == 1, "`{}` has one exit code", page.code);
        assert!(!page.remedies.is_empty() && !page.related.is_empty(), "`{}`", page.code);
        assert!(page.meaning.ends_with('.') && page.cause.ends_with('.'), "`{}` has full sentences", page.code);
        assert!(page.summary().chars().count() <= 90, "`{}` in one line: {}", page.code, page.summary());
        for related in page.related {
            assert!(Page::find(related).is_some() && *related != page.code, "`{}` refers to `{related}`", page.code);
        }
    }
}
