//! A store without a disk: for tests, and as the plainest reading of the contracts.
//!
//! One mutex guards everything, so a commit is prepared and applied in one breath. The bytes are the same signed bytes
//! that every backend keeps. Several handles may share one memory; each is an owner of its own, and dies when dropped.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, Cursor as Bytes};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use selvedge_log::{Head, Line, Signer, Tail, line};
use selvedge_model::account::{Account, AccountId, Reservation};
use selvedge_model::fold::empty_state;
use selvedge_model::id::ReservationId;
use selvedge_model::{
    Batch, Clock, CommitKey, Committed, Digest, Ids, Manifest, MessageId, Note, NoteKey, OwnerId, Right, Run, RunId,
    Status, ThreadId, Timestamp,
};
use serde_json::Value;

use crate::blob;
use crate::contract::{
    Acquire, Commit, Commitment, Cursor, Feed, Filter, Lease, Leases, Ledger, Logs, Notes, Page, Registry, Summary,
    Tombstone,
};
use crate::error::{Error, Result};
use crate::lease::{Answer, Backend, Desk};
use crate::prepare::{Prepared, Standing, View, prepare, request_hash};

/// A store without a disk.
pub struct MemoryStore {
    shared: Arc<Shared>,
    owner: OwnerId,
    desk: Desk,
}

struct Shared {
    inner: Mutex<Inner>,
    committed: Condvar,
    signer: Signer,
    clock: Box<dyn Clock>,
    ids: Box<dyn Ids>,
}

#[derive(Default)]
struct Inner {
    threads: BTreeMap<ThreadId, Slot>,
    created: u64,
    tombstones: BTreeMap<ThreadId, Tombstone>,
    keys: HashMap<CommitKey, (Digest, Committed)>,
    notes: Vec<Note>,
    feed: Vec<Commitment>,
    accounts: BTreeMap<AccountId, Account>,
    reservations: BTreeMap<(AccountId, ReservationId), Reservation>,
    alive: HashSet<OwnerId>,
    /// Blobs of threads that are yet to be created.
    unborn: HashMap<ThreadId, HashMap<Digest, Vec<u8>>>,
}

struct Slot {
    number: u64,
    bytes: Vec<u8>,
    tail: Tail,
    manifest: Manifest,
    state: Arc<Value>,
    messages: HashMap<MessageId, Digest>,
    runs: Vec<Run>,
    blobs: HashMap<Digest, Vec<u8>>,
    erased: HashMap<Digest, (String, Timestamp)>,
    epoch: u64,
    holder: Option<OwnerId>,
}

impl MemoryStore {
    /// An empty memory.
    pub fn new(signer: Signer, clock: Box<dyn Clock>, ids: Box<dyn Ids>) -> Self {
        let shared = Shared { inner: Mutex::default(), committed: Condvar::new(), signer, clock, ids };
        Self::attach(Arc::new(shared))
    }

    /// Another handle on the same memory, as another process would have it.
    pub fn another(&self) -> Self {
        Self::attach(self.shared.clone())
    }

    fn attach(shared: Arc<Shared>) -> Self {
        // Thirty-two hex characters are always a valid name.
        let owner = OwnerId::new(shared.ids.hex32()).unwrap_or_else(|error| panic!("{error}"));
        let store = Self { shared, owner: owner.clone(), desk: Desk::default() };
        store.inner().alive.insert(owner);
        store
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.shared.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        self.inner().alive.remove(&self.owner);
    }
}

impl Inner {
    fn slot(&self, thread: &ThreadId) -> Result<&Slot> {
        self.threads.get(thread).ok_or_else(|| self.missing(thread))
    }

    fn missing(&self, thread: &ThreadId) -> Error {
        match self.tombstones.contains_key(thread) {
            true => Error::Deleted(thread.clone()),
            false => Error::NoThread(thread.to_string()),
        }
    }

