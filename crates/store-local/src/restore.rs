//! Restores a store from a backup, in a project that has none.
//!
//! Everything is verified before anything is written: that the backup is complete and, if it is signed, that the signer is trusted; that
//! its database is the one it records; every signature of every log and the name of every blob, every manifest and tombstone. What fails
//! verification is left out and listed, and does not stop the rest from being restored; a wrong database is rebuilt from the logs. At the
//! end the restored store is compared with the list of heads in the backup.
//!
//! Everything is copied to a folder next to the store's and moved into place by one rename. After a crash before that there is no store,
//! and restoring again starts over; after it there is a complete one, or one whose database is missing, which `reindex` rebuilds. Epochs
//! continue where they were: they are in the database and in the logs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_log::document::DocumentError;
use selvedge_log::hash::sha256;
use selvedge_log::recovery::Finding;
use selvedge_log::{Head, Signer, Trust, document};
use selvedge_model::{Digest, Ids, ThreadId};
use selvedge_store::heads::{self, Depth, HeadDifference, Heads};
use selvedge_store::{Error, Result};
use serde_json::Value;

use crate::backup::{BackedUp, Backup, FILE, HEADS, ITEM, KIND, THREADS, bury, copy_file, entries};
use crate::blobs::hash_file;
use crate::copy_check::{FailedCheck, MANIFEST, TOMBSTONE, bad_tombstone, belongs, judge_copy};
use crate::core::io_error;
use crate::db::Db;
use crate::disk::{self, Disk, OpenMode};
use crate::layout::{Layout, check_folder};
use crate::open::{self, Access, LocalStore, Options};
use crate::reindex::Rebuild;
use crate::rows;
use crate::schema::{self, ConnectionMode, database};
use crate::system::{SystemClock, SystemIds};

/// The maximum length of a `backup.json`.
const BYTES_MAX: u64 = 1 << 30;

/// What was restored.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The content of `backup.json`.
    pub backup: Backup,
    /// Whether a trusted key signed it. If not, what only its database has is unverified; its logs are signed themselves.
    pub is_signed: bool,
    /// The number of restored threads.
    pub threads: u64,
    /// The number of restored blobs.
    pub blobs: u64,
    /// What is left out because it failed verification, or was missing in the backup.
    pub failed_checks: Vec<FailedCheck>,
    /// Whether the database was rebuilt from the logs.
    pub is_rebuilt: bool,
    /// Where the restored store differs from the list of heads in the backup, apart from what was left out.
    pub differs: Vec<HeadDifference>,
}

/// What of a backup passed verification.
struct VerifiedBackup {
    restored: Restored,
    /// Valid threads.
    sound: BTreeMap<ThreadId, VerifiedThread>,
    /// Valid tombstones.
    tombstones: Vec<ThreadId>,
    /// The list of heads in the backup.
    heads: Option<Heads>,
}

/// A thread whose log is valid.
struct VerifiedThread {
    head: Head,
    /// Its valid blobs.
    blobs: BTreeSet<Digest>,
    /// Whether its `thread.json` is left out, and has to be written again.
    lacks_manifest: bool,
}

impl LocalStore {
    /// Verifies a backup: its signature, the database, every log and every blob. Refused if any of it fails. Writes nothing.
    pub fn check_backup(
        backup: &Path,
        trust: &Trust,
        disk: &dyn Disk,
        each: &mut dyn FnMut(usize, usize),
    ) -> Result<Backup> {
        let Restored { backup: found, failed_checks, is_rebuilt, .. } = check(backup, trust, disk, each)?.restored;
        match failed_checks.into_iter().next() {
            Some(FailedCheck { thread_id, why, .. }) => {
                Err(Error::Integrity { what: format!("thread `{thread_id}` in the backup"), why, hint: None })
            }
            None if is_rebuilt => {
                let path = Layout::at(backup.join(THREADS)).database();
                Err(damaged(&path, "it is not the database that the backup records"))
            }
            None => Ok(found),
        }
    }

