//! The anchor: one sealed row that every change of an account and of an inbox moves, so that rows which are put back together are found.
//!
//! An older row has a genuine seal, and so have several that fit each other: an account as it was before a child posted to it, while the
//! child's rows are removed; an inbox as it was before a request was posted, while the request is removed. But every account and every
//! inbox has a number that only rises: the version, and the number of the newest request. The anchor has the sums of these numbers.
//! Rows are sealed, so each that stands there is the newest one or an older, lower one: a sum that is reached is reached by the newest
//! rows alone.
//!
//! - The sums are kept for [`BUCKETS`] parts of each table, so that a process that looks at one account adds up a part.
//! - The anchor has an epoch that every change raises. Each head has the epoch that its writer knew: an anchor that is older than a head
//!   was put back. An anchor that is put back together with everything since is an older state of the whole store.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::{OptionalExtension, params};
use selvedge_model::account::AccountId;
use selvedge_store::{Error, Result};

use crate::core::{Core, lock};
use crate::db::Db;
use crate::inbox;
use crate::rows::{self, bad_row, signed, unsigned};
use crate::schema::{REBUILD, database};
use crate::sealed::{Indexed, unsealed};

/// How many parts each table has. The schema computes the same.
pub(crate) const BUCKETS: u64 = 32;

/// How many sums there are: of accounts, then of inboxes.
const SUMS: usize = 2 * BUCKETS as usize;

/// A part of a table whose numbers are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// Of `budget_ledger`.
    Accounts(u64),
    /// Of `inboxes`.
    Inboxes(u64),
}

impl Part {
    /// The part that an account belongs to.
    pub(crate) fn of_account(id: &AccountId) -> Self {
        let mut last = id.as_str().bytes().rev().map(u64::from);
        let (last, before) = (last.next().unwrap_or(0), last.next().unwrap_or(0));
        Self::Accounts((last * 16 + before) % BUCKETS)
    }

    /// The part that the inbox of the thread of this number belongs to.
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

    /// The sum of the numbers that stand there; refused if one of the rows is not what was sealed.
    fn sum(self, db: &Db) -> Result<u64> {
        let add = |sum: u64, number: u64| sum.wrapping_add(number);
        match self {
            Self::Accounts(bucket) => {
                let found = rows::accounts(db, "bucket = ?", &bucket.to_string())?;
                // They come from an index: what it leaves out makes the sum too small, and what it has too much is told here.
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
            Self::Accounts(_) => "what `registry.db` has of accounts",
            Self::Inboxes(_) => "what `registry.db` has of requests",
        }
    }
}

/// The anchor as it stands in the database.
struct Anchor {
    epoch: u64,
    sums: [u64; SUMS],
}

impl Anchor {
    /// The anchor; one that was not sealed with the key is refused.
    fn read(db: &Db) -> Result<Self> {
        let mut statement = db.prepare_cached("SELECT epoch, sums, mark FROM anchor WHERE id = 1").map_err(database)?;
        let found = statement
            .query_row([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?, row.get::<_, Vec<u8>>(2)?)));
        let Some((epoch, bytes, mark)) = found.optional().map_err(database)? else {
            return Ok(Self { epoch: 0, sums: [0; SUMS] });
        };
        let at = epoch.to_be_bytes();
        let fields: [&[u8]; 2] = [&at, &bytes];
        if !(Indexed { table: "anchor", fields: &fields }).is_marked(db, mark) {
            return Err(unsealed(db, "the anchor of `registry.db`".to_owned()));
        }
        let mut sums = [0; SUMS];
        let (numbers, rest) = bytes.as_chunks::<8>();
        if numbers.len() != SUMS || !rest.is_empty() {
            return Err(bad_row("the anchor has another number of sums"));
        }
        for (sum, number) in sums.iter_mut().zip(numbers) {
            *sum = u64::from_be_bytes(*number);
        }
        Ok(Self { epoch: unsigned(epoch), sums })
    }

    fn write(&self, db: &Db) -> Result<()> {
        let epoch = signed(self.epoch);
        let at = epoch.to_be_bytes();
        let bytes = self.sums.map(u64::to_be_bytes).concat();
        let fields: [&[u8]; 2] = [&at, &bytes];
        let mark = Indexed { table: "anchor", fields: &fields }.mark(db);
        let sql = "INSERT INTO anchor (id, epoch, sums, mark) VALUES (1, ?, ?, ?) \
                   ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, sums = excluded.sums, mark = excluded.mark";
        rows::execute(db, sql, params![epoch, bytes, mark.bytes()])?;
        Ok(())
    }

    /// Refuses rows of one part that are not the newest ones.
    fn check(&self, db: &Db, part: Part) -> Result<()> {
        if part.sum(db)? == self.sums[part.index()] {
            return Ok(());
        }
        Err(put_back(part.what(), "an older row was put back, or a row was removed"))
    }

