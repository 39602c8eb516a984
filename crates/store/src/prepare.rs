//! From a caller's batch to what a backend must make durable.
//!
//! Everything about a batch that can be decided is decided here, once, for every backend: preconditions, status transitions, duplicate
//! messages, patches that don't apply, postings that exceed a budget, the signed bytes. A backend provides its data through [`View`], then
//! compares versions, epochs and account versions once more inside its own transaction: a [`Prepared`] batch is valid for exactly those
//! versions.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use selvedge_log::hash::sha256;
use selvedge_log::writer::{self, Addition, SignedLines};
use selvedge_log::{Signer, Tail};
use selvedge_model::account::{Account, AccountId, Reservation};
use selvedge_model::event::{BlobErased, KeyRotated, ThreadCreated};
use selvedge_model::fold::{FoldError, apply_to_state, empty_state};
use selvedge_model::id::ReservationId;
use selvedge_model::status::InvalidTransition;
use selvedge_model::{
    Batch, Changeset, CommitKey, Digest, Event, Expect, Ids, LogId, Manifest, Message, MessageId, Part, Posted, Reason,
    RequestId, Right, Run, RunId, RunStatus, Status, ThreadId, Timestamp,
};
use serde_json::Value;

use crate::batch_accounts::BatchAccounts;
use crate::contract::{Committed, CommittedPart};
use crate::error::{Error, Result};

/// A thread before a commit.
#[derive(Clone, Debug)]
pub struct CurrentThread {
    /// The end of its log.
    pub tail: Tail,
    /// Its manifest.
    pub manifest: Manifest,
    /// The epoch to write under.
    pub epoch: u64,
    /// The events that the next changeset must lead with.
    pub lead: Vec<Event>,
}

/// A backend's data before a commit.
pub trait View {
    /// One thread, if it exists; refused if `right` does not allow writing to it, or if it was deleted.
    fn thread(&self, thread: &ThreadId, right: Right) -> Result<Option<CurrentThread>>;

    /// The folded state of an existing thread.
    fn state(&self, thread: &ThreadId) -> Result<Arc<Value>>;

    /// The digest of a stored message's content.
    fn message(&self, thread: &ThreadId, message: &MessageId) -> Result<Option<Digest>>;

    /// One run of a thread.
    fn run(&self, thread: &ThreadId, run: &RunId) -> Result<Option<Run>>;

    /// One account.
    fn account(&self, account: &AccountId) -> Result<Option<Account>>;

    /// The reservations of one account, in the order of their names.
    fn reservations(&self, account: &AccountId) -> Result<Vec<Reservation>>;

    /// One reservation.
    fn reservation(&self, account: &AccountId, reservation: &ReservationId) -> Result<Option<Reservation>>;
}

/// The prepared change of one thread.
#[derive(Debug)]
pub struct PreparedPart {
    /// The thread.
    pub thread: ThreadId,
    /// Its head before; absent for a new thread.
    pub before: Option<selvedge_log::Head>,
    /// The right under which it is written.
    pub right: Right,
    /// The epoch it is written under.
    pub epoch: u64,
    /// The signed bytes and the new end of the log.
    pub written: SignedLines,
    /// The manifest afterwards.
    pub manifest: Manifest,
    /// Whether it differs from before in more than the time of the last changeset.
    pub manifest_changed: bool,
    /// Whether `thread.json` must be written at once.
    pub manifest_shown: bool,
    /// The state afterwards, if it changed.
    pub state: Option<Arc<Value>>,
    /// New messages that have an id.
    pub messages: Vec<(MessageId, Digest)>,
    /// Runs that started or finished.
    pub runs: Vec<Run>,
    /// Blobs whose content must be removed once this is durable.
    pub erased: Vec<BlobErased>,
    /// The run that the changeset belongs to; if that has a record, its time is updated.
    pub touched_run: Option<RunId>,
    /// Requests that the changeset has a verdict on.
    pub answered: Vec<RequestId>,
    /// Its successor from now on, to which its waiting requests move.
    pub continued_as: Option<ThreadId>,
    /// The events in the log, without the checkpoint.
    pub events: Vec<Event>,
}

/// The prepared change of one account.
#[derive(Debug, Default)]
pub struct PreparedAccount {
    /// Its version before; absent for a new account.
    pub before: Option<u64>,
    /// The account afterwards.
    pub after: Option<Account>,
    /// Its changed reservations afterwards; absent ones are removed.
    pub reservations: BTreeMap<ReservationId, Option<Reservation>>,
}

