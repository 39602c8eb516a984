//! The database: its tables, opening it, and the meaning of its errors.
//!
//! Everything here can be rebuilt from the logs, except redo that is not drained and requests that are not consumed. `heads` changes with
//! every commit and is narrow; `threads` changes when a thread's manifest does and has the indexes.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use selvedge_store::{Error, Result};

use crate::schema_check::SchemaDifferences;

/// The format of the database that is written.
pub(crate) const FORMAT: i64 = 8;

/// The oldest format whose committed bytes a rebuild still finds.
const FORMAT_OLDEST: i64 = 5;

/// The oldest usable SQLite: older ones have a race when the write-ahead log is reset.
const SQLITE_AT_LEAST: i32 = 3_051_003;

const TABLES: &str = "
CREATE TABLE threads (
    id                     INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of creation; never reused
    thread_id              TEXT NOT NULL UNIQUE,
    log_id                 TEXT NOT NULL,
    manifest               TEXT NOT NULL,
    manifest_stale         INTEGER NOT NULL DEFAULT 1,        -- thread.json may be older than this row
    hex                    TEXT GENERATED ALWAYS AS -- the random end of the id, as model::ThreadId::hex
        (CASE WHEN substr(thread_id, -13, 1) = '-' AND substr(thread_id, -12) NOT GLOB '*[^0-9a-f]*'
              THEN substr(thread_id, -12) END) VIRTUAL,
    agent_id               TEXT GENERATED ALWAYS AS (manifest->>'$.agent_id') VIRTUAL,
    directive              TEXT GENERATED ALWAYS AS (manifest->>'$.directive') VIRTUAL,
    title                  TEXT GENERATED ALWAYS AS (manifest->>'$.title') VIRTUAL,
    parent_id              TEXT GENERATED ALWAYS AS (manifest->>'$.parent_id') VIRTUAL,
    status                 TEXT GENERATED ALWAYS AS (manifest->>'$.status') VIRTUAL,
    continuation_thread_id TEXT GENERATED ALWAYS AS (manifest->>'$.continuation_thread_id') VIRTUAL,
    continuation_of        TEXT GENERATED ALWAYS AS (manifest->>'$.continuation_of') VIRTUAL,
    chain_root_id          TEXT GENERATED ALWAYS AS (manifest->>'$.chain_root_id') VIRTUAL,
    result                 TEXT GENERATED ALWAYS AS (COALESCE(manifest->'$.outputs', manifest->'$.result')) VIRTUAL,
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
    heard      TEXT NOT NULL,    -- the requests that were consumed; see store::seal::ConsumedRequests
    leads      INTEGER NOT NULL, -- how many rows of leads there are
    anchor     INTEGER NOT NULL, -- the newest epoch of the anchor that its writer knew
    mark       BLOB NOT NULL,    -- the seal of the row and of the manifest; see store::seal
    epoch      INTEGER NOT NULL, -- of the lease
    owner      TEXT,
    updated_at INTEGER NOT NULL,
    counts     BLOB NOT NULL DEFAULT x'', -- a hint: the counts of the feed's last run that are not in its row, if it is this thread's
    redo       INTEGER NOT NULL DEFAULT 0 -- a hint: the redo row that leads to this head, if it still exists
) STRICT;
CREATE INDEX heads_owner ON heads (owner) WHERE owner IS NOT NULL;

