//! The anchor: one sealed row that every change of an account or an inbox updates, so that rows replaced by older ones are detected.
//!
//! An older row has a valid seal, and several older rows can be consistent with each other: an account as it was before a child posted to
//! it, with the child's rows removed; an inbox as it was before a request was posted, with the request removed. But every account and
//! every inbox has a number that only increases: the version, and the number of the newest request. The anchor has the sums of these
//! numbers. Rows are sealed, so each row is either the newest one or an older one with a lower number: the sum is only reached if all rows
//! are the newest.
//!
//! - The sums are kept per bucket, [`BUCKETS`] for each table, so that a process that reads one account adds up one bucket.
//! - The anchor has an epoch that every change increments. Each head has the epoch that its writer knew: an anchor that is older than a
//!   head was replaced by an older one. A process compares it with the heads that it relies on and with those of the threads that
//!   committed last; `selvedge doctor` and a rebuild compare it with all. If the anchor and everything since are replaced together, that is
//!   an older state of the whole store.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::{OptionalExtension, params};
use selvedge_model::account::AccountId;
use selvedge_store::seal::SealedRow;
use selvedge_store::{Error, Result};

use crate::core::{Core, lock};
use crate::db::Db;
use crate::inbox;
use crate::rows::{self, bad_row, signed, unsigned};
use crate::schema::{REBUILD, database};
use crate::sealed::{self, unsealed};

/// The number of buckets of each table. The schema computes the same buckets.
pub(crate) const BUCKETS: u64 = 32;

/// The number of sums: of accounts, then of inboxes.
const SUMS: usize = 2 * BUCKETS as usize;

/// A bucket of a table; its numbers are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Bucket {
    /// Rows of `budget_ledger`.
    Accounts(u64),
    /// Rows of `inboxes`.
    Inboxes(u64),
}

impl Bucket {
    /// The bucket of an account.
    pub(crate) fn of_account(id: &AccountId) -> Self {
        let mut backwards = id.as_str().bytes().rev().map(u64::from);
        let last = backwards.next().unwrap_or(0);
        let before_last = backwards.next().unwrap_or(0);
        Self::Accounts((last * 16 + before_last) % BUCKETS)
    }

    /// The bucket of the inbox of the thread with this row id.
    pub(crate) fn of_inbox(thread: i64) -> Self {
        Self::Inboxes(unsigned(thread) % BUCKETS)
    }

    fn all() -> impl Iterator<Item = Self> {
        (0..BUCKETS).flat_map(|bucket| [Self::Accounts(bucket), Self::Inboxes(bucket)])
    }

    fn index(self) -> usize {
        let (Self::Accounts(bucket) | Self::Inboxes(bucket)) = self;
        let bucket = usize::try_from(bucket).unwrap_or(0);
        if matches!(self, Self::Accounts(_)) { bucket } else { bucket + SUMS / 2 }
    }

    /// The sum of the numbers in the bucket; refused if one of the rows fails its seal.
    fn sum(self, db: &Db) -> Result<u64> {
        let add = |sum: u64, number: u64| sum.wrapping_add(number);
        match self {
            Self::Accounts(bucket) => {
                let found = rows::accounts(db, "bucket = ?", &bucket.to_string())?;
                // They come from an index: what it leaves out makes the sum too small, and an entry that it has twice is found here.
                let is_own = found.iter().all(|account| Self::of_account(&account.id) == self);
                if !is_own || !found.is_sorted_by(|one, next| one.id < next.id) {
                    return Err(bad_row("an index of accounts was changed"));
                }
                Ok(found.iter().map(|account| account.version).fold(0, add))
            }
            Self::Inboxes(bucket) => Ok(inbox::newest_of(db, bucket)?.into_iter().fold(0, add)),
        }
    }

    fn what(self) -> &'static str {
        match self {
            Self::Accounts(_) => "the accounts in `registry.db`",
            Self::Inboxes(_) => "the requests in `registry.db`",
        }
    }
}

