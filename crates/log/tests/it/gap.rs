//! Lost versions: a checkpoint may skip versions only if its changeset records that exactly those are lost.

use selvedge_log::scan::{Flaw, Scanner, Signatures, examine};
use selvedge_log::writer::{self, Addition};
use selvedge_log::{Tail, Trust};
use selvedge_model::event::Recovery;
use selvedge_model::{Event, Reason, Status};

use crate::golden;

fn loss(from: Option<u64>, to: Option<u64>) -> Event {
    let found =
        Recovery { found: Recovery::LOSS.to_owned(), from_version: from, to_version: to, ..Recovery::default() };
    Event::Recovery(found)
}

/// The worked example with one more changeset of these events, signed as if `passed` versions were between.
fn log(events: &[Event], passed: u64) -> Vec<u8> {
    let (mut bytes, mut tail, signer) = golden::transcript();
    if let Some(head) = &mut tail.head {
        head.version += passed;
    }
    let added = write(&tail, events);
    bytes.extend_from_slice(&added);
    assert!(signer.fingerprint() == golden::transcript().2.fingerprint());
    bytes
}

fn write(tail: &Tail, events: &[Event]) -> Vec<u8> {
    let (_, _, signer) = golden::transcript();
    let addition = Addition {
        thread_id: &golden::thread(),
        events,
        reason: Reason::Lifecycle,
        run_id: None,
        parent_run_id: None,
        turn: None,
        key: None,
        epoch: 0,
        with: Vec::new(),
        status: Status::Created,
    };
    writer::write(tail, addition, &signer, "2026-11-15T00:00:05Z".parse().unwrap()).unwrap().bytes
}

/// Logs with and without a gap, and the version up to which each is valid. The worked example ends at version 2.
pub(crate) fn samples() -> Vec<(&'static str, Vec<u8>, u64)> {
    let note = Event::Recovery(Recovery { found: "foreign_bytes".to_owned(), ..Recovery::default() });
    vec![
        ("the next version", log(&[], 0), 3),
        ("versions 3 to 6 are lost", log(&[loss(Some(3), Some(6))], 0), 7),
        ("one version is lost", log(&[loss(Some(3), Some(3))], 0), 4),
        ("a loss beside something else that was found", log(&[note.clone(), loss(Some(3), Some(6))], 0), 7),
        ("an unrecorded jump", log(&[], 4), 2),
        ("a jump beside something else that was found", log(&[note], 4), 2),
        ("a loss that begins too early", log(&[loss(Some(2), Some(6))], 0), 2),
        ("a loss that begins too late", log(&[loss(Some(4), Some(6))], 0), 2),
        ("a loss that ends before it begins", log(&[loss(Some(3), Some(2))], 0), 2),
        ("a loss without a beginning", log(&[loss(None, Some(6))], 0), 2),
        ("a loss without an end", log(&[loss(Some(3), None)], 0), 2),
        ("two losses", log(&[loss(Some(3), Some(6)), loss(Some(3), Some(6))], 0), 2),
        ("a jump further than the loss", log(&[loss(Some(3), Some(6))], 9), 2),
    ]
}

#[test]
fn versions_may_be_skipped_only_by_a_recorded_loss() {
    let thread = golden::thread();
    let trust = Trust::of(&[golden::transcript().2.public()]);
    for (what, bytes, version) in samples() {
        let scanner = Scanner::new(&thread, &trust, Signatures::Every);
        let examined = examine(bytes.as_slice(), scanner, |_| {}).unwrap();
        assert_eq!(examined.head().map(|head| head.version), Some(version), "{what}");
        let flaw = examined.damage.map(|damage| damage.flaw);
        assert_eq!(flaw.is_none(), version > 2, "{what}: {flaw:?}");
        assert!(matches!(flaw, None | Some(Flaw::Gap | Flaw::Version { .. })), "{what}: {flaw:?}");
    }
}
