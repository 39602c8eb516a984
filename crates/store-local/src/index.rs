//! The rows of a thread: the only module that writes them.
//!
//! A commit adds one changeset through here; [`crate::replay`] adds the changesets of an existing log. So a rebuilt database has the same
//! content as the one before it, and there is no second way to write a head.

use rusqlite::{Connection, params};
use selvedge_log::Head;
use selvedge_log::hash::{Binding, RunningHash, SealKey, Seals, sha256};
use selvedge_model::event::BlobErased;
use selvedge_model::{Digest, LogId, Manifest, MessageId, OwnerId, Run, RunId, Timestamp};
use selvedge_store::Result;

use crate::db::Db;
use crate::rows::{self, Row, bad_row, signed};

/// A new state of a thread's rows.
pub(crate) struct RowUpdate<'a> {
    /// The new row, sealed.
    pub(crate) row: &'a Row,
    /// The text of the manifest, if more changed than the time of the last changeset.
    pub(crate) manifest: Option<&'a str>,
    /// Whether `thread.json` must be written.
    pub(crate) manifest_shown: bool,
    /// The counts that [`crate::feed`] stores in the head; absent if they stay. A new head has none.
    pub(crate) counts: Option<&'a [u8]>,
    /// The redo row that leads to the head; absent if that stays, or is set later.
    pub(crate) redo: Option<i64>,
}

/// The text of a manifest as it is stored, and its digest.
pub(crate) fn stored(manifest: &Manifest) -> Result<(String, Digest)> {
    let text = serde_json::to_string(manifest).map_err(bad_row)?;
    let digest = sha256(text.as_bytes());
    Ok((text, digest))
}

/// What one changeset adds besides the head.
pub(crate) struct AddedRows<'a> {
    /// The log that it is added to.
    pub(crate) log: &'a LogId,
    pub(crate) messages: &'a [(MessageId, Digest)],
    pub(crate) runs: &'a [Run],
    pub(crate) erased: &'a [BlobErased],
    /// The run that it belongs to; if that has a record, its time is updated.
    pub(crate) touched_run: Option<&'a RunId>,
    pub(crate) at: Timestamp,
}

/// Seals the running hash at a head.
pub(crate) fn seal(key: &SealKey, head: &Head, hash: &RunningHash) -> Vec<u8> {
    let binding =
        Binding { log_id: head.log_id.as_str(), segment: head.segment, version: head.version, offset: head.bytes };
    key.seal(&binding, hash)
}

/// Inserts a thread and returns its row, which is sealed here, because the seal covers its number; none if one of this id exists or was
/// deleted.
pub(crate) fn insert_thread(
    connection: &Connection,
    now: &RowUpdate<'_>,
    seals: Option<&Seals>,
) -> Result<Option<Row>> {
    let thread = &now.row.manifest.thread_id;
    if seals.is_none() {
        crate::schema::set_unsealed(connection)?;
    }
    if rows::tombstone(connection, thread)?.is_some() {
        return Ok(None);
    }
    let sql = "INSERT INTO threads (thread_id, log_id, manifest) VALUES (?, ?, ?) ON CONFLICT DO NOTHING";
    if rows::execute(connection, sql, params![thread.as_str(), now.row.head.log_id.as_str(), now.manifest])? == 0 {
        return Ok(None);
    }
    let id = connection.last_insert_rowid();
    let inserted = Row { id, ..now.row.clone() }.sealed(seals);
    let Row { manifest, head, sealed, epoch, owner, posted, consumed, leads, anchor, mark, .. } = &inserted;
    let sql = "INSERT INTO heads (id, version, lines, bytes, hash, segment, signer, head_epoch, sealed, epoch, owner, \
               updated_at, redo, posted, heard, leads, anchor, mark) \
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
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
            sealed,
            signed(*epoch),
            owner.as_ref().map(OwnerId::as_str),
            manifest.updated_at.as_micros(),
            now.redo.unwrap_or(crate::redo::NONE),
            rows::posted_text(posted)?,
            rows::consumed_text(consumed)?,
            signed(*leads),
            signed(*anchor),
            mark.bytes(),
        ],
    )?;
    Ok(Some(inserted))
}

