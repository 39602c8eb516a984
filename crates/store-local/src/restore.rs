//! A store from a backup, in a project that has none.
//!
//! Everything is checked before anything is written: that the backup was finished and is signed by somebody trusted, that
//! its database is the one it was signed with, and every signature of every log. It is then copied to a folder beside the
//! store's and moved into place by one rename. Killed before that, there is no store, and restoring again begins anew;
//! after it, there is a whole one. Epochs go on where they were: they stand in the database and in the logs.

use std::fs;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use selvedge_log::recovery::{Evidence, Finding, Mode, judge};
use selvedge_log::scan::{Scanner, Signatures, examine};
use selvedge_log::{Trust, document};
use selvedge_model::Digest;
use selvedge_store::{Error, Result};

use crate::backup::{BackedUp, Backup, FILE, ITEM, KIND, THREADS, copy_file, entries};
use crate::blobs::hash_file;
use crate::core::io_error;
use crate::disk::{self, Disk, DiskFile, How};
use crate::layout::{Layout, check_folder};
use crate::open::{self, LocalStore};
use crate::schema::{self, Use, database};

/// How long a `backup.json` may be.
const MOST_BYTES: u64 = 1 << 30;

impl LocalStore {
    /// Reads and checks a backup: what was signed, the database, every log and every blob. Writes nothing.
    pub fn check_backup(
        backup: &Path,
        trust: &Trust,
        disk: &dyn Disk,
        each: &mut dyn FnMut(usize, usize),
    ) -> Result<Backup> {
        let found = read_signed(backup, trust, disk)?;
        let layout = Layout::at(backup.join(THREADS));
        if found.store_format > schema::FORMAT {
            let why =
                format!("its store has format {}, and this program knows up to {}", found.store_format, schema::FORMAT);
            return Err(schema::unusable("the backup", why, Some("use the newer Selvedge that wrote it")));
        }
        let path = layout.database();
        if hash_file(disk, &path).map_err(io_error("read", &path))? != found.database {
            return Err(damaged(&path, "it is not the database that was signed"));
        }
        for (index, thread) in found.threads.iter().enumerate() {
            check_thread(thread, &layout, trust, disk)?;
            each(index + 1, found.threads.len());
        }
        Ok(found)
    }

    /// Makes the store of a project from a backup; refused if the project has one. See [`LocalStore::check_backup`].
    pub fn restore(
        backup: &Path,
        project: &Path,
        trust: &Trust,
        disk: Arc<dyn Disk>,
        each: &mut dyn FnMut(usize, usize),
    ) -> Result<Backup> {
        let layout = Layout::of(project);
        open::check_ancestors(project, &layout)?;
        refuse_store(&layout)?;
        let found = Self::check_backup(backup, trust, &*disk, each)?;
        let beside = Layout::at(layout.root().with_extension("restoring"));
        disk.remove_folder(beside.root()).map_err(io_error("remove", beside.root()))?;
        copy_all(&found, &Layout::at(backup.join(THREADS)), &beside, &*disk)?;
        open::refuse_network(beside.root())?;
        // An empty folder may be in the way; a rename replaces it.
        disk.rename(beside.root(), layout.root()).map_err(io_error("put in place", layout.root()))?;
        let above = layout.root().parent().unwrap_or(project);
        disk.sync_folder(above).map_err(io_error("sync", above))?;
        Ok(found)
    }
}

fn refuse_store(layout: &Layout) -> Result<()> {
    let root = layout.root();
    if check_folder(root)? && fs::read_dir(root).map_err(io_error("read", root))?.next().is_some() {
        return Err(Error::Unusable {
            what: format!("`{}`", root.display()),
            why: "there are threads already, and a backup is never laid over them".to_owned(),
            hint: Some("restore into another folder with `-C`, or move this one away first".to_owned()),
        });
    }
    Ok(())
}

