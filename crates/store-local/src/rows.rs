//! Reads and writes rows of the database; one small function per query. No decisions are made here.

use rusqlite::{Connection, OptionalExtension, Row as SqlRow, named_params, params};
use selvedge_log::Head;
use selvedge_log::hash::sha256;
use selvedge_model::account::{Account, AccountId, AccountStatus, Reservation};
use selvedge_model::id::ReservationId;
use selvedge_model::{CommitKey, Digest, LogId, Manifest, MessageId, Money, OwnerId, Run, RunId, ThreadId, Timestamp};
use selvedge_store::saved_state::SavedState;
use selvedge_store::seal::{self, ConsumedRequests, PostedVersions, SealedRow};
use selvedge_store::{Committed, Error, Result, Tombstone};

use crate::anchor;
use crate::db::Db;
use crate::schema::database;
use crate::sealed::{self, Mark, unsealed};

/// A thread in the database.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) id: i64,
    pub(crate) manifest: Manifest,
    /// The digest of the stored manifest, which may have an older time of the last changeset.
    pub(crate) stored: Digest,
    pub(crate) head: Head,
    pub(crate) sealed: Vec<u8>,
    pub(crate) epoch: u64,
    pub(crate) owner: Option<OwnerId>,
    pub(crate) posted: PostedVersions,
    /// The requests that were consumed.
    pub(crate) consumed: ConsumedRequests,
    /// How many events wait to lead the next changeset.
    pub(crate) leads: u64,
    /// The newest epoch of the anchor that its writer knew.
    pub(crate) anchor: u64,
    pub(crate) mark: Mark,
}

/// The database contains something that Selvedge never writes.
pub(crate) fn bad_row(what: impl std::fmt::Display) -> Error {
    Error::Integrity { what: BAD_ROW.to_owned(), why: what.to_string(), hint: Some(crate::schema::REBUILD.to_owned()) }
}

/// The message about such a database.
const BAD_ROW: &str = "`registry.db` is damaged";

/// Whether an error is that of [`bad_row`].
pub(crate) fn is_bad_row(error: &Error) -> bool {
    matches!(error, Error::Integrity { what, .. } if what == BAD_ROW)
}

/// Whether an error concerns the database itself, not a thread.
pub(crate) fn is_of_database(error: &Error) -> bool {
    match error {
        Error::Integrity { what, .. } => what.contains("`registry.db`"),
        Error::Unsealed { .. } => true,
        Error::Database { retryable, .. } => !retryable,
        _ => false,
    }
}

pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn digest(bytes: Vec<u8>) -> Result<Digest> {
    bytes.try_into().map(Digest).map_err(|_| bad_row("a digest does not have 32 bytes"))
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
     h.head_epoch, h.sealed, h.epoch, h.owner, h.updated_at, h.posted, h.mark, h.heard, h.leads, h.anchor, t.thread_id";
/// The tables of [`COLUMNS`].
pub(crate) const TABLES: &str = "threads AS t JOIN heads AS h ON h.id = t.id";

type RawHead = ([i64; 3], Vec<u8>, i64, Vec<u8>, i64);
type RawRest = (Vec<u8>, i64, Option<String>, i64, String, (Vec<u8>, String, [i64; 2], String));
type Raw = (i64, String, String, RawHead, RawRest);

pub(crate) fn raw(row: &SqlRow<'_>) -> rusqlite::Result<Raw> {
    let lengths = [row.get(3)?, row.get(4)?, row.get(5)?];
    let head = (lengths, row.get(6)?, row.get(7)?, row.get(8)?, row.get(9)?);
    let rest = (
        row.get(10)?,
        row.get(11)?,
        row.get(12)?,
        row.get(13)?,
        row.get(14)?,
        (row.get(15)?, row.get(16)?, [row.get(17)?, row.get(18)?], row.get(19)?),
    );
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, head, rest))
}