/// Moves the head of a thread, if its row still has the seal that was read; false if not. The seal covers every column that is not a hint,
/// so a row that another process wrote has another seal; and a row that was changed without the key fails its seal when it is read again.
pub(crate) fn move_head(connection: &Connection, now: &RowUpdate<'_>, seen: &Row) -> Result<bool> {
    let Row { manifest, head, sealed, epoch, owner, posted, consumed, leads, anchor, mark, .. } = now.row;
    // An unchanged owner is not written: that would rewrite its index too.
    let sql = if *owner == seen.owner {
        "UPDATE heads SET version = ?1, lines = ?2, bytes = ?3, hash = ?4, signer = ?5, head_epoch = ?6, sealed = ?7, \
             epoch = ?8, updated_at = ?10, counts = COALESCE(?11, counts), redo = COALESCE(?12, redo), posted = ?13, \
             mark = ?14, heard = ?17, leads = ?18, anchor = ?19 WHERE id = ?15 AND mark = ?16 AND ?9 IS ?9"
    } else {
        "UPDATE heads SET version = ?1, lines = ?2, bytes = ?3, hash = ?4, signer = ?5, head_epoch = ?6, sealed = ?7, \
             epoch = ?8, owner = ?9, updated_at = ?10, counts = COALESCE(?11, counts), redo = COALESCE(?12, redo), \
             posted = ?13, mark = ?14, heard = ?17, leads = ?18, anchor = ?19 WHERE id = ?15 AND mark = ?16"
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
            sealed,
            signed(*epoch),
            owner.as_ref().map(OwnerId::as_str),
            manifest.updated_at.as_micros(),
            now.counts,
            now.redo,
            rows::posted_text(posted)?,
            mark.bytes(),
            seen.id,
            seen.mark.bytes(),
            rows::consumed_text(consumed)?,
            signed(*leads),
            signed(*anchor),
        ],
    )?;
    if let (1, Some(manifest)) = (moved, now.manifest) {
        let sql = "UPDATE threads SET manifest = ?, manifest_stale = manifest_stale OR ? WHERE id = ?";
        rows::execute(connection, sql, params![manifest, now.manifest_shown, seen.id])?;
    }
    Ok(moved == 1)
}

/// Sets or clears the lease holder of a thread, if its row still has the seal that was read; returns the new row.
pub(crate) fn set_lease(db: &Db, seen: &Row, owner: Option<OwnerId>, epoch: u64) -> Result<Option<Row>> {
    seen.check(db)?;
    let row = Row { owner, epoch, ..seen.clone() }.sealed(db.seals());
    let sql = "UPDATE heads SET owner = ?, epoch = ?, mark = ? WHERE id = ? AND mark = ?";
    let owner = row.owner.as_ref().map(OwnerId::as_str);
    let values = params![owner, signed(row.epoch), row.mark.bytes(), seen.id, seen.mark.bytes()];
    let is_set = rows::execute(db, sql, values)? == 1;
    Ok(is_set.then_some(row))
}

/// Records in a head how many events wait to lead the next changeset.
pub(crate) fn set_leads(db: &Db, seen: &Row, leads: u64) -> Result<Row> {
    seen.check(db)?;
    let row = Row { leads, ..seen.clone() }.sealed(db.seals());
    let sql = "UPDATE heads SET leads = ?, mark = ? WHERE id = ? AND mark = ?";
    match rows::execute(db, sql, params![signed(leads), row.mark.bytes(), seen.id, seen.mark.bytes()])? {
        1 => Ok(row),
        _ => Err(bad_row("a head changed during the transaction")),
    }
}

/// Whether a manifest differs in more than the time of its last changeset, which is stored in the head.
pub(crate) fn changed(after: &Manifest, before: &Manifest) -> bool {
    let mut same_time = before.clone();
    same_time.updated_at = after.updated_at;
    *after != same_time
}

/// Adds the content of a changeset besides the head; false if one of its messages exists already.
pub(crate) fn add(connection: &Db, id: i64, added: &AddedRows<'_>) -> Result<bool> {
    let mut all_new = true;
    for (message, digest) in added.messages {
        all_new &= rows::put_message(connection, id, added.log, message, digest)?;
    }
    for run in added.runs {
        rows::put_run(connection, id, added.log, run)?;
    }
    for erased in added.erased {
        crate::erase::put(connection, id, added.log, erased, added.at)?;
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
    use selvedge_model::{AgentId, Batch, Changeset, Expect, NewThread, Part, ThreadId};
    use selvedge_store::Commit;

    use super::*;
    use crate::core::Durability;
    use crate::disk::RealDisk;
    use crate::system::{SystemClock, SystemIds};
    use crate::{Access, LocalStore, Options};

    /// Between the preparation and the writing of a first changeset, another process may create the same thread and delete it.
    #[test]
    fn a_thread_that_was_deleted_meanwhile_is_not_inserted_again() {
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
        let (text, _) = stored(&row.manifest).unwrap();
        let now = RowUpdate { row: &row, manifest: Some(&text), manifest_shown: true, counts: None, redo: None };
        let put = store.core.write(Durability::Lazy, |connection| insert_thread(connection, &now, None)).unwrap();
        assert!(put.is_none());
    }
}
