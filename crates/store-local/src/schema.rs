//! The database: its tables, how it is opened, and what its errors mean.
//!
//! What is here can be rebuilt from the logs, except redo that is not drained and requests that are not consumed. `heads`
//! changes with every commit and is narrow; `threads` changes when a thread's manifest does and carries the indexes.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use selvedge_store::{Error, Result};

use crate::shape::Misshapen;

/// The version of the database's form that is written.
pub(crate) const FORMAT: i64 = 7;

/// The oldest version whose committed bytes a rebuild still finds.
const FORMAT_OLDEST: i64 = 5;

/// The oldest SQLite whose write-ahead log can be trusted: older ones have a race when it is reset.
const SQLITE_AT_LEAST: i32 = 3_051_003;

const TABLES: &str = "
CREATE TABLE threads (
    id                     INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of creation; never used again
    thread_id              TEXT NOT NULL UNIQUE,
    hex                    TEXT,
    log_id                 TEXT NOT NULL,
    manifest               TEXT NOT NULL,
    manifest_stale         INTEGER NOT NULL DEFAULT 1,        -- thread.json may be older than this row
    agent_id               TEXT GENERATED ALWAYS AS (manifest->>'$.agent_id') VIRTUAL,
    directive              TEXT GENERATED ALWAYS AS (manifest->>'$.directive') VIRTUAL,
    title                  TEXT GENERATED ALWAYS AS (manifest->>'$.title') VIRTUAL,
    parent_id              TEXT GENERATED ALWAYS AS (manifest->>'$.parent_id') VIRTUAL,
    status                 TEXT GENERATED ALWAYS AS (manifest->>'$.status') VIRTUAL,
    continuation_thread_id TEXT GENERATED ALWAYS AS (manifest->>'$.continuation_thread_id') VIRTUAL,
    continuation_of        TEXT GENERATED ALWAYS AS (manifest->>'$.continuation_of') VIRTUAL,
    chain_root_id          TEXT GENERATED ALWAYS AS (manifest->>'$.chain_root_id') VIRTUAL,
    result                 TEXT GENERATED ALWAYS AS (manifest->'$.outputs') VIRTUAL,
    cost                   TEXT GENERATED ALWAYS AS (manifest->'$.cost') VIRTUAL,
    created_at             TEXT GENERATED ALWAYS AS (manifest->>'$.created_at') VIRTUAL,
    completed_at           TEXT GENERATED ALWAYS AS (manifest->>'$.completed_at') VIRTUAL,
    updated_at             TEXT GENERATED ALWAYS AS (manifest->>'$.updated_at') VIRTUAL -- of this row; heads has that of the last commit
) STRICT;
CREATE INDEX threads_hex ON threads (hex);
CREATE INDEX threads_agent ON threads (agent_id);
CREATE INDEX threads_parent ON threads (parent_id);
CREATE INDEX threads_status ON threads (status);
CREATE INDEX threads_chain ON threads (chain_root_id);

CREATE TABLE heads (
    id         INTEGER PRIMARY KEY REFERENCES threads (id),
    version    INTEGER NOT NULL,
    lines      INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    hash       BLOB NOT NULL,
    segment    INTEGER NOT NULL,
    signer     BLOB NOT NULL,
    head_epoch INTEGER NOT NULL, -- of the last checkpoint
    sealed     BLOB NOT NULL,    -- the running hash, sealed
    posted     TEXT NOT NULL,    -- the newest version of each account that its log posted to
    heard      TEXT NOT NULL,    -- the requests that were consumed; see store::seal::Heard
    leads      INTEGER NOT NULL, -- how many rows of leads there are
    anchor     INTEGER NOT NULL, -- the newest epoch of the anchor that its writer knew
    mark       BLOB NOT NULL,    -- the seal of the row and of the manifest; see store::seal
    epoch      INTEGER NOT NULL, -- of the lease
    owner      TEXT,
    updated_at INTEGER NOT NULL,
    counts     BLOB NOT NULL DEFAULT x'', -- a hint: of the last run of the feed, if it is this thread's: those that are not in its row
    redo       INTEGER NOT NULL DEFAULT 0 -- a hint: the row of redo that leads to this head, if it still is there
) STRICT;
CREATE INDEX heads_owner ON heads (owner) WHERE owner IS NOT NULL;

