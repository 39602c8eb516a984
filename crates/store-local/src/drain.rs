//! Draining: writing what was committed into the transcripts.
//!
//! Redo says which bytes stand where; writing them any number of times, by any process, gives the same file. Nothing is
//! synced here: the redo stays until [`crate::sync`] has made the files durable.

use std::io;

use rusqlite::Connection;
use selvedge_model::ThreadId;
use selvedge_store::Result;

use crate::core::{Core, Durability, Ended, Gate, PendingThread, io_error, lock};
use crate::disk::{Disk, DiskFile, How};
use crate::layout::{Layout, check_folder};
use crate::overlay::read_fully;
use crate::redo::{self, Redo, Rows};
use crate::rows;

/// What draining at the opening of a store found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Drained {
    /// Threads whose files lacked something.
    pub(crate) threads: u64,
    /// How many bytes they lacked.
    pub(crate) bytes: u64,
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
            let rows = self.read(Rows::read)?;
            let mut drained = Drained::default();
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
                let delete = |connection: &Connection| redo::delete(connection, &rows.stale);
                if let Ended::Known(Err(error)) = gate.transaction(&self.layout, Durability::Lazy, delete) {
                    notices.push(format!("redo that nobody needs could not be deleted: {error}"));
                }
            }
            Ok(drained)
        })
    }

    /// Writes redo where the file differs from it; gives how many bytes the file lacked.
    fn drain_redo(&self, thread: &ThreadId, id: i64, redo: &Redo) -> Result<u64> {
        let lacking = lacking(&self.layout, &*self.disk, thread, redo.from, &redo.bytes)?;
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

/// How many bytes of a redo are not in the transcript, counted from the first that differs.
pub(crate) fn lacking(layout: &Layout, disk: &dyn Disk, thread: &ThreadId, from: u64, bytes: &[u8]) -> Result<u64> {
    let path = layout.transcript(thread);
    let file = match disk.open(&path, How::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(bytes.len() as u64),
        Err(error) => return Err(io_error("open", &path)(error)),
    };
    let mut there = vec![0; 1 << 16];
    let mut same = 0;
    for piece in bytes.chunks(there.len()) {
        let read = read_fully(file.as_ref(), &mut there[..piece.len()], from + same as u64);
        let read = read.map_err(io_error("read", &path))?;
        let alike = there[..read].iter().zip(piece).take_while(|(a, b)| a == b).count();
        same += alike;
        if alike < piece.len() {
            break;
        }
    }
    Ok((bytes.len() - same) as u64)
}