/// A row; its seal is not checked.
pub(crate) fn row((id, log_id, text_of_manifest, head, rest): Raw) -> Result<Row> {
    let (lengths, hash, segment, signer, head_epoch) = head;
    let (sealed, epoch, owner, updated_at, posted, (mark, consumed, [leads, anchor], name)) = rest;
    let mut manifest: Manifest = json(&text_of_manifest)?;
    manifest.updated_at = Timestamp::from_micros(updated_at);
    let stored = sha256(text_of_manifest.as_bytes());
    let head = to_head(&log_id, lengths, hash, segment, signer, head_epoch)?;
    let owner = owner.as_deref().map(text).transpose()?;
    let posted = if posted.is_empty() { PostedVersions::new() } else { json(&posted)? };
    let consumed = if consumed.is_empty() { ConsumedRequests::default() } else { json(&consumed)? };
    let epoch = unsigned(epoch);
    let leads = unsigned(leads);
    let anchor = unsigned(anchor);
    // The seal names the thread of the manifest; a row under another name has none.
    let mark = if manifest.thread_id.as_str() == name { Mark::read(mark) } else { Mark::NONE };
    Ok(Row { id, manifest, stored, head, sealed, epoch, owner, posted, consumed, leads, anchor, mark })
}

/// The versions that a log posted to, as stored in its head.
pub(crate) fn posted_text(posted: &PostedVersions) -> Result<String> {
    if posted.is_empty() { Ok(String::new()) } else { to_json(posted) }
}

/// The consumed requests, as stored in a head.
pub(crate) fn consumed_text(consumed: &ConsumedRequests) -> Result<String> {
    if *consumed == ConsumedRequests::default() { Ok(String::new()) } else { to_json(consumed) }
}

pub(crate) fn find(db: &Db, thread: &ThreadId) -> Result<Option<Row>> {
    match find_any(db, thread)? {
        // The manifest of the row must have the same thread id.
        Some(row) if row.manifest.thread_id != *thread => Err(unsealed(db, format!("thread `{thread}`"))),
        Some(row) => row.checked(db).map(Some),
        None => Ok(None),
    }
}

/// The same; its seal is not checked.
pub(crate) fn find_any(connection: &Connection, thread: &ThreadId) -> Result<Option<Row>> {
    let sql = const_format(&[COLUMNS, TABLES], "t.thread_id = ?");
    let mut statement = connection.prepare_cached(&sql).map_err(database)?;
    let found = statement.query_row([thread.as_str()], raw).optional().map_err(database)?;
    found.map(row).transpose()
}

