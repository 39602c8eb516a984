//! Draining: writing what was committed into the transcripts.
//!
//! Redo says which bytes stand where; writing them any number of times, by any process, gives the same file. Nothing is
//! synced here: the redo stays until [`crate::sync`] has made the files durable.

use std::fs;
use std::io::{self, BufReader};

use selvedge_log::Trust;
use selvedge_log::scan::{Scanner, Signatures, examine};
use selvedge_model::{OwnerId, ThreadId};
use selvedge_store::{Error, Result};

use crate::core::{Core, Durability, Ended, Gate, PendingThread, io_error, lock};
use crate::db::Db;
use crate::disk::{Disk, DiskFile, How};
use crate::layout::{Layout, check_folder};
use crate::overlay::{Overlay, read_fully};
use crate::redo::{self, Redo, Rows};
use crate::rows;

/// What draining at the opening of a store found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Drained {
    /// Threads whose files lacked something.
    pub(crate) threads: u64,
    /// How many bytes they lacked.
    pub(crate) bytes: u64,
    /// Whether a process died before it wrote them; otherwise one that lives was about to.
    pub(crate) is_crash: bool,
}

impl Core {
    /// Writes `bytes` into a transcript at `offset`, making folder and file if the log is new.
    pub(crate) fn write_transcript(&self, thread: &ThreadId, offset: u64, bytes: &[u8]) -> Result<()> {
        match self.handles.get(thread) {
            Some((open, length)) if length >= offset => {
                open.file.write_at(bytes, offset).map_err(|error| io_error("write", &open.path)(error))
            }
            _ => {
                let file = write_transcript(&self.layout, &*self.disk, thread, offset, bytes)?;
                self.handles.keep(thread, &self.layout.transcript(thread), file);
                Ok(())
            }
        }
    }

    /// Drains the redo of one thread.
    pub(crate) fn drain_thread(&self, thread: &ThreadId) -> Result<()> {
        let mut gate = lock(self.gate()?);
        gate.alone(&self.layout, |_| {
            let redo = self.read(|connection| {
                let row = rows::existing(connection, thread)?;
                Ok(Redo::read(connection, row.id, row.head.bytes)?.map(|redo| (row.id, redo)))
            })?;
            match redo {
                Some((id, redo)) => self.drain_redo(thread, id, &redo).map(|_| ()),
                None => Ok(()),
            }
        })
    }

    /// Drains all redo there is, as the first thing after a store is opened; says what was missing, and what could not be
    /// written. A thread that can't be drained keeps its redo and stops nobody else.
    pub(crate) fn drain_all(&self, gate: &mut Gate, notices: &mut Vec<String>) -> Result<Drained> {
        gate.alone(&self.layout, |gate| {
            let others = gate.others(&self.layout)?;
            // Asked before anything is compared: a process that closes in between has written all that it committed.
            let mut drained = Drained { is_crash: self.is_after_crash()?, ..Drained::default() };
            let rows = self.read(|connection| Rows::read(connection))?;
            let mut all = true;
            for outline in &rows.threads {
                let id = outline.id;
                let thread = self.read(|connection| rows::name(connection, id))?;
                let Some(redo) = self.read(|connection| Redo::of(connection, outline))? else { continue };
                match self.drain_redo(&thread, id, &redo) {
                    Ok(0) => {}
                    Ok(bytes) => {
                        drained.threads += 1;
                        drained.bytes += bytes;
                    }
                    Err(error) => {
                        all = false;
                        notices.push(format!("thread `{thread}` could not be drained: {error}"));
                    }
                }
            }
            *lock(&self.opened) = Some(others).filter(|_| all);
            if !rows.stale.is_empty() {
                // They are the spares of a process that died, or of one that lives and makes new ones.
                let delete = |connection: &Db| redo::delete(connection, &rows.stale);
                if let Ended::Known(Err(error)) = gate.transaction(&self.layout, Durability::Lazy, delete) {
                    notices.push(format!("redo that nobody needs could not be deleted: {error}"));
                }
            }
            Ok(drained)
        })
    }

    /// Whether a process that had the store open to write died, and no other one lives that what is missing could be of.
    fn is_after_crash(&self) -> Result<bool> {
        let Ok(entries) = fs::read_dir(self.layout.owners()) else { return Ok(false) };
        let mut has_died = false;
        for entry in entries.flatten() {
            let Ok(owner) = OwnerId::new(entry.file_name().to_string_lossy()) else { continue };
            // What is no plain file was not put there by an owner.
            match self.is_alive(&owner) {
                Ok(true) if owner != self.owner => return Ok(false),
                Ok(false) => has_died = true,
                _ => {}
            }
        }
        Ok(has_died)
    }

