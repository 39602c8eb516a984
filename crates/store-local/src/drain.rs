//! Draining: writing committed bytes into the transcripts.
//!
//! Redo records which bytes belong at which offset; writing them any number of times, by any process, gives the same file. Nothing is
//! synced here: the redo stays until [`crate::sync`] has made the files durable.

use std::fs;
use std::io::{self, BufReader};

use selvedge_log::Trust;
use selvedge_log::scan::{Scanner, Signatures, examine};
use selvedge_model::{OwnerId, ThreadId};
use selvedge_store::{Error, Result};

use crate::core::{Core, DbWriter, Durability, PendingThread, TransactionEnd, io_error, lock};
use crate::db::Db;
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::layout::{Layout, check_folder};
use crate::overlay::{Overlay, read_fully};
use crate::redo::{self, Redo, RedoRows};
use crate::rows;

/// The result of draining when a store is opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Drained {
    /// Threads whose files lacked bytes.
    pub(crate) threads: u64,
    /// How many bytes they lacked.
    pub(crate) bytes: u64,
    /// Whether a process died before it wrote them; otherwise a live process was about to write them.
    pub(crate) is_crash: bool,
}

impl Core {
    /// Writes `bytes` into a transcript at `offset`, creating folder and file if the log is new.
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
        let mut writer = lock(self.writer()?);
        writer.exclusive(&self.layout, |_| {
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

    /// Drains all redo when a store is opened; returns what was missing, and adds notices about what could not be written. A thread that
    /// can't be drained keeps its redo and does not stop the others.
    pub(crate) fn drain_all(&self, writer: &mut DbWriter, notices: &mut Vec<String>) -> Result<Drained> {
        writer.exclusive(&self.layout, |writer| {
            let others = writer.data_version(&self.layout)?;
            // Checked before any file is compared: a process that closes in between has written everything that it committed.
            let mut drained = Drained { is_crash: self.is_after_crash()?, ..Drained::default() };
            let rows = self.read(|connection| RedoRows::read(connection))?;
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
                // They are spares of a process that died, or of a live one, which inserts new ones.
                let delete = |connection: &Db| redo::delete(connection, &rows.stale);
                if let TransactionEnd::Known(Err(error)) = writer.transaction(&self.layout, Durability::Lazy, delete) {
                    notices.push(format!("unused redo could not be deleted: {error}"));
                }
            }
            Ok(drained)
        })
    }

    /// Whether a process that had the store open for writing died, and no live process can be about to write the missing bytes.
    fn is_after_crash(&self) -> Result<bool> {
        let Ok(entries) = fs::read_dir(self.layout.owners()) else { return Ok(false) };
        let mut has_died = false;
        for entry in entries.flatten() {
            let Ok(owner) = OwnerId::new(entry.file_name().to_string_lossy()) else { continue };
            // Not a plain file, so no owner created it.
            match self.is_alive(&owner) {
                Ok(true) if owner != self.owner => return Ok(false),
                Ok(false) => has_died = true,
                _ => {}
            }
        }
        Ok(has_died)
    }

    /// Writes redo where the file differs from it; returns how many bytes the file lacked.
    fn drain_redo(&self, thread: &ThreadId, id: i64, redo: &Redo) -> Result<u64> {
        let MissingBytes { bytes: lacking, overwrites } = missing_bytes(&self.layout, &*self.disk, thread, redo)?;
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

/// Writes `bytes` into a transcript at `offset`, creating folder and file if the log is new; returns the file, unsynced.
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
    let file = match disk.open(&path, OpenMode::Write) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound && offset == 0 => {
            disk.make_folder(&folder).map_err(io_error("create", &folder))?;
            disk.open(&path, OpenMode::Create).map_err(io_error("create", &path))?
        }
        Err(error) => return Err(io_error("open", &path)(error)),
    };
    let length = file.length().map_err(io_error("get the length of", &path))?;
    if length < offset {
        let why = io::Error::new(io::ErrorKind::UnexpectedEof, format!("it has {length} bytes and must have {offset}"));
        return Err(io_error("append to", &path)(why));
    }
    file.write_at(bytes, offset).map_err(io_error("write", &path))?;
    Ok(file)
}

/// The bytes of a redo that are missing in its transcript.
pub(crate) struct MissingBytes {
    /// Their number, counted from the first that differs.
    pub(crate) bytes: u64,
    /// Whether the file has other bytes at that offset.
    pub(crate) overwrites: bool,
}

/// Refuses redo that does not continue a transcript with signed bytes, before it overwrites anything: the different bytes in the file may
/// be from an interrupted write, or the redo row may have been changed.
pub(crate) fn check_redo(
    layout: &Layout,
    disk: &dyn Disk,
    trust: &Trust,
    thread: &ThreadId,
    redo: &Redo,
) -> Result<()> {
    let path = layout.transcript(thread);
    let file = disk.open(&path, OpenMode::Read).map_err(io_error("open", &path))?;
    let reader = BufReader::with_capacity(1 << 16, Overlay::with(file, redo));
    let scanner = Scanner::new(thread, trust, Signatures::Last);
    let examined = examine(reader, scanner, |_| {}).map_err(io_error("read", &path))?;
    if examined.head().is_none_or(|head| head.bytes != redo.end()) {
        return Err(Error::Integrity {
            what: format!("the redo of `{thread}` in `registry.db`"),
            why: "its bytes are not what was signed; the transcript is left unchanged".to_owned(),
            hint: Some(format!("`selvedge verify {thread}` verifies the log itself")),
        });
    }
    Ok(())
}

/// Compares a redo with its transcript.
pub(crate) fn missing_bytes(layout: &Layout, disk: &dyn Disk, thread: &ThreadId, redo: &Redo) -> Result<MissingBytes> {
    let from = redo.from;
    let bytes = &redo.bytes;
    let path = layout.transcript(thread);
    let file = match disk.open(&path, OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(MissingBytes { bytes: bytes.len() as u64, overwrites: false });
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
    Ok(MissingBytes { bytes: (bytes.len() - same) as u64, overwrites })
}
