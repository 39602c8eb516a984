//! Rows in and out of the database; one small function per question. No decision is taken here.

use rusqlite::{Connection, OptionalExtension, Row as SqlRow, named_params, params};
use selvedge_log::Head;
use selvedge_model::account::{Account, AccountId, AccountStatus, Reservation};
use selvedge_model::id::ReservationId;
use selvedge_model::{CommitKey, Digest, LogId, Manifest, MessageId, Money, OwnerId, Run, RunId, ThreadId, Timestamp};
use selvedge_store::{Committed, Error, Result, Tombstone};

use crate::schema::database;

/// A thread as the database has it.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) id: i64,
    pub(crate) manifest: Manifest,
    pub(crate) head: Head,
    pub(crate) sealed: Vec<u8>,
    pub(crate) epoch: u64,
    pub(crate) owner: Option<OwnerId>,
}

/// The folded state that was saved last.
#[derive(Debug)]
pub(crate) struct SavedState {
    pub(crate) version: u64,
    pub(crate) bytes: u64,
    /// As [`crate::saved_state`] wrote it.
    pub(crate) text: String,
}

/// Something in the database can't be what Selvedge wrote.
pub(crate) fn bad_row(what: impl std::fmt::Display) -> Error {
    Error::Integrity {
        what: "`registry.db` is damaged".to_owned(),
        why: what.to_string(),
        hint: Some(crate::schema::REBUILD.to_owned()),
    }
}

pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn digest(bytes: Vec<u8>) -> Result<Digest> {
    bytes.try_into().map(Digest).map_err(|_| bad_row("a digest has not 32 bytes"))
}

fn text<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T> {
    text.parse().map_err(bad_row)
}

fn json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(bad_row)
}

fn to_json<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(bad_row)
}

/// The columns that [`row`] reads, of `threads AS t JOIN heads AS h`.
pub(crate) const COLUMNS: &str = "t.id, t.log_id, t.manifest, h.version, h.lines, h.bytes, h.hash, h.segment, h.signer, \
     h.head_epoch, h.sealed, h.epoch, h.owner, h.updated_at";
/// The tables of [`COLUMNS`].
pub(crate) const TABLES: &str = "threads AS t JOIN heads AS h ON h.id = t.id";

type Raw = (i64, String, String, [i64; 3], Vec<u8>, i64, Vec<u8>, i64, Vec<u8>, i64, Option<String>, i64);

pub(crate) fn raw(row: &SqlRow<'_>) -> rusqlite::Result<Raw> {
    Ok((
        row.get(0)?,
        row.get(1)?,
        row.get(2)?,
        [row.get(3)?, row.get(4)?, row.get(5)?],
        row.get(6)?,
        row.get(7)?,
        row.get(8)?,
        row.get(9)?,
        row.get(10)?,
        row.get(11)?,
        row.get(12)?,
        row.get(13)?,
    ))
}

pub(crate) fn row(raw: Raw) -> Result<Row> {
    let (id, log_id, manifest, lengths, hash, segment, signer, head_epoch, sealed, epoch, owner, updated_at) = raw;
    let mut manifest: Manifest = json(&manifest)?;
    manifest.updated_at = Timestamp::from_micros(updated_at);
    let head = end_of(&log_id, lengths, hash, segment, signer, head_epoch)?;
    let owner = owner.as_deref().map(text).transpose()?;
    Ok(Row { id, manifest, head, sealed, epoch: unsigned(epoch), owner })
}

pub(crate) fn find(connection: &Connection, thread: &ThreadId) -> Result<Option<Row>> {
    let sql = const_format(&[COLUMNS, TABLES], "t.thread_id = ?");
    let mut statement = connection.prepare_cached(&sql).map_err(database)?;
    let found = statement.query_row([thread.as_str()], raw).optional().map_err(database)?;
    found.map(row).transpose()
}

/// Where the log of a thread ends, and nothing else of it.
pub(crate) fn head(connection: &Connection, thread: &ThreadId) -> Result<Option<Head>> {
    const SQL: &str = "SELECT t.log_id, h.version, h.lines, h.bytes, h.hash, h.segment, h.signer, h.head_epoch \
         FROM threads AS t JOIN heads AS h ON h.id = t.id WHERE t.thread_id = ?";
    let mut statement = connection.prepare_cached(SQL).map_err(database)?;
    let raw = |row: &SqlRow<'_>| {
        let lengths = [row.get(1)?, row.get(2)?, row.get(3)?];
        Ok((row.get::<_, String>(0)?, lengths, row.get(4)?, row.get(5)?, row.get(6)?, row.get(7)?))
    };
    let found = statement.query_row([thread.as_str()], raw).optional().map_err(database)?;
    let head = |(log_id, lengths, hash, segment, signer, epoch): (String, _, _, _, _, _)| {
        end_of(&log_id, lengths, hash, segment, signer, epoch)
    };
    found.map(head).transpose()
}