    /// Writes redo where the file differs from it; gives how many bytes the file lacked.
    fn drain_redo(&self, thread: &ThreadId, id: i64, redo: &Redo) -> Result<u64> {
        let Lacking { bytes: lacking, overwrites } = lacking(&self.layout, &*self.disk, thread, redo)?;
        if overwrites {
            check_redo(&self.layout, &*self.disk, &self.trust, thread, redo)?;
        }
        if lacking > 0 {
            self.write_transcript(thread, redo.from, &redo.bytes)?;
        }
        let pending = PendingThread { id, redo: redo.rows.clone(), is_new: redo.from == 0, manifest: None };
        self.await_sync(thread, pending, redo.bytes.len() as u64);
        Ok(lacking)
    }
}

/// Writes `bytes` into a transcript at `offset`, making folder and file if the log is new; gives the file, unsynced.
pub(crate) fn write_transcript(
    layout: &Layout,
    disk: &dyn Disk,
    thread: &ThreadId,
    offset: u64,
    bytes: &[u8],
) -> Result<Box<dyn DiskFile>> {
    let path = layout.transcript(thread);
    let folder = layout.thread(thread);
    check_folder(&folder)?;
    let file = match disk.open(&path, How::Write) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound && offset == 0 => {
            disk.make_folder(&folder).map_err(io_error("create", &folder))?;
            disk.open(&path, How::Make).map_err(io_error("create", &path))?
        }
        Err(error) => return Err(io_error("open", &path)(error)),
    };
    let length = file.length().map_err(io_error("look at", &path))?;
    if length < offset {
        let why = io::Error::new(io::ErrorKind::UnexpectedEof, format!("it has {length} bytes and must have {offset}"));
        return Err(io_error("go on with", &path)(why));
    }
    file.write_at(bytes, offset).map_err(io_error("write", &path))?;
    Ok(file)
}

/// What of a redo is not in its transcript.
pub(crate) struct Lacking {
    /// How many bytes, counted from the first that differs.
    pub(crate) bytes: u64,
    /// Whether other bytes stand in their place.
    pub(crate) overwrites: bool,
}

/// Refuses redo that does not continue a transcript as it was signed, before it is written over what stands there: a write that was cut
/// leaves other bytes, and so does a row that was changed in the database.
pub(crate) fn check_redo(
    layout: &Layout,
    disk: &dyn Disk,
    trust: &Trust,
    thread: &ThreadId,
    redo: &Redo,
) -> Result<()> {
    let path = layout.transcript(thread);
    let file = disk.open(&path, How::Read).map_err(io_error("open", &path))?;
    let reader = BufReader::with_capacity(1 << 16, Overlay::with(file, redo));
    let scanner = Scanner::new(thread, trust, Signatures::Last);
    let examined = examine(reader, scanner, |_| {}).map_err(io_error("read", &path))?;
    match examined.head().is_some_and(|head| head.bytes == redo.end()) {
        true => Ok(()),
        false => Err(Error::Integrity {
            what: format!("what `registry.db` has of the newest bytes of `{thread}`"),
            why: "they are not what was signed; the transcript is left as it is".to_owned(),
            hint: Some(format!("`selvedge verify {thread}` says what the log itself holds")),
        }),
    }
}

/// What of a redo is not in its transcript.
pub(crate) fn lacking(layout: &Layout, disk: &dyn Disk, thread: &ThreadId, redo: &Redo) -> Result<Lacking> {
    let from = redo.from;
    let bytes = &redo.bytes;
    let path = layout.transcript(thread);
    let file = match disk.open(&path, How::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Lacking { bytes: bytes.len() as u64, overwrites: false });
        }
        Err(error) => return Err(io_error("open", &path)(error)),
    };
    let mut there = vec![0; 1 << 16];
    let mut same = 0;
    let mut overwrites = false;
    for piece in bytes.chunks(there.len()) {
        let read = read_fully(file.as_ref(), &mut there[..piece.len()], from + same as u64);
        let read = read.map_err(io_error("read", &path))?;
        let alike = there[..read].iter().zip(piece).take_while(|(a, b)| a == b).count();
        same += alike;
        if alike < piece.len() {
            overwrites = alike < read;
            break;
        }
    }
    Ok(Lacking { bytes: (bytes.len() - same) as u64, overwrites })
}
