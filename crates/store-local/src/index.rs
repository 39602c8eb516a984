//! How the database follows a log: the one place where the rows of a thread are written.
//!
//! A commit adds one changeset through here; [`crate::replay`] adds those that stand in a log already. So a database that
//! was rebuilt has what the one before it had, and there is no second way to write a head.

use rusqlite::{Connection, params};
use selvedge_log::Head;
use selvedge_log::hash::{Binding, RunningHash, SealKey};
use selvedge_model::event::BlobErased;
use selvedge_model::{Digest, Manifest, MessageId, OwnerId, Run, RunId, ThreadId, Timestamp};
use selvedge_store::Result;

use crate::rows::{self, Row, bad_row, signed};

/// Where a thread stands.
pub(crate) struct Standing<'a> {
    pub(crate) head: &'a Head,
    /// The running hash at the head, sealed; empty means that the log is hashed again before it is gone on with.
    pub(crate) sealed: &'a [u8],
    pub(crate) epoch: u64,
    pub(crate) owner: Option<&'a OwnerId>,
    pub(crate) manifest: &'a Manifest,
    /// Whether it differs from what the row has, in more than the time of the last changeset.
    pub(crate) manifest_changed: bool,
    /// Whether `thread.json` must show the manifest.
    pub(crate) manifest_shown: bool,
    /// What [`crate::feed`] keeps in the head; absent if that stays. A head that is put in has nothing of it.
    pub(crate) counts: Option<&'a [u8]>,
    /// The row of redo that leads to the head; absent if that stays, or is told later.
    pub(crate) redo: Option<i64>,
}

/// What one changeset adds beside the head.
pub(crate) struct Added<'a> {
    pub(crate) messages: &'a [(MessageId, Digest)],
    pub(crate) runs: &'a [Run],
    pub(crate) erased: &'a [BlobErased],
    /// The run that it belongs to, whose record is touched if there is one.
    pub(crate) touched_run: Option<&'a RunId>,
    pub(crate) at: Timestamp,
}

/// Seals the running hash at a head.
pub(crate) fn seal(key: &SealKey, head: &Head, hash: &RunningHash) -> Vec<u8> {
    let binding =
        Binding { log_id: head.log_id.as_str(), segment: head.segment, version: head.version, offset: head.bytes };
    key.seal(&binding, hash)
}

/// Puts a thread in and gives its number; nothing if one of this id is there or was deleted.
pub(crate) fn insert_thread(connection: &Connection, thread: &ThreadId, now: &Standing<'_>) -> Result<Option<i64>> {
    if rows::tombstone(connection, thread)?.is_some() {
        return Ok(None);
    }
    let head = now.head;
    let sql = "INSERT INTO threads (thread_id, hex, log_id, manifest) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING";
    let manifest = serde_json::to_string(now.manifest).map_err(bad_row)?;
    let names = (thread.as_str(), thread.hex(), head.log_id.as_str());
    if rows::execute(connection, sql, params![names.0, names.1, names.2, manifest])? == 0 {
        return Ok(None);
    }
    let id = connection.last_insert_rowid();
    let sql = "INSERT INTO heads (id, version, lines, bytes, hash, segment, signer, head_epoch, sealed, epoch, owner, \
               updated_at, redo) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    rows::execute(
        connection,
        sql,
        params![
            id,
            signed(head.version),
            signed(head.lines),
            signed(head.bytes),
            &head.hash.0[..],
            head.segment,
            &head.signer.0[..],
            signed(head.epoch),
            now.sealed,
            signed(now.epoch),
            now.owner.map(OwnerId::as_str),
            now.manifest.updated_at.as_micros(),
            now.redo.unwrap_or(crate::redo::NONE),
        ],
    )?;
    Ok(Some(id))
}

