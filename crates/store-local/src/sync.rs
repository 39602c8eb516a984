//! Syncing in the background: transcripts are made durable, then their redo is deleted.
//!
//! Until then a power cut costs nothing: the redo is durable since the commit and is drained again. Only rows whose
//! bytes were in the transcript before its sync began are deleted. A sync that failed proves nothing about the file, so
//! the file is rebuilt beside the old one from what is known to be signed.

use std::io::{BufReader, Read};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use rusqlite::params;
use selvedge_log::hash::RunningHash;
use selvedge_model::ThreadId;
use selvedge_store::{Error, Result};

use crate::core::{Core, Durability, PendingThread, Phase, io_error, lock};
use crate::disk::How;
use crate::drain::lacking;
use crate::manifest::mark_shown;
use crate::overlay::Redo;
use crate::rows;

/// How long bytes wait for company before they are synced.
const WAIT: Duration = Duration::from_millis(300);
/// How many bytes make it worth not waiting.
const ENOUGH_BYTES: u64 = 4 << 20;
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
        let idle = |pending: &mut crate::core::Pending| pending.threads.is_empty() && pending.phase == Phase::Open;
        let waited = core.pending_changed.wait_timeout_while(pending, LOOK_UP, idle);
        let (pending, timed_out) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        if timed_out.timed_out() {
            continue;
        }
        let few = |pending: &mut crate::core::Pending| pending.bytes < ENOUGH_BYTES && pending.phase == Phase::Open;
        let waited = core.pending_changed.wait_timeout_while(pending, WAIT, few);
        let phase = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0.phase;
        if phase != Phase::Open {
            return;
        }
        // What could not be synced stays pending and is tried again; its redo keeps it safe meanwhile.
        _ = core.sync_pending();
    }
}

impl Core {
    /// Notes that a transcript has bytes that are not synced yet.
    pub(crate) fn await_sync(&self, thread: &ThreadId, new: PendingThread, bytes: u64) {
        let mut pending = lock(&self.pending);
        let entry = pending.threads.entry(thread.clone()).or_default();
        entry.id = new.id;
        entry.redo = entry.redo.max(new.redo);
        entry.is_new |= new.is_new;
        entry.manifest = new.manifest.or(entry.manifest.take());
        pending.bytes += bytes;
        self.pending_changed.notify_one();
    }

    /// Makes everything that is pending durable in its transcript and deletes its redo.
    pub(crate) fn sync_pending(&self) -> Result<()> {
        let threads = {
            let mut pending = lock(&self.pending);
            pending.bytes = 0;
            std::mem::take(&mut pending.threads)
        };
        let mut done = Vec::new();
        let mut failed = None;
        for (thread, entry) in threads {
            match self.sync_thread(&thread, &entry) {
                Ok(newest) => done.push(PendingThread { redo: newest, ..entry }),
                Err(error) => {
                    self.await_sync(&thread, entry, 0);
                    failed = Some(error);
                }
            }
        }
        if done.iter().any(|entry| entry.is_new) {
            let root = self.layout.root();
            self.disk.sync_folder(root).map_err(io_error("sync", root))?;
        }
        if !done.is_empty() {
            self.write(Durability::Lazy, |connection| {
                for entry in &done {
                    let sql = "DELETE FROM redo WHERE thread = ? AND id <= ?";
                    rows::execute(connection, sql, params![entry.id, entry.redo])?;
                    if let Some(shown) = &entry.manifest {
                        mark_shown(connection, entry.id, shown)?;
                    }
                }
                Ok(())
            })?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Makes one transcript durable; gives the newest redo row whose bytes, and those of all before it, are in it.
    fn sync_thread(&self, thread: &ThreadId, entry: &PendingThread) -> Result<i64> {
        if self.is_gone(thread)? {
            return Ok(0);
        }
        let newest = self.ensure_drained(thread, entry.id)?;
        let path = self.layout.transcript(thread);
        let synced = match self.disk.open(&path, How::Write) {
            Ok(file) => file.sync(),
            // A thread that was deleted meanwhile has no redo left either.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && self.is_gone(thread)? => return Ok(0),
            Err(error) => return Err(io_error("open", &path)(error)),
        };
        if synced.is_err() {
            self.rebuild(thread)?;
        }
        if entry.is_new {
            let folder = self.layout.thread(thread);
            self.disk.sync_folder(&folder).map_err(io_error("sync", &folder))?;
        }
        Ok(newest)
    }

    /// Compares the redo with the transcript, row by row, and drains what is not in it: whoever committed a row may have
    /// died, or failed, before its bytes were written.
    fn ensure_drained(&self, thread: &ThreadId, id: i64) -> Result<i64> {
        let (mut newest, mut is_drained) = (0, true);
        self.read(|connection| {
            Redo::each(connection, id, |row, from, bytes| {
                newest = newest.max(row);
                is_drained &= lacking(&self.layout, &*self.disk, thread, from, bytes)? == 0;
                Ok(())
            })
        })?;
        if !is_drained {
            self.drain_thread(thread)?;
        }
        Ok(newest)
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
