//! The heads of this store, for a list that is kept outside of it, and for comparison with such a list.
//!
//! The list is signed, so only sealed rows are used for it that are not older than their logs: if a row's seal can't be checked, the log is
//! read and verified first. What fails is left out and listed.

use std::io::{BufRead, BufReader};

use selvedge_log::recovery::Finding;
use selvedge_log::{Head, Trust};
use selvedge_model::ThreadId;
use selvedge_model::account::{Account, AccountId};
use selvedge_store::error::describe;
use selvedge_store::heads::{
    AccountHead, Comparison, CurrentHeads, Depth, Heads, LogHead, StoreContent, VERSION, compare,
};
use selvedge_store::{Error, Result, Tombstone};

use crate::anchor;
use crate::db::Db;
use crate::open::{self, LocalStore};
use crate::rows::{self, bad_row};
use crate::schema::database;
use crate::sealed::{Seal, UNSEALED};

impl LocalStore {
    /// The random id of this store.
    pub fn store_id(&self) -> Result<String> {
        Ok(open::check_kind(&self.core.layout, &*self.core.disk)?.id)
    }

    /// The head of every log and account, as of one moment.
    pub fn heads(&self) -> Result<CurrentHeads> {
        let mut left_out = Vec::new();
        let (rows, tombstones, accounts) = self.core.read(|db| {
            let rows: Vec<_> = rows::select_any(db, "1 ORDER BY t.thread_id", [])?
                .into_iter()
                .map(|row| (row.seal(db), row))
                .collect();
            Ok((rows, tombstones(db, &self.core.trust, &mut left_out)?, accounts(db, &mut left_out)?))
        })?;
        let mut threads = Vec::with_capacity(rows.len());
        for (seal, row) in rows {
            let thread = row.manifest.thread_id.clone();
            match seal {
                Seal::Holds => match self.core.refuse_outdated_row(&thread, &row) {
                    Ok(()) => threads.push(LogHead::new(thread, &row.head)),
                    Err(error) => left_out.push(error.to_string()),
                },
                Seal::Broken => left_out.push(format!("the database row of `{thread}` {}", UNSEALED)),
                Seal::Unchecked => match self.judged(&thread) {
                    Ok(head) => threads.push(LogHead::new(thread, &head)),
                    Err(why) => left_out.push(why),
                },
            }
        }
        let heads = Heads {
            version: VERSION,
            store_id: self.store_id()?,
            made_at: self.core.clock.now(),
            threads,
            tombstones,
            accounts,
        };
        Ok(CurrentHeads { heads, left_out })
    }

    /// Signs a list with the key of this store's user.
    pub fn sign_heads(&self, heads: &Heads) -> Result<String> {
        heads.sign(&self.core.signing()?.signer).map_err(bad_row)
    }

    /// Compares this store with a list. Writes nothing, and needs no key.
    pub fn compare_heads(&self, heads: &Heads, depth: Depth) -> Comparison {
        compare(heads, self, depth)
    }

    /// The head of a log after verifying it, or why it failed.
    fn judged(&self, thread: &ThreadId) -> std::result::Result<Head, String> {
        let verdict = self.verify(thread, &mut |_| {}).map_err(|error| error.to_string())?;
        match (verdict.judgement.finding, verdict.head) {
            (Finding::Sound, Some(head)) => Ok(head),
            (finding, _) => Err(describe(thread, &finding)),
        }
    }
}

impl StoreContent for LocalStore {
    fn log(&self, thread: &ThreadId) -> Result<Option<(Head, Box<dyn BufRead + Send>)>> {
        match self.core.open_log(thread) {
            Ok(opened) => {
                let (head, overlay) = opened.committed();
                Ok(Some((head, Box::new(BufReader::with_capacity(1 << 16, overlay)))))
            }
            Err(Error::NoThread(_) | Error::Deleted(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn buried(&self, thread: &ThreadId) -> Result<Option<Head>> {
        Ok(self.core.tombstone(thread)?.map(|tombstone| tombstone.head))
    }

    fn account(&self, id: &AccountId) -> Result<Option<Account>> {
        self.core.read(|db| Ok(rows::accounts(db, "thread_id = ?", id.as_str())?.pop()))
    }
}

/// The last heads of deleted threads, from their tombstones; tombstones that fail verification are listed.
pub(crate) fn tombstones(db: &Db, trust: &Trust, left_out: &mut Vec<String>) -> Result<Vec<LogHead>> {
    let sql = "SELECT thread_id, document FROM tombstones ORDER BY thread_id";
    let mut statement = db.prepare_cached(sql).map_err(database)?;
    let found = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
    let found = found.map_err(database)?.collect::<rusqlite::Result<Vec<_>>>().map_err(database)?;
    let mut heads = Vec::with_capacity(found.len());
    for (thread, document) in found {
        let thread = ThreadId::new(thread).map_err(bad_row)?;
        match Tombstone::verify(&thread, document.as_bytes(), trust) {
            Ok(tombstone) => heads.push(LogHead::new(thread, &tombstone.head)),
            Err(error) => left_out.push(format!("the tombstone of `{thread}` failed verification: {error}")),
        }
    }
    Ok(heads)
}

/// The version of every account. Accounts that fail their seal are listed; all are left out if there is no key, or if one was replaced by
/// an older row.
pub(crate) fn accounts(db: &Db, left_out: &mut Vec<String>) -> Result<Vec<AccountHead>> {
    let found = rows::accounts_any(db, "thread_id <> ?", "")?;
    if db.seals().is_none() && !found.is_empty() {
        left_out.push("the accounts are not sealed: the next command that writes seals them".to_owned());
        return Ok(Vec::new());
    }
    if let Err(error) = anchor::check_all(db) {
        left_out.push(error.to_string());
        return Ok(Vec::new());
    }
    let mut heads = Vec::with_capacity(found.len());
    for (account, mark) in found {
        if rows::is_sealed_account(db, &account, mark)? {
            heads.push(AccountHead::from(&account));
        } else {
            left_out.push(format!("the account of `{}` {}", account.id, UNSEALED));
        }
    }
    Ok(heads)
}