    /// Who holds the slot and is alive.
    fn live_holder(&self, slot: &Slot) -> Option<OwnerId> {
        slot.holder.clone().filter(|holder| self.alive.contains(holder))
    }

    fn pending(&self, thread: &ThreadId, key: &NoteKey) -> Option<&Note> {
        self.notes.iter().find(|note| note.thread == *thread && note.key == *key)
    }

    fn post(&mut self, note: Note) -> Result<()> {
        self.slot(&note.thread)?;
        match self.pending(&note.thread, &note.key) {
            Some(known) if *known == note => Ok(()),
            Some(_) => Err(Error::NoteReused { thread: note.thread, key: note.key }),
            None => {
                self.notes.push(note);
                Ok(())
            }
        }
    }

    fn check_notes(&self, prepared: &Prepared) -> Result<()> {
        for (thread, key) in &prepared.consumed {
            self.pending(thread, key).ok_or_else(|| Error::NoteGone { thread: thread.clone(), key: key.clone() })?;
        }
        for note in &prepared.posted {
            let created = prepared.parts.iter().any(|part| part.thread == note.thread);
            if !created {
                self.slot(&note.thread)?;
            }
            let same_key = |other: &&Note| other.thread == note.thread && other.key == note.key;
            let known = self.pending(&note.thread, &note.key).or(prepared.posted.iter().find(same_key));
            if known.is_some_and(|known| known != note) {
                return Err(Error::NoteReused { thread: note.thread.clone(), key: note.key.clone() });
            }
        }
        Ok(())
    }

    /// Applies what was prepared under the same lock; from here on nothing can fail.
    fn apply(&mut self, prepared: Prepared) -> Committed {
        let committed = prepared.committed();
        if let Some((key, request)) = prepared.key {
            self.keys.insert(key, (request, committed.clone()));
        }
        for part in prepared.parts {
            let number = self.created;
            let unborn = self.unborn.remove(&part.thread).unwrap_or_default();
            let slot = self.threads.entry(part.thread.clone()).or_insert_with(|| Slot {
                number,
                bytes: Vec::new(),
                tail: part.written.tail.clone(),
                manifest: part.manifest.clone(),
                state: Arc::new(empty_state()),
                messages: HashMap::new(),
                runs: Vec::new(),
                blobs: unborn,
                erased: HashMap::new(),
                epoch: 0,
                holder: None,
            });
            self.created += u64::from(part.before.is_none());
            slot.bytes.extend_from_slice(&part.written.bytes);
            slot.tail = part.written.tail;
            slot.manifest = part.manifest;
            slot.state = part.state.unwrap_or_else(|| slot.state.clone());
            slot.messages.extend(part.messages);
            for run in part.runs {
                match slot.runs.iter_mut().find(|other| other.run_id == run.run_id) {
                    Some(known) => *known = run,
                    None => slot.runs.push(run),
                }
            }
            for erased in part.erased {
                slot.blobs.remove(&erased.blob);
                slot.erased.entry(erased.blob).or_insert((erased.reason, slot.manifest.updated_at));
            }
            if let Some(run) = slot.runs.iter_mut().find(|run| Some(&run.run_id) == part.touched_run.as_ref()) {
                run.updated_at = slot.manifest.updated_at;
            }
            if part.right == Right::Brief {
                slot.holder = None;
            }
            slot.epoch = part.epoch;
            let (position, version) = (self.feed.len() as u64 + 1, part.written.head.version);
            self.feed.push(Commitment { position, thread: part.thread, version });
        }
        for (id, account) in prepared.accounts {
            self.accounts.extend(account.after.map(|after| (id.clone(), after)));
            for (name, reservation) in account.reservations {
                match reservation {
                    Some(open) => self.reservations.insert((id.clone(), name), open),
                    None => self.reservations.remove(&(id.clone(), name)),
                };
            }
        }
        self.notes.retain(|note| !prepared.consumed.contains(&(note.thread.clone(), note.key.clone())));
        for note in prepared.posted {
            if self.pending(&note.thread, &note.key).is_none() {
                self.notes.push(note);
            }
        }
        committed
    }

