//! Committing and reading.

use std::io::{BufRead, Cursor as Bytes};

use selvedge_log::{Head, Line, line};
use selvedge_model::{Batch, CommitKey, Digest, Status, ThreadId};

use super::MemoryStore;
use super::inner::head_of;
use crate::blob;
use crate::contract::{Commit, Committed, Logs, Tombstone};
use crate::error::{Error, Result};
use crate::prepare::{prepare, request_hash};
use crate::tombstone::postings_of;

impl Commit for MemoryStore {
    fn commit(&self, batch: Batch) -> Result<Committed> {
        let mut inner = self.inner();
        if let Some((request, committed)) = batch.key.as_ref().and_then(|key| inner.keys.get(key)) {
            if *request != request_hash(&batch) {
                return Err(Error::KeyReused(batch.key.unwrap_or_else(|| unreachable!("it was just looked up"))));
            }
            return Ok(Committed { replayed: true, parts: Vec::new(), ..committed.clone() });
        }
        let shared = &self.shared;
        let prepared = prepare(batch, &*inner, &shared.signer, &*shared.ids, shared.clock.now())?;
        inner.check_requests(&prepared)?;
        let committed = inner.apply(prepared, &self.owner);
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
            (None, Error::NoThread(_)) => _ = inner.early_blobs.entry(thread.clone()).or_default().insert(name, stored),
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
        if let Some(account) = inner.accounts.get(&slot.manifest.chain_root_id).filter(|account| account.is_in_use()) {
            return Err(Error::AccountInUse { thread: thread.clone(), account: account.id.clone() });
        }
        let tombstone = Tombstone {
            manifest: slot.manifest.clone(),
            head: head_of(slot),
            deleted_at: self.shared.clock.now(),
            postings: postings_of(&*slot.bytes).ok(),
        };
        inner.threads.remove(thread);
        inner.pages.retain(|_, (of, _)| of != thread);
        inner.requests.retain(|(_, posted)| posted.thread != *thread);
        inner.answers.retain(|_, (at, _)| at != thread);
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