/// The head of a log, from its columns.
fn to_head(
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

/// Rows that satisfy `condition`; refused if one of them fails its seal.
pub(crate) fn select(db: &Db, condition: &str, values: impl rusqlite::Params) -> Result<Vec<Row>> {
    select_any(db, condition, values)?.into_iter().map(|row| row.checked(db)).collect()
}

/// The same; their seals are not checked.
pub(crate) fn select_any(connection: &Connection, condition: &str, values: impl rusqlite::Params) -> Result<Vec<Row>> {
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

pub(crate) fn existing(db: &Db, thread: &ThreadId) -> Result<Row> {
    find(db, thread)?.ok_or_else(|| missing(db, thread))
}

/// The name of the thread with this row id.
pub(crate) fn name(connection: &Connection, id: i64) -> Result<ThreadId> {
    let found: Option<String> = one(connection, "SELECT thread_id FROM threads WHERE id = ?", [id])?;
    text(&found.ok_or_else(|| bad_row("there is redo of a missing thread"))?)
}

fn one<T: rusqlite::types::FromSql>(
    connection: &Connection,
    sql: &str,
    values: impl rusqlite::Params,
) -> Result<Option<T>> {
    let mut statement = connection.prepare_cached(sql).map_err(database)?;
    statement.query_row(values, |row| row.get(0)).optional().map_err(database)
}

/// Whether a query returns a row.
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

/// The signed tombstone of a deleted thread.
pub(crate) fn signed_tombstone(connection: &Connection, thread: &ThreadId) -> Result<Option<String>> {
    one(connection, "SELECT document FROM tombstones WHERE thread_id = ?", [thread.as_str()])
}

pub(crate) fn message(db: &Db, row: &Row, message: &MessageId) -> Result<Option<Digest>> {
    let sql = "SELECT digest, mark FROM messages WHERE thread = ? AND message_id = ?";
    let mut statement = db.prepare_cached(sql).map_err(database)?;
    let found = statement.query_row(params![row.id, message.as_str()], |row| Ok((row.get(0)?, row.get(1)?)));
    let Some((found, mark)) = found.optional().map_err(database)? else { return Ok(None) };
    let found = digest(found)?;
    let sealed = SealedRow::Message { log: &row.head.log_id, id: message.as_str(), digest: &found.0 };
    sealed::check_of(db, row, &sealed, mark, || format!("message `{message}`"))?;
    Ok(Some(found))
}

/// Refuses messages of a thread that fail their seals.
pub(crate) fn check_messages(db: &Db, row: &Row) -> Result<()> {
    let sql = "SELECT message_id, digest, mark FROM messages WHERE thread = ?";
    let mut statement = db.prepare_cached(sql).map_err(database)?;
    let mut found = statement.query([row.id]).map_err(database)?;
    while let Some(one) = found.next().map_err(database)? {
        let id: String = one.get(0).map_err(database)?;
        let digest: Vec<u8> = one.get(1).map_err(database)?;
        let sealed = SealedRow::Message { log: &row.head.log_id, id: &id, digest: &digest };
        sealed::check_of(db, row, &sealed, one.get(2).map_err(database)?, || format!("message `{id}`"))?;
    }
    Ok(())
}

/// Inserts a message of a log; false if it exists already.
pub(crate) fn put_message(db: &Db, thread: i64, log: &LogId, message: &MessageId, digest: &Digest) -> Result<bool> {
    // Each id is stored once; an imported log may have one twice, and the first is used, as in the fold.
    let sql = "INSERT INTO messages (thread, message_id, digest, mark) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING";
    let mark = sealed::mark(db, &SealedRow::Message { log, id: message.as_str(), digest: &digest.0 });
    Ok(execute(db, sql, params![thread, message.as_str(), &digest.0[..], mark.bytes()])? == 1)
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

/// The length of the log when the state was last saved, and the length of the state.
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

type RawRun = (String, Option<String>, String, [i64; 2], Vec<u8>);

fn raw_run(row: &SqlRow<'_>) -> rusqlite::Result<RawRun> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, [row.get(3)?, row.get(4)?], row.get(5)?))
}

fn read_run(db: &Db, row: &Row, (run_id, parent, meta, [created_at, updated_at], mark): RawRun) -> Result<Run> {
    let log = &row.head.log_id;
    let sealed = SealedRow::Run { log, id: &run_id, parent: parent.as_deref(), meta: &meta, created_at };
    sealed::check_of(db, row, &sealed, mark, || format!("run `{run_id}`"))?;
    Ok(Run {
        run_id: text(&run_id)?,
        thread_id: row.manifest.thread_id.clone(),
        parent_run_id: parent.as_deref().map(text).transpose()?,
        meta: json(&meta)?,
        created_at: Timestamp::from_micros(created_at),
        updated_at: Timestamp::from_micros(updated_at),
    })
}

const RUN_COLUMNS: &str = "SELECT run_id, parent_run_id, meta, created_at, updated_at, mark FROM runs";

pub(crate) fn run(db: &Db, row: &Row, run: &RunId) -> Result<Option<Run>> {
    let sql = format!("{RUN_COLUMNS} WHERE thread = ? AND run_id = ?");
    let mut statement = db.prepare_cached(&sql).map_err(database)?;
    let found = statement.query_row(params![row.id, run.as_str()], raw_run).optional().map_err(database)?;
    found.map(|raw| read_run(db, row, raw)).transpose()
}

pub(crate) fn runs(db: &Db, row: &Row) -> Result<Vec<Run>> {
    let sql = format!("{RUN_COLUMNS} WHERE thread = ? ORDER BY id");
    let mut statement = db.prepare_cached(&sql).map_err(database)?;
    let found = statement.query_map([row.id], raw_run).map_err(database)?;
    found.map(|raw| read_run(db, row, raw.map_err(database)?)).collect()
}

pub(crate) fn put_run(db: &Db, id: i64, log: &LogId, run: &Run) -> Result<()> {
    let sql = "INSERT INTO runs (thread, run_id, parent_run_id, meta, created_at, updated_at, mark) \
               VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (thread, run_id) DO UPDATE SET \
               parent_run_id = excluded.parent_run_id, meta = excluded.meta, created_at = excluded.created_at, \
               updated_at = excluded.updated_at, mark = excluded.mark";
    let parent = run.parent_run_id.as_ref().map(RunId::as_str);
    let meta = to_json(&run.meta)?;
    let created = run.created_at.as_micros();
    let updated = run.updated_at.as_micros();
    // The time of its last commit is a hint.
    let sealed = SealedRow::Run { log, id: run.run_id.as_str(), parent, meta: &meta, created_at: created };
    let mark = sealed::mark(db, &sealed);
    execute(db, sql, params![id, run.run_id.as_str(), parent, meta, created, updated, mark.bytes()])?;
    Ok(())
}

pub(crate) fn key(db: &Db, key: &CommitKey) -> Result<Option<(Digest, Committed)>> {
    let mut statement = db.prepare_cached("SELECT request, answer, mark FROM keys WHERE key = ?").map_err(database)?;
    let found = statement
        .query_row([key.as_str()], |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, String>(1)?, row.get(2)?)))
        .optional()
        .map_err(database)?;
    let Some((request, answer, mark)) = found else { return Ok(None) };
    let sealed = SealedRow::Key { key: key.as_str(), request: &request, answer: &answer };
    sealed::check(db, &sealed, mark, || format!("commit key `{key}`"))?;
    Ok(Some((digest(request)?, json(&answer)?)))
}

/// Inserts a commit key; false if it exists already.
pub(crate) fn put_key(db: &Db, key: &CommitKey, request: &Digest, answer: &Committed) -> Result<bool> {
    let sql = "INSERT INTO keys (key, request, answer, mark) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING";
    let answer = to_json(answer)?;
    let mark = sealed::mark(db, &SealedRow::Key { key: key.as_str(), request: &request.0, answer: &answer });
    Ok(execute(db, sql, params![key.as_str(), &request.0[..], answer, mark.bytes()])? == 1)
}

fn money(nanos: i64) -> Result<Money> {
    Money::from_nanos(nanos).map_err(bad_row)
}

fn read_account(row: &SqlRow<'_>) -> rusqlite::Result<RawAccount> {
    let numbers = [row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?, row.get(7)?, row.get(10)?];
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, numbers, row.get(8)?, row.get(9)?))
}

