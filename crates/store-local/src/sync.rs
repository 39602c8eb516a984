//! Syncing in the background: transcripts are made durable, then their redo is deleted.
//!
//! Until then a power cut costs nothing: the redo is durable since the commit and is drained again. Only rows whose
//! bytes were in the transcript before its sync began are deleted. A sync that failed proves nothing about the file, so
//! the file is rebuilt beside the old one from what is known to be signed.

use std::collections::{HashMap, HashSet};
use std::io::{BufReader, Read};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use rusqlite::params;
use selvedge_log::hash::RunningHash;
use selvedge_model::ThreadId;
use selvedge_store::{Error, Result};

use crate::core::{Core, Durability, Pending, PendingThread, Phase, io_error, lock};
use crate::disk::How;
use crate::manifest::mark_shown;
use crate::rows;
use crate::schema::database;

/// How long bytes wait for company before they are synced.
const WAIT: Duration = Duration::from_millis(300);
/// How many bytes per thread make it worth not waiting, and how many at most.
const ENOUGH_BYTES: u64 = 256 << 10;
const ENOUGH_BYTES_MAX: u64 = 8 << 20;
/// How often the worker looks whether its store is still there.
const LOOK_UP: Duration = Duration::from_secs(5);

/// Starts the worker of a store. It holds no strong reference, so a store that is dropped takes it along.
pub(crate) fn start(core: &Arc<Core>) -> std::io::Result<thread::JoinHandle<()>> {
    let core = Arc::downgrade(core);
    thread::Builder::new().name("selvedge-sync".to_owned()).spawn(move || work(&core))
}

fn work(core: &Weak<Core>) {
    while let Some(core) = core.upgrade() {
        let pending = lock(&core.pending);
        let idle = |pending: &mut Pending| pending.threads.is_empty() && pending.phase == Phase::Open;
        let waited = core.pending_changed.wait_timeout_while(pending, LOOK_UP, idle);
        let (pending, timed_out) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        if timed_out.timed_out() {
            continue;
        }
        let few = |pending: &mut Pending| pending.bytes < enough(pending) && pending.phase == Phase::Open;
        let waited = core.pending_changed.wait_timeout_while(pending, WAIT, few);
        let phase = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0.phase;
        if phase != Phase::Open {
            return;
        }
        // What could not be synced stays pending and is tried again; its redo keeps it safe meanwhile.
        _ = core.sync_pending();
    }
}

/// How many bytes make it worth not waiting for more.
fn enough(pending: &Pending) -> u64 {
    ENOUGH_BYTES.saturating_mul(pending.threads.len().max(1) as u64).min(ENOUGH_BYTES_MAX)
}

