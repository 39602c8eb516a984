//! What effects write: `usage.jsonl`, `agents/<id>/embeddings.jsonl`, and how far each effect is.
//!
//! ```text
//! .ai/usage.jsonl                              one line for each run
//! .ai/agents/<id>/embeddings.jsonl             one line for each passage with a vector
//! .ai/knowledge/agent/threads/…                pages, see `pages`
//! .ai/agent/threads/effects/<effect>.json      position, last failure, and the length of the file that the position belongs to
//! .ai/agent/threads/effects/<effect>.lock      locked by the process that does the effect; <effect>.file.lock by one that writes its file
//! ```
//!
//! Invariants:
//!
//! - Lines are synced before the state that covers them is written. What stands in a file beyond the length that the state names was written by
//!   a process that died in between: those lines are compared by their names, so none is added twice.
//! - A torn last line is cut off before anything is added.
//! - A file that is shorter than the state says, or was removed, is written again from the logs; so is one whose state is missing or belongs to
//!   another store, except for the lines it has.
//! - A thread that is deleted and a blob that is erased leave the embeddings before the deletion or the erasure counts as finished.

mod jsonl;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use selvedge_model::{AgentId, Cancel, Digest, ThreadId};
use selvedge_store::effects::{Effect, EffectFailure, EffectLock, EffectState, Effects, Embedding};
use selvedge_store::usage::{UsageRecord, of_commits};
use selvedge_store::{Error, Feed as _, Result};
use serde::{Deserialize, Serialize};

use crate::core::{Core, io_error};
use crate::disk::{self, DiskFile, OpenMode};
use crate::layout::{check_folder, is_there};
use crate::open::{self, LocalStore};
use crate::rows;
use jsonl::Jsonl;

/// How many commits are looked at before what they added is written.
const COMMITS_AT_ONCE: usize = 1000;
/// The most bytes of a state.
const STATE_BYTES_MAX: u64 = 1 << 20;

/// The state of an effect, as it is kept.
#[derive(Default, Serialize, Deserialize)]
struct Kept {
    /// The store whose feed the position is in.
    store: String,
    #[serde(flatten)]
    state: EffectState,
    /// The length of the effect's file at this position.
    #[serde(default)]
    bytes: u64,
    /// Commits whose logs could not be read.
    #[serde(default)]
    unreadable: u64,
}

/// What names a usage record.
#[derive(Deserialize)]
struct UsageKey {
    thread_id: ThreadId,
    version: u64,
}

impl Core {
    fn effect_file(&self, effect: Effect, ending: &str) -> PathBuf {
        self.layout.effects().join(format!("{}.{ending}", effect.as_str()))
    }

    /// Creates the folder of effects, if the store is still there.
    fn make_effects(&self) -> Result<()> {
        let folder = self.layout.effects();
        if !check_folder(self.layout.root())? {
            return Err(Error::NoStore { path: self.layout.root().display().to_string() });
        }
        if !check_folder(&folder)? {
            self.disk.make_folder(&folder).map_err(io_error("create", &folder))?;
        }
        Ok(())
    }

    fn lock_path(&self, path: &Path) -> Result<Box<dyn DiskFile>> {
        self.make_effects()?;
        self.disk.open(path, OpenMode::Create).map_err(io_error("open", path))
    }

    /// Waits until no other process writes the file of an effect.
    pub(crate) fn lock_file_of(&self, effect: Effect) -> Result<Box<dyn DiskFile>> {
        let path = self.effect_file(effect, "file.lock");
        let file = self.lock_path(&path)?;
        file.lock().map_err(io_error("lock", &path))?;
        Ok(file)
    }

    /// The state of an effect; that of another store, or one that can't be read, is none.
    fn kept(&self, effect: Effect) -> Result<Kept> {
        let path = self.effect_file(effect, "json");
        let store = open::check_kind(&self.layout, &*self.disk)?.id;
        let fresh = || Kept { store: store.clone(), ..Kept::default() };
        if !is_there(&path)? {
            return Ok(fresh());
        }
        let bytes = disk::read(&*self.disk, &path, STATE_BYTES_MAX).map_err(io_error("read", &path))?;
        let kept = serde_json::from_slice::<Kept>(&bytes).ok().filter(|kept| kept.store == store);
        Ok(kept.unwrap_or_else(fresh))
    }