    fn summary(slot: &Slot) -> Summary {
        Summary { manifest: slot.manifest.clone(), version: head_of(slot).version }
    }

    fn by_age(&self) -> Vec<&Slot> {
        let mut slots: Vec<_> = self.threads.values().collect();
        slots.sort_by_key(|slot| slot.number);
        slots
    }
}

fn head_of(slot: &Slot) -> Head {
    // A slot is made by a commit, and a commit ends with a checkpoint.
    slot.tail.head.clone().unwrap_or_else(|| unreachable!("a stored log has a head"))
}

impl View for Inner {
    fn standing(&self, thread: &ThreadId, right: Right) -> Result<Option<Standing>> {
        let Some(slot) = self.threads.get(thread) else {
            return match self.tombstones.contains_key(thread) {
                true => Err(Error::Deleted(thread.clone())),
                false => Ok(None),
            };
        };
        let epoch = match (right, self.live_holder(slot)) {
            (Right::Lease(held), _) if held != slot.epoch || slot.holder.is_none() => {
                return Err(Error::StaleEpoch { thread: thread.clone(), held, current: slot.epoch });
            }
            (Right::Lease(held), _) => held,
            (Right::Brief, Some(holder)) => return Err(Error::LeaseHeld { thread: thread.clone(), holder }),
            (Right::Brief, None) => slot.epoch + u64::from(slot.holder.is_some()),
        };
        Ok(Some(Standing { tail: slot.tail.clone(), manifest: slot.manifest.clone(), epoch, lead: Vec::new() }))
    }

    fn state(&self, thread: &ThreadId) -> Result<Arc<Value>> {
        Ok(self.slot(thread)?.state.clone())
    }

    fn message(&self, thread: &ThreadId, message: &MessageId) -> Result<Option<Digest>> {
        Ok(self.slot(thread)?.messages.get(message).copied())
    }

    fn run(&self, thread: &ThreadId, run: &RunId) -> Result<Option<Run>> {
        let slot = self.threads.get(thread);
        Ok(slot.and_then(|slot| slot.runs.iter().find(|other| other.run_id == *run).cloned()))
    }

    fn account(&self, account: &AccountId) -> Result<Option<Account>> {
        Ok(self.accounts.get(account).cloned())
    }

    fn reservations(&self, account: &AccountId) -> Result<Vec<Reservation>> {
        Ok(self.reservations.values().filter(|known| known.account == *account).cloned().collect())
    }

    fn reservation(&self, account: &AccountId, reservation: &ReservationId) -> Result<Option<Reservation>> {
        Ok(self.reservations.get(&(account.clone(), reservation.clone())).cloned())
    }
}

impl Commit for MemoryStore {
    fn commit(&self, batch: Batch) -> Result<Committed> {
        let mut inner = self.inner();
        if let Some((request, committed)) = batch.key.as_ref().and_then(|key| inner.keys.get(key)) {
            return match *request == request_hash(&batch) {
                true => Ok(Committed { replayed: true, ..committed.clone() }),
                false => Err(Error::KeyReused(batch.key.unwrap_or_else(|| unreachable!("it was just looked up")))),
            };
        }
        let shared = &self.shared;
        let prepared = prepare(batch, &*inner, &shared.signer, &*shared.ids, shared.clock.now())?;
        inner.check_notes(&prepared)?;
        let committed = inner.apply(prepared);
        shared.committed.notify_all();
        Ok(committed)
    }

    fn outcome(&self, key: &CommitKey) -> Result<Option<Committed>> {
        Ok(self.inner().keys.get(key).map(|(_, committed)| committed.clone()))
    }

