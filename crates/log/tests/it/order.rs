//! Checkpoints that are validly signed and hashed, and still refused.

use selvedge_log::scan::{Flaw, Scanner, Signatures, examine};
use selvedge_log::writer::{self, Addition};
use selvedge_log::{Tail, Trust};
use selvedge_model::{Reason, Status, ThreadId};

use crate::golden;

/// Appends an empty changeset of this epoch after `tail`.
fn add(bytes: &mut Vec<u8>, tail: &Tail, epoch: u64) -> Tail {
    let (_, _, signer) = golden::transcript();
    let addition = Addition {
        thread_id: &golden::thread(),
        events: &[],
        reason: Reason::Lifecycle,
        run_id: None,
        parent_run_id: None,
        turn: None,
        key: None,
        epoch,
        with: Vec::new(),
        status: Status::Created,
    };
    let written = writer::write(tail, addition, &signer, "2026-11-15T00:00:05Z".parse().unwrap()).unwrap();
    bytes.extend_from_slice(&written.bytes);
    written.tail
}

fn flaw(bytes: &[u8], thread: &ThreadId) -> Option<Flaw> {
    let trust = Trust::of(&[golden::transcript().2.public()]);
    let scanner = Scanner::new(thread, &trust, Signatures::Every);
    examine(bytes, scanner, |_| {}).unwrap().damage.map(|damage| damage.flaw)
}

#[test]
fn an_older_epoch_after_a_newer_one_is_refused() {
    let (mut bytes, tail, _) = golden::transcript();
    let tail = add(&mut bytes, &tail, 7);
    let tail = add(&mut bytes, &tail, 7);
    assert_eq!(flaw(&bytes, &golden::thread()), None);
    add(&mut bytes, &tail, 6);
    assert_eq!(flaw(&bytes, &golden::thread()), Some(Flaw::Epoch { least: 7, found: 6 }));
}

#[test]
fn the_whole_log_of_another_thread_of_the_same_key_is_refused() {
    let (bytes, _, _) = golden::transcript();
    let other = ThreadId::new("scribe-ba9876543210").unwrap();
    assert_eq!(flaw(&bytes, &golden::thread()), None);
    assert_eq!(flaw(&bytes, &other), Some(Flaw::Thread(golden::thread())));
}