/// What a backend must make durable, all of it or none.
#[derive(Debug)]
pub struct Prepared {
    /// The commit key, and the hash of its request.
    pub key: Option<(CommitKey, Digest)>,
    /// The threads.
    pub parts: Vec<PreparedPart>,
    /// The accounts.
    pub accounts: BTreeMap<AccountId, PreparedAccount>,
    /// Requests that must be pending and are consumed.
    pub consumed: Vec<(ThreadId, RequestId)>,
    /// Requests that are posted.
    pub posted: Vec<Posted>,
}

impl Prepared {
    /// A batch that only posts a request.
    pub fn posting(posted: Posted) -> Self {
        let parts = Vec::new();
        let accounts = BTreeMap::new();
        let consumed = Vec::new();
        Self { key: None, parts, accounts, consumed, posted: vec![posted] }
    }

    /// The result of the commit.
    pub fn committed(&self) -> Committed {
        let versions = self.parts.iter().map(|part| (part.thread.clone(), part.written.head.version)).collect();
        let at = self.parts.first().map(|part| part.manifest.updated_at);
        Committed { versions, replayed: false, at, parts: Vec::new() }
    }
}

impl PreparedPart {
    /// The numbers of the lines that it appends.
    pub fn lines(&self) -> Range<u64> {
        self.before.as_ref().map_or(0, |before| before.lines)..self.written.head.lines
    }

    /// The result of this part, including its events, which are moved out.
    pub fn take_committed(&mut self) -> CommittedPart {
        let head = self.written.head.clone();
        let events = std::mem::take(&mut self.events);
        let first_line = head.lines.saturating_sub(events.len() as u64 + 1);
        CommittedPart { thread: self.thread.clone(), head, first_line, events }
    }
}

/// The hash of the caller's input: threads, changesets, postings and requests, and nothing that a retry may change.
pub fn request_hash(batch: &Batch) -> Digest {
    let parts: Vec<_> = batch.parts.iter().map(|part| (&part.thread, &part.changeset, &part.postings)).collect();
    sha256(&serde_json::to_vec(&(parts, &batch.consumed, &batch.posted)).unwrap_or_default())
}

/// Prepares a batch whose key was not used before.
pub fn prepare(batch: Batch, view: &dyn View, signer: &Signer, ids: &dyn Ids, at: Timestamp) -> Result<Prepared> {
    let Batch { key, parts, consumed, posted } = &batch;
    let doubled = |(index, part): (usize, &Part)| parts[..index].iter().any(|other| other.thread == part.thread);
    if parts.is_empty() || parts.iter().enumerate().any(doubled) {
        return Err(Error::BadBatch);
    }
    check_verdicts(&batch)?;
    let key = key.clone().map(|key| (key, request_hash(&batch)));
    let consumed = consumed.clone();
    let posted = posted.clone();
    let mut batch_accounts = BatchAccounts::new(view);
    let mut folded = Vec::new();
    for part in batch.parts {
        folded.push(fold_part(part, &mut batch_accounts, view, signer, ids, at)?);
    }
    let accounts = batch_accounts.close()?;
    let versions: Vec<_> = folded.iter().map(|part| (part.thread.clone(), part.version())).collect();
    let mut parts = Vec::new();
    for part in folded {
        let with = versions.iter().filter(|(thread, _)| *thread != part.thread).cloned().collect();
        parts.push(part.write(key.clone(), with, signer, at)?);
    }
    Ok(Prepared { key, parts, accounts, consumed, posted })
}

/// A part that applies to its thread and is not signed yet.
struct FoldedPart {
    thread: ThreadId,
    right: Right,
    current: CurrentThread,
    outline: Changeset,
    events: Vec<Event>,
    manifest_changed: bool,
    manifest_shown: bool,
    state: Option<Arc<Value>>,
    messages: Vec<(MessageId, Digest)>,
    runs: Vec<Run>,
    continued_as: Option<ThreadId>,
}

impl FoldedPart {
    fn version(&self) -> u64 {
        writer::next_version(self.current.tail.head.as_ref(), &self.events)
    }

    fn write(
        self,
        key: Option<(CommitKey, Digest)>,
        with: Vec<(ThreadId, u64)>,
        signer: &Signer,
        at: Timestamp,
    ) -> Result<PreparedPart> {
        let touched_run = self.outline.run_id.clone();
        let erased = self.events.iter().filter_map(|event| match event {
            Event::BlobErased(erased) => Some(erased.clone()),
            _ => None,
        });
        let erased = erased.collect();
        let answered = self.events.iter().filter_map(|event| match event {
            Event::RequestAnswered(answered) => Some(answered.request_id.clone()),
            _ => None,
        });
        let answered = answered.collect();
        let addition = Addition {
            thread_id: &self.thread,
            events: &self.events,
            reason: self.outline.reason,
            run_id: self.outline.run_id,
            parent_run_id: self.outline.parent_run_id,
            turn: self.outline.turn,
            key,
            epoch: self.current.epoch,
            with,
            status: self.current.manifest.status,
        };
        let written = writer::write(&self.current.tail, addition, signer, at)?;
        Ok(PreparedPart {
            before: self.current.tail.head,
            thread: self.thread,
            right: self.right,
            epoch: self.current.epoch,
            written,
            manifest: self.current.manifest,
            manifest_changed: self.manifest_changed,
            manifest_shown: self.manifest_shown,
            state: self.state,
            messages: self.messages,
            runs: self.runs,
            erased,
            touched_run,
            answered,
            continued_as: self.continued_as,
            events: self.events,
        })
    }
}