CREATE TABLE redo (
    id      INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again; the row is
    thread  INTEGER NOT NULL,
    offset  INTEGER NOT NULL,
    bytes   BLOB NOT NULL,
    padding BLOB NOT NULL DEFAULT x'',
    before  INTEGER NOT NULL DEFAULT 0 -- the row that leads to this one, if it still is there
) STRICT;
CREATE TABLE leads (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    thread INTEGER NOT NULL,
    event  TEXT NOT NULL,
    mark   BLOB NOT NULL -- made with the key, for this event behind this head
) STRICT;
CREATE INDEX leads_thread ON leads (thread);
CREATE TABLE messages (
    thread     INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    digest     BLOB NOT NULL,
    mark       BLOB NOT NULL,
    PRIMARY KEY (thread, message_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE states (
    thread  INTEGER PRIMARY KEY,
    version INTEGER NOT NULL,
    bytes   INTEGER NOT NULL, -- where the log ended at that version
    state   TEXT NOT NULL
) STRICT;
CREATE TABLE runs (
    id            INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of beginning
    thread        INTEGER NOT NULL,
    run_id        TEXT NOT NULL,
    parent_run_id TEXT,
    meta          TEXT NOT NULL,
    status        TEXT GENERATED ALWAYS AS (meta->>'$.status') VIRTUAL,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL, -- a hint: of the last commit of the run
    mark          BLOB NOT NULL,
    UNIQUE (thread, run_id)
) STRICT;
CREATE TABLE keys (
    key     TEXT PRIMARY KEY,
    request BLOB NOT NULL,
    answer  TEXT NOT NULL,
    mark    BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE feed (
    position INTEGER PRIMARY KEY, -- where a run begins; the highest is never deleted, so no place is used again
    thread   INTEGER NOT NULL,    -- 0 is nobody
    version  INTEGER NOT NULL,    -- the first of the run
    line     INTEGER NOT NULL DEFAULT 0,  -- the number of its first line
    counts   BLOB NOT NULL DEFAULT x''    -- how many lines each commit of the run has
) STRICT;
CREATE TABLE tombstones (
    thread_id TEXT PRIMARY KEY,
    tombstone TEXT NOT NULL,
    document  TEXT NOT NULL,    -- the signed file
    buried    INTEGER NOT NULL  -- whether the file is written and the folder gone
) STRICT, WITHOUT ROWID;
CREATE TABLE budget_ledger (
    thread_id      TEXT PRIMARY KEY, -- the root of the chain that the account belongs to
    parent_id      TEXT,
    max_spend      INTEGER,
    own_spend      INTEGER NOT NULL,
    children_spend INTEGER NOT NULL,
    reserved_spend INTEGER NOT NULL,
    open           INTEGER NOT NULL,
    status         TEXT NOT NULL,
    version        INTEGER NOT NULL,
    incomplete     INTEGER NOT NULL, -- whether postings are missing, or a log of its family that may have some
    mark           BLOB NOT NULL, -- the seal of the row and of the account's reservations; see store::seal
    actual_spend   INTEGER GENERATED ALWAYS AS (own_spend + children_spend) VIRTUAL,
    bucket         INTEGER GENERATED ALWAYS AS -- see crate::anchor
        ((unicode(substr(thread_id, -1)) * 16 + COALESCE(unicode(substr(thread_id, -2, 1)), 0)) % 32) VIRTUAL
) STRICT, WITHOUT ROWID;
CREATE INDEX budget_ledger_parent ON budget_ledger (parent_id);
CREATE INDEX budget_ledger_bucket ON budget_ledger (bucket);
CREATE TABLE reservations (
    account     TEXT NOT NULL,
    reservation TEXT NOT NULL,
    body        TEXT NOT NULL,
    PRIMARY KEY (account, reservation)
) STRICT, WITHOUT ROWID;
CREATE TABLE erasures (
    thread    INTEGER NOT NULL,
    blob      BLOB NOT NULL,
    reason    TEXT NOT NULL,
    erased_at INTEGER NOT NULL,
    done      INTEGER NOT NULL, -- a hint: whether the file is gone
    mark      BLOB NOT NULL,
    PRIMARY KEY (thread, blob)
) STRICT, WITHOUT ROWID;
CREATE INDEX erasures_open ON erasures (done) WHERE done = 0;
CREATE INDEX threads_stale ON threads (id) WHERE manifest_stale = 1;
";

/// Requests to threads, and where they were consumed.
const INBOX: &str = "
CREATE TABLE requests (
    id         INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of posting; never used again
    thread     INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    kind       TEXT NOT NULL,
    posted_at  INTEGER NOT NULL,
    body       TEXT NOT NULL,
    mark       BLOB NOT NULL, -- made with the key, for this request to this chain
    UNIQUE (thread, request_id)
) STRICT;
CREATE TABLE inboxes (
    thread INTEGER PRIMARY KEY,
    posted TEXT NOT NULL, -- the numbers of the requests that were posted to it, as far as they waited when the newest came
    mark   BLOB NOT NULL
) STRICT;
CREATE INDEX inboxes_bucket ON inboxes (thread % 32);
CREATE TABLE anchor (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    epoch INTEGER NOT NULL, -- raised by every change of an account or an inbox
    sums  BLOB NOT NULL,    -- of what their numbers add up to; see crate::anchor
    mark  BLOB NOT NULL
) STRICT;
CREATE TABLE answers (
    chain_root TEXT NOT NULL,
    request_id TEXT NOT NULL,
    thread     INTEGER NOT NULL, -- whose log has the verdict
    version    INTEGER NOT NULL, -- in the changeset of this version
    mark       BLOB NOT NULL,
    PRIMARY KEY (chain_root, request_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX answers_thread ON answers (thread);
";

/// What makes a database.
pub(crate) const SCRIPTS: [&str; 2] = [TABLES, INBOX];

/// Whether a connection writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Write,
    Read,
}

/// How many bytes a page of a new database has. A commit changes two pages or three and writes and syncs them whole, so small ones are
/// faster; a row of redo as it is used again fills one. Databases that were made with larger ones keep theirs.
const PAGE: u32 = 2_048;

/// Makes the tables of a new database; the file must exist and be empty.
pub(crate) fn create(path: &Path) -> Result<()> {
    let connection = raw(path, Use::Write)?;
    connection.pragma_update(None, "page_size", PAGE).map_err(database)?;
    connection.pragma_update(None, "journal_mode", "wal").map_err(database)?;
    let script = format!("BEGIN IMMEDIATE; {TABLES} {INBOX} PRAGMA user_version = {FORMAT}; COMMIT;");
    connection.execute_batch(&script).map_err(database)
}

/// Opens a database that exists, and checks that it is one of ours, of the format that is written, with the tables that this program
/// makes and nothing else.
pub(crate) fn open(path: &Path, usage: Use) -> Result<Connection> {
    let connection = open_misshapen(path, usage)?;
    Misshapen::of(&connection)?.refuse()?;
    Ok(connection)
}

/// The same, whatever its schema says.
pub(crate) fn open_misshapen(path: &Path, usage: Use) -> Result<Connection> {
    match open_any(path, usage)? {
        (connection, FORMAT) => Ok(connection),
        (_, found) => Err(Error::Outdated { found, current: FORMAT }),
    }
}

/// Opens a database that exists, of this format or of an older one whose redo can be read; gives its format.
pub(crate) fn open_any(path: &Path, usage: Use) -> Result<(Connection, i64)> {
    if rusqlite::version_number() < SQLITE_AT_LEAST {
        return Err(unusable("the SQLite library", format!("version {} is too old", rusqlite::version()), None));
    }
    let connection = raw(path, usage)?;
    let (connection, found) = match version(&connection) {
        // In a folder that may not be written, SQLite can't make the index of its write-ahead log; a database without
        // such a log can be read as it lies there.
        Err(Error::Io { .. }) if usage == Use::Read && is_folded(path) && !may_write_beside(path) => {
            let connection = untouched(path)?;
            let found = version(&connection)?;
            (connection, found)
        }
        Err(_) if usage == Use::Read && !may_write_beside(path) => {
            return Err(unusable(
                &format!("`{}`", path.display()),
                "its folder can't be written, and its write-ahead log is not moved into it yet".to_owned(),
                Some(
                    "copy the project to where it can be written, or run any `selvedge` command there as a user who may write",
                ),
            ));
        }
        found => (connection, found?),
    };
    match found {
        FORMAT_OLDEST..=FORMAT => Ok((connection, found)),
        newer if newer > FORMAT => Err(unusable(
            "`registry.db`",
            format!("it has format {newer}, and this program knows format {FORMAT}"),
            Some("use the newer Selvedge that wrote it"),
        )),
        _ => Err(Error::Integrity {
            what: "`registry.db`".to_owned(),
            why: "it is not a database of Selvedge".to_owned(),
            hint: Some(REBUILD.to_owned()),
        }),
    }
}

/// The version that a database says it has.
pub(crate) fn version(connection: &Connection) -> Result<i64> {
    let mut statement = connection.prepare_cached("PRAGMA user_version").map_err(database)?;
    statement.query_row([], |row| row.get(0)).map_err(database)
}

/// Notes that a program without a key wrote rows, which are not sealed.
pub(crate) fn set_unsealed(connection: &Connection) -> Result<()> {
    connection.pragma_update(None, "application_id", UNSEALED).map_err(database)
}

/// Whether a program without a key wrote rows. It is a hint: the next process that opens the store to write, with a key, derives every row
/// from the logs and seals it.
pub(crate) fn is_unsealed(connection: &Connection) -> Result<bool> {
    let found: i64 = connection.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(database)?;
    Ok(found == UNSEALED)
}

/// In `application_id` of a database that has rows which are not sealed.
const UNSEALED: i64 = 1;

/// What to do about a database that can't be used.
pub(crate) const REBUILD: &str =
    "`selvedge reindex` rebuilds `registry.db` from the logs, which are untouched and still verify";

/// Whether files may be made in the folder of a database. Where they may, SQLite failed at something else, which may pass; a connection that
/// takes the file as it lies there would never see what is committed later.
fn may_write_beside(path: &Path) -> bool {
    use rustix::fs::{Access, access};
    access(path.parent().unwrap_or(Path::new(".")), Access::WRITE_OK).is_ok()
}

/// Whether nothing waits in the write-ahead log of a database. One that can't be looked at may hold something.
fn is_folded(path: &Path) -> bool {
    let absent = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    std::fs::metadata(path.with_extension("db-wal")).map_or_else(|error| absent(&error), |log| log.len() == 0)
}

/// Opens a database without making or locking any file.
fn untouched(path: &Path) -> Result<Connection> {
    let escaped = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(format!("file:{escaped}?immutable=1"), flags).map_err(database)?;
    equip(connection)
}

/// Gives a connection what every one has.
fn equip(connection: Connection) -> Result<Connection> {
    #[cfg(test)]
    let connection = crate::testing::overheard(connection);
    connection.busy_timeout(Duration::from_secs(10)).map_err(database)?;
    connection.set_prepared_statement_cache_capacity(64);
    // A plan does not depend on the values that are bound. Else a statement that might profit is prepared anew with each of them.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(database)?;
    // The schema is data that another program may have written: nothing in it runs, and it can't be rewritten from here.
    for (setting, is_on) in [
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
    ] {
        connection.set_db_config(setting, is_on).map_err(database)?;
    }
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    let lower = |context: &Context<'_>| Ok(context.get::<Option<String>>(0)?.map(|text| text.to_lowercase()));
    connection.create_scalar_function("lower_case", 1, flags, lower).map_err(database)?;
    Ok(connection)
}

fn raw(path: &Path, usage: Use) -> Result<Connection> {
    let access = match usage {
        Use::Write => OpenFlags::SQLITE_OPEN_READ_WRITE,
        Use::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
    };
    // Each connection has one user at a time, so SQLite's own mutex is not needed.
    let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = equip(Connection::open_with_flags(path, flags).map_err(database)?)?;
    if usage == Use::Write {
        // What it can't open to write SQLite opens for reading, whatever the reason, and would stay with that.
        if connection.is_readonly("main").map_err(database)? {
            let why = std::io::Error::new(std::io::ErrorKind::PermissionDenied, "it can't be opened to write");
            return Err(Error::Io { what: "open", path: path.to_owned(), source: why });
        }
        connection.pragma_update(None, "synchronous", "FULL").map_err(database)?;
        // A worker moves the log into the database long before, here or in another process; this is for when none can.
        connection.pragma_update(None, "wal_autocheckpoint", 24_000).map_err(database)?;
        // Redo rows are used again in turn, and so are the heads of ten thousand live threads: 8 MiB and 4 MiB, which are not read anew
        // for each commit. It takes memory as pages are used.
        connection.pragma_update(None, "cache_size", -32_000).map_err(database)?;
    }
    Ok(connection)
}

pub(crate) fn unusable(what: &str, why: String, hint: Option<&str>) -> Error {
    Error::Unusable { what: what.to_owned(), why, hint: hint.map(str::to_owned) }
}

/// What a database error means to a caller.
pub(crate) fn database(error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Error::Integrity {
            what: "`registry.db` is damaged".to_owned(),
            why: error.to_string(),
            hint: Some(REBUILD.to_owned()),
        },
        Some(ErrorCode::DiskFull) => Error::Io {
            what: "write",
            path: "registry.db".into(),
            source: std::io::Error::new(std::io::ErrorKind::StorageFull, error.to_string()),
        },
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => Error::Io {
            what: "open or write",
            path: "registry.db".into(),
            source: std::io::Error::new(std::io::ErrorKind::PermissionDenied, error.to_string()),
        },
        // An error of the disk says nothing about the database: whoever rebuilds it must not take it for damaged.
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::SystemIoFailure) => {
            Error::Database { why: error.to_string(), retryable: true }
        }
        _ => Error::Database { why: error.to_string(), retryable: false },
    }
}