/// Moves a thread on, if its row is still exactly what was seen; false if not.
pub(crate) fn move_head(connection: &Connection, now: &Standing<'_>, seen: &Row) -> Result<bool> {
    let head = now.head;
    // An owner that stays is not written: that would rewrite its index too.
    let sql = match now.owner == seen.owner.as_ref() {
        true => {
            "UPDATE heads SET version = ?1, lines = ?2, bytes = ?3, hash = ?4, signer = ?5, head_epoch = ?6, sealed = ?7, \
             epoch = ?8, updated_at = ?10, counts = COALESCE(?11, counts), redo = COALESCE(?16, redo) \
             WHERE id = ?12 AND version = ?13 AND epoch = ?14 AND owner IS ?15 AND ?9 IS ?9"
        }
        false => {
            "UPDATE heads SET version = ?1, lines = ?2, bytes = ?3, hash = ?4, signer = ?5, head_epoch = ?6, sealed = ?7, \
             epoch = ?8, owner = ?9, updated_at = ?10, counts = COALESCE(?11, counts), redo = COALESCE(?16, redo) \
             WHERE id = ?12 AND version = ?13 AND epoch = ?14 AND owner IS ?15"
        }
    };
    let moved = rows::execute(
        connection,
        sql,
        params![
            signed(head.version),
            signed(head.lines),
            signed(head.bytes),
            &head.hash.0[..],
            &head.signer.0[..],
            signed(head.epoch),
            now.sealed,
            signed(now.epoch),
            now.owner.map(OwnerId::as_str),
            now.manifest.updated_at.as_micros(),
            now.counts,
            seen.id,
            signed(seen.head.version),
            signed(seen.epoch),
            seen.owner.as_ref().map(OwnerId::as_str),
            now.redo,
        ],
    )?;
    if moved == 1 && now.manifest_changed {
        let sql = "UPDATE threads SET manifest = ?, manifest_stale = manifest_stale OR ? WHERE id = ?";
        let manifest = serde_json::to_string(now.manifest).map_err(bad_row)?;
        rows::execute(connection, sql, params![manifest, now.manifest_shown, seen.id])?;
    }
    Ok(moved == 1)
}

/// Whether a manifest differs in more than the time of its last changeset, which stands in its head.
pub(crate) fn changed(after: &Manifest, before: &Manifest) -> bool {
    let mut same_time = before.clone();
    same_time.updated_at = after.updated_at;
    *after != same_time
}

/// Adds what a changeset says beside the head; false if one of its messages was there already.
pub(crate) fn add(connection: &Connection, id: i64, added: &Added<'_>) -> Result<bool> {
    let mut all_new = true;
    for (message, digest) in added.messages {
        // Each id is stored once; a log from elsewhere may have one twice, and the first counts, as it does when folded.
        let sql = "INSERT INTO messages (thread, message_id, digest) VALUES (?, ?, ?) ON CONFLICT DO NOTHING";
        all_new &= rows::execute(connection, sql, params![id, message.as_str(), &digest.0[..]])? == 1;
    }
    for run in added.runs {
        rows::put_run(connection, id, run)?;
    }
    for erased in added.erased {
        crate::erase::put(connection, id, erased, added.at)?;
    }
    if let Some(run) = added.touched_run.filter(|_| added.runs.is_empty()) {
        let sql = "UPDATE runs SET updated_at = ? WHERE thread = ? AND run_id = ?";
        rows::execute(connection, sql, params![added.at.as_micros(), id, run.as_str()])?;
    }
    Ok(all_new)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use selvedge_log::{Signer, Trust};
    use selvedge_model::{AgentId, Batch, Changeset, Expect, NewThread, Part};
    use selvedge_store::Commit;

    use super::*;
    use crate::core::Durability;
    use crate::disk::RealDisk;
    use crate::system::{SystemClock, SystemIds};
    use crate::{Access, LocalStore, Options};

    /// A birth is prepared before it is written; in between somebody may have made the same thread and deleted it.
    #[test]
    fn what_was_deleted_meanwhile_is_not_put_in_again() {
        let folder = tempfile::tempdir().unwrap();
        LocalStore::init(folder.path(), Arc::new(RealDisk)).unwrap();
        let signer = Signer::generate(&SystemIds);
        let store = LocalStore::open(Options {
            project: folder.path().to_owned(),
            access: Access::ReadWrite,
            trust: Trust::of(&[signer.public()]),
            signer: Some(signer),
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            disk: Arc::new(RealDisk),
        })
        .unwrap();
        let thread = ThreadId::new("scribe-0123456789ab").unwrap();
        let new = NewThread::of(AgentId::new("scribe").unwrap());
        store.commit(Batch::of(Part::new(thread.clone(), Expect::Absent, Changeset::creating(new)))).unwrap();
        let row = store.core.read(|connection| rows::existing(connection, &thread)).unwrap();
        store.delete(&thread).unwrap();
        let now = Standing {
            head: &row.head,
            sealed: &[],
            epoch: row.epoch,
            owner: None,
            manifest: &row.manifest,
            manifest_changed: true,
            manifest_shown: true,
            counts: None,
            redo: None,
        };
        let put = store.core.write(Durability::Lazy, |connection| insert_thread(connection, &thread, &now)).unwrap();
        assert_eq!(put, None);
    }
}
