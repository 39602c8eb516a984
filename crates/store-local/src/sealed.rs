//! Every table and column of the database, and how it is protected.
//!
//! A program that can write the database and has no key must not get anything signed, spent, dispatched or answered. So every column that a
//! commit or a run relies on is *sealed* (by a mark that only the holder of the key can make, [`selvedge_store::seal`]), *checked* (against
//! bytes that are signed themselves), or a *hint*, which affects only speed and display. `COLUMNS` lists them all; a test compares it
//! with the schema, and `SECURITY.md` shows it.
//!
//! A row whose seal is broken is reported, and the command stops: [`unsealed`]. `selvedge reindex` derives every row again from the logs.
//! An older version of a row has a valid seal. That it is older is detected elsewhere: the log continues after an older head, and a head
//! records the newest version of each account that its log posted to, and the requests that were consumed. Accounts and inboxes that are
//! replaced together with those rows are detected by the anchor ([`crate::anchor`]).

use selvedge_log::hash::Seals;
use selvedge_model::Digest;
use selvedge_store::seal::{self, SealedRow};
use selvedge_store::{Error, Result};

use crate::db::Db;
use crate::rows::Row;

/// How a column is protected.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trusted {
    /// A mark covers it.
    Sealed,
    /// Its value is compared with signed bytes before it is used.
    Checked,
    /// It affects only speed and display.
    Hint,
}

#[cfg(test)]
use Trusted::{Checked, Hint, Sealed};

/// Every table, and how its columns are protected. Generated columns follow from others by a schema whose text is compared when the
/// database is opened ([`crate::schema_check`]), and are left out.
#[cfg(test)]
pub(crate) const COLUMNS: [(&str, &[(&str, Trusted)]); 17] = [
    (
        "threads",
        &[("id", Sealed), ("thread_id", Sealed), ("log_id", Sealed), ("manifest", Sealed), ("manifest_stale", Hint)],
    ),
    (
        "heads",
        &[
            ("id", Sealed),
            ("version", Sealed),
            ("lines", Sealed),
            ("bytes", Sealed),
            ("hash", Sealed),
            ("segment", Sealed),
            ("signer", Sealed),
            ("head_epoch", Sealed),
            ("sealed", Hint), // A running hash that carries a seal of its own; without one the log is hashed again.
            ("posted", Sealed),
            ("heard", Sealed),
            ("leads", Sealed),
            ("anchor", Sealed),
            ("mark", Sealed),
            ("epoch", Sealed),
            ("owner", Sealed),
            ("updated_at", Sealed),
            ("counts", Hint),
            ("redo", Hint),
        ],
    ),
    (
        "redo",
        &[
            ("id", Hint),
            ("thread", Checked),
            ("offset", Checked),
            ("bytes", Checked),
            ("padding", Hint),
            ("before", Hint),
        ],
    ),
    ("leads", &[("id", Hint), ("thread", Sealed), ("event", Sealed), ("mark", Sealed)]),
    ("messages", &[("thread", Sealed), ("message_id", Sealed), ("digest", Sealed), ("mark", Sealed)]),
    // A fold that carries a seal of its own; without one the log is folded again.
    ("states", &[("thread", Hint), ("version", Hint), ("bytes", Hint), ("state", Hint)]),
    (
        "runs",
        &[
            ("id", Hint),
            ("thread", Sealed),
            ("run_id", Sealed),
            ("parent_run_id", Sealed),
            ("meta", Sealed),
            ("created_at", Sealed),
            ("updated_at", Hint),
            ("mark", Sealed),
        ],
    ),
    ("keys", &[("key", Sealed), ("request", Sealed), ("answer", Sealed), ("mark", Sealed)]),
    ("feed", &[("position", Hint), ("thread", Hint), ("version", Hint), ("line", Hint), ("counts", Hint)]),
    ("tombstones", &[("thread_id", Checked), ("tombstone", Hint), ("document", Checked), ("buried", Hint)]),
    (
        "budget_ledger",
        &[
            ("thread_id", Sealed),
            ("parent_id", Sealed),
            ("max_spend", Sealed),
            ("own_spend", Sealed),
            ("children_spend", Sealed),
            ("reserved_spend", Sealed),
            ("open", Sealed),
            ("status", Sealed),
            ("version", Sealed),
            ("incomplete", Sealed),
            ("mark", Sealed),
        ],
    ),
    ("reservations", &[("account", Sealed), ("reservation", Sealed), ("body", Sealed)]),
    (
        "erasures",
        &[
            ("thread", Sealed),
            ("blob", Sealed),
            ("reason", Sealed),
            ("erased_at", Sealed),
            ("done", Hint),
            ("mark", Sealed),
        ],
    ),
    (
        "requests",
        &[
            ("id", Sealed),
            ("thread", Checked), // The seal names the chain, and the sealed inbox of a thread the numbers that were posted to it.
            ("request_id", Sealed),
            ("kind", Hint),
            ("posted_at", Sealed),
            ("body", Sealed),
            ("mark", Sealed),
        ],
    ),
    ("inboxes", &[("thread", Sealed), ("posted", Sealed), ("mark", Sealed)]),
    ("anchor", &[("id", Sealed), ("epoch", Sealed), ("sums", Sealed), ("mark", Sealed)]),
    (
        "answers",
        &[("chain_root", Sealed), ("request_id", Sealed), ("thread", Sealed), ("version", Sealed), ("mark", Sealed)],
    ),
];