fn fold_part(
    part: Part,
    batch_accounts: &mut BatchAccounts<'_>,
    view: &dyn View,
    signer: &Signer,
    ids: &dyn Ids,
    at: Timestamp,
) -> Result<FoldedPart> {
    let Part { thread, expect, right, mut changeset, postings } = part;
    changeset.check()?;
    let known = match view.thread(&thread, right) {
        // That the thread exists is the better error than who holds its lease.
        Err(Error::LeaseHeld { .. } | Error::StaleEpoch { .. }) if expect == Expect::Absent => {
            return Err(Error::Exists(thread));
        }
        other => other?,
    };
    check_expectation(&thread, expect, known.as_ref(), &changeset)?;
    let is_new = known.is_none();
    let messages = dedupe(&thread, &mut changeset.messages, is_new, view)?;
    let postings = batch_accounts.post(postings)?;
    let outline =
        Changeset { run_id: changeset.run_id.clone(), turn: changeset.turn, ..Changeset::empty(changeset.reason) };
    let outline = Changeset { parent_run_id: changeset.parent_run_id.clone(), ..outline };

    let (mut current, events) = match known {
        Some(mut current) => {
            check_writable(&thread, &current, &changeset, signer)?;
            let mut lead = std::mem::take(&mut current.lead);
            lead.extend(take_over(&current, signer));
            let events = writer::events(&current.tail, lead, changeset, postings);
            (current, events)
        }
        None => create(&thread, right, changeset, postings, ids, at)?,
    };
    let refuse = |source: FoldError| Error::Fold { thread: thread.clone(), source };
    let before = current.manifest.clone();
    let mut runs: Vec<Run> = Vec::new();
    for event in events.iter().filter(|event| !matches!(event, Event::ThreadCreated(_))) {
        current.manifest.apply(event, at).map_err(|error| refuse(error.into()))?;
        if let Event::RunStarted(run) | Event::RunFinished(run) = event {
            let known = view.run(&thread, &run.run_id)?;
            let is_done = |known: &Run| known.meta.status == RunStatus::Done;
            if known.as_ref().or(runs.iter().find(|other| other.run_id == run.run_id)).is_some_and(is_done) {
                return Err(refuse(FoldError::RunDone(run.run_id.clone())));
            }
            runs.push(Run::upsert(known, &thread, run, at));
        }
    }
    current.manifest.updated_at = before.updated_at;
    let manifest_changed = current.manifest != before;
    current.manifest.updated_at = at;
    let state = fold_state(&thread, &events, is_new, view).map_err(|error| match error {
        StateError::Fold(source) => refuse(source),
        StateError::Store(error) => error,
    })?;
    let manifest_shown = is_new || current.manifest.shows_change_since(&before);
    let has_ended = current.manifest.status == Status::Continued && before.status != Status::Continued;
    let continued_as = current.manifest.continuation_thread_id.clone().filter(|_| has_ended);
    Ok(FoldedPart {
        thread,
        right,
        current,
        outline,
        events,
        manifest_changed,
        manifest_shown,
        state,
        messages,
        runs,
        continued_as,
    })
}

/// Refuses a batch that consumes a request without a verdict in the thread's log.
fn check_verdicts(batch: &Batch) -> Result<()> {
    for (thread, id) in &batch.consumed {
        let part = batch.parts.iter().find(|part| part.thread == *thread);
        let is_it = |event: &Event| matches!(event, Event::RequestAnswered(answered) if answered.request_id == *id);
        if !part.is_some_and(|part| part.changeset.events.iter().any(is_it)) {
            return Err(Error::NoVerdict { thread: thread.clone(), id: id.clone() });
        }
    }
    Ok(())
}

fn check_expectation(
    thread: &ThreadId,
    expect: Expect,
    known: Option<&CurrentThread>,
    changeset: &Changeset,
) -> Result<()> {
    let version = known.and_then(|current| current.tail.head.as_ref()).map(|head| head.version);
    match (expect, version) {
        (Expect::Absent, None) if changeset.created.is_some() => Ok(()),
        (Expect::Absent, Some(_)) => Err(Error::Exists(thread.clone())),
        (_, None) if changeset.created.is_none() => Err(Error::NoThread(thread.to_string())),
        (_, None) => Err(Error::BadBirth),
        _ if changeset.created.is_some() => Err(Error::BadBirth),
        (Expect::Exact(expected), Some(actual)) if expected != actual => {
            Err(Error::Conflict { thread: thread.clone(), expected, actual })
        }
        _ => Ok(()),
    }
}

