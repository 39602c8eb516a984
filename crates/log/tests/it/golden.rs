//! The worked example of `FORMAT.md`, byte for byte. If one of these tests fails, the format has changed: raise its
//! version, say so in the page's history, and renew the example (`SELVEDGE_RENEW=1 cargo xtask test golden`).

use std::fs;
use std::path::Path;

use selvedge_log::document::{DocumentKind, sign_json};
use selvedge_log::scan::{Scanner, Signatures, examine};
use selvedge_log::writer::{self, Addition};
use selvedge_log::{Signer, Tail, Trust};
use selvedge_model::event::NewThread;
use selvedge_model::{
    AgentId, Changeset, CommitKey, Digest, LogId, Message, MessageId, Patch, Reason, Role, RunId, Status, ThreadId,
    Timestamp,
};

/// The first test key of RFC 8032, which must never be trusted.
const PEM: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n-----END PRIVATE KEY-----\n";

pub(crate) fn thread() -> ThreadId {
    ThreadId::new("scribe-0123456789ab").unwrap()
}

fn changesets() -> Vec<(Changeset, Option<(CommitKey, Digest)>)> {
    let create = Changeset::creating(NewThread {
        title: Some("A worked example".to_owned()),
        ..NewThread::of(AgentId::new("scribe").unwrap())
    });
    let question = Message::text(Role::User, "What is the self-finished edge of a cloth called?");
    let ask = Changeset {
        run_id: Some(RunId::new("r1").unwrap()),
        messages: vec![question.with_id(MessageId::new("m1").unwrap())],
        ..Changeset::empty(Reason::UserMessage)
    };
    let patch: Patch = serde_json::from_str(r#"{"ops":[{"op":"set","path":["answered"],"value":true}]}"#).unwrap();
    let answer = Changeset {
        run_id: Some(RunId::new("r1").unwrap()),
        messages: vec![Message::text(Role::Assistant, "The selvedge.").with_id(MessageId::new("m2").unwrap())],
        patches: vec![patch],
        ..Changeset::empty(Reason::AssistantTurnCommitted)
    };
    let key = (CommitKey::new("k1").unwrap(), selvedge_log::hash::sha256(b"the request"));
    vec![(create, None), (ask, None), (answer, Some(key))]
}

pub(crate) fn transcript() -> (Vec<u8>, Tail, Signer) {
    let signer = Signer::from_pem(PEM).unwrap();
    let thread = thread();
    let mut tail = Tail::empty(LogId::new("00112233445566778899aabbccddeeff").unwrap());
    let mut bytes = Vec::new();
    for (second, (changeset, key)) in (0..).zip(changesets()) {
        let reason = changeset.reason;
        let run_id = changeset.run_id.clone();
        let events = writer::events(&tail, Vec::new(), changeset, Vec::new());
        let addition = Addition {
            thread_id: &thread,
            events: &events,
            reason,
            run_id,
            parent_run_id: None,
            turn: None,
            key,
            epoch: 0,
            with: Vec::new(),
            status: Status::Created,
        };
        let at = Timestamp::from_micros((1_794_700_800 + second) * 1_000_000);
        let written = writer::write(&tail, addition, &signer, at).unwrap();
        bytes.extend_from_slice(&written.bytes);
        tail = written.tail;
    }
    (bytes, tail, signer)
}

fn compare(name: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("SELVEDGE_RENEW").is_some() {
        fs::write(&path, made).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), made, "{name}");
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../FORMAT.md")).unwrap();
    for line in made.lines() {
        assert!(page.contains(line), "FORMAT.md lacks this line of {name}:\n{line}");
    }
}

#[test]
fn the_worked_example_of_the_page_is_what_the_writer_writes() {
    let (bytes, tail, signer) = transcript();
    compare("transcript.jsonl", std::str::from_utf8(&bytes).unwrap());
    let head = tail.head.unwrap();
    compare("head.json", &(serde_json::to_string(&head).unwrap() + "\n"));
    compare("public_key.txt", &(signer.public().to_text() + "\n"));
    assert_eq!(head.hash, selvedge_log::hash::sha256(&bytes));
}

#[test]
fn the_worked_example_verifies() {
    let (bytes, tail, signer) = transcript();
    let thread = thread();
    let trust = Trust::of(&[signer.public()]);
    let examined = examine(&bytes[..], Scanner::new(&thread, &trust, Signatures::Every), |_| {}).unwrap();
    assert_eq!(examined.damage, None);
    assert_eq!(examined.head(), tail.head.as_ref());
}

#[test]
fn the_signed_document_of_the_page_is_what_is_signed() {
    let signer = Signer::from_pem(PEM).unwrap();
    let value = serde_json::json!({"log_version": 2, "thread_id": "scribe-0123456789ab", "title": "A worked example"});
    let at = Timestamp::from_micros(1_794_700_803_000_000);
    let text = sign_json(DocumentKind::new("thread"), "scribe-0123456789ab", value, &signer, at).unwrap();
    compare("document.json", &text);
}