    fn put_blob(&self, thread: &ThreadId, bytes: &[u8]) -> Result<Digest> {
        let mut inner = self.inner();
        let (name, stored) = blob::seal(bytes, &*self.shared.ids);
        let missing = inner.missing(thread);
        match (inner.threads.get_mut(thread), missing) {
            (Some(slot), _) => _ = slot.blobs.insert(name, stored),
            (None, Error::NoThread(_)) => _ = inner.unborn.entry(thread.clone()).or_default().insert(name, stored),
            (None, missing) => return Err(missing),
        }
        Ok(name)
    }

    fn delete(&self, thread: &ThreadId) -> Result<Tombstone> {
        let mut inner = self.inner();
        let slot = inner.slot(thread)?;
        if slot.manifest.status == Status::Running {
            return Err(Error::Running(thread.clone()));
        }
        if let Some(holder) = inner.live_holder(slot) {
            return Err(Error::LeaseHeld { thread: thread.clone(), holder });
        }
        let deleted_at = self.shared.clock.now();
        let tombstone = Tombstone { manifest: slot.manifest.clone(), head: head_of(slot), deleted_at };
        inner.threads.remove(thread);
        inner.notes.retain(|note| note.thread != *thread);
        inner.tombstones.insert(thread.clone(), tombstone.clone());
        self.shared.committed.notify_all();
        Ok(tombstone)
    }
}

impl Logs for MemoryStore {
    fn head(&self, thread: &ThreadId) -> Result<Head> {
        Ok(head_of(self.inner().slot(thread)?))
    }

    fn read(&self, thread: &ThreadId, from: u64, limit: usize) -> Result<Vec<Line>> {
        let inner = self.inner();
        let lines = inner.slot(thread)?.bytes.split_inclusive(|byte| *byte == b'\n');
        let wanted = lines.skip(usize::try_from(from).unwrap_or(usize::MAX)).take(limit);
        wanted.map(|bytes| Ok(line::decode(bytes.strip_suffix(b"\n").unwrap_or(bytes))?)).collect()
    }

    fn transcript(&self, thread: &ThreadId) -> Result<(Head, Box<dyn BufRead + Send>)> {
        let inner = self.inner();
        let slot = inner.slot(thread)?;
        Ok((head_of(slot), Box::new(Bytes::new(slot.bytes.clone()))))
    }

    fn blob(&self, thread: &ThreadId, name: &Digest) -> Result<Vec<u8>> {
        let inner = self.inner();
        let slot = inner.slot(thread)?;
        if let Some((reason, at)) = slot.erased.get(name) {
            return Err(Error::Erased { thread: thread.clone(), blob: *name, reason: reason.clone(), at: *at });
        }
        let stored = slot.blobs.get(name);
        let content = stored.and_then(|stored| blob::open(name, stored));
        content.ok_or_else(|| Error::NoBlob { thread: thread.clone(), blob: *name })
    }
}

impl Backend for MemoryStore {
    fn ask(&self, thread: &ThreadId, take_over: bool) -> Result<Answer> {
        let mut inner = self.inner();
        if let Some(holder) = inner.live_holder(inner.slot(thread)?).filter(|_| !take_over) {
            return Ok(Answer::HeldBy(holder));
        }
        let missing = inner.missing(thread);
        let slot = inner.threads.get_mut(thread).ok_or(missing)?;
        slot.epoch += 1;
        slot.holder = Some(self.owner.clone());
        Ok(Answer::Granted(Lease { thread: thread.clone(), owner: self.owner.clone(), epoch: slot.epoch }))
    }

    fn holder(&self, thread: &ThreadId) -> Result<Option<(OwnerId, u64)>> {
        let inner = self.inner();
        let slot = inner.slot(thread)?;
        Ok(slot.holder.clone().map(|holder| (holder, slot.epoch)))
    }
}

impl Leases for MemoryStore {
    fn acquire(&self, thread: &ThreadId, how: Acquire) -> Result<Lease> {
        self.desk.acquire(thread, how, &self.owner, self)
    }