    fn keep(&self, effect: Effect, kept: &Kept) -> Result<()> {
        let path = self.effect_file(effect, "json");
        self.make_effects()?;
        let bytes = serde_json::to_vec(kept).map_err(rows::bad_row)?;
        disk::put_in_place(&*self.disk, &path, &bytes).map_err(io_error("write", &path))
    }

    /// Forgets how far effects are, because the positions of the feed changed.
    pub(crate) fn forget_effects(layout: &crate::layout::Layout, disk: &dyn disk::Disk) -> Result<()> {
        for effect in Effect::ALL {
            let path = layout.effects().join(format!("{}.json", effect.as_str()));
            disk.remove(&path).map_err(io_error("remove", &path))?;
        }
        Ok(())
    }

    /// Removes a deleted thread, or an erased blob, from the embeddings. Called after the deletion or the erasure is committed, and again by
    /// the next process until it succeeds.
    pub(crate) fn leave_embeddings(&self, thread: &ThreadId, blob: Option<&Digest>) -> Result<()> {
        let files = self.embedding_files()?;
        if files.is_empty() {
            return Ok(());
        }
        let _lock = self.lock_file_of(Effect::Embeddings)?;
        for path in files {
            let stays = |one: &Embedding| one.thread_id != *thread || blob.is_some_and(|blob| one.blob != Some(*blob));
            Jsonl::open(&*self.disk, path)?
                .retain(&|line| serde_json::from_slice(line).is_ok_and(|one| stays(&one)))?;
        }
        Ok(())
    }

