//! A file of JSON lines that only grows: read, healed, appended to, and rewritten without some lines.

use std::path::{Path, PathBuf};

use selvedge_store::Result;
use serde::Serialize;

use crate::core::io_error;
use crate::disk::{self, Disk, DiskFile, OpenMode};
use crate::rows::bad_row;

/// How many bytes are read at once.
const CHUNK_BYTES: usize = 1 << 16;

/// An open file of lines; whole lines only.
pub(crate) struct Jsonl<'d> {
    disk: &'d dyn Disk,
    path: PathBuf,
    file: Box<dyn DiskFile>,
    /// The end of the last whole line.
    length: u64,
}

impl<'d> Jsonl<'d> {
    /// The length of a file, without opening it; 0 if there is none.
    pub(crate) fn length_of(path: &Path) -> Result<u64> {
        match std::fs::symlink_metadata(path) {
            Ok(found) => Ok(found.len()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(io_error("check", path)(error)),
        }
    }

    /// Opens a file to read its whole lines.
    pub(crate) fn open(disk: &'d dyn Disk, path: PathBuf) -> Result<Self> {
        let file = disk.open(&path, OpenMode::Read).map_err(io_error("open", &path))?;
        Self { disk, path, file, length: 0 }.measured()
    }

    /// Opens a file to append to it; it is created if it does not exist, and a torn last line is cut off.
    pub(crate) fn create(disk: &'d dyn Disk, path: PathBuf) -> Result<Self> {
        let is_new = !crate::layout::is_there(&path)?;
        let file = disk.open(&path, OpenMode::Create).map_err(io_error("open", &path))?;
        if is_new {
            let folder = path.parent().unwrap_or(Path::new("."));
            disk.sync_folder(folder).map_err(io_error("sync", folder))?;
        }
        let found = Self { disk, path, file, length: 0 }.measured()?;
        if found.file.length().map_err(io_error("read", &found.path))? > found.length {
            found.file.truncate(found.length).map_err(io_error("shorten", &found.path))?;
        }
        Ok(found)
    }

    /// Finds the end of the last whole line, from the end.
    fn measured(mut self) -> Result<Self> {
        let mut end = self.file.length().map_err(io_error("read", &self.path))?;
        while end > 0 {
            let begin = end.saturating_sub(CHUNK_BYTES as u64);
            let chunk = self.bytes(begin, usize::try_from(end - begin).unwrap_or(0))?;
            if let Some(last) = chunk.iter().rposition(|byte| *byte == b'\n') {
                end = begin + last as u64 + 1;
                break;
            }
            end = begin;
        }
        self.length = end;
        Ok(self)
    }

    fn bytes(&self, from: u64, count: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        let mut done = 0;
        while done < count {
            match self.file.read_at(&mut bytes[done..], from + done as u64).map_err(io_error("read", &self.path))? {
                0 => break,
                read => done += read,
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }

    /// The end of the last whole line.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Passes every whole line from a byte on to `each`, without its end.
    pub(crate) fn each_from(&self, from: u64, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        let mut at = from;
        let mut pending: Vec<u8> = Vec::new();
        while at < self.length {
            let count = usize::try_from(self.length - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            let chunk = self.bytes(at, count)?;
            if chunk.is_empty() {
                break;
            }
            at += chunk.len() as u64;
            let mut rest = chunk.as_slice();
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                pending.extend_from_slice(&rest[..end]);
                each(&pending);
                pending.clear();
                rest = &rest[end + 1..];
            }
            pending.extend_from_slice(rest);
        }
        Ok(())
    }

    /// The first line, without its end; none if the file is empty.
    pub(crate) fn first_line(&self) -> Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let mut at = 0;
        while at < self.length {
            let chunk = self.bytes(at, usize::try_from(self.length - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES))?;
            if let Some(end) = chunk.iter().position(|byte| *byte == b'\n') {
                line.extend_from_slice(&chunk[..end]);
                return Ok(Some(line));
            }
            if chunk.is_empty() {
                break;
            }
            at += chunk.len() as u64;
            line.extend(chunk);
        }
        Ok(None)
    }

    /// Appends lines. On return they are durable; after a crash a first part of them may be there, the last line torn.
    pub(crate) fn append<T: Serialize>(&mut self, lines: &[T]) -> Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut bytes, line).map_err(bad_row)?;
            bytes.push(b'\n');
        }
        self.file.write_at(&bytes, self.length).map_err(io_error("write", &self.path))?;
        self.file.sync().map_err(io_error("sync", &self.path))?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Rewrites the file with the lines for which this holds, if any line goes. After a crash the file is as before or as after.
    pub(crate) fn retain(self, stays: &dyn Fn(&[u8]) -> bool) -> Result<Self> {
        let mut kept = Vec::new();
        let mut is_changed = false;
        self.each_from(0, &mut |line| {
            if stays(line) {
                kept.extend_from_slice(line);
                kept.push(b'\n');
            } else {
                is_changed = true;
            }
        })?;
        if !is_changed {
            return Ok(self);
        }
        disk::replace(self.disk, &self.path, &kept).map_err(io_error("write", &self.path))?;
        Self::create(self.disk, self.path)
    }
}