/// The end of a log, of its columns.
fn end_of(
    log_id: &str,
    [version, lines, bytes]: [i64; 3],
    hash: Vec<u8>,
    segment: i64,
    signer: Vec<u8>,
    epoch: i64,
) -> Result<Head> {
    Ok(Head {
        log_id: text::<LogId>(log_id)?,
        segment: u32::try_from(segment).map_err(bad_row)?,
        version: unsigned(version),
        lines: unsigned(lines),
        bytes: unsigned(bytes),
        hash: digest(hash)?,
        epoch: unsigned(epoch),
        signer: digest(signer)?,
    })
}

fn const_format([columns, tables]: &[&str; 2], condition: &str) -> String {
    format!("SELECT {columns} FROM {tables} WHERE {condition}")
}

/// Rows that satisfy `condition`.
pub(crate) fn select(connection: &Connection, condition: &str, values: impl rusqlite::Params) -> Result<Vec<Row>> {
    let sql = const_format(&[COLUMNS, TABLES], condition);
    let mut statement = connection.prepare_cached(&sql).map_err(database)?;
    let found = statement.query_map(values, raw).map_err(database)?;
    found.map(|raw| row(raw.map_err(database)?)).collect()
}

/// Why there is no row for `thread`.
pub(crate) fn missing(connection: &Connection, thread: &ThreadId) -> Error {
    match tombstone(connection, thread) {
        Ok(Some(_)) => Error::Deleted(thread.clone()),
        Ok(None) => Error::NoThread(thread.to_string()),
        Err(error) => error,
    }
}

pub(crate) fn existing(connection: &Connection, thread: &ThreadId) -> Result<Row> {
    find(connection, thread)?.ok_or_else(|| missing(connection, thread))
}

/// The name of the thread of this number.
pub(crate) fn name(connection: &Connection, id: i64) -> Result<ThreadId> {
    let found: Option<String> = one(connection, "SELECT thread_id FROM threads WHERE id = ?", [id])?;
    text(&found.ok_or_else(|| bad_row("there is redo of a thread that is not there"))?)
}

fn one<T: rusqlite::types::FromSql>(
    connection: &Connection,
    sql: &str,
    values: impl rusqlite::Params,
) -> Result<Option<T>> {
    let mut statement = connection.prepare_cached(sql).map_err(database)?;
    statement.query_row(values, |row| row.get(0)).optional().map_err(database)
}

/// Whether a query finds anything.
pub(crate) fn exists(connection: &Connection, sql: &str, values: impl rusqlite::Params) -> Result<bool> {
    connection.prepare_cached(sql).map_err(database)?.exists(values).map_err(database)
}

pub(crate) fn execute(connection: &Connection, sql: &str, values: impl rusqlite::Params) -> Result<usize> {
    connection.prepare_cached(sql).map_err(database)?.execute(values).map_err(database)
}

pub(crate) fn tombstone(connection: &Connection, thread: &ThreadId) -> Result<Option<Tombstone>> {
    let found: Option<String> =
        one(connection, "SELECT tombstone FROM tombstones WHERE thread_id = ?", [thread.as_str()])?;
    found.as_deref().map(json).transpose()
}

/// The signed document that remains of a deleted thread.
pub(crate) fn signed_tombstone(connection: &Connection, thread: &ThreadId) -> Result<Option<String>> {
    one(connection, "SELECT document FROM tombstones WHERE thread_id = ?", [thread.as_str()])
}

pub(crate) fn message(connection: &Connection, thread: i64, message: &MessageId) -> Result<Option<Digest>> {
    let sql = "SELECT digest FROM messages WHERE thread = ? AND message_id = ?";
    one::<Vec<u8>>(connection, sql, params![thread, message.as_str()])?.map(digest).transpose()
}

pub(crate) fn saved_state(connection: &Connection, thread: i64) -> Result<Option<SavedState>> {
    let mut statement =
        connection.prepare_cached("SELECT version, bytes, state FROM states WHERE thread = ?").map_err(database)?;
    let found = statement
        .query_row([thread], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, String>(2)?)))
        .optional()
        .map_err(database)?;
    let read = |(version, bytes, state): (i64, i64, String)| SavedState {
        version: unsigned(version),
        bytes: unsigned(bytes),
        text: state,
    };
    Ok(found.map(read))
}