    fn renew(&self, lease: &Lease) -> Result<()> {
        let inner = self.inner();
        let slot = inner.slot(&lease.thread)?;
        match slot.epoch == lease.epoch && slot.holder.as_ref() == Some(&lease.owner) {
            true => Ok(()),
            false => Err(Error::StaleEpoch { thread: lease.thread.clone(), held: lease.epoch, current: slot.epoch }),
        }
    }

    fn release(&self, lease: &Lease) -> Result<()> {
        let inner = self.inner();
        let stands = |slot: &Slot| slot.epoch == lease.epoch && slot.holder.as_ref() == Some(&lease.owner);
        let waits = |note: &&Note| note.thread == lease.thread && note.kind == "send";
        let count = inner.notes.iter().filter(waits).count();
        if count > 0 && inner.threads.get(&lease.thread).is_some_and(stands) {
            return Err(Error::NotesPending { thread: lease.thread.clone(), count });
        }
        drop(inner);
        self.abandon(lease)
    }

    fn abandon(&self, lease: &Lease) -> Result<()> {
        let mut inner = self.inner();
        // A thread that was deleted or taken over has nothing to give back.
        let stands = |slot: &&mut Slot| slot.epoch == lease.epoch && slot.holder.as_ref() == Some(&lease.owner);
        if let Some(slot) = inner.threads.get_mut(&lease.thread).filter(stands) {
            slot.holder = None;
        }
        drop(inner);
        self.desk.leave(lease);
        Ok(())
    }

    fn holder(&self, thread: &ThreadId) -> Result<Option<OwnerId>> {
        let inner = self.inner();
        Ok(inner.live_holder(inner.slot(thread)?))
    }

    fn expired(&self) -> Result<Vec<Lease>> {
        let inner = self.inner();
        let dead = inner.threads.iter().filter_map(|(thread, slot)| {
            let owner = slot.holder.clone().filter(|holder| !inner.alive.contains(holder))?;
            Some(Lease { thread: thread.clone(), owner, epoch: slot.epoch })
        });
        Ok(dead.collect())
    }
}

impl Notes for MemoryStore {
    fn post(&self, note: Note) -> Result<()> {
        self.inner().post(note)?;
        self.shared.committed.notify_all();
        Ok(())
    }

    fn pending(&self, thread: &ThreadId) -> Result<Vec<Note>> {
        let inner = self.inner();
        inner.slot(thread)?;
        Ok(inner.notes.iter().filter(|note| note.thread == *thread).cloned().collect())
    }
}

impl Registry for MemoryStore {
    fn get(&self, thread: &ThreadId) -> Result<Summary> {
        Ok(Inner::summary(self.inner().slot(thread)?))
    }

    fn list(&self, filter: &Filter, after: Option<Cursor>, limit: usize) -> Result<Page<Summary>> {
        let inner = self.inner();
        let before = after.map_or(u64::MAX, |cursor| cursor.0);
        let mut slots = inner.by_age();
        slots.retain(|slot| slot.number < before && matches(filter, &slot.manifest));
        slots.reverse();
        let next = slots.get(limit).and_then(|_| slots.get(limit.checked_sub(1)?)).map(|last| Cursor(last.number));
        Ok(Page { items: slots.into_iter().take(limit).map(Inner::summary).collect(), next })
    }

    fn chain(&self, thread: &ThreadId) -> Result<Vec<Summary>> {
        let inner = self.inner();
        inner.slot(thread)?;
        let manifest = |id: &ThreadId| {
            let buried = || inner.tombstones.get(id).map(|tombstone| tombstone.manifest.clone());
            inner.threads.get(id).map(|slot| slot.manifest.clone()).or_else(buried)
        };
        let ids = crate::chain::walk(thread, |id| Ok(manifest(id)))?;
        Ok(ids.iter().filter_map(|id| inner.threads.get(id)).map(Inner::summary).collect())
    }