fn check_writable(thread: &ThreadId, current: &CurrentThread, changeset: &Changeset, signer: &Signer) -> Result<()> {
    if current.manifest.status == Status::Continued && !only_erases(changeset) && !only_mends(current, changeset) {
        let refused = InvalidTransition { from: Status::Continued, to: Status::Continued };
        return Err(Error::Fold { thread: thread.clone(), source: FoldError::Contradiction(refused.into()) });
    }
    match &current.tail.head {
        Some(head) if head.signer != signer.fingerprint() && !signer.succeeds(&head.signer) => {
            Err(Error::OtherSigner { thread: thread.clone(), theirs: head.signer, ours: signer.fingerprint() })
        }
        _ => Ok(()),
    }
}

/// The event that records a key rotation; none if the signer is the same.
fn take_over(current: &CurrentThread, signer: &Signer) -> Option<Event> {
    let from = current.tail.head.as_ref()?.signer;
    let to = signer.fingerprint();
    (from != to).then_some(Event::KeyRotated(KeyRotated { from, to }))
}

/// Whether a changeset only records what was found and repaired; that is allowed in a continued thread too.
fn only_mends(current: &CurrentThread, changeset: &Changeset) -> bool {
    !current.lead.is_empty() && *changeset == Changeset::empty(Reason::Lifecycle)
}

/// Whether a changeset only erases blobs; that is allowed in a continued thread too.
fn only_erases(changeset: &Changeset) -> bool {
    let bare = Changeset { events: changeset.events.clone(), ..Changeset::empty(changeset.reason) };
    *changeset == bare
        && !changeset.events.is_empty()
        && changeset.events.iter().all(|event| matches!(event, Event::BlobErased(_)))
}

fn create(
    thread: &ThreadId,
    right: Right,
    changeset: Changeset,
    postings: Vec<Event>,
    ids: &dyn Ids,
    at: Timestamp,
) -> Result<(CurrentThread, Vec<Event>)> {
    let log_id = LogId::new(ids.hex32()).map_err(|_| Error::BadBirth)?;
    let tail = Tail::empty(log_id);
    let events = writer::events(&tail, Vec::new(), changeset, postings);
    let created: &ThreadCreated = match events.first() {
        Some(Event::ThreadCreated(created)) => created,
        _ => return Err(Error::BadBirth),
    };
    let manifest = Manifest::born(thread, created, at);
    let epoch = match right {
        Right::Lease(epoch) => epoch,
        Right::Brief => 0,
    };
    Ok((CurrentThread { tail, manifest, epoch, lead: Vec::new() }, events))
}

/// Drops messages that are stored already and refuses changed ones; returns the new ids.
fn dedupe(
    thread: &ThreadId,
    messages: &mut Vec<Message>,
    is_new: bool,
    view: &dyn View,
) -> Result<Vec<(MessageId, Digest)>> {
    let mut fresh: Vec<(MessageId, Digest)> = Vec::new();
    let mut kept = Vec::with_capacity(messages.len());
    for message in messages.drain(..) {
        if let Some(id) = &message.id {
            let digest = sha256(&message.content_bytes());
            let here = fresh.iter().find(|(other, _)| other == id).map(|(_, digest)| *digest);
            let known = match here {
                Some(digest) => Some(digest),
                None if is_new => None,
                None => view.message(thread, id)?,
            };
            match known {
                Some(known) if known == digest => continue,
                Some(_) => return Err(Error::MessageChanged { thread: thread.clone(), message: id.clone() }),
                None => fresh.push((id.clone(), digest)),
            }
        }
        kept.push(message);
    }
    *messages = kept;
    Ok(fresh)
}

enum StateError {
    Fold(FoldError),
    Store(Error),
}

fn fold_state(
    thread: &ThreadId,
    events: &[Event],
    is_new: bool,
    view: &dyn View,
) -> Result<Option<Arc<Value>>, StateError> {
    let changes = |event: &&Event| matches!(event, Event::Snapshot(_) | Event::Patch(_));
    let Some(first) = events.iter().find(changes) else {
        return Ok(None);
    };
    let mut state = match first {
        Event::Snapshot(_) => Value::Null,
        _ if is_new => empty_state(),
        _ => view.state(thread).map_err(StateError::Store)?.as_ref().clone(),
    };
    for event in events {
        apply_to_state(&mut state, event).map_err(|error| StateError::Fold(error.into()))?;
    }
    Ok(Some(Arc::new(state)))
}