CREATE TABLE redo (
    id      INTEGER PRIMARY KEY AUTOINCREMENT, -- never reused; the row is
    thread  INTEGER NOT NULL,
    offset  INTEGER NOT NULL,
    bytes   BLOB NOT NULL,
    padding BLOB NOT NULL DEFAULT x'',
    before  INTEGER NOT NULL DEFAULT 0 -- the row before this one in the log, if it still exists
) STRICT;
CREATE TABLE leads (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    thread INTEGER NOT NULL,
    event  TEXT NOT NULL,
    mark   BLOB NOT NULL -- made with the key, for this event at this head
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
    bytes   INTEGER NOT NULL, -- the length of the log at that version
    state   TEXT NOT NULL
) STRICT;
CREATE TABLE runs (
    id            INTEGER PRIMARY KEY AUTOINCREMENT, -- the order in which they began
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
    position INTEGER PRIMARY KEY, -- the first of a run; the highest is never deleted, so no position is reused
    thread   INTEGER NOT NULL,    -- 0: withdrawn
    version  INTEGER NOT NULL,    -- the first of the run
    line     INTEGER NOT NULL DEFAULT 0,  -- the number of its first line
    counts   BLOB NOT NULL DEFAULT x''    -- how many lines each commit of the run has
) STRICT;
CREATE TABLE tombstones (
    thread_id TEXT PRIMARY KEY,
    tombstone TEXT NOT NULL,
    document  TEXT NOT NULL,    -- the signed file
    buried    INTEGER NOT NULL  -- whether the file is written and the folder removed
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
    done      INTEGER NOT NULL, -- a hint: whether the file is removed
    mark      BLOB NOT NULL,
    PRIMARY KEY (thread, blob)
) STRICT, WITHOUT ROWID;
CREATE INDEX erasures_open ON erasures (done) WHERE done = 0;
CREATE INDEX threads_stale ON threads (id) WHERE manifest_stale = 1;
";

/// Requests to threads, and where they were consumed.
const INBOX: &str = "
CREATE TABLE requests (
    id         INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of posting; never reused
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
    posted TEXT NOT NULL, -- the numbers of the requests that waited when the newest was posted
    mark   BLOB NOT NULL
) STRICT;
CREATE INDEX inboxes_bucket ON inboxes (thread % 32);
CREATE TABLE anchor (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    epoch INTEGER NOT NULL, -- raised by every change of an account or an inbox
    sums  BLOB NOT NULL,    -- of their numbers; see crate::anchor
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

/// The scripts that create a database.
pub(crate) const SCRIPTS: [&str; 2] = [TABLES, INBOX];

/// Whether a connection writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionMode {
    Write,
    Read,
}

/// The page size of a new database in bytes. A commit changes two or three pages and writes and syncs them whole, so small pages are
/// faster; a reused redo row fills one. Databases that were created with larger pages keep them.
const PAGE: u32 = 2_048;

/// Creates the tables of a new database; the file must exist and be empty.
pub(crate) fn create(path: &Path) -> Result<()> {
    let connection = raw(path, ConnectionMode::Write)?;
    connection.pragma_update(None, "page_size", PAGE).map_err(database)?;
    connection.pragma_update(None, "journal_mode", "wal").map_err(database)?;
    let script = format!("BEGIN IMMEDIATE; {TABLES} {INBOX} PRAGMA user_version = {FORMAT}; COMMIT;");
    connection.execute_batch(&script).map_err(database)
}

/// Opens an existing database, and checks that it is one of ours, of the current format, with exactly the schema that this program
/// creates.
pub(crate) fn open(path: &Path, usage: ConnectionMode) -> Result<Connection> {
    let connection = open_misshapen(path, usage)?;
    SchemaDifferences::of(&connection)?.refuse()?;
    Ok(connection)
}

/// The same, without comparing the schema.
pub(crate) fn open_misshapen(path: &Path, usage: ConnectionMode) -> Result<Connection> {
    match open_any(path, usage)? {
        (connection, FORMAT) => Ok(connection),
        (_, found) => Err(Error::Outdated { found, current: FORMAT }),
    }
}

/// Opens an existing database of this format or of an older one whose redo can be read; returns its format.
pub(crate) fn open_any(path: &Path, usage: ConnectionMode) -> Result<(Connection, i64)> {
    if rusqlite::version_number() < SQLITE_AT_LEAST {
        return Err(unusable("the SQLite library", format!("version {} is too old", rusqlite::version()), None));
    }
    let connection = raw(path, usage)?;
    let (connection, found) = match version(&connection) {
        // In a folder that can't be written, SQLite can't create the index of its write-ahead log; a database without such a log can be
        // read without one.
        Err(Error::Io { .. }) if usage == ConnectionMode::Read && is_folded(path) && !may_write_beside(path) => {
            let connection = open_immutable(path)?;
            let found = version(&connection)?;
            (connection, found)
        }
        Err(_) if usage == ConnectionMode::Read && !may_write_beside(path) => {
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
            format!("it has format {newer}, and this program reads format {FORMAT}"),
            Some("use the newer Selvedge that wrote it"),
        )),
        _ => Err(Error::Integrity {
            what: "`registry.db`".to_owned(),
            why: "it is not a Selvedge database".to_owned(),
            hint: Some(REBUILD.to_owned()),
        }),
    }
}

