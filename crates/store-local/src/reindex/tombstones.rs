//! The tombstones of deleted threads, from their signed files.

use std::collections::BTreeMap;

use rusqlite::{Connection, params};
use selvedge_log::Head;
use selvedge_model::ThreadId;
use selvedge_store::{Result, Tombstone};

use super::old::OldDatabase;
use super::{Rebuild, Reindexed};
use crate::core::io_error;
use crate::delete;
use crate::disk::{self, Disk};
use crate::layout::{Layout, is_there, listed};
use crate::rows::{self, bad_row};
use crate::schema::database;

/// The maximum length of a tombstone.
const BYTES_MAX: u64 = 64 << 20;

/// Deleted threads and the heads of their logs.
pub(super) type Tombstones = BTreeMap<ThreadId, Head>;

/// Inserts every correctly signed tombstone into the new database.
pub(super) fn insert(
    new: &Connection,
    layout: &Layout,
    rebuild: &Rebuild,
    old: &OldDatabase,
    result: &mut Reindexed,
) -> Result<Tombstones> {
    let mut tombs = Tombstones::new();
    let files = files(layout, &*rebuild.disk)?.into_iter().map(|(thread, document)| (thread, document, true));
    let rows = rows_of(new, old)?.into_iter().map(|(thread, document)| (thread, document, false));
    for (thread, document, is_file) in files.chain(rows) {
        if tombs.contains_key(&thread) {
            continue;
        }
        match Tombstone::verify(&thread, document.as_bytes(), &rebuild.trust) {
            // Its file was removed so that the thread comes back.
            Ok(tombstone) if !is_file && exceeds(layout, rebuild, &thread, &tombstone.head)? => {}
            Ok(tombstone) => {
                let sql = "INSERT INTO main.tombstones (thread_id, tombstone, document, buried) VALUES (?, ?, ?, 0)";
                let value = serde_json::to_value(&tombstone).map_err(bad_row)?.to_string();
                rows::execute(new, sql, params![thread.as_str(), value, document])?;
                tombs.insert(thread, tombstone.head);
            }
            Err(why) => result.notices.push(format!("the tombstone of `{thread}` is ignored: {why}")),
        }
    }
    result.tombstones = tombs.len() as u64;
    Ok(tombs)
}

/// Whether the log in a thread's folder is not the one that was deleted.
pub(super) fn exceeds(layout: &Layout, rebuild: &Rebuild, thread: &ThreadId, buried: &Head) -> Result<bool> {
    delete::exceeds(layout, &*rebuild.disk, &rebuild.trust, thread, buried)
}

fn files(layout: &Layout, disk: &dyn Disk) -> Result<Vec<(ThreadId, String)>> {
    let folder = layout.tombstones();
    let mut found = Vec::new();
    for entry in listed(&folder)? {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(Ok(thread)) = name.strip_suffix(".json").map(ThreadId::from_folder) else { continue };
        let path = layout.tombstone(&thread);
        let bytes = disk::read(disk, &path, BYTES_MAX).map_err(io_error("read", &path))?;
        found.push((thread, String::from_utf8_lossy(&bytes).into_owned()));
    }
    Ok(found)
}

/// Tombstones in the old database, whose files may be missing after a crash.
fn rows_of(new: &Connection, old: &OldDatabase) -> Result<Vec<(ThreadId, String)>> {
    if !matches!(old, OldDatabase::Readable) {
        return Ok(Vec::new());
    }
    let mut statement = new.prepare("SELECT thread_id, document FROM old.tombstones").map_err(database)?;
    let found = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
    let read = |raw: rusqlite::Result<(String, String)>| {
        let (thread, document) = raw.map_err(database)?;
        Ok((ThreadId::new(thread).map_err(bad_row)?, document))
    };
    found.map_err(database)?.map(read).collect()
}

/// Finishes an interrupted deletion.
pub(super) fn bury(new: &Connection, layout: &Layout, disk: &dyn Disk, thread: &ThreadId) -> Result<()> {
    let sql = "SELECT document FROM main.tombstones WHERE thread_id = ?";
    let document: String = new.query_row(sql, [thread.as_str()], |row| row.get(0)).map_err(database)?;
    let path = layout.tombstone(thread);
    if !is_there(&path)? {
        disk::replace(disk, &path, document.as_bytes()).map_err(io_error("write", &path))?;
    }
    let folder = layout.thread(thread);
    if crate::layout::check_folder(&folder)? {
        disk.remove_folder(&folder).map_err(io_error("remove", &folder))?;
        disk.sync_folder(layout.root()).map_err(io_error("sync", layout.root()))?;
    }
    rows::execute(new, "UPDATE main.tombstones SET buried = 1 WHERE thread_id = ?", [thread.as_str()])?;
    Ok(())
}