    /// Creates the store of a project from the valid content of a backup; refused if the project has a store.
    pub fn restore(
        backup: &Path,
        project: &Path,
        trust: &Trust,
        signer: Option<Signer>,
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
        // Rows that were sealed for the original store are sealed again for this one, as far as the logs confirm them.
        let former = open::check_kind(&Layout::at(backup.join(THREADS)), &*disk)?.id;
        let rebuild = Rebuild { project: project.to_owned(), trust: trust.clone(), signer, disk: disk.clone() };
        Self::reindex_at(&beside, &rebuild, Some(&former), &mut |_, _| {})?;
        // An empty folder may exist at the target; a rename replaces it.
        disk.rename(beside.root(), layout.root()).map_err(io_error("put in place", layout.root()))?;
        let above = layout.root().parent().unwrap_or(project);
        disk.sync_folder(above).map_err(io_error("sync", above))?;
        if let Some(heads) = &checked.heads {
            checked.restored.differs = differing(heads, &checked.restored.failed_checks, project, trust, disk)?;
        }
        Ok(checked.restored)
    }
}

fn check(backup: &Path, trust: &Trust, disk: &dyn Disk, each: &mut dyn FnMut(usize, usize)) -> Result<VerifiedBackup> {
    let (found, is_signed) = read_list(backup, trust, disk)?;
    let layout = Layout::at(backup.join(THREADS));
    if found.store_format > schema::FORMAT {
        let why = format!(
            "its store has format {}, and this program reads formats up to {}",
            found.store_format,
            schema::FORMAT
        );
        return Err(schema::unusable("the backup", why, Some("use the newer Selvedge that wrote it")));
    }
    check_store_file(&layout, disk, found.store_format)?;
    let is_rebuilt = !hash_file(disk, &layout.database()).is_ok_and(|hash| hash == found.database);
    let mut failed_checks = Vec::new();
    let mut sound = BTreeMap::new();
    for (index, BackedUp { thread_id, head }) in found.threads.iter().enumerate() {
        match judge_copy(thread_id, head, &layout, trust, disk) {
            Ok(judged) => {
                failed_checks.extend(judged.bad(thread_id, |_| false));
                if judged.finding == Finding::Sound {
                    let lacks_manifest = judged.bad_manifest.is_some();
                    sound.insert(
                        thread_id.clone(),
                        VerifiedThread { head: head.clone(), blobs: judged.blobs, lacks_manifest },
                    );
                }
            }
            Err(error) => {
                failed_checks.push(FailedCheck::log(thread_id, error.to_string(), false));
            }
        }
        each(index + 1, found.threads.len());
    }
    // Threads that were not copied into the backup are known only from its list.
    let is_listed = |thread: &ThreadId| found.threads.iter().any(|listed| listed.thread_id == *thread);
    failed_checks.extend(found.failed_checks.iter().filter(|bad| bad.is_log() && !is_listed(&bad.thread_id)).cloned());
    let tombstones = check_tombstones(&layout, trust, disk, &mut failed_checks)?;
    let heads = read_heads(backup, &found, trust, disk)?;
    let threads = sound.len() as u64;
    let blobs = sound.values().map(|sound| sound.blobs.len() as u64).sum();
    let restored =
        Restored { backup: found, is_signed, threads, blobs, failed_checks, is_rebuilt, differs: Vec::new() };
    Ok(VerifiedBackup { restored, sound, tombstones, heads })
}

/// The threads whose tombstones are valid; others are listed as bad.
fn check_tombstones(
    layout: &Layout,
    trust: &Trust,
    disk: &dyn Disk,
    failed_checks: &mut Vec<FailedCheck>,
) -> Result<Vec<ThreadId>> {
    let mut sound = Vec::new();
    if !check_folder(&layout.tombstones())? {
        return Ok(sound);
    }
    for name in entries(&layout.tombstones())? {
        let name = name.to_string_lossy();
        let Some(Ok(thread)) = name.strip_suffix(".json").map(ThreadId::from_folder) else { continue };
        let why = match disk::read(disk, &layout.tombstone(&thread), 64 << 20) {
            Ok(document) => bad_tombstone(&thread, &document, trust),
            Err(error) => Some(format!("the tombstone of `{thread}` can't be read: {error}")),
        };
        match why {
            None => sound.push(thread),
            Some(why) => failed_checks.push(FailedCheck::file(&thread, TOMBSTONE, why, false)),
        }
    }
    Ok(sound)
}