type RawAccount = (String, Option<String>, Option<i64>, [i64; 6], String, Vec<u8>);

fn to_account(raw: RawAccount) -> Result<(Account, Mark)> {
    let (id, parent, max, [own, children, reserved, open, version, incomplete], status, mark) = raw;
    let account = Account {
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
            "active" => AccountStatus::Active,
            other => return Err(bad_row(format!("an account has the status `{other}`"))),
        },
        version: unsigned(version),
        incomplete: incomplete != 0,
    };
    Ok((account, Mark::read(mark)))
}

/// Accounts that satisfy `condition`, in the order of their names; refused if one of them, with its reservations, fails its seal.
pub(crate) fn accounts(db: &Db, condition: &str, value: &str) -> Result<Vec<Account>> {
    let checked = |(account, mark): (Account, Mark)| {
        if !is_sealed_account(db, &account, mark)? {
            return Err(unsealed(db, format!("the account of `{}`", account.id)));
        }
        Ok(account)
    };
    accounts_any(db, condition, value)?.into_iter().map(checked).collect()
}

/// Refuses reservations of an account that does not exist: the seal of a new account would cover them.
pub(crate) fn refuse_stray_reservations(db: &Db, account: &AccountId) -> Result<()> {
    if exists(db, "SELECT 1 FROM reservations WHERE account = ?", [account.as_str()])? {
        return Err(unsealed(db, format!("a reservation of the account of `{account}`, which does not exist,")));
    }
    Ok(())
}

/// Whether an account passes its seal. Without a key nothing can be checked.
pub(crate) fn is_sealed_account(db: &Db, account: &Account, mark: Mark) -> Result<bool> {
    let Some(seals) = db.seals() else { return Ok(true) };
    let Some(mark) = mark.digest() else { return Ok(false) };
    Ok(seal::is_account(seals, account, &reservations(db, &account.id)?, mark))
}

/// Accounts and their marks, unchecked.
pub(crate) fn accounts_any(connection: &Connection, condition: &str, value: &str) -> Result<Vec<(Account, Mark)>> {
    let sql = format!(
        "SELECT thread_id, parent_id, max_spend, own_spend, children_spend, reserved_spend, open, version, status, mark, \
         incomplete FROM budget_ledger WHERE {condition} ORDER BY thread_id"
    );
    let mut statement = connection.prepare_cached(&sql).map_err(database)?;
    let found = statement.query_map([value], read_account).map_err(database)?;
    found.map(|raw| to_account(raw.map_err(database)?)).collect()
}

