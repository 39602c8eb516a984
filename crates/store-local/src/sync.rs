//! Syncing in the background: transcripts are made durable, then their redo may be overwritten.
//!
//! Until then a power failure loses nothing: the redo is durable since the commit and is drained again. Only rows whose bytes were in the
//! transcript before its sync began are reused. A failed sync proves nothing about the file, so the file is rebuilt next to the old one
//! from bytes that are known to be signed.

use std::collections::{HashMap, HashSet};
use std::io::{BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use selvedge_log::hash::RunningHash;
use selvedge_model::ThreadId;
use selvedge_store::{Error, Result};

use crate::core::{Core, Durability, Pending, PendingThread, Phase, io_error, lock};
use crate::disk::OpenMode;
use crate::manifest::mark_shown;
use crate::redo::{self, RedoOutline, RedoRow, RedoRows};
use crate::rows;
use crate::wal::WalMover;

/// How long bytes wait for more before they are synced.
const WAIT: Duration = Duration::from_millis(300);
/// The number of bytes per thread that are synced without waiting for more, and its maximum over all threads.
const ENOUGH_BYTES: u64 = 256 << 10;
const ENOUGH_BYTES_MAX: u64 = 4 << 20;
/// How many transcripts are synced before their redo is freed and the database's log is checked.
const SYNCED_AT_ONCE: usize = 1_024;
/// The number of transcripts for which another thread is started, and the maximum number of threads.
const PER_WORKER: usize = 64;
const WORKERS_MAX: usize = 8;
/// How often the idle worker checks whether its store still exists.
const IDLE_WAIT: Duration = Duration::from_secs(5);

/// Starts the worker of a store. It holds no strong reference, so it ends after the store is dropped.
pub(crate) fn start(core: &Arc<Core>) -> std::io::Result<thread::JoinHandle<()>> {
    let core = Arc::downgrade(core);
    thread::Builder::new().name("selvedge-sync".to_owned()).spawn(move || work(&core))
}

fn work(core: &Weak<Core>) {
    let mut mover = WalMover::default();
    while let Some(core) = core.upgrade() {
        let pending = lock(&core.pending);
        let idle = |pending: &mut Pending| pending.threads.is_empty() && pending.phase == Phase::Open;
        let waited = core.pending_changed.wait_timeout_while(pending, IDLE_WAIT, idle);
        let (pending, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
        if timed_out.timed_out() {
            drop(pending);
            rest(&core, &mut mover);
            continue;
        }
        let few = |pending: &mut Pending| pending.bytes < enough(pending) && pending.phase == Phase::Open;
        let waited = core.pending_changed.wait_timeout_while(pending, WAIT, few);
        let (phase, threads) = {
            let pending = waited.unwrap_or_else(PoisonError::into_inner).0;
            (pending.phase, pending.threads.len())
        };
        if phase != Phase::Open {
            return;
        }
        // If the log could not be moved, it is moved next time, or by the commit that finds it very long.
        _ = mover.work(&core, threads);
        // What could not be synced stays pending and is retried; meanwhile its redo keeps it safe.
        _ = core.sync_pending_and(|| _ = mover.work(&core, threads));
    }
}

/// Cleans up while no commits arrive. What fails is retried next time, or when the store is opened next.
pub(crate) fn rest(core: &Core, mover: &mut WalMover) {
    _ = core.rest_spares();
    _ = mover.work(core, 0);
}

/// The number of bytes that are synced without waiting for more.
fn enough(pending: &Pending) -> u64 {
    ENOUGH_BYTES.saturating_mul(pending.threads.len().max(1) as u64).min(ENOUGH_BYTES_MAX)
}

impl Core {
    /// Records that a transcript has unsynced bytes. The worker is woken only if it has to act.
    pub(crate) fn await_sync(&self, thread: &ThreadId, new: PendingThread, bytes: u64) {
        let mut pending = lock(&self.pending);
        let was_empty = pending.threads.is_empty();
        let were_few = pending.bytes < enough(&pending);
        let entry = pending.threads.entry(thread.clone()).or_default();
        entry.id = new.id;
        entry.redo.extend(new.redo);
        entry.is_new |= new.is_new;
        entry.manifest = new.manifest.or(entry.manifest.take());
        pending.bytes += bytes;
        if was_empty || (were_few && pending.bytes >= enough(&pending)) {
            self.pending_changed.notify_one();
        }
    }

    /// Makes everything that is pending durable in its transcript; its redo is free from then on.
    pub(crate) fn sync_pending(&self) -> Result<()> {
        self.sync_pending_and(|| {})
    }

    /// The same, calling `between` after each part if there is much to sync.
    fn sync_pending_and(&self, mut between: impl FnMut()) -> Result<()> {
        let threads = {
            let mut pending = lock(&self.pending);
            pending.bytes = 0;
            std::mem::take(&mut pending.threads)
        };
        let undrained = self.undrained(&threads);
        let mut failed = undrained.as_ref().err().map(|error| error.to_string());
        let mut left = threads.into_iter().peekable();
        while left.peek().is_some() {
            let some: Vec<_> = left.by_ref().take(SYNCED_AT_ONCE).collect();
            let (done, why) = self.sync_some(some, undrained.as_ref().ok());
            failed = why.or(failed);
            if let Err(error) = self.free_redo(&done) {
                for (thread, entry) in left {
                    self.await_sync(&thread, entry, 0);
                }
                return Err(error);
            }
            if left.peek().is_some() {
                between();
            }
        }
        failed.map_or(Ok(()), |why| Err(Error::Unusable { what: "a transcript".to_owned(), why, hint: None }))
    }

    /// Frees the redo of durable transcripts, once the names of new ones are durable too.
    fn free_redo(&self, done: &[PendingThread]) -> Result<()> {
        if done.iter().any(|entry| entry.is_new) {
            let root = self.layout.root();
            self.disk.sync_folder(root).map_err(io_error("sync", root))?;
        }
        self.settle_rows(done)
    }

    /// Makes some transcripts durable; returns those, and why another one failed. What is not durable stays pending.
    ///
    /// Many are synced in parallel: the kernel combines concurrent syncs into one journal entry and one flush of the disk.
    fn sync_some(
        &self,
        threads: Vec<(ThreadId, PendingThread)>,
        undrained: Option<&HashSet<i64>>,
    ) -> (Vec<PendingThread>, Option<String>) {
        let workers = (threads.len() / PER_WORKER).clamp(1, WORKERS_MAX);
        let queue = Mutex::new(threads.into_iter());
        let next = || lock(&queue).next();
        let found = Mutex::new((Vec::new(), None));
        let work = || {
            while let Some((thread, entry)) = next() {
                let result = match undrained {
                    // What is drained now is synced next time, together with what was pending.
                    Some(undrained) if undrained.contains(&entry.id) => self.drain_thread(&thread).map(|()| false),
                    Some(_) => self.sync_thread(&thread, &entry).map(|()| true),
                    None => Ok(false),
                };
                match result {
                    Ok(true) => lock(&found).0.push(entry),
                    Ok(false) => self.await_sync(&thread, entry, 0),
                    Err(error) => {
                        lock(&found).1 = Some(error.to_string());
                        self.await_sync(&thread, entry, 0);
                    }
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..workers {
                // If no thread can be started, this one does all the work.
                _ = thread::Builder::new().name("selvedge-sync".to_owned()).spawn_scoped(scope, work);
            }
            work();
        });
        found.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps redo rows whose bytes are durable in their transcripts for reuse, and deletes excess ones.
    fn settle_rows(&self, done: &[PendingThread]) -> Result<()> {
        let mut too_many: Vec<_> = done.iter().flat_map(|entry| entry.redo.iter().copied()).collect();
        {
            let mut spares = lock(&self.spares);
            too_many.retain(|row| !spares.keep(*row));
        }
        let shown: Vec<_> = done.iter().filter_map(|entry| Some((entry.id, entry.manifest.as_ref()?))).collect();
        if too_many.is_empty() && shown.is_empty() {
            return Ok(());
        }
        self.write(Durability::Lazy, |connection| {
            redo::delete(connection, &too_many)?;
            shown.iter().try_for_each(|(id, manifest)| mark_shown(connection, *id, manifest))
        })
    }

    /// Deletes the spare rows.
    pub(crate) fn drop_spares(&self) -> Result<()> {
        let spares = lock(&self.spares).take_all();
        if spares.is_empty() {
            return Ok(());
        }
        self.write(Durability::Lazy, |connection| redo::delete(connection, &spares))
    }

    /// Detaches the spare rows from their threads while no commits read_archive, and deletes excess ones.
    pub(crate) fn rest_spares(&self) -> Result<()> {
        let (kept, too_many) = lock(&self.spares).take_apart();
        if kept.iter().all(RedoRow::is_detached) && too_many.is_empty() {
            self.keep_spares(&kept);
            return Ok(());
        }
        let disowned = self.write(Durability::Lazy, |connection| {
            redo::delete(connection, &too_many)?;
            redo::disown(connection, &kept)
        })?;
        self.keep_spares(&disowned);
        Ok(())
    }

    fn keep_spares(&self, rows: &[RedoRow]) {
        let mut spares = lock(&self.spares);
        for row in rows {
            _ = spares.keep(*row);
        }
    }

    /// Threads that have older redo than ours which this process neither wrote nor found in the transcript: the process that committed it
    /// may have died, or failed, before the bytes were written.
    ///
    /// Opening the store drained all redo. So if no other process has written since, there is none to find.
    pub(crate) fn undrained(&self, threads: &HashMap<ThreadId, PendingThread>) -> Result<HashSet<i64>> {
        let opened = *lock(&self.opened);
        let now = lock(self.writer()?).exclusive(&self.layout, |writer| writer.data_version(&self.layout))?;
        if opened == Some(now) {
            return Ok(HashSet::new());
        }
        self.look_for_undrained(threads)
    }

    fn look_for_undrained(&self, threads: &HashMap<ThreadId, PendingThread>) -> Result<HashSet<i64>> {
        let spares = lock(&self.spares).ids();
        let rows = self.read(|connection| RedoRows::read(connection))?;
        let outlines: HashMap<i64, &RedoOutline> = rows.threads.iter().map(|outline| (outline.id, outline)).collect();
        let is_undrained = |entry: &&PendingThread| {
            let ours: HashSet<i64> = entry.redo.iter().map(RedoRow::id).collect();
            let newest = entry.redo.iter().map(RedoRow::offset).max();
            let is_foreign =
                |row: &RedoRow| Some(row.offset()) < newest && !ours.contains(&row.id()) && !spares.contains(&row.id());
            outlines.get(&entry.id).is_some_and(|outline| outline.rows.iter().any(is_foreign))
        };
        Ok(threads.values().filter(is_undrained).map(|entry| entry.id).collect())
    }

    /// Makes one transcript durable.
    fn sync_thread(&self, thread: &ThreadId, entry: &PendingThread) -> Result<()> {
        let path = self.layout.transcript(thread);
        let synced = match self.disk.open(&path, OpenMode::Write) {
            Ok(file) => file.sync(),
            // A thread that was deleted meanwhile has no redo left either.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && self.is_gone(thread)? => return Ok(()),
            Err(error) => return Err(io_error("open", &path)(error)),
        };
        if synced.is_err() {
            self.rebuild(thread)?;
        }
        if entry.is_new || entry.manifest.is_some() {
            let folder = self.layout.thread(thread);
            self.disk.sync_folder(&folder).map_err(io_error("sync", &folder))?;
        }
        Ok(())
    }

    fn is_gone(&self, thread: &ThreadId) -> Result<bool> {
        self.read(|connection| Ok(rows::find(connection, thread)?.is_none()))
    }

    /// Writes a transcript again next to the old one, if its readable bytes match its head, and renames it over the old one.
    fn rebuild(&self, thread: &ThreadId) -> Result<()> {
        let mut writer = lock(self.writer()?);
        writer.exclusive(&self.layout, |_| {
            let path = self.layout.transcript(thread);
            let (head, overlay) = self.open_log(thread)?.committed();
            let beside = path.with_extension("rebuild");
            self.disk.remove(&beside).map_err(io_error("remove", &beside))?;
            let target = self.disk.open(&beside, OpenMode::CreateNew).map_err(io_error("create", &beside))?;
            let mut reader = BufReader::with_capacity(1 << 16, overlay);
            let mut hash = RunningHash::new();
            let mut buffer = vec![0; 1 << 16];
            let mut done = 0;
            loop {
                let read = reader.read(&mut buffer).map_err(io_error("read", &path))?;
                if read == 0 {
                    break;
                }
                hash.update(&buffer[..read]);
                target.write_at(&buffer[..read], done).map_err(io_error("write", &beside))?;
                done += read as u64;
            }
            if hash.digest() != head.hash {
                return Err(Error::Integrity {
                    what: format!("the log of `{thread}` could not be synced"),
                    why: "its readable bytes are not what was signed".to_owned(),
                    hint: Some(format!("`selvedge verify {thread}` shows which versions are still proven")),
                });
            }
            target.sync().map_err(io_error("sync", &beside))?;
            self.disk.rename(&beside, &path).map_err(io_error("replace", &path))?;
            let folder = self.layout.thread(thread);
            self.disk.sync_folder(&folder).map_err(io_error("sync", &folder))
        })
    }
}

#[cfg(test)]
mod tests;