/// Where the log ended when a state was saved last, and how long that was.
pub(crate) fn saved_state_size(connection: &Connection, thread: i64) -> Result<Option<(u64, u64)>> {
    let sql = "SELECT bytes, length(state) FROM states WHERE thread = ?";
    let mut statement = connection.prepare_cached(sql).map_err(database)?;
    let found = statement.query_row([thread], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))).optional();
    Ok(found.map_err(database)?.map(|(bytes, size)| (unsigned(bytes), unsigned(size))))
}

pub(crate) fn save_state(connection: &Connection, thread: i64, head: &Head, state: &str) -> Result<()> {
    let sql = "INSERT INTO states (thread, version, bytes, state) VALUES (?, ?, ?, ?) \
               ON CONFLICT (thread) DO UPDATE SET version = excluded.version, bytes = excluded.bytes, state = excluded.state";
    execute(connection, sql, params![thread, signed(head.version), signed(head.bytes), state])?;
    Ok(())
}

type RawRun = (String, Option<String>, String, i64, i64);

fn raw_run(row: &SqlRow<'_>) -> rusqlite::Result<RawRun> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
}

fn read_run(thread: &ThreadId, (run_id, parent, meta, created_at, updated_at): RawRun) -> Result<Run> {
    Ok(Run {
        run_id: text(&run_id)?,
        thread_id: thread.clone(),
        parent_run_id: parent.as_deref().map(text).transpose()?,
        meta: json(&meta)?,
        created_at: Timestamp::from_micros(created_at),
        updated_at: Timestamp::from_micros(updated_at),
    })
}

const RUN_COLUMNS: &str = "SELECT run_id, parent_run_id, meta, created_at, updated_at FROM runs";

pub(crate) fn run(connection: &Connection, id: i64, thread: &ThreadId, run: &RunId) -> Result<Option<Run>> {
    let sql = format!("{RUN_COLUMNS} WHERE thread = ? AND run_id = ?");
    let mut statement = connection.prepare_cached(&sql).map_err(database)?;
    let found = statement.query_row(params![id, run.as_str()], raw_run).optional().map_err(database)?;
    found.map(|raw| read_run(thread, raw)).transpose()
}

pub(crate) fn runs(connection: &Connection, id: i64, thread: &ThreadId) -> Result<Vec<Run>> {
    let sql = format!("{RUN_COLUMNS} WHERE thread = ? ORDER BY id");
    let mut statement = connection.prepare_cached(&sql).map_err(database)?;
    let found = statement.query_map([id], raw_run).map_err(database)?;
    found.map(|raw| read_run(thread, raw.map_err(database)?)).collect()
}

pub(crate) fn put_run(connection: &Connection, id: i64, run: &Run) -> Result<()> {
    let sql = "INSERT INTO runs (thread, run_id, parent_run_id, meta, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?) \
               ON CONFLICT (thread, run_id) DO UPDATE SET parent_run_id = excluded.parent_run_id, meta = excluded.meta, \
               updated_at = excluded.updated_at";
    let parent = run.parent_run_id.as_ref().map(RunId::as_str);
    let times = (run.created_at.as_micros(), run.updated_at.as_micros());
    execute(connection, sql, params![id, run.run_id.as_str(), parent, to_json(&run.meta)?, times.0, times.1])?;
    Ok(())
}

pub(crate) fn key(connection: &Connection, key: &CommitKey) -> Result<Option<(Digest, Committed)>> {
    let mut statement =
        connection.prepare_cached("SELECT request, answer FROM keys WHERE key = ?").map_err(database)?;
    let found = statement
        .query_row([key.as_str()], |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, String>(1)?)))
        .optional()
        .map_err(database)?;
    found.map(|(request, answer)| Ok((digest(request)?, json(&answer)?))).transpose()
}

/// Stores a key; false if it was there.
pub(crate) fn put_key(connection: &Connection, key: &CommitKey, request: &Digest, answer: &Committed) -> Result<bool> {
    let sql = "INSERT INTO keys (key, request, answer) VALUES (?, ?, ?) ON CONFLICT DO NOTHING";
    Ok(execute(connection, sql, params![key.as_str(), &request.0[..], to_json(answer)?])? == 1)
}

fn money(nanos: i64) -> Result<Money> {
    Money::from_nanos(nanos).map_err(bad_row)
}

fn read_account(row: &SqlRow<'_>) -> rusqlite::Result<RawAccount> {
    let numbers = [row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?, row.get(7)?];
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, numbers, row.get(8)?))
}

type RawAccount = (String, Option<String>, Option<i64>, [i64; 5], String);

fn to_account((id, parent, max, [own, children, reserved, open, version], status): RawAccount) -> Result<Account> {
    Ok(Account {
        id: text(&id)?,
        parent: parent.as_deref().map(text).transpose()?,
        max: max.map(money).transpose()?,
        settled: money(own)?,
        settled_children: money(children)?,
        reserved: money(reserved)?,
        open: unsigned(open),
        status: match status.as_str() {
            "closed" => AccountStatus::Closed,
            "closing" => AccountStatus::Closing,
            _ => AccountStatus::Active,
        },
        version: unsigned(version),
    })
}

