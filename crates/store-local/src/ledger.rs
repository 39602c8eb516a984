//! Accounts in the database: read as a commit may rely on them, and computed again from the records in logs
//! ([`selvedge_store::account_records`]).

use std::collections::BTreeMap;

use selvedge_model::account::replay::DeletedPostings;
use selvedge_model::account::{Account, AccountId, Posting, Record};
use selvedge_store::account_records::{self, Applied, Children, Continuity, apply};
use selvedge_store::{Error, Result};

use crate::anchor::Bucket;
use crate::core::{Core, lock};
use crate::db::Db;
use crate::family::Family;
use crate::rows::{self, Row};
use crate::schema::{REBUILD, database};

impl Core {
    /// An account as a commit may rely on it. An account that was replaced by an older row, whose seal is valid, is detected by the heads
    /// of its family, which record the newest version that their logs posted to, by logs of the family that continue after their heads,
    /// by what this process has read before, and by the anchor.
    pub(crate) fn known_account(&self, id: &AccountId) -> Result<Option<Account>> {
        let seen = lock(&self.accounts).get(id).copied();
        let family = if seen.is_none() { self.family(id)? } else { Family::default() };
        let (account, rows, anchored) = self.read(|db| {
            let account = rows::accounts(db, "thread_id = ?", id.as_str())?.pop();
            let mut parts = family.parts();
            parts.insert(Bucket::of_account(id));
            let rows = family.rows(db)?;
            let known = rows.iter().map(|row| row.anchor).max().unwrap_or(0);
            let anchored = parts.into_iter().try_for_each(|part| self.check_anchor(db, part, known));
            Ok((account, rows, anchored))
        })?;
        let least = match seen {
            Some(seen) => seen,
            None => posted(&rows, id).max(family.posted_by_deleted()),
        };
        let version = account.as_ref().map_or(0, |account| account.version);
        if version < least {
            return Err(Error::Integrity {
                what: format!("the account of `{id}` in `registry.db`"),
                why: format!("it is older than the logs: version {version}, and a log posted to version {least}"),
                hint: Some(REBUILD.to_owned()),
            });
        }
        // The comparison with the logs gives the more exact error, so it comes first.
        self.check_family(account.as_ref(), &family, &rows)?;
        anchored?;
        if account.is_some() {
            let mut known = lock(&self.accounts);
            let newest = known.entry(id.clone()).or_default();
            *newest = (*newest).max(version);
        }
        Ok(account)
    }
}

/// The newest version of an account that these logs posted to.
fn posted(family: &[Row], id: &AccountId) -> u64 {
    family.iter().filter_map(|row| row.posted.get(id)).copied().max().unwrap_or(0)
}

/// Applies the record of one posting.
pub(crate) fn take(connection: &Db, event_type: &str, record: &Record) -> Result<Continuity> {
    let known = rows::accounts(connection, "thread_id = ?", record.account.as_str())?.pop();
    let before = known.as_ref().map(|account| account.version);
    if before.is_some_and(|version| version >= record.account_version) {
        return Ok(Continuity::Exact);
    }
    let Some(posting) = Posting::from_record(event_type, record) else { return Ok(Continuity::Gap) };
    let reservation = match posting.reservation() {
        Some(name) => rows::reservation(connection, &record.account, name)?,
        None => None,
    };
    let Applied { account, reservation, fit } = apply(known, reservation, &posting, record);
    if let Some(name) = posting.reservation() {
        rows::put_reservation(connection, &record.account, name, reservation.as_ref())?;
    }
    rows::put_account(connection, before, &account)?;
    Ok(fit)
}

/// Records that postings of an account are lost with the end of a log; true if no other record shows their effect.
pub(crate) fn give_up(connection: &Db, lost: &DeletedPostings) -> Result<bool> {
    let known = rows::accounts(connection, "thread_id = ?", lost.account.as_str())?.pop();
    let before = known.as_ref().map(|account| account.version);
    let Some(account) = account_records::give_up(known, lost) else { return Ok(false) };
    rows::put_account(connection, before, &account)?;
    Ok(true)
}

/// Whether these children are in the store or were deleted; `tombstones` is the database whose tombstones were verified.
pub(crate) fn are_known(connection: &Db, tombstones: &Db, children: &Children) -> Result<bool> {
    for child in children.names() {
        if !has_chain(connection, tombstones, child)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether every log that may have postings of an account is in the store or was deleted: its own chain, its parent's and its children's.
fn has_all_logs(connection: &Db, account: &Account, children: &Children) -> Result<bool> {
    for chain in [&account.id].into_iter().chain(&account.parent) {
        if !has_chain(connection, connection, chain)? {
            return Ok(false);
        }
    }
    are_known(connection, connection, children)
}

/// Whether the threads of a chain, from its root on, are in the store or were deleted.
fn has_chain(connection: &Db, tombstones: &Db, root: &AccountId) -> Result<bool> {
    let is_deleted =
        |thread: &str| rows::exists(tombstones, "SELECT 1 FROM main.tombstones WHERE thread_id = ?", [thread]);
    let is_here = rows::exists(connection, "SELECT 1 FROM main.threads WHERE thread_id = ?", [root.as_str()])?;
    if !is_here && !is_deleted(root.as_str())? {
        return Ok(false);
    }
    let continues_elsewhere = "SELECT t.continuation_thread_id FROM main.threads AS t WHERE t.chain_root_id = ? \
                             AND t.continuation_thread_id IS NOT NULL \
                             AND t.continuation_thread_id NOT IN (SELECT thread_id FROM main.threads)";
    let mut statement = connection.prepare_cached(continues_elsewhere).map_err(database)?;
    let found = statement.query_map([root.as_str()], |row| row.get::<_, String>(0)).map_err(database)?;
    for next in found {
        if !is_deleted(&next.map_err(database)?)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Records in an account whether it is incomplete: postings are missing, or a log that may have some is not in the store. Returns which it
/// is.
pub(crate) fn note_incomplete(connection: &Db, id: &AccountId, children: &Children) -> Result<bool> {
    let Some(account) = rows::accounts(connection, "thread_id = ?", id.as_str())?.pop() else { return Ok(false) };
    let incomplete = account.incomplete || !has_all_logs(connection, &account, children)?;
    if incomplete != account.incomplete {
        rows::put_account(connection, Some(account.version), &Account { incomplete, ..account })?;
    }
    Ok(incomplete)
}

/// Computes an account again from all its records; false if it is incomplete. The known state stays if it is newer.
pub(crate) fn settle(connection: &Db, id: &AccountId, records: &BTreeMap<u64, (&'static str, Record)>) -> Result<bool> {
    let known = rows::accounts(connection, "thread_id = ?", id.as_str())?.pop();
    let before = rows::reservations(connection, id)?;
    rows::remove_account(connection, id)?;
    let mut is_whole = true;
    let mut children = Children::default();
    for (event_type, record) in records.values() {
        is_whole &= take(connection, event_type, record)? == Continuity::Exact;
        children.note(event_type, record);
    }
    let newest = records.keys().next_back().copied().unwrap_or(0);
    if let Some(known) = known.filter(|known| known.version > newest || (!is_whole && known.version == newest)) {
        rows::replace_account(connection, &known, &before)?;
    }
    Ok(!note_incomplete(connection, id, &children)?)
}