/// The mark of a row, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(Option<Digest>);

impl Mark {
    /// The mark of a row that a program without a key wrote.
    pub(crate) const NONE: Self = Self(None);

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |mark| &mark.0)
    }

    pub(crate) fn read(bytes: Vec<u8>) -> Self {
        Self(bytes.try_into().ok().map(Digest))
    }

    pub(crate) fn digest(&self) -> Option<&Digest> {
        self.0.as_ref()
    }
}

impl From<Digest> for Mark {
    fn from(mark: Digest) -> Self {
        Self(Some(mark))
    }
}

/// The result of checking the seal of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seal {
    /// The holder of our key wrote it.
    Holds,
    /// There is no key, so nothing can be checked: the row can be read, and nothing derived from it is written.
    Unchecked,
    /// Neither our key nor an accepted predecessor sealed this row. Rows of threads that another key signs are sealed too, by the import
    /// or the rebuild that inserted them, so no column of a row can switch its check off.
    Broken,
}

/// What is wrong with a row whose seal is broken.
pub(crate) const UNSEALED: &str = "was not sealed with your key: it was changed, or another program wrote it";

/// An error for a row that fails its seal.
pub(crate) fn unsealed(db: &Db, what: String) -> Error {
    Error::Unsealed { what, ours: db.sealer().map_or(Digest([0; 32]), |sealer| sealer.key) }
}

/// The mark of a row.
pub(crate) fn mark(db: &Db, row: &SealedRow<'_>) -> Mark {
    db.seals().map_or(Mark::NONE, |seals| row.mark(seals).into())
}

/// Whether this is the mark of a row. Without a key nothing can be checked.
pub(crate) fn is_marked(db: &Db, row: &SealedRow<'_>, mark: Vec<u8>) -> bool {
    let Some(seals) = db.seals() else { return true };
    Mark::read(mark).digest().is_some_and(|mark| row.is_marked(seals, mark))
}

/// Refuses a row that fails its seal; `what` names the content of the row.
pub(crate) fn check(db: &Db, row: &SealedRow<'_>, mark: Vec<u8>, what: impl FnOnce() -> String) -> Result<()> {
    if !is_marked(db, row, mark) {
        return Err(unsealed(db, what()));
    }
    Ok(())
}

/// The same for a row of a thread.
pub(crate) fn check_of(
    db: &Db,
    thread: &Row,
    row: &SealedRow<'_>,
    mark: Vec<u8>,
    what: impl FnOnce() -> String,
) -> Result<()> {
    check(db, row, mark, || format!("{} of thread `{}`", what(), thread.manifest.thread_id))
}

