//! Pages on disk: `.ai/knowledge/agent/threads/<directive>/<thread id>.md`, and where their last parts begin, `page.start` beside the log.
//!
//! - A page is written to a temporary file, synced, and renamed. A power failure may bring the one before it back, or leave none; the next
//!   update writes it again. No commit waits for any of this.
//! - One process writes pages at a time, under `effects/pages.file.lock`. A deletion takes that lock after it is committed and removes the
//!   pages, and no page of a deleted thread is written under it: nothing of one is left.

use std::io;
use std::path::{Path, PathBuf};

use selvedge_log::hash::RunningHash;
use selvedge_model::{Manifest, ThreadId, Timestamp};
use selvedge_store::effects::{Effect, EffectLock};
use selvedge_store::pages::{self, BYTES_MAX, PageId, PageStart, Pages};
use selvedge_store::{Error, Result};

use crate::core::{Core, io_error};
use crate::disk;
use crate::layout::{check_folder, is_there, listed};
use crate::open::LocalStore;
use crate::rows;

/// The most bytes of where a part begins: the manifest of a thread.
const START_BYTES_MAX: u64 = 16 << 20;

impl Pages for LocalStore {
    fn lock_pages(&self) -> Result<EffectLock> {
        self.core.writer()?;
        Ok(EffectLock::new(Box::new(self.core.lock_file_of(Effect::Pages)?)))
    }

    fn page(&self, id: &PageId) -> Result<Option<Vec<u8>>> {
        let (folders, path) = self.core.layout.page(id);
        for folder in &folders {
            if !check_folder(folder)? {
                return Ok(None);
            }
        }
        self.core.page_file(id, &path)
    }

    fn put_page(&self, thread: &ThreadId, id: &PageId, body: &str, at: Timestamp) -> Result<()> {
        let core = &self.core;
        core.writer()?;
        let (folders, path) = core.layout.page(id);
        for folder in &folders {
            if !check_folder(folder)? {
                core.disk.make_folder(folder).map_err(io_error("create", folder))?;
            }
        }
        if let Some(stored) = core.page_file(id, &path)? {
            pages::check_replaceable(thread, id, &stored)?;
        }
        // Under the lock that a deletion takes after its commit.
        if core.read(|db| rows::find_any(db, thread))?.is_none() {
            return Err(Error::NoThread(thread.to_string()));
        }
        let text = pages::sign(id, body, &core.signing()?.signer, at);
        disk::put_in_place(&*core.disk, &path, text.as_bytes()).map_err(io_error("write", &path))
    }

    fn page_start(&self, thread: &ThreadId) -> Result<Option<PageStart>> {
        let path = self.core.layout.page_start(thread);
        check_folder(&self.core.layout.thread(thread))?;
        let Ok(signing) = self.core.signing() else { return Ok(None) };
        match disk::read(&*self.core.disk, &path, START_BYTES_MAX) {
            Ok(stored) => Ok(pages::decode_start(&signing.seal, thread, &stored)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(io_error("read", &path)(error)),
        }
    }

    fn set_page_start(&self, thread: &ThreadId, start: Option<(&PageStart, &RunningHash)>) -> Result<()> {
        let core = &self.core;
        core.writer()?;
        let path = core.layout.page_start(thread);
        let Some((start, hash)) = start else {
            return core.disk.remove(&path).map_err(io_error("remove", &path));
        };
        if !check_folder(&core.layout.thread(thread))? {
            return Err(Error::NoThread(thread.to_string()));
        }
        let stored = pages::encode_start(&core.signing()?.seal, start, hash);
        disk::put_in_place(&*core.disk, &path, &stored).map_err(io_error("write", &path))
    }
}

/// Whether nothing usable is there.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::FileTooLarge) || disk::is_no_file(error)
}

impl Core {
    fn page_file(&self, id: &PageId, path: &Path) -> Result<Option<Vec<u8>>> {
        match disk::read(&*self.disk, path, BYTES_MAX) {
            Ok(stored) => Ok(Some(stored)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if is_absent(&error) => {
                let hint = Some("move it away; the page is written after the next run".to_owned());
                Err(Error::Unusable { what: format!("`{}`", id.place()), why: error.to_string(), hint })
            }
            Err(error) => Err(io_error("read", path)(error)),
        }
    }

    /// Removes the pages of a deleted thread. Called after the deletion is committed, and again by the next process until it succeeds.
    pub(crate) fn leave_pages(&self, thread: &Manifest) -> Result<()> {
        let id = PageId::of(thread);
        let (folders, path) = self.layout.page(&id);
        for folder in &folders {
            if !check_folder(folder)? {
                return Ok(());
            }
        }
        let _lock = self.lock_file_of(Effect::Pages)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut found: Vec<PathBuf> = Vec::new();
        for entry in listed(folder)? {
            let is_part = entry.file_name().to_str().is_some_and(|name| id.is_part(name));
            found.extend(is_part.then(|| entry.path()));
        }
        found.extend(is_there(&path)?.then_some(path));
        for path in found {
            let stored = self.page_file(&id, &path).ok().flatten().unwrap_or_default();
            if pages::check_replaceable(&thread.thread_id, &id, &stored).is_ok() {
                self.disk.remove(&path).map_err(io_error("remove", &path))?;
            }
        }
        Ok(())
    }
}
