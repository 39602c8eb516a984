//! Carries over from the old database what is in no log: requests, events that lead the next changeset, answers to commit keys, accounts.
//!
//! Only sealed rows are carried over; they are sealed again for this store.

use std::collections::BTreeSet;

use selvedge_log::Head;
use selvedge_model::account::AccountId;
use selvedge_model::{CommitKey, ThreadId};
use selvedge_store::Result;
use selvedge_store::account_records::Children;
use selvedge_store::seal::ConsumedRequests;

use super::build::Builder;
use crate::db::Db;
use crate::ledger;
use crate::rows::{self, Row, bad_row};
use crate::schema_check::SchemaDifferences;
use crate::sealed::Seal;
use crate::{inbox, leading_events};

/// Accounts of which the old database has a newer version than the logs.
const FURTHER: &str = "SELECT o.thread_id FROM old.budget_ledger AS o LEFT JOIN main.budget_ledger AS n USING (thread_id) \
                       WHERE n.version IS NULL OR n.version < o.version";

impl Builder<'_> {
    /// Adds a notice; the same one is added once.
    fn notice(&mut self, notice: String) {
        if !self.result.notices.contains(&notice) {
            self.result.notices.push(notice);
        }
    }

    /// The old database's row of a thread, if it passes its seal; without a key it is not checked. Requests that wait according to its
    /// head and are missing are named, and removed from its list.
    pub(super) fn sealed_old_row(&mut self, thread: &ThreadId) -> Result<Option<Row>> {
        let Some(old) = &self.old_db else { return Ok(None) };
        let Some(mut row) = rows::find_any(old, thread)? else { return Ok(None) };
        match row.seal(old) {
            Seal::Unchecked => return Ok(Some(row)),
            Seal::Holds => {}
            Seal::Broken => {
                let why = "was not sealed with your key, and is ignored; requests to the thread must be sent again";
                self.notice(format!("the old database row of `{thread}` {why}"));
                return Ok(None);
            }
        }
        let found = inbox::read(old, &row)?;
        let is_missing = inbox::is_missing(old, &row, &found).unwrap_or(true);
        let root = &row.manifest.chain_root_id;
        let counts = |number: &u64| found.iter().any(|one| one.number == *number && one.is_sealed(old, root));
        row.consumed.waiting.retain(counts);
        if is_missing {
            self.notice(format!("a request to `{thread}` was removed from the old database before it was consumed"));
        }
        Ok(Some(row))
    }

    /// The requests that a thread has consumed. If that is unknown, every request posted so far is treated as consumed.
    pub(super) fn consumed(&self, known: Option<&Row>) -> Result<ConsumedRequests> {
        match (known, &self.old_db) {
            (Some(row), _) => Ok(row.consumed.clone()),
            // A counter that can't be right gives the store a new id, under which no older request is accepted.
            (None, Some(old)) if !SchemaDifferences::of(old)?.counters.is_empty() => Ok(ConsumedRequests::default()),
            (None, Some(old)) => Ok(ConsumedRequests { newest: inbox::newest(old)?, waiting: Vec::new() }),
            (None, None) => Ok(ConsumedRequests::default()),
        }
    }

    /// Carries over what belongs to a thread and is in no log: requests, and the events that the next changeset must lead with, if it
    /// follows the same head. Returns the number of requests.
    pub(super) fn carry_waiting(&mut self, known: &Row, now: Row, head: &Head) -> Result<u64> {
        let Some(old) = &self.old_db else { return Ok(0) };
        let mut row = now;
        let mut count = 0;
        let mut dropped = 0;
        let led = leading_events::read(old, known)?;
        // Without a key none counts, and nothing can be said about that.
        let unsealed = if old.seals().is_some() { led.unsealed } else { 0 };
        for event in led.events.iter().filter(|_| known.head == *head) {
            row = leading_events::put(self.new, &row, event)?;
        }
        for request in inbox::read(old, known)? {
            let root = &known.manifest.chain_root_id;
            // Without a key no seal can be checked: waiting requests are kept, and are ignored until they are sent again.
            if old.seals().is_none() || (request.is_sealed(old, root) && !known.consumed.has(request.number)) {
                inbox::put(self.new, &row, request.number, &request.posted)?;
                count += 1;
            } else {
                dropped += 1;
            }
        }
        inbox::note_consumed(self.new, &row)?;
        let thread = &row.manifest.thread_id;
        if dropped > 0 {
            self.notice(format!("{dropped} request(s) to `{thread}` were not sealed with your key, and are dropped"));
        }
        let waited = "event(s) that waited to be recorded in the log of";
        if unsealed > 0 {
            self.notice(format!("{unsealed} {waited} `{thread}` were not sealed with your key, and are dropped"));
        }
        if led.missing > 0 {
            self.notice(format!("{} {waited} `{thread}` were removed from the old database", led.missing));
        }
        Ok(count)
    }

    /// Carries over answers to commit keys that are in no log any more.
    pub(super) fn carry_keys(&mut self) -> Result<()> {
        let sql = "SELECT key FROM old.keys WHERE key NOT IN (SELECT key FROM main.keys)";
        for name in self.old.beyond(self.new, sql)? {
            let key = CommitKey::new(name).map_err(bad_row)?;
            match self.old_db.as_ref().map(|old| rows::key(old, &key)).transpose() {
                Ok(Some(Some((request, answer)))) => {
                    rows::put_key(self.new, &key, &request, &answer)?;
                }
                Ok(_) => {}
                Err(error) => self.result.notices.push(format!("{error}; it is left out")),
            }
        }
        Ok(())
    }

    /// Carries over accounts of which the old database has a newer version, or a complete one where the logs have a gap; returns those that
    /// stay incomplete.
    pub(super) fn carry_accounts(&mut self, incomplete: Vec<AccountId>) -> Result<BTreeSet<AccountId>> {
        let further = self.old.beyond(self.new, FURTHER)?;
        let mut left = BTreeSet::new();
        for account in further.iter().map(|name| AccountId::new(name.as_str()).map_err(bad_row)) {
            self.carry_account(&account?)?;
        }
        for account in incomplete {
            if !further.iter().any(|name| name == account.as_str()) && !self.carry_account(&account)? {
                left.insert(account);
            }
        }
        Ok(left)
    }

    /// Whether the old database has all postings to an account that are in the logs, and every child that money was reserved for: then
    /// none is in a log that was never in this store. If it lacks a child, its account may be from before that child posted.
    pub(super) fn was_complete(&self, id: &AccountId, children: &Children) -> Result<bool> {
        let one = |db: &Db| -> Result<_> { Ok(rows::accounts(db, "thread_id = ?", id.as_str())?.pop()) };
        let Some(old_db) = &self.old_db else { return Ok(false) };
        let Some(old) = one(old_db).ok().flatten().filter(|old| !old.incomplete) else { return Ok(false) };
        // Its tombstones are not verified, those of the new one are.
        if !ledger::are_known(old_db, self.new, children)? {
            return Ok(false);
        }
        Ok(one(self.new)?.is_some_and(|new| !new.incomplete && new.version <= old.version))
    }

    /// Carries over an account from the old database, if it has this version or a later one.
    fn carry_account(&mut self, id: &AccountId) -> Result<bool> {
        let Some(old) = &self.old_db else { return Ok(false) };
        let one = |db: &Db| -> Result<_> { Ok(rows::accounts(db, "thread_id = ?", id.as_str())?.pop()) };
        let account = match one(old) {
            Ok(Some(account)) => account,
            Ok(None) => return Ok(false),
            Err(error) => {
                self.result.notices.push(format!("{error}; it is left out"));
                return Ok(false);
            }
        };
        let known = one(self.new)?;
        if known.as_ref().is_some_and(|known| known.version > account.version) {
            return Ok(false);
        }
        let reservations = rows::reservations(old, id)?;
        rows::replace_account(self.new, &account, &reservations)?;
        Ok(true)
    }
}