/// Checks the `store.json` of a backup. Its content is not secret, so the hint for a missing one includes it.
fn check_store_file(layout: &Layout, disk: &dyn Disk, format: i64) -> Result<()> {
    let path = layout.store_file();
    match open::check_kind(layout, disk) {
        Ok(_) => Ok(()),
        Err(error @ Error::Unusable { .. }) => Err(error),
        Err(_) => Err(Error::Integrity {
            what: format!("`{}`", path.display()),
            why: "it is missing or can't be read".to_owned(),
            hint: Some(format!(
                "nothing was restored; use another backup, or write `{}` into it and restore again",
                open::kind_text(format, &SystemIds.hex32())?.trim_end()
            )),
        }),
    }
}

fn refuse_store(layout: &Layout) -> Result<()> {
    let root = layout.root();
    if check_folder(root)? && fs::read_dir(root).map_err(io_error("read", root))?.next().is_some() {
        return Err(Error::Unusable {
            what: format!("`{}`", root.display()),
            why: "it has threads already, and `restore` never overwrites any".to_owned(),
            hint: Some("restore into another folder with `-C`, or move this one away first".to_owned()),
        });
    }
    Ok(())
}

/// Reads `backup.json`, and whether it is signed. A signature must be valid.
fn read_list(backup: &Path, trust: &Trust, disk: &dyn Disk) -> Result<(Backup, bool)> {
    let path = backup.join(FILE);
    let bytes = match disk::read(disk, &path, BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let why = format!("there is no `{FILE}` in it: it is not a backup, or one that was not finished");
            let what = format!("`{}`", backup.display());
            return Err(Error::Unusable { what, why, hint: Some("use a finished backup".to_owned()) });
        }
        Err(error) => return Err(io_error("read", &path)(error)),
    };
    let (value, is_signed) = match document::verify_json(KIND, ITEM, &bytes, trust) {
        Ok(verified) => (verified.value, true),
        Err(DocumentError::Unsigned) => {
            (serde_json::from_slice::<Value>(&bytes).map_err(|error| damaged(&path, &error.to_string()))?, false)
        }
        Err(error) => {
            let hint = || "nothing was restored; use another backup".to_owned();
            return Err(Error::of_document(format!("`{}`", path.display()), &error, hint));
        }
    };
    let found = serde_json::from_value(value).map_err(|error| damaged(&path, &error.to_string()))?;
    Ok((found, is_signed))
}

/// The list of heads of a backup, which its `backup.json` names by hash. Unsigned backups have none.
fn read_heads(backup: &Path, found: &Backup, trust: &Trust, disk: &dyn Disk) -> Result<Option<Heads>> {
    let Some(named) = found.heads else { return Ok(None) };
    let path = backup.join(HEADS);
    let bytes = disk::read(disk, &path, heads::BYTES_MAX).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => damaged(&path, "it is missing, and the backup records it"),
        _ => io_error("read", &path)(error),
    })?;
    if sha256(&bytes) != named {
        return Err(damaged(&path, "it is not the list of heads that the backup records"));
    }
    let hint = || "nothing was restored; use another backup".to_owned();
    let read = Heads::read(&bytes, trust);
    let read = read.map_err(|error| Error::of_document(format!("`{}`", path.display()), &error, hint))?;
    Ok(Some(read.heads))
}

/// Where a restored store differs from the list in its backup, apart from what was left out.
fn differing(
    heads: &Heads,
    bad: &[FailedCheck],
    project: &Path,
    trust: &Trust,
    disk: Arc<dyn Disk>,
) -> Result<Vec<HeadDifference>> {
    let store = LocalStore::open(Options {
        project: project.to_owned(),
        access: Access::ReadOnly,
        signer: None,
        trust: trust.clone(),
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        disk,
    })?;
    let is_named = |thread: &ThreadId| bad.iter().any(|bad| bad.blob.is_none() && bad.thread_id == *thread);
    let differs = store.compare_heads(heads, Depth::Whole).differs;
    // An account is derived from the logs of its family: a log that was left out may be any of them.
    let is_known =
        |differs: &HeadDifference| is_named(&differs.thread) || (differs.how.is_of_account() && !bad.is_empty());
    Ok(differs.into_iter().filter(|differs| !is_known(differs)).collect())
}

