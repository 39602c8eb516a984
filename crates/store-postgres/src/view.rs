//! What a commit is prepared from: what this process remembers, or the database.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use selvedge_log::{line, lines};
use selvedge_model::account::{Account, AccountId, Reservation};
use selvedge_model::fold::{FoldError, apply_to_state, empty_state};
use selvedge_model::id::ReservationId;
use selvedge_model::{Digest, MessageId, Right, Run, RunId, ThreadId};
use selvedge_store::prepare::{CurrentThread, View};
use selvedge_store::{Error, Result};
use serde_json::Value;

use crate::core::{Core, KnownThread};
use crate::ledger::StoredAccount;
use crate::logs::LogReader;
use crate::rows::{self, Row};

/// What an attempt to prepare a batch reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Basis {
    /// What is remembered first. It may be outdated, so no error is final.
    Memory,
    /// The database.
    Database,
}

/// The data that one attempt reads.
pub(crate) struct PostgresView<'a> {
    core: &'a Core,
    basis: Basis,
    threads: RefCell<HashMap<ThreadId, Arc<KnownThread>>>,
    accounts: RefCell<HashMap<AccountId, Option<StoredAccount>>>,
}

/// What was read, as it was.
pub(crate) struct Seen {
    pub(crate) threads: HashMap<ThreadId, Arc<KnownThread>>,
    pub(crate) accounts: HashMap<AccountId, Option<StoredAccount>>,
}

impl<'a> PostgresView<'a> {
    pub(crate) fn new(core: &'a Core, basis: Basis) -> Self {
        Self { core, basis, threads: RefCell::default(), accounts: RefCell::default() }
    }

    pub(crate) fn into_seen(self) -> Seen {
        Seen { threads: self.threads.into_inner(), accounts: self.accounts.into_inner() }
    }

    fn look(&self, thread: &ThreadId) -> Result<Option<Arc<KnownThread>>> {
        if let Some(seen) = self.threads.borrow().get(thread) {
            return Ok(Some(seen.clone()));
        }
        let remembered = if self.basis == Basis::Memory { self.core.memory().thread(thread) } else { None };
        let found = match remembered {
            Some(remembered) => Some(remembered),
            None => self.core.load(thread)?.map(Arc::new),
        };
        if let Some(found) = &found {
            self.threads.borrow_mut().insert(thread.clone(), found.clone());
        }
        Ok(found)
    }

    fn look_at_account(&self, id: &AccountId) -> Result<Option<StoredAccount>> {
        if let Some(seen) = self.accounts.borrow().get(id) {
            return Ok(seen.clone());
        }
        let remembered = if self.basis == Basis::Memory { self.core.memory().account(id) } else { None };
        let found = match remembered {
            Some(remembered) => Some(remembered),
            None => self.core.stored_account(id)?,
        };
        self.accounts.borrow_mut().insert(id.clone(), found.clone());
        Ok(found)
    }
}

impl View for PostgresView<'_> {
    fn thread(&self, thread: &ThreadId, right: Right) -> Result<Option<CurrentThread>> {
        let Some(seen) = self.look(thread)? else {
            return match self.core.missing(thread)? {
                Error::NoThread(_) => Ok(None),
                deleted => Err(deleted),
            };
        };
        let row = &seen.row;
        let epoch = match (right, &row.owner) {
            (Right::Lease(held), Some(holder)) if held == row.epoch && *holder == self.core.owner => held,
            (Right::Lease(held), _) => {
                return Err(Error::StaleEpoch { thread: thread.clone(), held, current: row.epoch });
            }
            (Right::Brief, None) => row.epoch,
            // Whether it is alive is asked of the database now, not remembered.
            (Right::Brief, Some(holder)) if self.core.is_alive(holder)? => {
                return Err(Error::LeaseHeld { thread: thread.clone(), holder: holder.clone() });
            }
            (Right::Brief, Some(_)) => row.epoch + 1,
        };
        let tail = seen.tail.clone();
        let manifest = row.manifest.clone();
        Ok(Some(CurrentThread { tail, manifest, epoch, lead: Vec::new() }))
    }

    fn state(&self, thread: &ThreadId) -> Result<Arc<Value>> {
        let seen = self.look(thread)?.ok_or_else(|| Error::NoThread(thread.to_string()))?;
        match &seen.state {
            Some(state) => Ok(state.clone()),
            None => self.core.fold_state(&seen.row).map(Arc::new),
        }
    }

    fn message(&self, thread: &ThreadId, message: &MessageId) -> Result<Option<Digest>> {
        if self.basis == Basis::Memory {
            // A repeated message is rare, and the transaction notices it; then the database is read.
            return Ok(None);
        }
        let Some(seen) = self.look(thread)? else { return Ok(None) };
        let row = &seen.row;
        let sql = "SELECT digest, mark FROM messages WHERE root = $1 AND thread = $2 AND message = $3";
        let values = (row.root.as_str(), thread.as_str(), message.as_str());
        let found = self.core.read(|connection| Ok(connection.first(sql, &[&values.0, &values.1, &values.2])?))?;
        let Some(found) = found else { return Ok(None) };
        let digest: Vec<u8> = found.get(0);
        let fields = [row.head.log_id.as_str().as_bytes(), message.as_str().as_bytes(), &digest];
        rows::check(self.core.seals(), "messages", &fields, found.get(1), || {
            format!("message `{message}` of thread `{thread}`")
        })?;
        rows::digest(&digest).map(Some)
    }

    fn run(&self, thread: &ThreadId, run: &RunId) -> Result<Option<Run>> {
        let Some(seen) = self.look(thread)? else { return Ok(None) };
        Ok(self.core.stored_runs(&seen.row, Some(run))?.pop())
    }

    fn account(&self, account: &AccountId) -> Result<Option<Account>> {
        Ok(self.look_at_account(account)?.map(|stored| stored.account))
    }

    fn reservations(&self, account: &AccountId) -> Result<Vec<Reservation>> {
        let stored = self.look_at_account(account)?;
        Ok(stored.map(|stored| stored.reservations.into_values().collect()).unwrap_or_default())
    }

    fn reservation(&self, account: &AccountId, reservation: &ReservationId) -> Result<Option<Reservation>> {
        Ok(self.look_at_account(account)?.and_then(|mut stored| stored.reservations.remove(reservation)))
    }
}

impl Core {
    /// The folded state of a thread. The folded bytes must have the hash of the head.
    fn fold_state(&self, row: &Row) -> Result<Value> {
        let thread = row.thread();
        let mut reader = LogReader::new(self.pool.clone(), row.root.clone(), thread.clone(), 0, row.head.bytes);
        let mut state = empty_state();
        let mut hash = selvedge_log::hash::RunningHash::new();
        let mut buffer = Vec::new();
        let lost = |error: std::io::Error| Error::Database { why: error.to_string(), retryable: true };
        while lines::next_line(&mut reader, &mut buffer).map_err(lost)? {
            hash.update(&buffer);
            let line = line::decode(buffer.strip_suffix(b"\n").unwrap_or(&buffer))?;
            apply_to_state(&mut state, &line.event)
                .map_err(|error| Error::Fold { thread: thread.clone(), source: FoldError::Patch(error) })?;
        }
        if hash.digest() != row.head.hash {
            return Err(Error::Integrity {
                what: format!("the log of `{thread}`"),
                why: "its bytes are not those that were signed".to_owned(),
                hint: Some(format!("`selvedge verify {thread}` says where it changed")),
            });
        }
        Ok(state)
    }
}
