//! Moving a store of an older format to the one that is written.
//!
//! A store names its format twice: in `user_version` of its database and in `store.json`. The database is moved in one
//! transaction, step by step; `store.json` follows. Killed anywhere, the store is still of the old format, or its database
//! is moved and its `store.json` is not: both are refused to writers, and running this again completes it. The logs are not
//! touched: their own format is another matter.
//!
//! Requests that were left in a store of format 5 are not sealed, so they are dropped: their senders send them again.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use selvedge_model::OwnerId;
use selvedge_store::{Error, Result};

use crate::core::io_error;
use crate::disk::{Disk, How};
use crate::layout::Layout;
use crate::open::{self, LocalStore};
use crate::schema::{self, FORMAT, Use, database};

/// What an upgrade did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upgraded {
    /// The format that the store had.
    pub from: i64,
    /// The format that it has now.
    pub to: i64,
}

impl LocalStore {
    /// Moves the store of a project to the format that this program writes; refused while somebody has it open to write.
    pub fn upgrade(project: &Path, disk: Arc<dyn Disk>) -> Result<Upgraded> {
        let layout = Layout::of(project);
        open::check_ancestors(project, &layout)?;
        let named = open::check_kind(&layout, &*disk)?.format;
        open::refuse_network(layout.root())?;
        open::make_places(&layout, &*disk)?;
        let path = layout.commit_lock();
        let queue = disk.open(&path, How::Make).map_err(io_error("open", &path))?;
        queue.lock().map_err(io_error("lock", &path))?;
        let moved = match live_owner(&layout, &*disk)? {
            Some(owner) => Err(Error::Unusable {
                what: "the store".to_owned(),
                why: format!("a process has it open to write, as owner {owner}"),
                hint: Some("let it finish, then run `selvedge upgrade` again".to_owned()),
            }),
            None => move_database(&layout.database()),
        };
        // Closing the file would free the lock as well.
        _ = queue.unlock();
        let found = moved?;
        if named < FORMAT {
            open::write_kind(&layout, &*disk)?;
        }
        Ok(Upgraded { from: named.min(found), to: FORMAT })
    }
}

/// Takes every step that is missing, in one transaction; gives the version that was found.
fn move_database(path: &Path) -> Result<i64> {
    let (connection, found) = schema::open_any(path, Use::Write)?;
    if found < FORMAT {
        let steps = steps_from(found);
        let script = format!("BEGIN IMMEDIATE; {steps} PRAGMA user_version = {FORMAT}; COMMIT;");
        connection.execute_batch(&script).map_err(database)?;
    }
    Ok(found)
}

/// What leads from a version of the database to the one that is written.
fn steps_from(found: i64) -> String {
    let steps = [(5, schema::sealed())];
    steps.into_iter().filter(|(from, _)| *from >= found).map(|(_, step)| step).collect()
}

/// Somebody who has the store open to write.
pub(crate) fn live_owner(layout: &Layout, disk: &dyn Disk) -> Result<Option<OwnerId>> {
    let folder = layout.owners();
    let Ok(entries) = fs::read_dir(&folder) else { return Ok(None) };
    for entry in entries.flatten() {
        let Ok(owner) = OwnerId::new(entry.file_name().to_string_lossy()) else { continue };
        let path = layout.owner(&owner);
        match disk.open(&path, How::Read) {
            Ok(file) if !file.is_unlocked().map_err(io_error("look at the lock of", &path))? => return Ok(Some(owner)),
            // One that closed meanwhile has taken its file along.
            _ => {}
        }
    }
    Ok(None)
}