fn copy_all(checked: &mut VerifiedBackup, from: &Layout, to: &Layout, disk: &dyn Disk) -> Result<()> {
    for folder in [to.root().to_owned(), to.owners(), to.tombstones()] {
        disk.make_folder(&folder).map_err(io_error("create", &folder))?;
    }
    for (thread, VerifiedThread { blobs, lacks_manifest, .. }) in &checked.sound {
        let wanted = |name: &str| belongs(name) && !(*lacks_manifest && name == MANIFEST);
        copy_folder(disk, &from.thread(thread), &to.thread(thread), wanted)?;
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
        let names: BTreeSet<_> = checked.tombstones.iter().map(|thread| format!("{}.json", thread.folder())).collect();
        copy_folder(disk, &from.tombstones(), &to.tombstones(), |name| names.contains(name))?;
    }
    drop(disk.open(&to.commit_lock(), OpenMode::Create).map_err(io_error("create", &to.commit_lock()))?);
    if !checked.restored.is_rebuilt {
        copy_file(disk, &from.database(), &to.database())?;
        checked.restored.is_rebuilt = !settle_database(&to.database(), &checked.sound)?;
    }
    if checked.restored.is_rebuilt {
        disk.remove(&to.database()).map_err(io_error("remove", &to.database()))?;
    }
    open::write_kind(to, disk, &SystemIds.hex32())?;
    if !checked.restored.failed_checks.is_empty() {
        let text = serde_json::to_string_pretty(&checked.restored.failed_checks).map_err(rows::bad_row)? + "\n";
        let path = left_out_file(to);
        disk::replace(disk, &path, text.as_bytes()).map_err(io_error("write", &path))?;
    }
    disk.sync_folder(to.root()).map_err(io_error("sync", to.root()))
}

/// The file in which a restored store lists what its backup lacked.
pub(crate) fn left_out_file(layout: &Layout) -> PathBuf {
    layout.root().join("restore.left-out.json")
}

/// What was missing in the backup that a store was restored from; the list is not signed, and used for display only.
pub(crate) fn left_out(layout: &Layout, disk: &dyn Disk) -> Vec<FailedCheck> {
    let read = disk::read(disk, &left_out_file(layout), BYTES_MAX).ok();
    read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Makes the database match the restored threads. False if it has other heads.
fn settle_database(path: &Path, sound: &BTreeMap<ThreadId, VerifiedThread>) -> Result<bool> {
    let connection = Db::open(path, ConnectionMode::Write, None)?;
    // A copied database is not in the journal mode that a store needs; the file keeps the mode from here on.
    connection.pragma_update(None, "journal_mode", "wal").map_err(database)?;
    let work = connection.unchecked_transaction().map_err(database)?;
    let mut known = 0;
    for row in rows::select_any(&work, "1 ORDER BY t.id", [])? {
        match sound.get(&row.manifest.thread_id) {
            Some(VerifiedThread { head, lacks_manifest, .. }) if *head == row.head => {
                known += 1;
                if *lacks_manifest {
                    rows::execute(&work, "UPDATE threads SET manifest_stale = 1 WHERE id = ?", [row.id])?;
                }
            }
            Some(_) => return Ok(false),
            None => bury(&connection, row.id)?,
        }
    }
    work.commit().map_err(database)?;
    connection.close()?;
    Ok(known == sound.len())
}

/// Copies the files of a folder that are `wanted`, synced on return.
fn copy_folder(disk: &dyn Disk, from: &Path, to: &Path, wanted: impl Fn(&str) -> bool) -> Result<()> {
    check_folder(from)?;
    disk.make_folder(to).map_err(io_error("create", to))?;
    for name in entries(from)? {
        let path = from.join(&name);
        if !wanted(&name.to_string_lossy()) {
            continue;
        }
        if fs::symlink_metadata(&path).map_err(io_error("check", &path))?.is_file() {
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