fn read_signed(backup: &Path, trust: &Trust, disk: &dyn Disk) -> Result<Backup> {
    let path = backup.join(FILE);
    let bytes = match disk::read(disk, &path, MOST_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let why = format!("there is no `{FILE}` in it: it is no backup, or one that was not finished");
            let what = format!("`{}`", backup.display());
            return Err(Error::Unusable { what, why, hint: Some("use a backup that was finished".to_owned()) });
        }
        Err(error) => return Err(io_error("read", &path)(error)),
    };
    let verified =
        document::verify_json(KIND, ITEM, &bytes, trust).map_err(|error| damaged(&path, &error.to_string()))?;
    serde_json::from_value(verified.value).map_err(|error| damaged(&path, &error.to_string()))
}

fn check_thread(thread: &BackedUp, layout: &Layout, trust: &Trust, disk: &dyn Disk) -> Result<()> {
    let BackedUp { thread_id, head } = thread;
    let path = layout.transcript(thread_id);
    check_folder(&layout.thread(thread_id))?;
    let file = disk.open(&path, How::Read).map_err(io_error("open", &path))?;
    let file_bytes = file.length().map_err(io_error("look at", &path))?;
    let scanner = Scanner::new(thread_id, trust, Signatures::Every).watching(Some(head.version));
    let reader = BufReader::with_capacity(1 << 16, Reader { file, at: 0 });
    let examined = examine(reader, scanner, |_| {}).map_err(io_error("read", &path))?;
    let evidence = Evidence { head: Some(head), file_bytes, ..Evidence::default() };
    match judge(&examined, evidence, Mode::Strict).finding {
        Finding::Sound => check_blobs(layout, thread, disk),
        finding => Err(Error::Log { thread: thread_id.clone(), finding }),
    }
}

fn check_blobs(layout: &Layout, thread: &BackedUp, disk: &dyn Disk) -> Result<()> {
    let folder = layout.blobs(&thread.thread_id);
    if !check_folder(&folder)? {
        return Ok(());
    }
    for name in entries(&folder)? {
        let path = folder.join(&name);
        let named = name.to_string_lossy().parse::<Digest>().ok();
        if named != Some(hash_file(disk, &path).map_err(io_error("read", &path))?) {
            return Err(damaged(&path, "its content is not what its name says"));
        }
    }
    Ok(())
}

fn copy_all(backup: &Backup, from: &Layout, to: &Layout, disk: &dyn Disk) -> Result<()> {
    for folder in [to.root().to_owned(), to.owners(), to.tombstones()] {
        disk.make_folder(&folder).map_err(io_error("create", &folder))?;
    }
    for BackedUp { thread_id, .. } in &backup.threads {
        copy_folder(disk, &from.thread(thread_id), &to.thread(thread_id))?;
        if check_folder(&from.blobs(thread_id))? {
            copy_folder(disk, &from.blobs(thread_id), &to.blobs(thread_id))?;
        }
    }
    copy_folder(disk, &from.tombstones(), &to.tombstones())?;
    copy_file(disk, &from.store_file(), &to.store_file())?;
    copy_file(disk, &from.database(), &to.database())?;
    drop(disk.open(&to.commit_lock(), How::Make).map_err(io_error("create", &to.commit_lock()))?);
    // A copied database is not in the mode that a store needs; that stands in its file from here on.
    let (connection, _) = schema::open_any(&to.database(), Use::Write)?;
    connection.pragma_update(None, "journal_mode", "wal").map_err(database)?;
    connection.close().map_err(|(_, error)| database(error))?;
    disk.sync_folder(to.root()).map_err(io_error("sync", to.root()))
}

/// Copies the plain files of a folder, synced on return; folders in it are not entered.
fn copy_folder(disk: &dyn Disk, from: &Path, to: &Path) -> Result<()> {
    check_folder(from)?;
    disk.make_folder(to).map_err(io_error("create", to))?;
    for name in entries(from)? {
        let path = from.join(&name);
        if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            copy_file(disk, &path, &to.join(&name))?;
        }
    }
    disk.sync_folder(to).map_err(io_error("sync", to))
}

fn damaged(path: &Path, why: &str) -> Error {
    Error::Integrity {
        what: format!("`{}`", path.display()),
        why: why.to_owned(),
        hint: Some("nothing was restored; use another backup".to_owned()),
    }
}

/// A file read from its beginning.
struct Reader {
    file: Box<dyn DiskFile>,
    at: u64,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
