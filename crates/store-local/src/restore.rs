//! A store from a backup, in a project that has none.
//!
//! Everything is checked before anything is written: that the backup was finished and, if it is signed, by somebody trusted; that
//! its database is the one it tells of; every signature of every log and the name of every blob. What is not what was signed is
//! left out and named, and keeps nothing else from being restored; a database that is not the right one is built anew from the logs.
//!
//! All of it is copied to a folder beside the store's and moved into place by one rename. Killed before that, there is no
//! store, and restoring again begins anew; after it, there is a whole one, or one whose database is missing, which `reindex` builds.
//! Epochs go on where they were: they stand in the database and in the logs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use selvedge_log::document::DocumentError;
use selvedge_log::recovery::Finding;
use selvedge_log::{Head, Trust, document};
use selvedge_model::{Digest, ThreadId};
use selvedge_store::{Error, Result};
use serde_json::Value;

use crate::backup::{BackedUp, Backup, FILE, ITEM, KIND, THREADS, bury, copy_file, entries};
use crate::blobs::hash_file;
use crate::copied::{Bad, judge_copy};
use crate::core::io_error;
use crate::disk::{self, Disk, How};
use crate::layout::{Layout, check_folder};
use crate::open::{self, LocalStore};
use crate::reindex::Rebuild;
use crate::rows;
use crate::schema::{self, Use, database};

/// How long a `backup.json` may be.
const MOST_BYTES: u64 = 1 << 30;

/// What was restored.
#[derive(Clone, Debug)]
pub struct Restored {
    /// What the backup says of itself.
    pub backup: Backup,
    /// Whether a trusted key signed that. If not, what its database alone knows is nobody's word; its logs are signed themselves.
    pub is_signed: bool,
    /// How many threads are whole.
    pub threads: u64,
    /// How many blobs are what their names say.
    pub blobs: u64,
    /// What is left out because it is not what was signed, or was not in the backup to begin with.
    pub bad: Vec<Bad>,
    /// Whether the database has to be built anew from the logs.
    pub is_rebuilt: bool,
}

/// What a backup holds that is what was signed.
struct Checked {
    restored: Restored,
    /// Sound threads, and their sound blobs.
    sound: BTreeMap<ThreadId, (Head, BTreeSet<Digest>)>,
}

impl LocalStore {
    /// Reads and checks a backup: what was signed, the database, every log and every blob. Refused if any of it is not what it
    /// should be. Writes nothing.
    pub fn check_backup(
        backup: &Path,
        trust: &Trust,
        disk: &dyn Disk,
        each: &mut dyn FnMut(usize, usize),
    ) -> Result<Backup> {
        let Restored { backup: found, bad, is_rebuilt, .. } = check(backup, trust, disk, each)?.restored;
        match bad.into_iter().next() {
            Some(Bad { thread_id, why, .. }) => {
                Err(Error::Integrity { what: format!("thread `{thread_id}` in the backup"), why, hint: None })
            }
            None if is_rebuilt => {
                let path = Layout::at(backup.join(THREADS)).database();
                Err(damaged(&path, "it is not the database that the backup tells of"))
            }
            None => Ok(found),
        }
    }

    /// Makes the store of a project from a backup, from all of it that is what was signed; refused if the project has one.
    pub fn restore(
        backup: &Path,
        project: &Path,
        trust: &Trust,
        disk: Arc<dyn Disk>,
        each: &mut dyn FnMut(usize, usize),
    ) -> Result<Restored> {
        let layout = Layout::of(project);
        open::check_ancestors(project, &layout)?;
        refuse_store(&layout)?;
        let mut checked = check(backup, trust, &*disk, each)?;
        let beside = Layout::at(layout.root().with_extension("restoring"));
        disk.remove_folder(beside.root()).map_err(io_error("remove", beside.root()))?;
        copy_all(&mut checked, &Layout::at(backup.join(THREADS)), &beside, &*disk)?;
        open::refuse_network(beside.root())?;
        // An empty folder may be in the way; a rename replaces it.
        disk.rename(beside.root(), layout.root()).map_err(io_error("put in place", layout.root()))?;
        let above = layout.root().parent().unwrap_or(project);
        disk.sync_folder(above).map_err(io_error("sync", above))?;
        if checked.restored.is_rebuilt {
            let rebuild = Rebuild { project: project.to_owned(), trust: trust.clone(), signer: None, disk };
            Self::reindex(&rebuild, &mut |_, _| {})?;
        }
        Ok(checked.restored)
    }
}

