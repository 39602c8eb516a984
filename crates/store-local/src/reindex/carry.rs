//! What no log tells of and is taken over from the old database: requests, events that lead the next changeset, answers to keys, accounts.
//!
//! Nothing is taken over that the holder of the key did not seal there; it is sealed anew for this store.

use std::collections::BTreeSet;

use selvedge_log::Head;
use selvedge_model::account::AccountId;
use selvedge_model::{CommitKey, ThreadId};
use selvedge_store::Result;
use selvedge_store::seal::Heard;

use super::build::Builder;
use crate::db::Db;
use crate::rows::{self, Row, bad_row};
use crate::sealed::Seal;
use crate::shape::Misshapen;
use crate::{inbox, leads};

/// Accounts that the old database knows further than the logs tell.
const FURTHER: &str = "SELECT o.thread_id FROM old.budget_ledger AS o LEFT JOIN main.budget_ledger AS n USING (thread_id) \
                       WHERE n.version IS NULL OR n.version < o.version";

impl Builder<'_> {
    /// Names something once.
    fn notice(&mut self, notice: String) {
        if !self.result.notices.contains(&notice) {
            self.result.notices.push(notice);
        }
    }

    /// The thread as the old database has it, if that is what was sealed; without a key it is taken as it is. Of requests that its head
    /// says wait, those that are gone are named, and don't wait any more.
    pub(super) fn believed(&mut self, thread: &ThreadId) -> Result<Option<Row>> {
        let Some(old) = &self.old_db else { return Ok(None) };
        let Some(mut row) = rows::find_any(old, thread)? else { return Ok(None) };
        match row.seal(old) {
            Seal::Unchecked => return Ok(Some(row)),
            Seal::Holds => {}
            Seal::Broken => {
                let why = "was not sealed with your key, and counts for nothing; requests to it must be sent again";
                self.notice(format!("what the old database had of `{thread}` {why}"));
                return Ok(None);
            }
        }
        let found = inbox::read(old, &row)?;
        let is_missing = inbox::is_missing(old, &row, &found).unwrap_or(true);
        let root = &row.manifest.chain_root_id;
        let counts = |number: &u64| found.iter().any(|one| one.number == *number && one.is_sealed(old, root));
        row.heard.waiting.retain(counts);
        if is_missing {
            self.notice(format!("a request to `{thread}` was removed from the old database before it was consumed"));
        }
        Ok(Some(row))
    }

    /// The requests that a thread has consumed. Where nothing is known of that, whatever was posted before counts as consumed.
    pub(super) fn heard(&self, known: Option<&Row>) -> Result<Heard> {
        match (known, &self.old_db) {
            (Some(row), _) => Ok(row.heard.clone()),
            // A counter that can't be right gives the store another id, under which no older request counts.
            (None, Some(old)) if !Misshapen::of(old)?.counters.is_empty() => Ok(Heard::default()),
            (None, Some(old)) => Ok(Heard { newest: inbox::newest(old)?, waiting: Vec::new() }),
            (None, None) => Ok(Heard::default()),
        }
    }

    /// Takes over what belongs to a thread and stands in no log: requests, and what the next changeset must lead with if it follows the
    /// same head. Gives how many requests there were.
    pub(super) fn carry_waiting(&mut self, known: &Row, now: Row, head: &Head) -> Result<u64> {
        let Some(old) = &self.old_db else { return Ok(0) };
        let mut row = now;
        let mut count = 0;
        let mut dropped = 0;
        let led = leads::read(old, known)?;
        // Without a key none counts, and nothing can be said about that.
        let unsealed = if old.seals().is_some() { led.unsealed } else { 0 };
        for event in led.events.iter().filter(|_| known.head == *head) {
            row = leads::put(self.new, &row, event)?;
        }
        for request in inbox::read(old, known)? {
            let root = &known.manifest.chain_root_id;
            // Without a key no seal can be checked: what waits stays as it is, and does not count until it is sent again.
            if old.seals().is_none() || (request.is_sealed(old, root) && !known.heard.has(request.number)) {
                inbox::put(self.new, &row, request.number, &request.posted)?;
                count += 1;
            } else {
                dropped += 1;
            }
        }
        inbox::note_heard(self.new, &row)?;
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

    /// Takes over answers to keys that stand in no log any more.
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

    /// Takes over accounts that the old database knows further, or wholly where the logs have a gap; what stays incomplete
    /// is given back.
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

    /// Whether the old database has all postings to an account that the logs tell of: then none is in a log that never was here.
    pub(super) fn was_whole(&self, id: &AccountId) -> Result<bool> {
        let one = |db: &Db| -> Result<_> { Ok(rows::accounts(db, "thread_id = ?", id.as_str())?.pop()) };
        let old = self.old_db.as_ref().and_then(|old| one(old).ok().flatten());
        let Some(old) = old.filter(|old| !old.incomplete) else { return Ok(false) };
        Ok(one(self.new)?.is_some_and(|new| !new.incomplete && new.version <= old.version))
    }

    /// Takes over an account that the old database has, of this version or a later one.
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
