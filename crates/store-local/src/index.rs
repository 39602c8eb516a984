//! How the database follows a log: the one place where the rows of a thread are written.
//!
//! A commit adds one changeset through here; [`crate::replay`] adds those that stand in a log already. So a database that
//! was rebuilt has what the one before it had, and there is no second way to write a head.

use rusqlite::{Connection, params};
use selvedge_log::Head;
use selvedge_log::hash::{Binding, RunningHash, SealKey, sha256};
use selvedge_model::event::BlobErased;
use selvedge_model::{Digest, LogId, Manifest, MessageId, OwnerId, Run, RunId, Timestamp};
use selvedge_store::Result;

use crate::db::Db;
use crate::rows::{self, Row, bad_row, signed};
use crate::sealed::Mark;

/// What is written of a thread.
pub(crate) struct Standing<'a> {
    /// The row as it is to be, sealed; its number counts for nothing.
    pub(crate) row: &'a Row,
    /// The manifest as it is stored, if it differs from what the row has in more than the time of the last changeset.
    pub(crate) manifest: Option<&'a str>,
    /// Whether `thread.json` must show the manifest.
    pub(crate) manifest_shown: bool,
    /// What [`crate::feed`] keeps in the head; absent if that stays. A head that is put in has nothing of it.
    pub(crate) counts: Option<&'a [u8]>,
    /// The row of redo that leads to the head; absent if that stays, or is told later.
    pub(crate) redo: Option<i64>,
}

/// The text of a manifest as it is stored, and its digest.
pub(crate) fn stored(manifest: &Manifest) -> Result<(String, Digest)> {
    let text = serde_json::to_string(manifest).map_err(bad_row)?;
    let digest = sha256(text.as_bytes());
    Ok((text, digest))
}

/// What one changeset adds beside the head.
pub(crate) struct Added<'a> {
    /// The log that it is added to.
    pub(crate) log: &'a LogId,
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
pub(crate) fn insert_thread(connection: &Connection, now: &Standing<'_>) -> Result<Option<i64>> {
    let Row { manifest, head, sealed, epoch, owner, posted, heard, leads, anchor, mark, .. } = now.row;
    let thread = &manifest.thread_id;
    if *mark == Mark::NONE {
        crate::schema::set_unsealed(connection)?;
    }
    if rows::tombstone(connection, thread)?.is_some() {
        return Ok(None);
    }
    let sql = "INSERT INTO threads (thread_id, hex, log_id, manifest) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING";
    let names = (thread.as_str(), thread.hex(), head.log_id.as_str());
    if rows::execute(connection, sql, params![names.0, names.1, names.2, now.manifest])? == 0 {
        return Ok(None);
    }
    let id = connection.last_insert_rowid();
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
            rows::heard_text(heard)?,
            signed(*leads),
            signed(*anchor),
            mark.bytes(),
        ],
    )?;
    Ok(Some(id))
}

/// Moves a thread on, if its row still has the seal that was seen; false if not. The seal covers everything that is not a hint, so a row
/// that another process wrote has another one; and one that was changed without the key has no seal that fits, which shows when it is
/// read again.
pub(crate) fn move_head(connection: &Connection, now: &Standing<'_>, seen: &Row) -> Result<bool> {
    let Row { manifest, head, sealed, epoch, owner, posted, heard, leads, anchor, mark, .. } = now.row;
    // An owner that stays is not written: that would rewrite its index too.
    let sql = match *owner == seen.owner {
        true => {
            "UPDATE heads SET version = ?1, lines = ?2, bytes = ?3, hash = ?4, signer = ?5, head_epoch = ?6, sealed = ?7, \
             epoch = ?8, updated_at = ?10, counts = COALESCE(?11, counts), redo = COALESCE(?12, redo), posted = ?13, \
             mark = ?14, heard = ?17, leads = ?18, anchor = ?19 WHERE id = ?15 AND mark = ?16 AND ?9 IS ?9"
        }
        false => {
            "UPDATE heads SET version = ?1, lines = ?2, bytes = ?3, hash = ?4, signer = ?5, head_epoch = ?6, sealed = ?7, \
             epoch = ?8, owner = ?9, updated_at = ?10, counts = COALESCE(?11, counts), redo = COALESCE(?12, redo), \
             posted = ?13, mark = ?14, heard = ?17, leads = ?18, anchor = ?19 WHERE id = ?15 AND mark = ?16"
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
            rows::heard_text(heard)?,
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

/// Gives a thread to an owner, or releases it, if its row still has the seal that was seen; gives the row as it is then.
pub(crate) fn set_lease(db: &Db, seen: &Row, owner: Option<OwnerId>, epoch: u64) -> Result<Option<Row>> {
    seen.check(db)?;
    let row = Row { owner, epoch, ..seen.clone() }.sealed(db.seals());
    let sql = "UPDATE heads SET owner = ?, epoch = ?, mark = ? WHERE id = ? AND mark = ?";
    let owner = row.owner.as_ref().map(OwnerId::as_str);
    let values = params![owner, signed(row.epoch), row.mark.bytes(), seen.id, seen.mark.bytes()];
    let is_set = rows::execute(db, sql, values)? == 1;
    Ok(is_set.then_some(row))
}

/// Says in a head how many events wait to lead the next changeset.
pub(crate) fn set_leads(db: &Db, seen: &Row, leads: u64) -> Result<Row> {
    seen.check(db)?;
    let row = Row { leads, ..seen.clone() }.sealed(db.seals());
    let sql = "UPDATE heads SET leads = ?, mark = ? WHERE id = ? AND mark = ?";
    match rows::execute(db, sql, params![signed(leads), row.mark.bytes(), seen.id, seen.mark.bytes()])? {
        1 => Ok(row),
        _ => Err(bad_row("a head changed while it was written")),
    }
}

/// Whether a manifest differs in more than the time of its last changeset, which stands in its head.
pub(crate) fn changed(after: &Manifest, before: &Manifest) -> bool {
    let mut same_time = before.clone();
    same_time.updated_at = after.updated_at;
    *after != same_time
}

/// Adds what a changeset says beside the head; false if one of its messages was there already.
pub(crate) fn add(connection: &Db, id: i64, added: &Added<'_>) -> Result<bool> {
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
        let (text, _) = stored(&row.manifest).unwrap();
        let now = Standing { row: &row, manifest: Some(&text), manifest_shown: true, counts: None, redo: None };
        let put = store.core.write(Durability::Lazy, |connection| insert_thread(connection, &now)).unwrap();
        assert_eq!(put, None);
    }
}
