//! The only writer: turns a changeset into signed bytes, for every backend.
//!
//! The writer is a pure function of the end of the log, the addition, the key and the time. It neither stores nor
//! locks; a store makes its bytes durable or discards them. Its cost depends on the addition, never on the length of the
//! log.

use selvedge_model::event::{Checkpoint, ThreadCreated};
use selvedge_model::{Changeset, CommitKey, Digest, Event, Reason, RunId, Status, ThreadId, Timestamp};

use crate::checkpoint;
use crate::head::{Head, Tail};
use crate::keys::Signer;
use crate::line::{self, LineError};

/// The version of the format that this writer writes.
pub const FORMAT: u32 = 1;

/// The highest version that a log can have.
pub const VERSION_MAX: u64 = i64::MAX.cast_unsigned();

/// An addition to one log.
#[derive(Debug)]
pub struct Addition<'a> {
    /// The thread.
    pub thread_id: &'a ThreadId,
    /// The events, in the order of their lines; [`events`] derives them from a changeset.
    pub events: &'a [Event],
    /// Why they are committed.
    pub reason: Reason,
    /// The run they belong to.
    pub run_id: Option<RunId>,
    /// The parent of that run.
    pub parent_run_id: Option<RunId>,
    /// The turn of the run.
    pub turn: Option<u64>,
    /// The idempotency key of the commit, and the hash of its request.
    pub key: Option<(CommitKey, Digest)>,
    /// The epoch of the lease it is written under.
    pub epoch: u64,
    /// The other threads of the batch and their versions after it.
    pub with: Vec<(ThreadId, u64)>,
    /// The thread's status after it.
    pub status: Status,
}

/// Signed bytes, and the end of the log after them.
#[derive(Debug)]
pub struct SignedLines {
    /// The lines of the changeset, the checkpoint last.
    pub bytes: Vec<u8>,
    /// The end of the log after them, with its running hash.
    pub tail: Tail,
    /// The head after them.
    pub head: Head,
}

/// The events of a changeset in the order of their lines, without its checkpoint: including its lead, the ledger's records
/// and the thread's creation.
pub fn events(tail: &Tail, lead: Vec<Event>, mut changeset: Changeset, postings: Vec<Event>) -> Vec<Event> {
    let mut events = lead;
    if let Some(thread) = changeset.created.take() {
        let created = ThreadCreated { format: FORMAT, log_id: tail.log_id, segment: tail.segment, thread };
        events.push(Event::ThreadCreated(Box::new(created)));
    }
    changeset.events.extend(postings);
    events.extend(changeset.into_events());
    events
}

/// The version of a changeset of these events after `head`: one higher, or one higher than the last version that
/// the events record as lost.
pub fn next_version<'a>(head: Option<&Head>, events: impl IntoIterator<Item = &'a Event>) -> u64 {
    let lost = events.into_iter().find_map(|event| match event {
        Event::Recovery(found) if found.is_loss() => found.to_version,
        _ => None,
    });
    let last = head.map(|head| head.version);
    last.max(lost).map_or(0, |last| last.saturating_add(1))
}

/// Writes one changeset after `tail`.
pub fn write(tail: &Tail, addition: Addition<'_>, signer: &Signer, at: Timestamp) -> Result<SignedLines, LineError> {
    let Addition { thread_id, events, reason, run_id, parent_run_id, turn, key, epoch, with, status } = addition;
    let (mut seq, start) = tail.head.as_ref().map_or((0, 0), |head| (head.lines, head.bytes));
    let version = next_version(tail.head.as_ref(), events);
    if version > VERSION_MAX {
        return Err(LineError::TooFar);
    }
    let mut bytes = Vec::with_capacity(2048);
    for event in events {
        line::encode(&mut bytes, seq, at, thread_id, event)?;
        seq += 1;
    }
    let mut hash = tail.hash.clone();
    hash.update(&bytes);
    let line_start = bytes.len();
    let (key, request) = key.unzip();
    let checkpoint = Checkpoint {
        version,
        reason,
        key,
        request,
        run_id,
        parent_run_id,
        turn,
        epoch,
        log_id: tail.log_id,
        segment: tail.segment,
        byte_offset: start + line_start as u64,
        hash: hash.digest(),
        with,
        settled: status.is_terminal(),
        signer: signer.fingerprint(),
        sig: String::new(),
    };
    checkpoint::encode(&mut bytes, seq, at, thread_id, checkpoint, signer)?;
    hash.update(&bytes[line_start..]);
    let head = Head {
        log_id: tail.log_id,
        segment: tail.segment,
        version,
        lines: seq + 1,
        bytes: start + bytes.len() as u64,
        hash: hash.digest(),
        epoch,
        signer: signer.fingerprint(),
    };
    Ok(SignedLines { bytes, tail: Tail::behind(head.clone(), hash), head })
}
