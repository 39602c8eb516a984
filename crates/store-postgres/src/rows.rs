//! Reads rows, and checks their seals. No decisions are made here.

use selvedge_log::Head;
use selvedge_log::hash::{Seals, sha256};
use selvedge_model::digest::hex;
use selvedge_model::{Digest, Manifest, OwnerId, Status, ThreadId, Timestamp};
use selvedge_store::seal::{self, ConsumedRequests, PostedVersions};
use selvedge_store::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Row as SqlRow;

use crate::error::bad_row;
use crate::pool::{Connection, Problem};

/// A thread in the database.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// The first thread of its family, which every row of it begins with.
    pub(crate) root: ThreadId,
    pub(crate) number: i64,
    pub(crate) manifest: Manifest,
    /// The digest of the stored manifest, which may have an older time of the last changeset.
    pub(crate) stored: Digest,
    pub(crate) head: Head,
    /// The running hash at the head, with a seal of its own.
    pub(crate) hash: Vec<u8>,
    pub(crate) epoch: u64,
    pub(crate) owner: Option<OwnerId>,
    /// Whether the owner was alive when the row was read.
    pub(crate) is_alive: bool,
    pub(crate) posted: PostedVersions,
    pub(crate) consumed: ConsumedRequests,
    pub(crate) is_imported: bool,
    pub(crate) mark: Vec<u8>,
}

/// The columns of [`Row`], of `threads AS t`.
pub(crate) const COLUMNS: &str = "t.root, t.thread, t.number, t.head, t.hash, t.manifest, t.epoch, t.owner, t.updated_at, t.posted, \
     t.consumed, t.mark, t.imported, t.owner IS NOT NULL AND is_alive(t.owner)";

impl Row {
    /// Parses a row; one that fails its seal is refused. Without a key nothing can be checked.
    pub(crate) fn read(row: &SqlRow, seals: Option<&Seals>) -> Result<Self> {
        let root = id(row.get(0))?;
        let thread: ThreadId = id(row.get(1))?;
        let text: String = row.get(5);
        let stored = sha256(text.as_bytes());
        let mut manifest: Manifest = json(&text)?;
        manifest.updated_at = Timestamp::from_micros(row.get(8));
        let owner: Option<String> = row.get(7);
        let found = Self {
            root,
            number: row.get(2),
            manifest,
            stored,
            head: json(row.get(3))?,
            hash: row.get(4),
            epoch: unsigned(row.get(6)),
            owner: owner.map(|owner| OwnerId::new(owner).map_err(bad_row)).transpose()?,
            is_alive: row.get(13),
            posted: json(row.get(9))?,
            consumed: json(row.get(10))?,
            is_imported: row.get(12),
            mark: row.get(11),
        };
        if found.manifest.thread_id != thread || *found.manifest.family_root() != found.root {
            return Err(bad_row(format!("the row of `{thread}` has the manifest of another thread")));
        }
        match seals {
            Some(seals) if !found.is_sealed(seals) => {
                Err(Error::Unsealed { what: format!("thread `{thread}`"), ours: Digest([0; 32]) })
            }
            _ => Ok(found),
        }
    }

    pub(crate) fn thread(&self) -> &ThreadId {
        &self.manifest.thread_id
    }

    pub(crate) fn chain(&self) -> &ThreadId {
        &self.manifest.chain_root_id
    }

    /// Its successor, if its chain continued.
    pub(crate) fn successor(&self) -> Option<&ThreadId> {
        self.manifest.continuation_thread_id.as_ref().filter(|_| self.manifest.status == Status::Continued)
    }

    fn content(&self) -> seal::HeadRow<'_> {
        seal::HeadRow {
            number: self.number.cast_unsigned(),
            thread: &self.manifest.thread_id,
            head: &self.head,
            epoch: self.epoch,
            owner: self.owner.as_ref(),
            updated_at: self.manifest.updated_at,
            manifest: &self.stored,
            posted: &self.posted,
            consumed: &self.consumed,
            // Events that lead the next changeset come from repairs of files, which this store has none of.
            leads: 0,
            anchor: 0,
        }
    }

    /// The row, sealed.
    pub(crate) fn sealed(mut self, seals: &Seals) -> Self {
        self.mark = seal::head(seals, &self.content()).0.to_vec();
        self
    }

    fn is_sealed(&self, seals: &Seals) -> bool {
        digest(&self.mark).is_ok_and(|mark| seal::is_head(seals, &self.content(), &mark))
    }
}

/// One thread.
pub(crate) fn find(
    connection: &mut Connection,
    seals: Option<&Seals>,
    thread: &ThreadId,
) -> Result<Option<Row>, Problem> {
    let sql = format!("SELECT {COLUMNS} FROM threads AS t WHERE t.thread = $1");
    let found = connection.first(&sql, &[&thread.as_str()])?;
    Ok(found.map(|row| Row::read(&row, seals)).transpose()?)
}

/// The seal of a row of an index.
pub(crate) fn mark(seals: &Seals, table: &str, fields: &[&[u8]]) -> String {
    hex(&seal::row(seals, table, fields).0)
}

/// Refuses a row of an index that fails its seal; `what` names its content.
pub(crate) fn check(
    seals: Option<&Seals>,
    table: &str,
    fields: &[&[u8]],
    found: &[u8],
    what: impl FnOnce() -> String,
) -> Result<()> {
    let Some(seals) = seals else { return Ok(()) };
    if digest(found).is_ok_and(|mark| seal::is_row(seals, table, fields, &mark)) {
        return Ok(());
    }
    Err(Error::Unsealed { what: what(), ours: Digest([0; 32]) })
}

pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn digest(bytes: &[u8]) -> Result<Digest> {
    bytes.try_into().map(Digest).map_err(|_| bad_row("a digest does not have 32 bytes"))
}

pub(crate) fn id(text: String) -> Result<ThreadId> {
    ThreadId::new(text).map_err(bad_row)
}

pub(crate) fn json<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(bad_row)
}

pub(crate) fn to_json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(bad_row)
}

/// A text as the server compares it: in lower case, which its locale may not know, and without the one character that it refuses.
pub(crate) fn lower(text: &str) -> String {
    text.to_lowercase().replace('\0', "\u{fffd}")
}