fn check(backup: &Path, trust: &Trust, disk: &dyn Disk, each: &mut dyn FnMut(usize, usize)) -> Result<Checked> {
    let (found, is_signed) = read_list(backup, trust, disk)?;
    let layout = Layout::at(backup.join(THREADS));
    if found.store_format > schema::FORMAT {
        let why =
            format!("its store has format {}, and this program knows up to {}", found.store_format, schema::FORMAT);
        return Err(schema::unusable("the backup", why, Some("use the newer Selvedge that wrote it")));
    }
    let is_rebuilt = !hash_file(disk, &layout.database()).is_ok_and(|hash| hash == found.database);
    let (mut bad, mut sound) = (Vec::new(), BTreeMap::new());
    for (index, BackedUp { thread_id, head }) in found.threads.iter().enumerate() {
        match judge_copy(thread_id, head, &layout, trust, disk) {
            Ok(judged) => {
                bad.extend(judged.bad(thread_id, |_| false));
                if judged.finding == Finding::Sound {
                    sound.insert(thread_id.clone(), (head.clone(), judged.blobs));
                }
            }
            Err(error) => {
                bad.push(Bad { thread_id: thread_id.clone(), blob: None, why: error.to_string(), copied: false });
            }
        }
        each(index + 1, found.threads.len());
    }
    // What was not copied into it can't be told from it; its list knows.
    let is_listed = |thread: &ThreadId| found.threads.iter().any(|listed| listed.thread_id == *thread);
    bad.extend(found.bad.iter().filter(|bad| bad.blob.is_none() && !is_listed(&bad.thread_id)).cloned());
    let (threads, blobs) = (sound.len() as u64, sound.values().map(|(_, blobs)| blobs.len() as u64).sum());
    let restored = Restored { backup: found, is_signed, threads, blobs, bad, is_rebuilt };
    Ok(Checked { restored, sound })
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

/// What a backup says of itself, and whether it is signed. One that is signed must be rightly so.
fn read_list(backup: &Path, trust: &Trust, disk: &dyn Disk) -> Result<(Backup, bool)> {
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
    let (value, is_signed) = match document::verify_json(KIND, ITEM, &bytes, trust) {
        Ok(verified) => (verified.value, true),
        Err(DocumentError::Unsigned) => {
            (serde_json::from_slice::<Value>(&bytes).map_err(|error| damaged(&path, &error.to_string()))?, false)
        }
        Err(error) => return Err(damaged(&path, &error.to_string())),
    };
    let found = serde_json::from_value(value).map_err(|error| damaged(&path, &error.to_string()))?;
    Ok((found, is_signed))
}

fn copy_all(checked: &mut Checked, from: &Layout, to: &Layout, disk: &dyn Disk) -> Result<()> {
    for folder in [to.root().to_owned(), to.owners(), to.tombstones()] {
        disk.make_folder(&folder).map_err(io_error("create", &folder))?;
    }
    for (thread, (_, blobs)) in &checked.sound {
        copy_folder(disk, &from.thread(thread), &to.thread(thread))?;
        if !blobs.is_empty() {
            let folder = to.blobs(thread);
            disk.make_folder(&folder).map_err(io_error("create", &folder))?;
            for blob in blobs {
                copy_file(disk, &from.blob(thread, blob), &to.blob(thread, blob))?;
            }
            disk.sync_folder(&folder).map_err(io_error("sync", &folder))?;
            disk.sync_folder(&to.thread(thread)).map_err(io_error("sync", &to.thread(thread)))?;
        }
    }
    if check_folder(&from.tombstones())? {
        copy_folder(disk, &from.tombstones(), &to.tombstones())?;
    }
    drop(disk.open(&to.commit_lock(), How::Make).map_err(io_error("create", &to.commit_lock()))?);
    if !checked.restored.is_rebuilt {
        copy_file(disk, &from.database(), &to.database())?;
        checked.restored.is_rebuilt = !settle_database(&to.database(), &checked.sound)?;
    }
    if checked.restored.is_rebuilt {
        disk.remove(&to.database()).map_err(io_error("remove", &to.database()))?;
        open::write_kind(to, disk)?;
    } else {
        copy_file(disk, &from.store_file(), &to.store_file())?;
    }
    disk.sync_folder(to.root()).map_err(io_error("sync", to.root()))
}

/// Makes the database say what was restored. False if it tells of other logs than these.
fn settle_database(path: &Path, sound: &BTreeMap<ThreadId, (Head, BTreeSet<Digest>)>) -> Result<bool> {
    let (connection, _) = schema::open_any(path, Use::Write)?;
    // A copied database is not in the mode that a store needs; that stands in its file from here on.
    connection.pragma_update(None, "journal_mode", "wal").map_err(database)?;
    let work = connection.unchecked_transaction().map_err(database)?;
    let mut known = 0;
    for row in rows::select(&work, "1 ORDER BY t.id", [])? {
        match sound.get(&row.manifest.thread_id) {
            Some((head, _)) if *head == row.head => known += 1,
            Some(_) => return Ok(false),
            None => bury(&work, row.id)?,
        }
    }
    work.commit().map_err(database)?;
    connection.close().map_err(|(_, error)| database(error))?;
    Ok(known == sound.len())
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
