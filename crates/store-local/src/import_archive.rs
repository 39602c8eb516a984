//! Importing a thread from an archive: it is staged in a folder whose name no thread can have, and moved into place once all of it is
//! verified.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use selvedge_model::{OwnerId, ThreadId};
use selvedge_store::archive::{
    Accounts, Archives, CheckedArchive, Exported, ImportOutcome, ImportReport, Staged, Staging, read_archive,
};
use selvedge_store::{Error, Result};

use crate::core::{Core, io_error};
use crate::disk::{DiskFile, OpenMode};
use crate::open::LocalStore;
use crate::rows;
use crate::view::check_name;

/// The prefix of staging folders, followed by the id of the importing process. No thread's folder begins with a dot.
const ARRIVING: &str = ".arriving-";

impl LocalStore {
    /// Writes a thread as an archive; see [`Archives::export`].
    pub fn export(&self, thread: &ThreadId, out: &mut dyn Write) -> Result<Exported> {
        Archives::export(self, thread, out)
    }

    /// Verifies an archive and imports its thread; see [`Archives::import`].
    pub fn import(&self, archive: &mut (dyn Read + Send), keep: bool) -> Result<ImportReport> {
        Archives::import(self, archive, keep)
    }
}

impl Archives for LocalStore {
    fn import(&self, archive: &mut (dyn Read + Send), keep: bool) -> Result<ImportReport> {
        let core = &*self.core;
        if !keep {
            return core.finish_import(read_archive(archive, &core.trust, None, &check_name)?, None);
        }
        core.writer()?;
        core.remove_dead_imports()?;
        let staged = core.layout.root().join(format!("{ARRIVING}{}-{}", core.owner, core.ids.hex12()));
        core.disk.make_folder(&staged).map_err(io_error("create", &staged))?;
        let folder = Folder { core, staged: &staged };
        let arrived = read_archive(archive, &core.trust, Some(&folder), &check_name)
            .and_then(|judged| core.finish_import(judged, Some(&staged)));
        // If it was imported, it has been moved out of the staging folder.
        let tidied = core.disk.remove_folder(&staged).map_err(io_error("remove", &staged));
        let arrived = arrived?;
        tidied?;
        Ok(arrived)
    }
}

/// The folder in which a thread is staged.
struct Folder<'a> {
    core: &'a Core,
    staged: &'a Path,
}

impl Staging for Folder<'_> {
    fn create(&self, name: &str) -> Result<Box<dyn Staged>> {
        let path = self.staged.join(name);
        if let Some(above) = path.parent() {
            self.core.disk.make_folder(above).map_err(io_error("create", above))?;
        }
        let file = self.core.disk.open(&path, OpenMode::CreateNew).map_err(io_error("create", &path))?;
        Ok(Box::new(Growing { file, at: 0 }))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.staged.join(name);
        self.core.disk.remove(&path).map_err(io_error("remove", &path))
    }

    fn sync(&self) -> Result<()> {
        let staged = self.staged;
        for folder in [staged.join("blobs"), staged.join("keys"), staged.join("chain"), staged.to_owned()] {
            if fs::symlink_metadata(&folder).is_ok() {
                self.core.disk.sync_folder(&folder).map_err(io_error("sync", &folder))?;
            }
        }
        Ok(())
    }
}

/// A file that is written from start to end.
struct Growing {
    file: Box<dyn DiskFile>,
    at: u64,
}

impl Staged for Growing {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }
}

impl Core {
    /// Imports a thread, unless the store already has it with the same head.
    fn finish_import(&self, judged: CheckedArchive, staged: Option<&Path>) -> Result<ImportReport> {
        let thread = &judged.thread;
        let head = &judged.head;
        let known =
            self.read(|connection| Ok((rows::find(connection, thread)?, rows::tombstone(connection, thread)?)))?;
        let mut accounts = Accounts::new();
        let arrival = match (known, staged) {
            ((Some(row), _), _) if row.head == *head => ImportOutcome::Unchanged,
            ((Some(_), _), _) => return Err(Error::Exists(thread.clone())),
            ((None, Some(_)), _) => return Err(Error::Deleted(thread.clone())),
            ((None, None), Some(staged)) => {
                accounts = self.adopt(thread, head, staged)?;
                ImportOutcome::Imported
            }
            ((None, None), None) => ImportOutcome::WouldImport,
        };
        Ok(judged.into_report(arrival, accounts))
    }

    /// Removes staging folders of processes that have died.
    fn remove_dead_imports(&self) -> Result<()> {
        let root = self.layout.root();
        for entry in fs::read_dir(root).map_err(io_error("read", root))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let owner = name.strip_prefix(ARRIVING).and_then(|rest| rest.rsplit_once('-'));
            let Some(Ok(owner)) = owner.map(|(owner, _)| OwnerId::new(owner)) else { continue };
            if !self.is_alive(&owner)? {
                let path: PathBuf = entry.path();
                self.disk.remove_folder(&path).map_err(io_error("remove", &path))?;
            }
        }
        Ok(())
    }
}
