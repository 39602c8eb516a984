//! Taking a thread out of an archive: it arrives in a folder beside the threads that no thread can have, and takes its place once all of it
//! was checked.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use selvedge_model::{OwnerId, ThreadId};
use selvedge_store::archive::{Accounts, Archives, Arrival, Arrived, Exported, Judged, Staged, Staging, arrive};
use selvedge_store::{Error, Result};

use crate::core::{Core, io_error};
use crate::disk::{DiskFile, How};
use crate::open::LocalStore;
use crate::rows;
use crate::view::check_name;

/// How the folder begins in which a thread arrives; who it belongs to follows. No thread's folder begins with a dot.
const ARRIVING: &str = ".arriving-";

impl LocalStore {
    /// Writes a thread as an archive; see [`Archives::export`].
    pub fn export(&self, thread: &ThreadId, out: &mut dyn Write) -> Result<Exported> {
        Archives::export(self, thread, out)
    }

    /// Checks an archive and takes its thread in; see [`Archives::import`].
    pub fn import(&self, archive: &mut (dyn Read + Send), keep: bool) -> Result<Arrived> {
        Archives::import(self, archive, keep)
    }
}

impl Archives for LocalStore {
    fn import(&self, archive: &mut (dyn Read + Send), keep: bool) -> Result<Arrived> {
        let core = &*self.core;
        if !keep {
            return core.settle_arrival(arrive(archive, &core.trust, None, &check_name)?, None);
        }
        core.gate()?;
        core.tidy_arrivals()?;
        let staged = core.layout.root().join(format!("{ARRIVING}{}-{}", core.owner, core.ids.hex12()));
        core.disk.make_folder(&staged).map_err(io_error("create", &staged))?;
        let folder = Folder { core, staged: &staged };
        let arrived = arrive(archive, &core.trust, Some(&folder), &check_name)
            .and_then(|judged| core.settle_arrival(judged, Some(&staged)));
        // What was taken in lies elsewhere by now.
        let tidied = core.disk.remove_folder(&staged).map_err(io_error("remove", &staged));
        let arrived = arrived?;
        tidied?;
        Ok(arrived)
    }
}

/// The folder in which a thread arrives.
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
        let file = self.core.disk.open(&path, How::MakeNew).map_err(io_error("create", &path))?;
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

/// A file that is written from its beginning.
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
    /// Takes a thread in, unless it is here already, exactly so.
    fn settle_arrival(&self, judged: Judged, staged: Option<&Path>) -> Result<Arrived> {
        let thread = &judged.thread;
        let head = &judged.head;
        let known =
            self.read(|connection| Ok((rows::find(connection, thread)?, rows::tombstone(connection, thread)?)))?;
        let mut accounts = Accounts::new();
        let arrival = match (known, staged) {
            ((Some(row), _), _) if row.head == *head => Arrival::Unchanged,
            ((Some(_), _), _) => return Err(Error::Exists(thread.clone())),
            ((None, Some(_)), _) => return Err(Error::Deleted(thread.clone())),
            ((None, None), Some(staged)) => {
                accounts = self.adopt(thread, head, staged)?;
                Arrival::Imported
            }
            ((None, None), None) => Arrival::WouldImport,
        };
        Ok(judged.settled(arrival, accounts))
    }

    /// Removes what arrivals left whose process died.
    fn tidy_arrivals(&self) -> Result<()> {
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
