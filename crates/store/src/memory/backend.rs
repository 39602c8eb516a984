//! The contracts for commands. This store has no `thread.json`, and imports no archives.

use std::io::{self, BufRead, Cursor, Read};
use std::path::PathBuf;

use selvedge_log::{Head, Trust};
use selvedge_model::account::{Account, AccountId};
use selvedge_model::event::BlobErased;
use selvedge_model::{Batch, Changeset, Digest, DirectiveId, Event, Expect, Manifest, NamedBlobs, Part, ThreadId};

use super::MemoryStore;
use super::inner::head_of;
use crate::archive::{Accounts, Archives, ImportOutcome, ImportReport, read_archive};
use crate::backend::{Erase, Handle, ReadHeads, SignedFiles};
use crate::capabilities;
use crate::contract::{Commit, Leases};
use crate::error::{Error, Result};
use crate::folded::Folded;
use crate::heads::{AccountHead, Comparison, CurrentHeads, Depth, Heads, LogHead, StoreContent, VERSION, compare};
use crate::manifest::grants_same;
use crate::verify::{Document, StoredLog, StoredThread, Verify};

impl StoredThread for MemoryStore {
    fn trust(&self) -> &Trust {
        &self.shared.trust
    }

    fn location(&self, thread: &ThreadId) -> PathBuf {
        PathBuf::from("memory").join(thread.folder())
    }

    fn open_log(&self, thread: &ThreadId) -> Result<StoredLog> {
        let inner = self.inner();
        let slot = inner.slot(thread)?;
        let head = Some(head_of(slot));
        let log = slot.bytes.clone();
        Ok(StoredLog { head, file_bytes: log.len() as u64, log: Box::new(Cursor::new(log)), healed_bytes: 0 })
    }

    fn document(&self, thread: &ThreadId, document: Document) -> Result<Option<Vec<u8>>> {
        let inner = self.inner();
        let slot = inner.slot(thread)?;
        Ok(match document {
            Document::Manifest => None,
            Document::Capabilities => slot.capabilities.clone(),
            Document::Snapshot => slot.snapshots.newest().cloned(),
        })
    }

    fn blobs(&self, thread: &ThreadId) -> Result<Vec<Digest>> {
        let mut names: Vec<_> = self.inner().slot(thread)?.blobs.keys().copied().collect();
        names.sort_unstable();
        Ok(names)
    }

    fn stored_blob(&self, thread: &ThreadId, blob: &Digest) -> io::Result<(u64, Box<dyn Read + Send>)> {
        let inner = self.inner();
        let stored = inner.slot(thread).map_err(io::Error::other)?.blobs.get(blob).cloned();
        let stored = stored.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok((stored.len() as u64, Box::new(Cursor::new(stored))))
    }

    fn imported_keys(&self, _: &ThreadId) -> Vec<(Digest, Vec<u8>)> {
        Vec::new()
    }

    fn imported_statements(&self, _: &ThreadId) -> Vec<(Digest, Vec<u8>)> {
        Vec::new()
    }

    fn differs(&self, thread: &ThreadId, head: Option<&Head>, folded: &Folded<'_>) -> Result<Option<String>> {
        let inner = self.inner();
        let slot = inner.slot(thread)?;
        let is_other = Some(&head_of(slot)) == head && folded.manifest().is_some_and(|folded| *folded != slot.manifest);
        Ok(is_other.then(|| "has a different manifest".to_owned()))
    }
}

impl Verify for MemoryStore {
    fn is_imported(&self, _: &ThreadId) -> bool {
        false
    }
}

impl Archives for MemoryStore {
    fn import(&self, archive: &mut (dyn Read + Send), keep: bool) -> Result<ImportReport> {
        let judged = read_archive(archive, self.trust(), None, &|_| Ok(()))?;
        let inner = self.inner();
        let arrival = match (inner.slot(&judged.thread).map(head_of), keep) {
            (Ok(head), _) if head == judged.head => ImportOutcome::Unchanged,
            (Ok(_), _) => return Err(Error::Exists(judged.thread)),
            (Err(Error::NoThread(_)), false) => ImportOutcome::WouldImport,
            (Err(Error::NoThread(_)), true) => {
                return Err(Error::Unusable {
                    what: "a store in memory".to_owned(),
                    why: "it can't import a thread from an archive".to_owned(),
                    hint: None,
                });
            }
            (Err(error), _) => return Err(error),
        };
        Ok(judged.into_report(arrival, Accounts::new()))
    }
}

impl ReadHeads for MemoryStore {
    fn store_id(&self) -> Result<String> {
        Ok(self.shared.id.get_or_init(|| self.shared.ids.hex32()).clone())
    }