/// Numbers as runs without a gap.
fn ranges(mut numbers: Vec<i64>) -> Vec<(i64, i64)> {
    numbers.sort_unstable();
    numbers.dedup();
    let mut runs: Vec<(i64, i64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    runs
}

impl Core {
    /// Notes that a transcript has bytes that are not synced yet. The worker is woken only when that is news to it.
    pub(crate) fn await_sync(&self, thread: &ThreadId, new: PendingThread, bytes: u64) {
        let mut pending = lock(&self.pending);
        let (was_empty, were_few) = (pending.threads.is_empty(), pending.bytes < enough(&pending));
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

    /// Makes everything that is pending durable in its transcript and deletes its redo.
    pub(crate) fn sync_pending(&self) -> Result<()> {
        let threads = {
            let mut pending = lock(&self.pending);
            pending.bytes = 0;
            std::mem::take(&mut pending.threads)
        };
        let undrained = self.undrained(&threads);
        let mut done = Vec::new();
        let mut failed = undrained.as_ref().err().map(|error| error.to_string());
        for (thread, entry) in threads {
            let result = match &undrained {
                // What is drained now is synced next time, together with what was pending.
                Ok(undrained) if undrained.contains(&entry.id) => self.drain_thread(&thread).map(|()| false),
                Ok(_) => self.sync_thread(&thread, &entry).map(|()| true),
                Err(_) => Ok(false),
            };
            failed = result.as_ref().err().map(ToString::to_string).or(failed);
            match result {
                Ok(true) => done.push(entry),
                _ => self.await_sync(&thread, entry, 0),
            }
        }
        if done.iter().any(|entry| entry.is_new) {
            let root = self.layout.root();
            self.disk.sync_folder(root).map_err(io_error("sync", root))?;
        }
        if !done.is_empty() {
            self.write(Durability::Lazy, |connection| {
                for (first, last) in ranges(done.iter().flat_map(|entry| entry.redo.iter().copied()).collect()) {
                    rows::execute(connection, "DELETE FROM redo WHERE id BETWEEN ? AND ?", params![first, last])?;
                }
                for entry in &done {
                    if let Some(shown) = &entry.manifest {
                        mark_shown(connection, entry.id, shown)?;
                    }
                }
                Ok(())
            })?;
        }
        failed.map_or(Ok(()), |why| Err(Error::Unusable { what: "a transcript".to_owned(), why, hint: None }))
    }

    /// Threads that have an older redo row than ours which this process neither wrote nor found in the transcript: whoever
    /// committed it may have died, or failed, before its bytes were written.
    fn undrained(&self, threads: &HashMap<ThreadId, PendingThread>) -> Result<HashSet<i64>> {
        let ours: HashMap<i64, HashSet<i64>> =
            threads.values().map(|entry| (entry.id, entry.redo.iter().copied().collect())).collect();
        let newest = threads.values().flat_map(|entry| entry.redo.iter().copied()).max().unwrap_or(0);
        self.read(|connection| {
            let mut statement =
                connection.prepare_cached("SELECT id, thread FROM redo WHERE id <= ?").map_err(database)?;
            let mut found = statement.query([newest]).map_err(database)?;
            let mut undrained = HashSet::new();
            while let Some(row) = found.next().map_err(database)? {
                let (id, thread): (i64, i64) = (row.get(0).map_err(database)?, row.get(1).map_err(database)?);
                if ours.get(&thread).is_some_and(|ours| !ours.contains(&id)) {
                    undrained.insert(thread);
                }
            }
            Ok(undrained)
        })
    }

    /// Makes one transcript durable.
    fn sync_thread(&self, thread: &ThreadId, entry: &PendingThread) -> Result<()> {
        let path = self.layout.transcript(thread);
        let synced = match self.disk.open(&path, How::Write) {
            Ok(file) => file.sync(),
            // A thread that was deleted meanwhile has no redo left either.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && self.is_gone(thread)? => return Ok(()),
            Err(error) => return Err(io_error("open", &path)(error)),
        };
        if synced.is_err() {
            self.rebuild(thread)?;
        }
        if entry.is_new {
            let folder = self.layout.thread(thread);
            self.disk.sync_folder(&folder).map_err(io_error("sync", &folder))?;
        }
        Ok(())
    }

    fn is_gone(&self, thread: &ThreadId) -> Result<bool> {
        self.read(|connection| Ok(rows::find(connection, thread)?.is_none()))
    }

    /// Writes a transcript anew beside the old one, if what can be read of it is what its head says, and puts it in place.
    fn rebuild(&self, thread: &ThreadId) -> Result<()> {
        let mut gate = lock(self.gate()?);
        gate.alone(&self.layout, |_| {
            let path = self.layout.transcript(thread);
            let (head, overlay) = self.shot(thread)?.committed();
            let beside = path.with_extension("rebuild");
            self.disk.remove(&beside).map_err(io_error("remove", &beside))?;
            let target = self.disk.open(&beside, How::MakeNew).map_err(io_error("create", &beside))?;
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
                    why: "what can be read of it is not what was signed".to_owned(),
                    hint: Some(format!("`selvedge verify {thread}` says what is still proven")),
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
mod tests {
    use super::ranges;

    #[test]
    fn numbers_become_runs_and_nothing_between_them() {
        assert_eq!(ranges(vec![5, 3, 4, 9, 1, 4]), [(1, 1), (3, 5), (9, 9)]);
        assert_eq!(ranges(Vec::new()), []);
    }
}
