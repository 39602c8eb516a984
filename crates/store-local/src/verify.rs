//! What a verifier reads from this store: logs, documents and blobs, byte for byte.
//!
//! Head and redo are read in one transaction, and the file is judged up to that head: bytes that a crash left in the redo are applied and
//! not reported as damage, and bytes that other processes commit meanwhile are not foreign. A log without rows in the database has no head.

use std::fs;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use selvedge_log::scan::ScannedChangeset;
use selvedge_log::{Head, Trust};
use selvedge_model::{Digest, ThreadId};
use selvedge_store::archive::KEY_BYTES_MAX;
use selvedge_store::folded::Folded;
use selvedge_store::verify::{Document, StoredLog, StoredThread, Verification, Verify};
use selvedge_store::{Error, Result};

use crate::blobs::open_blob;
use crate::core::{Core, io_error};
use crate::disk::{self, OpenMode};
use crate::layout::check_folder;
use crate::manifest;
use crate::open::LocalStore;
use crate::overlay::{OpenLog, Overlay};
use crate::row_comparison;
use crate::rows;
use crate::sealed::{Seal, UNSEALED};

impl LocalStore {
    /// Verifies a log; see [`Verify::verify`].
    pub fn verify(&self, thread: &ThreadId, each: &mut dyn FnMut(&ScannedChangeset)) -> Result<Verification> {
        Verify::verify(self, thread, each)
    }
}

impl StoredThread for LocalStore {
    fn trust(&self) -> &Trust {
        &self.core.trust
    }

    fn location(&self, thread: &ThreadId) -> PathBuf {
        self.core.layout.thread(thread)
    }

    fn open_log(&self, thread: &ThreadId) -> Result<StoredLog> {
        self.core.look_at(thread)
    }

    fn document(&self, thread: &ThreadId, document: Document) -> Result<Option<Vec<u8>>> {
        let core = &self.core;
        match document {
            Document::Manifest => manifest::bytes(&core.layout, &*core.disk, thread),
            Document::Capabilities => core.capabilities(thread),
            Document::Snapshot => core.newest_text(thread),
        }
    }

    fn blobs(&self, thread: &ThreadId) -> Result<Vec<Digest>> {
        self.blobs(thread)
    }

    fn stored_blob(&self, thread: &ThreadId, blob: &Digest) -> io::Result<(u64, Box<dyn Read + Send>)> {
        open_blob(&self.core.layout, &*self.core.disk, thread, blob)
    }

    fn imported_keys(&self, thread: &ThreadId) -> Vec<(Digest, Vec<u8>)> {
        self.core.small_files(&self.core.layout.thread(thread).join("keys"), ".pem")
    }

    fn imported_statements(&self, thread: &ThreadId) -> Vec<(Digest, Vec<u8>)> {
        self.core.small_files(&self.core.layout.thread(thread).join("chain"), ".json")
    }

    fn differs(&self, thread: &ThreadId, head: Option<&Head>, folded: &Folded<'_>) -> Result<Option<String>> {
        self.core.differs(thread, head, folded)
    }
}

impl Verify for LocalStore {
    fn unindexed(&self) -> Result<Vec<ThreadId>> {
        self.core.unindexed()
    }

    fn is_unindexed(&self, thread: &ThreadId) -> Result<bool> {
        self.core.is_unindexed(thread)
    }

    fn is_imported(&self, thread: &ThreadId) -> bool {
        self.core.is_imported(thread)
    }
}

impl Core {
    fn look_at(&self, thread: &ThreadId) -> Result<StoredLog> {
        let is_broken =
            self.read(|db| Ok(rows::find_any(db, thread)?.is_some_and(|row| row.seal(db) == Seal::Broken)))?;
        let opened = if is_broken { Err(Error::NoThread(thread.to_string())) } else { self.open_log(thread) };
        match opened {
            Ok(OpenLog { row, overlay, file_bytes, healed_bytes }) => {
                let log = Box::new(BufReader::with_capacity(1 << 16, overlay));
                Ok(StoredLog { head: Some(row.head), log, file_bytes, healed_bytes })
            }
            Err(Error::NoThread(_)) if is_broken || self.is_unindexed(thread)? => {
                let path = self.layout.transcript(thread);
                let file = self.disk.open(&path, OpenMode::Read).map_err(io_error("open", &path))?;
                let file_bytes = file.length().map_err(io_error("get the length of", &path))?;
                let overlay = Overlay::of_file(Some(file)).map_err(io_error("read", &path))?;
                let log = Box::new(BufReader::with_capacity(1 << 16, overlay));
                Ok(StoredLog { head: None, log, file_bytes, healed_bytes: 0 })
            }
            Err(error) => Err(error),
        }
    }

    /// How the rows of a thread differ from its log, unless another process has committed since.
    pub(crate) fn differs(
        &self,
        thread: &ThreadId,
        head: Option<&Head>,
        folded: &Folded<'_>,
    ) -> Result<Option<String>> {
        self.read(|connection| match (rows::find_any(connection, thread)?, head) {
            (Some(row), _) if row.seal(connection) == Seal::Broken => {
                Ok(Some(format!("has a row of it that {UNSEALED}")))
            }
            (Some(row), Some(head)) if row.head == *head => row_comparison::contradiction(folded, connection, &row),
            (None, None) => Ok(Some("has no rows of it".to_owned())),
            _ => Ok(None),
        })
    }

    /// The files of a folder that are named by a fingerprint; unreadable ones are skipped.
    fn small_files(&self, folder: &Path, ending: &str) -> Vec<(Digest, Vec<u8>)> {
        if !check_folder(folder).unwrap_or_default() {
            return Vec::new();
        }
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let read = |entry: fs::DirEntry| {
            let name = entry.file_name().to_str()?.strip_suffix(ending)?.parse::<Digest>().ok()?;
            Some((name, disk::read(&*self.disk, &entry.path(), KEY_BYTES_MAX).ok()?))
        };
        entries.filter_map(read).collect()
    }
}