/// Writes an account if it still has the version it was read at; false if not. Its reservations must have been written before.
pub(crate) fn put_account(db: &Db, before: Option<u64>, account: &Account) -> Result<bool> {
    let mark = match db.seals() {
        Some(seals) => seal::account(seals, account, &reservations(db, &account.id)?).into(),
        None => Mark::NONE,
    };
    let status = match account.status {
        AccountStatus::Active => "active",
        AccountStatus::Closing => "closing",
        AccountStatus::Closed => "closed",
    };
    let sql = match before {
        Some(_) => {
            "UPDATE budget_ledger SET parent_id = :parent, max_spend = :max, own_spend = :own, children_spend = :children, \
             reserved_spend = :reserved, open = :open, status = :status, version = :version, incomplete = :incomplete, \
             mark = :mark WHERE thread_id = :id AND version = :before"
        }
        None => {
            "INSERT INTO budget_ledger (thread_id, parent_id, max_spend, own_spend, children_spend, reserved_spend, open, \
             status, version, incomplete, mark) SELECT :id, :parent, :max, :own, :children, :reserved, :open, :status, \
             :version, :incomplete, :mark \
             WHERE :before IS NULL ON CONFLICT DO NOTHING"
        }
    };
    let changed = execute(
        db,
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
            ":incomplete": account.incomplete,
            ":before": before.map(signed),
            ":mark": mark.bytes(),
        },
    )?;
    if changed == 1 {
        anchor::moved(db, anchor::Bucket::of_account(&account.id), before.unwrap_or(0), account.version)?;
    }
    Ok(changed == 1)
}

/// Removes an account and its reservations.
pub(crate) fn remove_account(db: &Db, id: &AccountId) -> Result<()> {
    let version: Option<i64> = one(db, "SELECT version FROM budget_ledger WHERE thread_id = ?", [id.as_str()])?;
    for (table, column) in [("reservations", "account"), ("budget_ledger", "thread_id")] {
        execute(db, &format!("DELETE FROM {table} WHERE {column} = ?"), [id.as_str()])?;
    }
    anchor::moved(db, anchor::Bucket::of_account(id), version.map_or(0, unsigned), 0)
}

/// Replaces an account and all its reservations.
pub(crate) fn replace_account(db: &Db, account: &Account, reservations: &[Reservation]) -> Result<()> {
    remove_account(db, &account.id)?;
    for reservation in reservations {
        put_reservation(db, &account.id, &reservation.id, Some(reservation))?;
    }
    put_account(db, None, account)?;
    Ok(())
}

pub(crate) fn reservation(
    connection: &Connection,
    account: &AccountId,
    name: &ReservationId,
) -> Result<Option<Reservation>> {
    let sql = "SELECT body FROM reservations WHERE account = ? AND reservation = ?";
    let found = one::<String>(connection, sql, params![account.as_str(), name.as_str()])?;
    found.map(|body| named_reservation(name.as_str(), &body)).transpose()
}

/// The reservations of an account, in the order of their names.
pub(crate) fn reservations(connection: &Connection, account: &AccountId) -> Result<Vec<Reservation>> {
    let sql = "SELECT reservation, body FROM reservations WHERE account = ? ORDER BY reservation";
    let mut statement = connection.prepare_cached(sql).map_err(database)?;
    let mut found = statement.query([account.as_str()]).map_err(database)?;
    let mut reservations = Vec::new();
    while let Some(row) = found.next().map_err(database)? {
        let name: String = row.get(0).map_err(database)?;
        let body: String = row.get(1).map_err(database)?;
        reservations.push(named_reservation(&name, &body)?);
    }
    Ok(reservations)
}

/// A reservation, checked to have the name it is stored under.
fn named_reservation(name: &str, body: &str) -> Result<Reservation> {
    let reservation: Reservation = json(body)?;
    if reservation.id.as_str() != name {
        return Err(bad_row(format!("the reservation `{name}` has another id")));
    }
    Ok(reservation)
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
    fn no_statement_is_prepared_again_for_another_value() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("registry.db");
        std::fs::File::create(&path).unwrap();
        crate::schema::create(&path).unwrap();
        let connection = Db::open(&path, crate::schema::ConnectionMode::Read, None).unwrap();
        for name in ["a", "b", "a", "c"] {
            let thread = ThreadId::new(name).unwrap();
            assert!(find(&connection, &thread).unwrap().is_none());
        }
        let sql = const_format(&[COLUMNS, TABLES], "t.thread_id = ?");
        let statement = connection.prepare_cached(&sql).unwrap();
        assert_eq!(
            (statement.get_status(StatementStatus::Run), statement.get_status(StatementStatus::RePrepare)),
            (4, 0)
        );
    }
}
