//! The seals of rows, which decide which rows of a database are used.
//!
//! A program that can write the files of a store but does not have its key must not get anything signed, spent, dispatched or answered. So
//! a row that a commit or a run relies on is used only if it has a mark (HMAC-SHA-256) that the holder of the key made over its whole
//! content and its binding, under a key that is derived for this store. Every such mark is made and checked here, for every backend.
//!
//! | row | the mark covers | bound to |
//! |---|---|---|
//! | head of a thread | number of the row, thread, lines, hash, signer, epoch of the last checkpoint, lease (epoch, owner), time, digest of the manifest,
//! newest version of each account that its log posted to, consumed requests, number of events that wait to lead its next changeset, epoch
//! of the anchor that its writer knew | log, segment, version, bytes |
//! | account | every field, and the digest of all its reservations | account, version |
//! | index of messages, runs, commit keys, answers and erasures, inbox | every column except those that are only displayed | table, and the
//! log or chain of the row |
//! | anchor | its epoch, and the sums of account versions and of the newest numbers of inboxes | the store |
//! | event that waits to lead the next changeset | its text | log, segment, version, bytes |
//! | beat of an owner | owner, time | the store |
//!
//! Marks of requests are defined in [`crate::inbox`]. An older version of a row has a valid mark: that it is older is detected by other
//! signed or sealed data (the log after a head, the newest version of an account in the heads of its family, the sums of the anchor).

mod lead;
mod row;

use std::collections::BTreeMap;

use selvedge_log::Head;
use selvedge_log::hash::{Binding, Seals, sha256};
use selvedge_model::account::{Account, AccountId, Reservation};
use selvedge_model::{Digest, Event, OwnerId, ThreadId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::json;

pub use lead::{lead, valid_lead};
pub use row::SealedRow;

/// The newest version of each account that a log posted to.
pub type PostedVersions = BTreeMap<AccountId, u64>;

/// Adds the postings of events.
pub fn note_postings(versions: &mut PostedVersions, events: &[Event]) {
    for (_, record) in events.iter().filter_map(Event::posting) {
        let newest = versions.entry(record.account.clone()).or_default();
        *newest = (*newest).max(record.account_version);
    }
}

/// The requests that a thread and its predecessors in the chain have consumed, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumedRequests {
    /// The highest number that was consumed.
    pub newest: u64,
    /// Numbers below it that still waited then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<u64>,
}

impl ConsumedRequests {
    /// Whether a request of this number was consumed before.
    pub fn has(&self, number: u64) -> bool {
        number <= self.newest && !self.waiting.contains(&number)
    }

    /// Records that requests were consumed while `pending` waited, which includes them.
    pub fn consume(&mut self, consumed: &[u64], pending: &[u64]) {
        let waits = |number: &u64| !consumed.contains(number) && !self.has(*number);
        let waiting: Vec<u64> = pending.iter().copied().filter(waits).collect();
        self.newest = consumed.iter().copied().fold(self.newest, u64::max);
        self.waiting = waiting.into_iter().filter(|number| *number < self.newest).collect();
    }
}

/// The content of the row of a thread's head.
#[derive(Clone, Copy, Debug)]
pub struct HeadRow<'a> {
    /// The number of the row, which is the order of creation: a copy of the row under another number fails its seal.
    pub number: u64,
    /// The thread.
    pub thread: &'a ThreadId,
    /// The end of its log.
    pub head: &'a Head,
    /// The epoch of its lease.
    pub epoch: u64,
    /// The lease holder.
    pub owner: Option<&'a OwnerId>,
    /// The time of the last commit.
    pub updated_at: Timestamp,
    /// The digest of the manifest in the database.
    pub manifest: &'a Digest,
    /// The versions that its log posted to.
    pub posted: &'a PostedVersions,
    /// The requests that it consumed.
    pub consumed: &'a ConsumedRequests,
    /// How many events wait to lead its next changeset.
    pub leads: u64,
    /// The newest epoch of the store's anchor that its writer knew.
    pub anchor: u64,
}

