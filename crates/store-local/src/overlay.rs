//! A transcript as it is after its redo is drained: the file, with the redo applied.
//!
//! ```text
//! file   |-------------------------|~~~ may be missing or torn ~~~|  foreign bytes, if any
//! redo                             |------------------------------|
//!        0                         from                       head.bytes
//! ```

use std::io::{self, Read, Seek, SeekFrom};

use selvedge_log::Head;
use selvedge_model::ThreadId;
use selvedge_store::Result;

use crate::core::{Core, io_error};
use crate::disk::{DiskFile, OpenMode};
use crate::redo::Redo;
use crate::rows::{self, Row};

/// A transcript with its redo applied, up to `end`.
#[derive(Debug)]
pub(crate) struct Overlay {
    file: Option<Box<dyn DiskFile>>,
    redo: Redo,
    end: u64,
    at: u64,
}

/// One thread's log as of one moment.
#[derive(Debug)]
pub(crate) struct OpenLog {
    pub(crate) row: Row,
    pub(crate) overlay: Overlay,
    /// The length of the file, just before the database was read.
    pub(crate) file_bytes: u64,
    /// How many bytes the redo changes or adds.
    pub(crate) healed_bytes: u64,
}

impl Core {
    /// Reads file, head and redo of a thread as of one moment.
    ///
    /// The file's length is read first: bytes reach a file only after their commit, so bytes beyond the head that is read afterwards were
    /// not committed.
    pub(crate) fn open_log(&self, thread: &ThreadId) -> Result<OpenLog> {
        let path = self.layout.transcript(thread);
        crate::layout::check_folder(&self.layout.thread(thread))?;
        let length = |file: &Option<Box<dyn DiskFile>>| match file {
            Some(file) => file.length().map_err(io_error("get the length of", &path)),
            None => Ok(0),
        };
        let file = self.open_transcript(&path)?;
        let file_bytes = length(&file)?;
        let (row, redo) = self.read(|connection| {
            let row = rows::existing(connection, thread)?;
            let redo = Redo::read(connection, row.id, row.head.bytes)?;
            Ok((row, redo))
        })?;
        // Bytes of commits in the head may have reached the file since its length was read.
        let file = if file.is_some() { file } else { self.open_transcript(&path)? };
        let now = length(&file)?;
        let most = file_bytes.max(row.head.bytes);
        let redo = redo.filter(|redo| redo.from <= now).unwrap_or_default();
        let end = if redo.bytes.is_empty() { now.min(most) } else { most };
        let mut overlay = Overlay { file, redo, end, at: 0 };
        let healed_bytes = overlay.healed_bytes().map_err(io_error("read", &path))?;
        Ok(OpenLog { row, overlay, file_bytes, healed_bytes })
    }

    /// Opens the log of a thread as a reader may rely on it: refused if it continues, signed, after the head in the database.
    pub(crate) fn open_current_log(&self, thread: &ThreadId) -> Result<OpenLog> {
        let log = self.open_log(thread)?;
        if log.file_bytes > log.row.head.bytes {
            self.refuse_outdated_row(thread, &log.row)?;
        }
        Ok(log)
    }

    /// The transcript at a path, if there is one.
    pub(crate) fn open_transcript(&self, path: &std::path::Path) -> Result<Option<Box<dyn DiskFile>>> {
        match self.disk.open(path, OpenMode::Read) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error("open", path)(error)),
        }
    }
}

impl OpenLog {
    /// The committed bytes alone, and their head.
    pub(crate) fn committed(mut self) -> (Head, Overlay) {
        self.overlay.end = self.overlay.end.min(self.row.head.bytes);
        (self.row.head, self.overlay)
    }
}

impl Overlay {
    /// A whole file.
    pub(crate) fn of_file(file: Option<Box<dyn DiskFile>>) -> io::Result<Self> {
        let end = file.as_ref().map_or(Ok(0), |file| file.length())?;
        Ok(Self { file, redo: Redo::default(), end, at: 0 })
    }

    /// A file with redo applied, up to the end of the redo.
    pub(crate) fn with(file: Box<dyn DiskFile>, redo: &Redo) -> Self {
        let redo = Redo { from: redo.from, bytes: redo.bytes.clone(), rows: Vec::new() };
        Self { file: Some(file), end: redo.end(), redo, at: 0 }
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// How many bytes of the redo are not in the file.
    fn healed_bytes(&mut self) -> io::Result<u64> {
        let Some(file) = &self.file else { return Ok(self.redo.bytes.len() as u64) };
        let mut there = vec![0; self.redo.bytes.len()];
        let read = read_fully(file.as_ref(), &mut there, self.redo.from)?;
        there.truncate(read);
        let missing = self.redo.bytes.len() - read;
        let differing = there.iter().zip(&self.redo.bytes).filter(|(a, b)| a != b).count();
        Ok((missing + differing) as u64)
    }
}

/// Reads until the buffer is full or the file ends.
pub(crate) fn read_fully(file: &dyn DiskFile, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

impl Read for Overlay {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let wanted = buffer.len().min(left);
        let from = self.redo.from;
        let to = self.redo.end();
        let read = if self.at >= from && self.at < to {
            let start = (self.at - from) as usize;
            let read = wanted.min(self.redo.bytes.len() - start);
            buffer[..read].copy_from_slice(&self.redo.bytes[start..start + read]);
            read
        } else {
            let wanted = if self.at < from && from < to { wanted.min((from - self.at) as usize) } else { wanted };
            match &self.file {
                Some(file) => file.read_at(&mut buffer[..wanted], self.at)?,
                None => 0,
            }
        };
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Overlay {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.end.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}