/// The format that a database records.
pub(crate) fn version(connection: &Connection) -> Result<i64> {
    let mut statement = connection.prepare_cached("PRAGMA user_version").map_err(database)?;
    statement.query_row([], |row| row.get(0)).map_err(database)
}

/// Records that a program without a key wrote rows, which are not sealed.
pub(crate) fn set_unsealed(connection: &Connection) -> Result<()> {
    connection.pragma_update(None, "application_id", UNSEALED).map_err(database)
}

/// Whether a program without a key wrote rows. It is a hint: the next process that opens the store for writing with a key derives every row
/// from the logs and seals it.
pub(crate) fn is_unsealed(connection: &Connection) -> Result<bool> {
    let found: i64 = connection.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(database)?;
    Ok(found == UNSEALED)
}

/// The `application_id` of a database with unsealed rows.
const UNSEALED: i64 = 1;

/// What to do about a database that can't be used.
pub(crate) const REBUILD: &str =
    "`selvedge reindex` rebuilds `registry.db` from the logs, which are untouched and still verify";

/// Whether files may be created in the folder of a database. If so, SQLite failed for another reason, which may be temporary; a connection
/// that ignores the log would never see later commits.
fn may_write_beside(path: &Path) -> bool {
    use rustix::fs::{Access, access};
    access(path.parent().unwrap_or(Path::new(".")), Access::WRITE_OK).is_ok()
}

/// Whether the write-ahead log of a database is empty. One that can't be checked may not be.
fn is_folded(path: &Path) -> bool {
    let absent = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    std::fs::metadata(path.with_extension("db-wal")).map_or_else(|error| absent(&error), |log| log.len() == 0)
}

/// Opens a database without creating or locking any file.
fn open_immutable(path: &Path) -> Result<Connection> {
    let escaped = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(format!("file:{escaped}?immutable=1"), flags).map_err(database)?;
    configure(connection)
}

/// Configures a connection.
pub(crate) fn configure(connection: Connection) -> Result<Connection> {
    #[cfg(test)]
    let connection = crate::testing::traced(connection);
    connection.busy_timeout(Duration::from_secs(10)).map_err(database)?;
    connection.set_prepared_statement_cache_capacity(64);
    // Plans must not depend on bound values; else SQLite may prepare a statement again for each of them.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(database)?;
    // Another program may have written the schema: nothing in it is executed, and this connection can't change it.
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

fn raw(path: &Path, usage: ConnectionMode) -> Result<Connection> {
    let access = match usage {
        ConnectionMode::Write => OpenFlags::SQLITE_OPEN_READ_WRITE,
        ConnectionMode::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
    };
    // Each connection has one user at a time, so SQLite's own mutex is not needed.
    let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = configure(Connection::open_with_flags(path, flags).map_err(database)?)?;
    if usage == ConnectionMode::Write {
        // If SQLite can't open the database for writing, it opens it for reading and keeps that mode.
        if connection.is_readonly("main").map_err(database)? {
            let why = std::io::Error::new(std::io::ErrorKind::PermissionDenied, "it can't be opened for writing");
            return Err(Error::Io { what: "open", path: path.to_owned(), source: why });
        }
        connection.pragma_update(None, "synchronous", "FULL").map_err(database)?;
        // A worker moves the log into the database long before that, in this process or another one; this is for when none can.
        connection.pragma_update(None, "wal_autocheckpoint", 24_000).map_err(database)?;
        // Redo rows are reused in turn, and so are the heads of ten thousand live threads: 8 MiB and 4 MiB, which are not read again for
        // each commit. Memory is allocated as pages are used.
        connection.pragma_update(None, "cache_size", -32_000).map_err(database)?;
    }
    Ok(connection)
}

pub(crate) fn unusable(what: &str, why: String, hint: Option<&str>) -> Error {
    Error::Unusable { what: what.to_owned(), why, hint: hint.map(str::to_owned) }
}

/// Maps a database error to a store error.
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
        // A disk error says nothing about the database: a rebuild must not treat it as damaged.
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::SystemIoFailure) => {
            Error::Database { why: error.to_string(), retryable: true }
        }
        _ => Error::Database { why: error.to_string(), retryable: false },
    }
}