/// Accounts that satisfy `condition`, in the order of their names.
pub(crate) fn accounts(connection: &Connection, condition: &str, value: &str) -> Result<Vec<Account>> {
    let sql = format!(
        "SELECT thread_id, parent_id, max_spend, own_spend, children_spend, reserved_spend, open, version, status \
         FROM budget_ledger WHERE {condition} ORDER BY thread_id"
    );
    let mut statement = connection.prepare_cached(&sql).map_err(database)?;
    let found = statement.query_map([value], read_account).map_err(database)?;
    found.map(|raw| to_account(raw.map_err(database)?)).collect()
}

/// Writes an account if it still has the version it was read at; false if not.
pub(crate) fn put_account(connection: &Connection, before: Option<u64>, account: &Account) -> Result<bool> {
    let status = match account.status {
        AccountStatus::Active => "active",
        AccountStatus::Closing => "closing",
        AccountStatus::Closed => "closed",
    };
    let sql = match before {
        Some(_) => {
            "UPDATE budget_ledger SET parent_id = :parent, max_spend = :max, own_spend = :own, children_spend = :children, \
             reserved_spend = :reserved, open = :open, status = :status, version = :version \
             WHERE thread_id = :id AND version = :before"
        }
        None => {
            "INSERT INTO budget_ledger (thread_id, parent_id, max_spend, own_spend, children_spend, reserved_spend, open, \
             status, version) SELECT :id, :parent, :max, :own, :children, :reserved, :open, :status, :version \
             WHERE :before IS NULL ON CONFLICT DO NOTHING"
        }
    };
    let changed = execute(
        connection,
        sql,
        named_params! {
            ":id": account.id.as_str(),
            ":parent": account.parent.as_ref().map(AccountId::as_str),
            ":max": account.max.map(Money::nanos),
            ":own": account.settled.nanos(),
            ":children": account.settled_children.nanos(),
            ":reserved": account.reserved.nanos(),
            ":open": signed(account.open),
            ":status": status,
            ":version": signed(account.version),
            ":before": before.map(signed),
        },
    )?;
    Ok(changed == 1)
}

pub(crate) fn reservation(
    connection: &Connection,
    account: &AccountId,
    name: &ReservationId,
) -> Result<Option<Reservation>> {
    let sql = "SELECT body FROM reservations WHERE account = ? AND reservation = ?";
    one::<String>(connection, sql, params![account.as_str(), name.as_str()])?.as_deref().map(json).transpose()
}

/// The reservations of an account, in the order of their names.
pub(crate) fn reservations(connection: &Connection, account: &AccountId) -> Result<Vec<Reservation>> {
    let sql = "SELECT body FROM reservations WHERE account = ? ORDER BY reservation";
    let mut statement = connection.prepare_cached(sql).map_err(database)?;
    let found = statement.query_map([account.as_str()], |row| row.get::<_, String>(0)).map_err(database)?;
    found.map(|body| json(&body.map_err(database)?)).collect()
}

pub(crate) fn put_reservation(
    connection: &Connection,
    account: &AccountId,
    name: &ReservationId,
    reservation: Option<&Reservation>,
) -> Result<()> {
    match reservation {
        Some(open) => {
            let sql = "INSERT INTO reservations (account, reservation, body) VALUES (?, ?, ?) \
                       ON CONFLICT (account, reservation) DO UPDATE SET body = excluded.body";
            execute(connection, sql, params![account.as_str(), name.as_str(), to_json(open)?])
        }
        None => {
            let sql = "DELETE FROM reservations WHERE account = ? AND reservation = ?";
            execute(connection, sql, params![account.as_str(), name.as_str()])
        }
    }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::StatementStatus;

    #[test]
    fn no_statement_is_prepared_again_because_another_value_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("registry.db");
        std::fs::File::create(&path).unwrap();
        crate::schema::create(&path).unwrap();
        let connection = crate::schema::open(&path, crate::schema::Use::Read).unwrap();
        for name in ["a", "b", "a", "c"] {
            let thread = ThreadId::new(name).unwrap();
            assert!(find(&connection, &thread).unwrap().is_none() && head(&connection, &thread).unwrap().is_none());
        }
        let sql = const_format(&[COLUMNS, TABLES], "t.thread_id = ?");
        let statement = connection.prepare_cached(&sql).unwrap();
        assert_eq!(
            (statement.get_status(StatementStatus::Run), statement.get_status(StatementStatus::RePrepare)),
            (4, 0)
        );
    }
}