    fn heads(&self) -> Result<CurrentHeads> {
        let store_id = self.store_id()?;
        let inner = self.inner();
        let heads = Heads {
            version: VERSION,
            store_id,
            made_at: self.shared.clock.now(),
            threads: inner.threads.iter().map(|(id, slot)| LogHead::new(id.clone(), &head_of(slot))).collect(),
            tombstones: inner.tombstones.iter().map(|(id, left)| LogHead::new(id.clone(), &left.head)).collect(),
            accounts: inner.accounts.values().map(AccountHead::from).collect(),
        };
        Ok(CurrentHeads { heads, left_out: Vec::new() })
    }

    fn sign_heads(&self, heads: &Heads) -> Result<String> {
        heads.sign(&self.shared.signer).map_err(|error| Error::Unusable {
            what: "the list of heads".to_owned(),
            why: error.to_string(),
            hint: None,
        })
    }

    fn compare_heads(&self, heads: &Heads, depth: Depth) -> Comparison {
        compare(heads, self, depth)
    }
}

impl StoreContent for MemoryStore {
    fn log(&self, thread: &ThreadId) -> Result<Option<(Head, Box<dyn BufRead + Send>)>> {
        let inner = self.inner();
        let slot = inner.threads.get(thread);
        Ok(slot.map(|slot| (head_of(slot), Box::new(Cursor::new(slot.bytes.clone())) as Box<dyn BufRead + Send>)))
    }

    fn buried(&self, thread: &ThreadId) -> Result<Option<Head>> {
        Ok(self.inner().tombstones.get(thread).map(|tombstone| tombstone.head.clone()))
    }

    fn account(&self, id: &AccountId) -> Result<Option<Account>> {
        Ok(self.inner().accounts.get(id).cloned())
    }
}

impl Erase for MemoryStore {
    fn erase(&self, thread: &ThreadId, blob: &Digest, reason: &str) -> Result<u64> {
        let erased = self.inner().slot(thread)?.erased.get(blob).cloned();
        if let Some((reason, at)) = erased {
            return Err(Error::Erased { thread: thread.clone(), blob: *blob, reason, at });
        }
        let mut named = NamedBlobs::default();
        self.verify(thread, &mut |entry| {
            for line in &entry.lines {
                named.take(entry.head.version, &line.event);
            }
        })?;
        let is_there = self.blobs(thread)?.contains(blob);
        if !is_there && named.must_be_there().all(|(name, _)| name != *blob) {
            return Err(Error::NoBlob { thread: thread.clone(), blob: *blob });
        }
        let event = Event::BlobErased(BlobErased { blob: *blob, reason: reason.to_owned() });
        let part = Part::new(thread.clone(), Expect::Any, Changeset::of_event(event));
        Ok(self.commit(Batch::of(part))?.version_of(thread).unwrap_or_default())
    }
}

impl SignedFiles for MemoryStore {
    fn write_capabilities(&self, thread: &ThreadId, body: &dyn Fn() -> String) -> Result<bool> {
        let mut inner = self.inner();
        let slot = inner.slot_mut(thread)?;
        if let Some(page) = &slot.capabilities {
            return capabilities::check_kept(thread, page, self.trust()).map(|()| false);
        }
        let text = capabilities::sign(thread, &body(), &self.shared.signer, self.shared.clock.now());
        slot.capabilities = Some(text.into_bytes());
        Ok(true)
    }

    fn write_knowledge(&self, id: &DirectiveId, body: &str, is_replaceable: &dyn Fn(&str) -> bool) -> Result<Digest> {
        let mut inner = self.inner();
        if inner.knowledge.get(id).is_some_and(|entry| !is_replaceable(entry)) {
            let why = "a person wrote it".to_owned();
            return Err(Error::Unusable { what: format!("knowledge `{id}`"), why, hint: None });
        }
        inner.knowledge.insert(id.clone(), body.to_owned());
        Ok(selvedge_log::hash::sha256(body.as_bytes()))
    }

    fn check_manifest(&self, recorded: &Manifest) -> Result<()> {
        if !grants_same(&self.inner().slot(&recorded.thread_id)?.manifest, recorded) {
            return Err(Error::Integrity {
                what: format!("the manifest of `{}` in the store", recorded.thread_id),
                why: "it grants the thread other capabilities than its log".to_owned(),
                hint: None,
            });
        }
        Ok(())
    }

    fn missing_manifest(&self, _: &ThreadId) -> Option<String> {
        None
    }
}

impl Handle for MemoryStore {
    fn shut_down(&mut self) -> Result<()> {
        let owner = self.owner().clone();
        for slot in self.inner().threads.values_mut() {
            if slot.holder.as_ref() == Some(&owner) {
                slot.holder = None;
            }
        }
        Ok(())
    }
}