    /// The files with embeddings, of all agents.
    pub(crate) fn embedding_files(&self) -> Result<Vec<PathBuf>> {
        let agents = self.layout.agents();
        if !check_folder(&agents)? {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for entry in crate::layout::listed(&agents)? {
            let path = entry.path().join("embeddings.jsonl");
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && is_there(&path)? {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }

    /// The length of all files with embeddings.
    pub(crate) fn embedded_bytes(&self) -> Result<u64> {
        self.embedding_files()?.iter().map(|path| Jsonl::length_of(path)).sum()
    }

    /// Passes every embedding of one model to `each`.
    pub(crate) fn each_embedding(&self, model: &str, each: &mut dyn FnMut(Embedding)) -> Result<()> {
        for path in self.embedding_files()? {
            Jsonl::open(&*self.disk, path)?.each_from(0, &mut |line| {
                if let Ok(one) = serde_json::from_slice::<Embedding>(line)
                    && one.model == model
                {
                    each(one);
                }
            })?;
        }
        Ok(())
    }

    /// Whether the passage of an embedding may still be there.
    fn is_kept(&self, one: &Embedding) -> Result<bool> {
        if self.read(|db| rows::find_any(db, &one.thread_id))?.is_none() {
            return Ok(false);
        }
        match &one.blob {
            Some(blob) => Ok(self.erasure(&one.thread_id, blob)?.is_none()),
            None => Ok(true),
        }
    }
}

impl LocalStore {
    /// The last failures of effects, and how many commits their logs could not be read of.
    pub(crate) fn effect_failures(&self) -> Result<Vec<(Effect, Option<EffectFailure>, u64)>> {
        let mut found = Vec::new();
        for effect in Effect::ALL {
            let Kept { state, unreadable, .. } = self.core.kept(effect)?;
            if state.failure.is_some() || unreadable > 0 {
                found.push((effect, state.failure, unreadable));
            }
        }
        Ok(found)
    }
}

impl Effects for LocalStore {
    fn record_usage(&self, cancel: &Cancel) -> Result<u64> {
        let core = &self.core;
        core.writer()?;
        let mut kept = core.kept(Effect::Usage)?;
        // Without a lock: the common case is that there is nothing new.
        if kept.state.position.is_some_and(|position| self.position().is_ok_and(|newest| newest == position))
            && Jsonl::length_of(&core.layout.usage())? == kept.bytes
        {
            return Ok(0);
        }
        let _lock = core.lock_file_of(Effect::Usage)?;
        kept = core.kept(Effect::Usage)?;
        let mut file = Jsonl::create(&*core.disk, core.layout.usage())?;
        if file.length() < kept.bytes
            || kept.state.position.is_none_or(|position| self.position().is_ok_and(|newest| newest < position))
        {
            kept.state.position = None;
            kept.bytes = 0;
            kept.unreadable = 0;
        }
        // What was written after the state was: by a process that died, or before the state was lost.
        let mut known = HashSet::new();
        file.each_from(kept.bytes, &mut |line| {
            if let Ok(UsageKey { thread_id, version }) = serde_json::from_slice(line) {
                known.insert((thread_id, version));
            }
        })?;
        let mut added = 0;
        let mut position = kept.state.position;
        let mut failed = None;
        loop {
            let entries = self.after(position.unwrap_or(0), COMMITS_AT_ONCE)?;
            let last = entries.last().map(|last| last.position);
            let is_all = last.is_none() && (kept.bytes == file.length() || failed.is_some());
            if is_all || cancel.said().is_some() {
                return failed.map_or(Ok(added), Err);
            }
            let derived = of_commits(self, &entries, |thread, version| known.contains(&(thread.clone(), version)));
            file.append(&derived.records)?;
            added += derived.records.len() as u64;
            position = last.or(position);
            failed = failed.or(derived.failed);
            if failed.is_some() {
                // One log can't be read now: the records of the others are added, and the next call begins before it, so that none is lost.
                // What it finds beyond `kept.bytes` is known to it.
                continue;
            }
            kept.unreadable += derived.unreadable;
            kept.bytes = file.length();
            kept.state.position = position;
            kept.state.failure = None;
            core.keep(Effect::Usage, &kept)?;
        }
    }

    fn each_usage(&self, each: &mut dyn FnMut(UsageRecord)) -> Result<()> {
        let path = self.core.layout.usage();
        if !is_there(&path)? {
            return Ok(());
        }
        Jsonl::open(&*self.core.disk, path)?.each_from(0, &mut |line| {
            if let Ok(record) = serde_json::from_slice(line) {
                each(record);
            }
        })
    }

    fn put_embeddings(&self, agent: &AgentId, embeddings: &[Embedding]) -> Result<()> {
        let core = &self.core;
        core.writer()?;
        let Some(first) = embeddings.first() else { return Ok(()) };
        let _lock = core.lock_file_of(Effect::Embeddings)?;
        let path = core.layout.embeddings(agent);
        let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
        if !check_folder(&folder)? {
            core.disk.make_folder(&folder).map_err(io_error("create", &folder))?;
            // Its own name, and that of the folder of all agents, which may be new too.
            for above in folder.ancestors().skip(1).take(2) {
                core.disk.sync_folder(above).map_err(io_error("sync", above))?;
            }
        }
        let mut file = Jsonl::create(&*core.disk, path)?;
        let stays = |line: &[u8]| {
            let one = serde_json::from_slice::<Embedding>(line);
            one.is_ok_and(|one| one.model == first.model && one.vector.len() == first.vector.len())
        };
        // All lines of a file are of one model.
        if file.first_line()?.is_some_and(|line| !stays(&line)) {
            file = file.retain(&stays)?;
        }
        let mut known = HashSet::new();
        let mut fresh = Vec::new();
        for one in embeddings {
            // Under the lock that a deletion takes after its commit: nothing of a deleted thread is added after it was removed.
            if known.insert(one.key()) && core.is_kept(one)? {
                fresh.push(one);
            }
        }
        file.append(&fresh)
    }

    fn lock_effect(&self, effect: Effect) -> Result<Option<EffectLock>> {
        self.core.writer()?;
        let path = self.core.effect_file(effect, "lock");
        let file = self.core.lock_path(&path)?;
        let is_taken = file.try_lock().map_err(io_error("lock", &path))?;
        Ok(is_taken.then(|| EffectLock::new(Box::new(file))))
    }

    fn effect_state(&self, effect: Effect) -> Result<EffectState> {
        Ok(self.core.kept(effect)?.state)
    }

    fn set_effect_state(&self, effect: Effect, state: &EffectState) -> Result<()> {
        self.core.writer()?;
        let _lock = self.core.lock_file_of(effect)?;
        let kept = self.core.kept(effect)?;
        self.core.keep(effect, &Kept { state: state.clone(), ..kept })
    }
}

#[cfg(test)]
mod tests;