/// The mark of a head.
pub fn head(seals: &Seals, row: &HeadRow<'_>) -> Digest {
    seals.mark(&binding_of_head(row), &content_of_head(row))
}

/// Whether a mark was made for this head.
pub fn is_head(seals: &Seals, row: &HeadRow<'_>, mark: &Digest) -> bool {
    seals.is_marked(&binding_of_head(row), &content_of_head(row), mark)
}

fn binding_of_head<'a>(row: &HeadRow<'a>) -> Binding<'a> {
    let Head { log_id, segment, version, bytes, .. } = row.head;
    Binding { log_id: log_id.as_str(), segment: *segment, version: *version, offset: *bytes }
}

/// Computed for every commit, so it is not JSON: texts with their lengths, numbers in eight bytes.
fn content_of_head(row: &HeadRow<'_>) -> Vec<u8> {
    let mut content = Vec::with_capacity(320);
    let mut text = |text: &[u8]| put_field(&mut content, text);
    text(b"head");
    text(&row.number.to_be_bytes());
    text(row.thread.as_str().as_bytes());
    for number in [row.head.lines, row.head.epoch, row.epoch, row.updated_at.as_micros().cast_unsigned()] {
        text(&number.to_be_bytes());
    }
    for digest in [&row.head.hash, &row.head.signer, row.manifest] {
        text(&digest.0);
    }
    text(row.owner.map_or("", OwnerId::as_str).as_bytes());
    text(&row.leads.to_be_bytes());
    text(&row.anchor.to_be_bytes());
    text(&(row.consumed.waiting.len() as u64).to_be_bytes());
    for number in std::iter::once(&row.consumed.newest).chain(&row.consumed.waiting) {
        text(&number.to_be_bytes());
    }
    for (account, version) in row.posted {
        text(account.as_str().as_bytes());
        text(&version.to_be_bytes());
    }
    content
}

/// The mark of an account with all its reservations.
pub fn account(seals: &Seals, account: &Account, reservations: &[Reservation]) -> Digest {
    seals.mark(&binding_of_account(account), &content_of_account(account, reservations))
}

/// Whether a mark was made for this account with these reservations.
pub fn is_account(seals: &Seals, account: &Account, reservations: &[Reservation], mark: &Digest) -> bool {
    seals.is_marked(&binding_of_account(account), &content_of_account(account, reservations), mark)
}

fn binding_of_account(account: &Account) -> Binding<'_> {
    Binding { log_id: account.id.as_str(), segment: 0, version: account.version, offset: 0 }
}

fn content_of_account(account: &Account, reservations: &[Reservation]) -> Vec<u8> {
    let mut reservations: Vec<_> = reservations.iter().collect();
    reservations.sort_by(|one, two| one.id.cmp(&two.id));
    let held = sha256(json!(reservations).to_string().as_bytes());
    json!(["account", account, held]).to_string().into_bytes()
}

/// The mark of a row of a table, over its fields; the rows that every backend has are in [`SealedRow`].
pub fn row(seals: &Seals, table: &str, fields: &[&[u8]]) -> Digest {
    seals.mark(&binding_of_row(table), &content_of_row(fields))
}

/// Whether a mark was made for a row of this table with these fields.
pub fn is_row(seals: &Seals, table: &str, fields: &[&[u8]], mark: &Digest) -> bool {
    seals.is_marked(&binding_of_row(table), &content_of_row(fields), mark)
}

fn binding_of_row(table: &str) -> Binding<'_> {
    Binding { log_id: table, segment: 0, version: 0, offset: 0 }
}

fn content_of_row(fields: &[&[u8]]) -> Vec<u8> {
    let mut content = b"row\0".to_vec();
    for field in fields {
        put_field(&mut content, field);
    }
    content
}

/// Fields are separated by their lengths.
fn put_field(content: &mut Vec<u8>, field: &[u8]) {
    content.extend_from_slice(&(field.len() as u64).to_be_bytes());
    content.extend_from_slice(field);
}
