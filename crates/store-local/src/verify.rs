//! What a verifier reads of this store: logs, documents and blobs, byte for byte.
//!
//! Head and redo are read in one transaction, and the file is judged as that prefix: what a crash left in the redo is
//! healed, not damage, and what other processes commit meanwhile is not foreign. A log that the database does not know has no head.

use std::fs;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use selvedge_log::scan::Entry;
use selvedge_log::{Head, Trust};
use selvedge_model::{Digest, ThreadId};
use selvedge_store::archive::KEY_BYTES_MAX;
use selvedge_store::folded::Folded;
use selvedge_store::verify::{Document, Look, Stored, Verdict, Verify};
use selvedge_store::{Error, Result};

use crate::blobs::open_blob;
use crate::core::{Core, io_error};
use crate::disk::{self, How};
use crate::folded;
use crate::layout::check_folder;
use crate::manifest;
use crate::open::LocalStore;
use crate::overlay::{Overlay, Shot};
use crate::rows;
use crate::sealed::{Seal, UNSEALED};

impl LocalStore {
    /// Judges a log; see [`Verify::verify`].
    pub fn verify(&self, thread: &ThreadId, each: &mut dyn FnMut(&Entry)) -> Result<Verdict> {
        Verify::verify(self, thread, each)
    }
}

impl Stored for LocalStore {
    fn trust(&self) -> &Trust {
        &self.core.trust
    }

    fn place(&self, thread: &ThreadId) -> PathBuf {
        self.core.layout.thread(thread)
    }

    fn look(&self, thread: &ThreadId) -> Result<Look> {
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

    fn arrived_keys(&self, thread: &ThreadId) -> Vec<(Digest, Vec<u8>)> {
        self.core.small_files(&self.core.layout.thread(thread).join("keys"), ".pem")
    }

    fn arrived_statements(&self, thread: &ThreadId) -> Vec<(Digest, Vec<u8>)> {
        self.core.small_files(&self.core.layout.thread(thread).join("chain"), ".json")
    }

    fn differs(&self, thread: &ThreadId, head: Option<&Head>, folded: &Folded<'_>) -> Result<Option<String>> {
        self.core.differs(thread, head, folded)
    }
}

impl Verify for LocalStore {
    fn strays(&self) -> Result<Vec<ThreadId>> {
        self.core.strays()
    }

    fn is_stray(&self, thread: &ThreadId) -> Result<bool> {
        self.core.is_stray(thread)
    }

    fn has_arrived(&self, thread: &ThreadId) -> bool {
        self.core.has_arrived(thread)
    }
}

impl Core {
    fn look_at(&self, thread: &ThreadId) -> Result<Look> {
        let is_broken =
            self.read(|db| Ok(rows::find_any(db, thread)?.is_some_and(|row| row.seal(db) == Seal::Broken)))?;
        let shot = if is_broken { Err(Error::NoThread(thread.to_string())) } else { self.shot(thread) };
        match shot {
            Ok(Shot { row, overlay, file_bytes, healed_bytes }) => {
                let log = Box::new(BufReader::with_capacity(1 << 16, overlay));
                Ok(Look { head: Some(row.head), log, file_bytes, healed_bytes })
            }
            Err(Error::NoThread(_)) if is_broken || self.is_stray(thread)? => {
                let path = self.layout.transcript(thread);
                let file = self.disk.open(&path, How::Read).map_err(io_error("open", &path))?;
                let file_bytes = file.length().map_err(io_error("look at", &path))?;
                let overlay = Overlay::of_file(Some(file)).map_err(io_error("read", &path))?;
                let log = Box::new(BufReader::with_capacity(1 << 16, overlay));
                Ok(Look { head: None, log, file_bytes, healed_bytes: 0 })
            }
            Err(error) => Err(error),
        }
    }

    /// What the database has of a thread that its log does not say, unless somebody has committed since.
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
            (Some(row), Some(head)) if row.head == *head => folded::contradiction(folded, connection, &row),
            (None, None) => Ok(Some("does not know it".to_owned())),
            _ => Ok(None),
        })
    }

    /// The files of a folder that are named by a fingerprint; what can't be read is passed over.
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