/// The newest epoch in any head.
pub(crate) const EVERY_HEAD: &str = "SELECT COALESCE(max(anchor), 0) FROM heads";

/// The newest epoch in the heads of the threads that committed last, so that the cost does not depend on how many threads there are.
const NEWEST_HEADS: &str = "SELECT COALESCE(max(h.anchor), 0) FROM heads AS h WHERE h.id IN \
     (SELECT thread FROM feed WHERE position >= (SELECT max(position) FROM feed) - 200)";

/// The newest epoch in some heads.
fn epoch_in(db: &Db, heads: &str) -> Result<u64> {
    let mut statement = db.prepare_cached(heads).map_err(database)?;
    statement.query_row([], |row| row.get(0)).map(unsigned).map_err(database)
}

/// The anchor as stored in the database.
struct Anchor {
    epoch: u64,
    sums: [u64; SUMS],
}

impl Anchor {
    /// Reads the anchor; one that fails its seal is refused.
    fn read(db: &Db) -> Result<Self> {
        let mut statement = db.prepare_cached("SELECT epoch, sums, mark FROM anchor WHERE id = 1").map_err(database)?;
        let found = statement
            .query_row([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?, row.get::<_, Vec<u8>>(2)?)));
        let Some((epoch, bytes, mark)) = found.optional().map_err(database)? else {
            return Ok(Self { epoch: 0, sums: [0; SUMS] });
        };
        if !sealed::is_marked(db, &SealedRow::Anchor { epoch, sums: &bytes }, mark) {
            return Err(unsealed(db, "the anchor of `registry.db`".to_owned()));
        }
        let mut sums = [0; SUMS];
        let (numbers, rest) = bytes.as_chunks::<8>();
        if numbers.len() != SUMS || !rest.is_empty() {
            return Err(bad_row("the anchor has a wrong number of sums"));
        }
        for (sum, number) in sums.iter_mut().zip(numbers) {
            *sum = u64::from_be_bytes(*number);
        }
        Ok(Self { epoch: unsigned(epoch), sums })
    }

    fn write(&self, db: &Db) -> Result<()> {
        let epoch = signed(self.epoch);
        let bytes = self.sums.map(u64::to_be_bytes).concat();
        let mark = sealed::mark(db, &SealedRow::Anchor { epoch, sums: &bytes });
        let sql = "INSERT INTO anchor (id, epoch, sums, mark) VALUES (1, ?, ?, ?) \
                   ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, sums = excluded.sums, mark = excluded.mark";
        rows::execute(db, sql, params![epoch, bytes, mark.bytes()])?;
        Ok(())
    }

    /// Refuses a bucket of which some rows are not the newest.
    fn check(&self, db: &Db, bucket: Bucket) -> Result<()> {
        if bucket.sum(db)? == self.sums[bucket.index()] {
            return Ok(());
        }
        Err(outdated(bucket.what(), "a row was replaced by an older one, or removed"))
    }

    /// Refuses an anchor that is older than `epoch`, which is in a head.
    fn check_epoch(&self, epoch: u64) -> Result<()> {
        if epoch <= self.epoch {
            return Ok(());
        }
        Err(outdated("the accounts and requests in `registry.db`", "its anchor is older than the heads of threads"))
    }
}

fn outdated(what: &str, why: &str) -> Error {
    Error::Integrity { what: what.to_owned(), why: why.to_owned(), hint: Some(REBUILD.to_owned()) }
}

/// Records that the number of a row changed; a missing row has the number 0. Must be called in the transaction that changes the row.
pub(crate) fn moved(db: &Db, bucket: Bucket, before: u64, after: u64) -> Result<()> {
    if before == after {
        return Ok(());
    }
    let mut anchor = Anchor::read(db)?;
    let sum = &mut anchor.sums[bucket.index()];
    *sum = sum.wrapping_add(after).wrapping_sub(before);
    anchor.epoch += 1;
    anchor.write(db)
}