impl Row {
    fn content(&self) -> seal::HeadRow<'_> {
        seal::HeadRow {
            number: self.id.cast_unsigned(),
            thread: &self.manifest.thread_id,
            head: &self.head,
            epoch: self.epoch,
            owner: self.owner.as_ref(),
            updated_at: self.manifest.updated_at,
            manifest: &self.stored,
            posted: &self.posted,
            consumed: &self.consumed,
            leads: self.leads,
            anchor: self.anchor,
        }
    }

    /// The row, sealed.
    pub(crate) fn sealed(mut self, seals: Option<&Seals>) -> Self {
        self.mark = seals.map_or(Mark::NONE, |seals| seal::head(seals, &self.content()).into());
        self
    }

    /// Whether it passes its seal.
    pub(crate) fn is_sealed(&self, seals: &Seals) -> bool {
        self.mark.digest().is_some_and(|mark| seal::is_head(seals, &self.content(), mark))
    }

    /// The result of checking its seal with the key of `db`.
    pub(crate) fn seal(&self, db: &Db) -> Seal {
        match db.seals() {
            None => Seal::Unchecked,
            Some(seals) if self.is_sealed(seals) => Seal::Holds,
            Some(_) => Seal::Broken,
        }
    }

    /// Refuses a row that fails its seal. Without a key nothing is checked.
    pub(crate) fn check(&self, db: &Db) -> Result<()> {
        match self.seal(db) {
            Seal::Holds | Seal::Unchecked => Ok(()),
            Seal::Broken => Err(unsealed(db, format!("thread `{}`", self.manifest.thread_id))),
        }
    }

    /// The row, unless it fails its seal.
    pub(crate) fn checked(self, db: &Db) -> Result<Self> {
        self.check(db).map(|()| self)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The table of `SECURITY.md` is this one.
    #[test]
    fn security_md_has_the_same_table_of_columns() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../SECURITY.md");
        let page = std::fs::read_to_string(page).unwrap();
        for (table, columns) in COLUMNS {
            let named = |wanted: Trusted| {
                let names: Vec<_> = columns.iter().filter(|(_, why)| *why == wanted).map(|(name, _)| *name).collect();
                if names.is_empty() { "–".to_owned() } else { names.join(", ") }
            };
            let row = format!("| `{table}` | {} | {} | {} |", named(Sealed), named(Checked), named(Hint));
            assert!(page.contains(&row), "SECURITY.md lacks: {row}");
        }
    }

    /// `FORMAT.md` had the number of the format before.
    #[test]
    fn format_md_names_the_format_that_is_written() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../FORMAT.md");
        let page = std::fs::read_to_string(page).unwrap();
        let format = crate::schema::FORMAT;
        for expected in [
            format!("\"kind\":\"selvedge-local\",\"format\":{format},"),
            format!("user_version {format})"),
            format!("\n| store {format} |"),
        ] {
            assert!(page.contains(&expected), "FORMAT.md lacks: {expected}");
        }
    }

    /// A column that is added must be sealed, checked or a hint, and be listed here.
    #[test]
    fn every_column_of_the_schema_is_accounted_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("registry.db");
        std::fs::File::create(&path).unwrap();
        crate::schema::create(&path).unwrap();
        let db = Db::open(&path, crate::schema::ConnectionMode::Read, None).unwrap();
        let sql = "SELECT m.name, c.name FROM sqlite_schema AS m, pragma_table_xinfo(m.name) AS c \
                   WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' AND c.hidden = 0";
        let mut statement = db.prepare(sql).unwrap();
        let found = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        let mut schema: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (table, column) in found.map(rusqlite::Result::unwrap) {
            schema.entry(table).or_default().push(column);
        }
        let mut here: BTreeMap<String, Vec<String>> = COLUMNS
            .iter()
            .map(|(table, columns)| ((*table).to_owned(), columns.iter().map(|(name, _)| (*name).to_owned()).collect()))
            .collect();
        for columns in schema.values_mut().chain(here.values_mut()) {
            columns.sort();
        }
        assert_eq!(here, schema);
    }
}