    fn children(&self, thread: &ThreadId) -> Result<Vec<Summary>> {
        let inner = self.inner();
        let is_child = |slot: &&Slot| slot.manifest.parent_id.as_ref() == Some(thread);
        Ok(inner.by_age().into_iter().filter(is_child).map(Inner::summary).collect())
    }

    fn runs(&self, thread: &ThreadId) -> Result<Vec<Run>> {
        Ok(self.inner().slot(thread)?.runs.clone())
    }

    fn resolve(&self, prefix: &str) -> Result<ThreadId> {
        let inner = self.inner();
        if let Some((exact, _)) = ThreadId::new(prefix).ok().and_then(|id| inner.threads.get_key_value(&id)) {
            return Ok(exact.clone());
        }
        let begins =
            |id: &&ThreadId| id.as_str().starts_with(prefix) || id.hex().is_some_and(|hex| hex.starts_with(prefix));
        let candidates: Vec<_> = inner.threads.keys().filter(begins).take(6).collect();
        match (prefix.is_empty(), candidates.as_slice()) {
            (false, [one]) => Ok((*one).clone()),
            (true, _) | (_, []) => {
                Err(ThreadId::new(prefix).map_or(Error::NoThread(prefix.to_owned()), |id| inner.missing(&id)))
            }
            (false, several) => {
                let candidates = several.iter().map(ToString::to_string).collect();
                Err(Error::Ambiguous { prefix: prefix.to_owned(), candidates })
            }
        }
    }

    fn tombstone(&self, thread: &ThreadId) -> Result<Option<Tombstone>> {
        Ok(self.inner().tombstones.get(thread).cloned())
    }
}

fn matches(filter: &Filter, manifest: &Manifest) -> bool {
    let Filter { agent_id, directive, status, parent_id, text } = filter;
    let has_text = |text: &String| {
        let text = text.to_lowercase();
        let title = manifest.title.as_deref().unwrap_or_default().to_lowercase();
        manifest.thread_id.as_str().contains(&text) || title.contains(&text)
    };
    agent_id.as_ref().is_none_or(|agent| manifest.agent_id == *agent)
        && directive.as_ref().is_none_or(|directive| manifest.directive.as_ref() == Some(directive))
        && status.is_none_or(|status| manifest.status == status)
        && parent_id.as_ref().is_none_or(|parent| manifest.parent_id.as_ref() == Some(parent))
        && text.as_ref().is_none_or(has_text)
}

impl Feed for MemoryStore {
    fn position(&self) -> Result<u64> {
        Ok(self.inner().feed.len() as u64)
    }

    fn after(&self, position: u64, limit: usize) -> Result<Vec<Commitment>> {
        let skip = usize::try_from(position).unwrap_or(usize::MAX);
        Ok(self.inner().feed.iter().skip(skip).take(limit).cloned().collect())
    }

    fn wait(&self, position: u64, timeout: Duration) -> Result<()> {
        let inner = self.inner();
        let waiting =
            self.shared.committed.wait_timeout_while(inner, timeout, |inner| inner.feed.len() as u64 <= position);
        drop(waiting.unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }
}

impl Ledger for MemoryStore {
    fn reservations(&self, account: &AccountId) -> Result<Vec<Reservation>> {
        View::reservations(&*self.inner(), account)
    }

    fn account(&self, id: &AccountId) -> Result<Option<Account>> {
        Ok(self.inner().accounts.get(id).cloned())
    }

    fn tree(&self, id: &AccountId) -> Result<Vec<Account>> {
        let inner = self.inner();
        let mut found: Vec<Account> = inner.accounts.get(id).cloned().into_iter().collect();
        let mut next = 0;
        while let Some(parent) = found.get(next).map(|account| account.id.clone()) {
            let new: Vec<_> = inner
                .accounts
                .values()
                .filter(|account| {
                    account.parent.as_ref() == Some(&parent) && found.iter().all(|known| known.id != account.id)
                })
                .cloned()
                .collect();
            found.extend(new);
            next += 1;
        }
        Ok(found)
    }
}