/// The epoch of the anchor.
pub(crate) fn epoch(db: &Db) -> Result<u64> {
    Ok(Anchor::read(db)?.epoch)
}

/// Writes the first anchor of a new, empty database; it continues the epochs of the database that it replaces.
pub(crate) fn begin(db: &Db, epoch: u64) -> Result<()> {
    Anchor { epoch, sums: [0; SUMS] }.write(db)
}

/// Refuses a database in which any account or inbox is not the newest one. Without a key nothing is checked.
pub(crate) fn check_all(db: &Db) -> Result<()> {
    if db.seals().is_none() {
        return Ok(());
    }
    let anchor = Anchor::read(db)?;
    anchor.check_epoch(epoch_in(db, EVERY_HEAD)?)?;
    Bucket::all().try_for_each(|bucket| anchor.check(db, bucket))
}

/// What this process knows about the anchor.
#[derive(Debug, Default)]
pub(crate) struct AnchorCache {
    /// The newest epoch that was read.
    epoch: AtomicU64,
    /// The buckets that were compared with it.
    checked: Mutex<BTreeSet<Bucket>>,
}

impl AnchorCache {
    /// The newest epoch that this process has read; the heads that it writes record it.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }
}

impl Core {
    /// Refuses an account or an inbox if some rows in its bucket are not the newest ones, or if the anchor is older than `known`, the epoch
    /// in the heads that the caller has read. Each process adds up a bucket once, when it first relies on it. Without a key nothing is
    /// checked.
    pub(crate) fn check_anchor(&self, db: &Db, bucket: Bucket, known: u64) -> Result<()> {
        if db.seals().is_none() {
            return Ok(());
        }
        let anchor = Anchor::read(db)?;
        let is_first = {
            let checked = lock(&self.anchor.checked);
            if checked.contains(&bucket) {
                self.anchor.epoch.fetch_max(anchor.epoch, Ordering::Relaxed);
                return Ok(());
            }
            checked.is_empty()
        };
        if is_first {
            anchor.check_epoch(epoch_in(db, NEWEST_HEADS)?)?;
        }
        anchor.check_epoch(known)?;
        anchor.check(db, bucket)?;
        // Only after the check: heads record this epoch, and so confirm the anchor.
        self.anchor.epoch.fetch_max(anchor.epoch, Ordering::Relaxed);
        lock(&self.anchor.checked).insert(bucket);
        Ok(())
    }

    /// The same for a read that decides nothing: the problem is recorded, not returned.
    pub(crate) fn note_anchor(&self, checked: Result<()>) -> Result<()> {
        match checked {
            Err(error) if rows::is_of_database(&error) => {
                self.note_problem(error.to_string());
                Ok(())
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If schema and program disagreed on the bucket of a row, every sum would be wrong.
    #[test]
    fn the_schema_and_the_program_agree_on_the_bucket_of_an_account() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("registry.db");
        std::fs::File::create(&path).unwrap();
        crate::schema::create(&path).unwrap();
        let db = Db::open(&path, crate::schema::ConnectionMode::Write, None).unwrap();
        for name in ["a", "scribe-0123456789ab", "x/y", "z9", "team/one-00112233445566778899aabbccddeeff"] {
            let sql = "INSERT INTO budget_ledger (thread_id, own_spend, children_spend, reserved_spend, open, status, version, \
                       incomplete, mark) VALUES (?, 0, 0, 0, 0, 'active', 1, 0, x'')";
            rows::execute(&db, sql, [name]).unwrap();
            let sql = "SELECT bucket FROM budget_ledger WHERE thread_id = ?";
            let bucket: i64 = db.query_row(sql, [name], |row| row.get(0)).unwrap();
            assert_eq!(
                Bucket::of_account(&AccountId::new(name).unwrap()),
                Bucket::Accounts(unsigned(bucket)),
                "{name}"
            );
        }
    }
}
