//! Rows of the database that fail their seal, and rows that are older than the logs. Reported once, together.

use std::collections::BTreeMap;

use selvedge_model::account::AccountId;
use selvedge_model::{CommitKey, RequestId, ThreadId};
use selvedge_store::Result;

use super::{Examiner, Finding, Report, Severity};
use crate::db::Db;
use crate::rows::{self, Row, bad_row};
use crate::schema::{self, REBUILD, database};
use crate::{anchor, erase, inbox};

/// How many rows are listed; the others are counted.
const NAMED_MAX: usize = 5;

impl Examiner<'_> {
    /// Checks the seal of every row of the index, the ledger and the inboxes. Without a key nothing can be checked.
    pub(super) fn seals(&self, found: &[Row], report: &mut Report) -> Result<()> {
        if self.core().signing.is_none() {
            return Ok(());
        }
        if self.core().read(|db| schema::is_unsealed(db))? {
            let what = "the database was written by a program without a key: none of its rows is sealed";
            let why = "no command reads or writes anything derived from them while there is a key";
            report.add(Finding::new(Severity::Warning, "database_unsealed", "the store", what, why).help(REBUILD));
            return Ok(());
        }
        let mut broken = self.core().read(|db| {
            let mut broken = Vec::new();
            for row in found {
                broken.extend(rows::runs(db, row).err().map(|error| error.to_string()));
                broken.extend(rows::check_messages(db, row).err().map(|error| error.to_string()));
                broken.extend(erase::check_all(db, row).err().map(|error| error.to_string()));
                broken.extend(waiting(db, row)?);
            }
            broken.extend(keys(db)?);
            broken.extend(answers(db)?);
            broken.extend(accounts(db, found)?);
            broken.extend(anchor::check_all(db).err().map(|error| error.to_string()));
            Ok(broken)
        })?;
        for thread in self.core().read(|db| names(db, "SELECT thread_id FROM tombstones"))? {
            let thread = ThreadId::new(thread).map_err(bad_row)?;
            broken.extend(self.core().tombstone(&thread).err().map(|error| error.to_string()));
        }
        if broken.is_empty() {
            return Ok(());
        }
        let more = broken.len().saturating_sub(NAMED_MAX);
        broken.truncate(NAMED_MAX);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let what = format!("rows of the database fail their seals: {}{more}", broken.join("; "));
        let why = "a program other than Selvedge wrote them; they are never used to sign, spend or answer";
        report.add(Finding::new(Severity::Damage, "database_differs", "the store", what, why).help(REBUILD));
        Ok(())
    }
}

/// Requests that are not accepted, and missing ones.
fn waiting(db: &Db, row: &Row) -> Result<Vec<String>> {
    let thread = &row.manifest.thread_id;
    let found = inbox::read(db, row)?;
    let counts =
        |one: &inbox::StoredRequest| one.is_sealed(db, &row.manifest.chain_root_id) && !row.consumed.has(one.number);
    let mut broken = Vec::new();
    for one in found.iter().filter(|one| !counts(one)) {
        broken.push(format!(
            "request `{}` to `{thread}` was not posted with your key, or was consumed before",
            one.posted.id
        ));
    }
    match inbox::is_missing(db, row, &found) {
        Ok(true) => broken.push(format!("a request to `{thread}` was removed before it was consumed")),
        Ok(false) => {}
        Err(error) => broken.push(error.to_string()),
    }
    Ok(broken)
}

fn keys(db: &Db) -> Result<Vec<String>> {
    let check = |key: String| match CommitKey::new(key) {
        Ok(key) => rows::key(db, &key).err().map(|error| error.to_string()),
        Err(error) => Some(error.to_string()),
    };
    Ok(names(db, "SELECT key FROM keys")?.into_iter().filter_map(check).collect())
}

fn answers(db: &Db) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    let mut statement = db.prepare("SELECT chain_root, request_id FROM answers").map_err(database)?;
    let mut found = statement.query([]).map_err(database)?;
    while let Some(row) = found.next().map_err(database)? {
        let root: String = row.get(0).map_err(database)?;
        let id: String = row.get(1).map_err(database)?;
        let (Ok(root), Ok(id)) = (ThreadId::new(root.as_str()), RequestId::new(id.as_str())) else {
            broken.push(format!("the answer to request `{id}` names no thread"));
            continue;
        };
        broken.extend(inbox::answered(db, &root, &id).err().map(|error| error.to_string()));
    }
    Ok(broken)
}

/// Accounts that were changed, and accounts that are older than what the logs posted.
fn accounts(db: &Db, found: &[Row]) -> Result<Vec<String>> {
    let mut posted: BTreeMap<&AccountId, u64> = BTreeMap::new();
    for (account, version) in found.iter().flat_map(|row| &row.posted) {
        let newest = posted.entry(account).or_default();
        *newest = (*newest).max(*version);
    }
    let mut broken = Vec::new();
    let mut known = BTreeMap::new();
    for (account, mark) in rows::accounts_any(db, "thread_id >= ?", "")? {
        if !rows::is_sealed_account(db, &account, mark).unwrap_or(false) {
            broken.push(format!("the account of `{}` was not sealed with your key", account.id));
        }
        known.insert(account.id.clone(), account.version);
    }
    for (account, version) in posted {
        if known.get(account).copied().unwrap_or(0) < version {
            broken.push(format!("the account of `{account}` is older than the logs"));
        }
    }
    let unindexed = "SELECT account FROM reservations WHERE account NOT IN (SELECT thread_id FROM budget_ledger)";
    broken.extend(
        names(db, unindexed)?.into_iter().map(|account| format!("`{account}` has a reservation and no account")),
    );
    Ok(broken)
}

fn names(db: &Db, sql: &str) -> Result<Vec<String>> {
    let mut statement = db.prepare(sql).map_err(database)?;
    let found = statement.query_map([], |row| row.get::<_, String>(0)).map_err(database)?;
    found.collect::<rusqlite::Result<_>>().map_err(database)
}