    /// Refuses an anchor that is older than a head.
    fn check_epoch(&self, db: &Db) -> Result<()> {
        let mut statement = db.prepare_cached("SELECT COALESCE(max(anchor), 0) FROM heads").map_err(database)?;
        let newest: i64 = statement.query_row([], |row| row.get(0)).map_err(database)?;
        if unsigned(newest) <= self.epoch {
            return Ok(());
        }
        Err(put_back(
            "what `registry.db` has of accounts and requests",
            "its anchor is older than the heads of threads",
        ))
    }
}

fn put_back(what: &str, why: &str) -> Error {
    Error::Integrity { what: what.to_owned(), why: why.to_owned(), hint: Some(REBUILD.to_owned()) }
}

/// Takes in that the number of a row changed; a row that is not there has the number 0. Must be called in the transaction that changes it.
pub(crate) fn moved(db: &Db, part: Part, before: u64, after: u64) -> Result<()> {
    if before == after {
        return Ok(());
    }
    let mut anchor = Anchor::read(db)?;
    let sum = &mut anchor.sums[part.index()];
    *sum = sum.wrapping_add(after).wrapping_sub(before);
    anchor.epoch += 1;
    anchor.write(db)
}

/// The epoch of the anchor.
pub(crate) fn epoch(db: &Db) -> Result<u64> {
    Ok(Anchor::read(db)?.epoch)
}

/// Lets the anchor of a new database, which has no rows yet, go on after that of the one before it.
pub(crate) fn begin(db: &Db, epoch: u64) -> Result<()> {
    Anchor { epoch, sums: [0; SUMS] }.write(db)
}

/// Refuses a database in which any account or inbox is not the newest one. Without a key nothing can be said.
pub(crate) fn check_all(db: &Db) -> Result<()> {
    if db.seals().is_none() {
        return Ok(());
    }
    let anchor = Anchor::read(db)?;
    anchor.check_epoch(db)?;
    Part::all().try_for_each(|part| anchor.check(db, part))
}

/// What a process knows of the anchor.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The newest epoch that was read.
    epoch: AtomicU64,
    /// The parts that were compared with it.
    checked: Mutex<BTreeSet<Part>>,
}

impl Known {
    /// The newest epoch that this process has read; heads that it writes say that the anchor is no older.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }
}

impl Core {
    /// Refuses an account or an inbox if rows beside it are not the newest ones. Each process adds up a part once, when it first relies on
    /// it. Without a key nothing can be said.
    pub(crate) fn check_anchor(&self, db: &Db, part: Part) -> Result<()> {
        if db.seals().is_none() {
            return Ok(());
        }
        let anchor = Anchor::read(db)?;
        let is_first = {
            let checked = lock(&self.anchor.checked);
            if checked.contains(&part) {
                self.anchor.epoch.fetch_max(anchor.epoch, Ordering::Relaxed);
                return Ok(());
            }
            checked.is_empty()
        };
        if is_first {
            anchor.check_epoch(db)?;
        }
        anchor.check(db, part)?;
        // Only of an anchor that was checked: heads would vouch for it.
        self.anchor.epoch.fetch_max(anchor.epoch, Ordering::Relaxed);
        lock(&self.anchor.checked).insert(part);
        Ok(())
    }

    /// The same for a look that decides nothing: what was found is named.
    pub(crate) fn note_anchor(&self, checked: Result<()>) -> Result<()> {
        match checked {
            Err(error) if rows::is_of_database(&error) => {
                self.note_amiss(error.to_string());
                Ok(())
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row that the schema puts into another part than the program would make every sum wrong.
    #[test]
    fn the_schema_and_the_program_agree_on_the_part_of_an_account() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("registry.db");
        std::fs::File::create(&path).unwrap();
        crate::schema::create(&path).unwrap();
        let db = Db::open(&path, crate::schema::Use::Write, None).unwrap();
        for name in ["a", "scribe-0123456789ab", "x/y", "z9", "team/one-00112233445566778899aabbccddeeff"] {
            let sql = "INSERT INTO budget_ledger (thread_id, own_spend, children_spend, reserved_spend, open, status, version, \
                       incomplete, mark) VALUES (?, 0, 0, 0, 0, 'active', 1, 0, x'')";
            rows::execute(&db, sql, [name]).unwrap();
            let sql = "SELECT bucket FROM budget_ledger WHERE thread_id = ?";
            let bucket: i64 = db.query_row(sql, [name], |row| row.get(0)).unwrap();
            assert_eq!(Part::of_account(&AccountId::new(name).unwrap()), Part::Accounts(unsigned(bucket)), "{name}");
        }
    }
}
