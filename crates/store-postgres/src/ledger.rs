//! Accounts and their reservations. One seal covers both, so that a missing reservation shows.

use std::collections::BTreeMap;

use selvedge_log::hash::Seals;
use selvedge_model::account::{Account, AccountId, Reservation};
use selvedge_model::id::ReservationId;
use selvedge_model::{Digest, ThreadId};
use selvedge_store::seal::{self, PostedVersions};
use selvedge_store::{Error, Result};
use tokio_postgres::Row as SqlRow;

use crate::core::Core;
use crate::rows;

/// An account with all its reservations.
#[derive(Clone, Debug)]
pub(crate) struct StoredAccount {
    pub(crate) root: ThreadId,
    pub(crate) account: Account,
    pub(crate) reservations: BTreeMap<ReservationId, Reservation>,
    pub(crate) mark: Vec<u8>,
}

impl StoredAccount {
    pub(crate) fn sealed(
        seals: &Seals,
        root: ThreadId,
        account: Account,
        reservations: BTreeMap<ReservationId, Reservation>,
    ) -> Self {
        let all: Vec<_> = reservations.values().cloned().collect();
        let mark = seal::account(seals, &account, &all).0.to_vec();
        Self { root, account, reservations, mark }
    }

    fn check(self, seals: Option<&Seals>) -> Result<Self> {
        let all: Vec<_> = self.reservations.values().cloned().collect();
        let holds =
            |seals| rows::digest(&self.mark).is_ok_and(|mark| seal::is_account(seals, &self.account, &all, &mark));
        if seals.is_none_or(holds) {
            return Ok(self);
        }
        Err(Error::Unsealed { what: format!("account `{}`", self.account.id), ours: Digest([0; 32]) })
    }
}

/// The columns of an account with all its reservations, in one statement, so that they belong together.
const COLUMNS: &str = "a.root, a.body, a.mark, ARRAY(SELECT r.body FROM reservations AS r WHERE r.root = a.root AND r.account = a.account)";

fn read(row: &SqlRow) -> Result<StoredAccount> {
    let (root, body, bodies): (String, String, Vec<String>) = (row.get(0), row.get(1), row.get(3));
    let mut reservations = BTreeMap::new();
    for body in bodies {
        let reservation: Reservation = rows::json(&body)?;
        reservations.insert(reservation.id.clone(), reservation);
    }
    Ok(StoredAccount { root: rows::id(root)?, account: rows::json(&body)?, reservations, mark: row.get(2) })
}

impl Core {
    /// One account. The first time, it is compared with what the logs of its family posted.
    pub(crate) fn stored_account(&self, id: &AccountId) -> Result<Option<StoredAccount>> {
        let Some(found) = self.accounts("a.account = $1", id.as_str())?.pop() else {
            return Ok(None);
        };
        if self.signing.is_some() && !self.memory().checked_accounts.contains(id) {
            self.check_family(&found)?;
            self.memory().checked_accounts.insert(id.clone());
        }
        Ok(Some(found))
    }

    /// Refuses an account that is older than a posting in the head of a thread of its family.
    fn check_family(&self, found: &StoredAccount) -> Result<()> {
        let sql = "SELECT posted FROM threads WHERE root = $1";
        let heads = self.read(|connection| Ok(connection.query(sql, &[&found.root.as_str()])?))?;
        let id = &found.account.id;
        for head in heads {
            let posted: PostedVersions = rows::json(head.get(0))?;
            if posted.get(id).is_some_and(|version| *version > found.account.version) {
                // A posting may have been committed since the account was read.
                let now = self.accounts("a.account = $1", id.as_str())?.pop();
                if now.is_none_or(|now| posted.get(id).is_some_and(|version| *version > now.account.version)) {
                    return Err(Error::Integrity {
                        what: format!("account `{id}`"),
                        why: "its row is older than the postings in the logs".to_owned(),
                        hint: Some("restore the newest backup of the database".to_owned()),
                    });
                }
            }
        }
        Ok(())
    }

    pub(crate) fn accounts(&self, condition: &str, value: &str) -> Result<Vec<StoredAccount>> {
        let sql = format!("SELECT {COLUMNS} FROM accounts AS a WHERE {condition} ORDER BY a.account");
        let found = self.read(|connection| Ok(connection.query(&sql, &[&value])?))?;
        found.iter().map(|row| read(row)?.check(self.seals())).collect()
    }

    pub(crate) fn tree(&self, id: &AccountId) -> Result<Vec<Account>> {
        let mut found: Vec<Account> =
            self.accounts("a.account = $1", id.as_str())?.into_iter().map(|one| one.account).collect();
        let mut next = 0;
        while let Some(parent) = found.get(next).map(|account| account.id.clone()) {
            let children = self.accounts("a.parent = $1", parent.as_str())?;
            let is_new = |account: &Account| found.iter().all(|known| known.id != account.id);
            let children: Vec<_> = children.into_iter().map(|one| one.account).filter(is_new).collect();
            found.extend(children);
            next += 1;
        }
        Ok(found)
    }
}
