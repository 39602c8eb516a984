//! Changes of the signing key: only where the log records a rotation, never back to an earlier key, never to a revoked one.

use selvedge_log::scan::{Flaw, Scanner, Signatures, examine};
use selvedge_log::trust::Trust;
use selvedge_log::writer::{self, Addition};
use selvedge_log::{Signer, Tail};
use selvedge_model::clock_and_ids::Ids;
use selvedge_model::event::{KeyRotated, NewThread};
use selvedge_model::{AgentId, Changeset, Event, LogId, Reason, Status, ThreadId, Timestamp};

struct Fill(u8);

impl Ids for Fill {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(self.0);
    }
}

fn key(byte: u8) -> Signer {
    Signer::generate(&Fill(byte))
}

/// A log whose changesets are signed by these keys; if `is_recorded`, a `key_rotated` records each change of key.
fn log(signers: &[u8], is_recorded: bool) -> Vec<u8> {
    let thread = ThreadId::new("scribe").unwrap();
    let mut tail = Tail::empty(LogId::new("00112233445566778899aabbccddeeff").unwrap());
    let mut bytes = Vec::new();
    let mut before = None;
    for signer in signers {
        let lead = before.filter(|before| is_recorded && before != signer).map(|before| {
            Event::KeyRotated(KeyRotated { from: key(before).fingerprint(), to: key(*signer).fingerprint() })
        });
        let changeset = match before {
            None => Changeset::creating(NewThread::of(AgentId::new("scribe").unwrap())),
            Some(_) => Changeset::empty(Reason::Lifecycle),
        };
        let addition = Addition {
            thread_id: &thread,
            reason: changeset.reason,
            events: &writer::events(&tail, lead.into_iter().collect(), changeset, Vec::new()),
            run_id: None,
            parent_run_id: None,
            turn: None,
            key: None,
            epoch: 0,
            with: Vec::new(),
            status: Status::Created,
        };
        let written = writer::write(&tail, addition, &key(*signer), Timestamp::from_micros(0)).unwrap();
        bytes.extend_from_slice(&written.bytes);
        (tail, before) = (written.tail, Some(*signer));
    }
    bytes
}

/// The version up to which the log is valid, and the flaw that stops it.
fn judge(bytes: &[u8], trust: &Trust) -> (Option<u64>, Option<Flaw>) {
    let thread = ThreadId::new("scribe").unwrap();
    let judge = |signatures| {
        let examined = examine(bytes, Scanner::new(&thread, trust, signatures), |_| {}).unwrap();
        (examined.head().map(|head| head.version), examined.damage.map(|damage| damage.flaw))
    };
    let every = judge(Signatures::Every);
    assert_eq!(judge(Signatures::Last), every, "checking only the last signature is as strict about signers");
    every
}

fn all() -> Trust {
    Trust::of(&[1, 2, 3].map(|byte| key(byte).public()))
}

#[test]
fn another_key_signs_only_after_a_recorded_rotation() {
    assert_eq!(judge(&log(&[1, 1, 2, 2, 3], true), &all()), (Some(4), None));
    assert_eq!(judge(&log(&[1, 1, 2], false), &all()), (Some(1), Some(Flaw::Signer(key(2).fingerprint()))));
}

#[test]
fn an_earlier_signer_never_signs_again_after_a_rotation() {
    for signers in [&[1, 2, 1][..], &[1, 2, 3, 1], &[1, 2, 3, 2]] {
        let last = *signers.last().unwrap();
        let version = Some(signers.len() as u64 - 2);
        assert_eq!(judge(&log(signers, true), &all()), (version, Some(Flaw::Signer(key(last).fingerprint()))));
    }
}

#[test]
fn a_revoked_key_is_distinguished_from_one_that_was_never_trusted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trusted");
    for byte in [1, 2] {
        Trust::add(&path, &key(byte).public(), "me", Timestamp::from_micros(0)).unwrap();
    }
    let bytes = log(&[1, 2, 3], true);
    let third = key(3).fingerprint();
    assert_eq!(judge(&bytes, &Trust::load(&path).unwrap()), (Some(1), Some(Flaw::Untrusted(third))));
    Trust::revoke(&path, &key(2).fingerprint(), Timestamp::from_micros(0)).unwrap();
    let revoked = Flaw::Revoked(key(2).fingerprint());
    assert_eq!(judge(&bytes, &Trust::load(&path).unwrap()), (Some(0), Some(revoked)));
}
