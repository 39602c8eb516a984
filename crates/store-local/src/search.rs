//! The search index, `search.db`: passages of all threads and blobs, found by words, by three consecutive characters and by vectors.
//!
//! It is derived from the logs and decides nothing: it can be removed at any time, and what it finds is read back from the verified log before
//! it is shown (`selvedge_store::search::read_back`). No commit writes to it. Invariants:
//!
//! - The cursor over the feed is written in the transaction that writes the documents it covers: after a crash the next call continues.
//! - A thread that is deleted and a blob that is erased leave the index, and its bytes, before the deletion or the erasure counts as finished.
//!   A thread is only indexed while the index is locked for writing and the registry has it, so none comes back.
//! - An index that is damaged, of another format or of another store is removed and built anew.
//!
//!
//! `search.db.lock` serializes the processes that write; readers never wait for them.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params, params_from_iter};
use selvedge_log::{Line, line, lines};
use selvedge_model::error::Classify;
use selvedge_model::{Cancel, Digest, Event, ThreadId, Timestamp};
use selvedge_store::search::document::{Passage, passages, text_of_blob};
use selvedge_store::search::event_texts::said;
use selvedge_store::search::expression::{Terms, expression, is_like_code};
use selvedge_store::search::rank_fusion::fused;
use selvedge_store::search::segment::segmented;
use selvedge_store::search::{
    Filters, Hit, IndexProgress, NotSearched, PassageKind, Search, SearchHits, SearchRequest, UnembeddedPassage,
};
use selvedge_store::{Error, FeedEntry, Logs, Result};

use crate::core::{Core, io_error};
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::layout::{Layout, is_there};
use crate::open::{self, LocalStore};
use crate::rows::{self, Row, bad_row, signed, unsigned};
use crate::schema;

mod vectors;

#[cfg(test)]
mod tests;

/// The format of the index that is written.
const FORMAT: i64 = 2;

/// How many commits one transaction indexes.
const COMMITS_AT_ONCE: usize = 1000;

/// The most passages of one ranked list.
const CANDIDATES_MAX: usize = 1000;

/// The most passages that vectors alone find: every passage is more or less close to a query.
const CLOSEST_MAX: usize = 50;

const TABLES: &str = "
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE threads (
    id         INTEGER PRIMARY KEY,
    thread_id  TEXT NOT NULL UNIQUE,
    log_id     TEXT NOT NULL,
    version    INTEGER NOT NULL, -- the newest that is indexed
    lines      INTEGER NOT NULL,
    agent_id   TEXT NOT NULL,
    directive  TEXT,
    status     TEXT NOT NULL,
    not_text   INTEGER NOT NULL DEFAULT 0, -- blobs that are not indexed, and why
    cut        INTEGER NOT NULL DEFAULT 0,
    unreadable INTEGER NOT NULL DEFAULT 0,
    broken     INTEGER NOT NULL DEFAULT 0  -- whether its log can't be read
) STRICT;
CREATE TABLE documents (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    thread  INTEGER NOT NULL,
    kind    INTEGER NOT NULL,
    version INTEGER NOT NULL,
    line    INTEGER NOT NULL,
    blob    BLOB,
    offset  INTEGER NOT NULL,
    digest  INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    text    TEXT NOT NULL      -- needed to remove it from the full-text tables
) STRICT;
CREATE INDEX documents_blob ON documents (thread, blob);
CREATE TABLE vectors (document INTEGER PRIMARY KEY, vector BLOB NOT NULL) STRICT;
CREATE TABLE unembedded (document INTEGER PRIMARY KEY) STRICT; -- those without a vector
CREATE VIRTUAL TABLE words USING fts5 (text, content = '', tokenize = 'unicode61 remove_diacritics 2', prefix = '2 3');
CREATE VIRTUAL TABLE trigrams USING fts5 (text, content = '', tokenize = 'trigram');
INSERT INTO words (words, rank) VALUES ('secure-delete', 1);
INSERT INTO trigrams (trigrams, rank) VALUES ('secure-delete', 1);
";

/// The hint for an index that must be built anew.
const DAMAGED: &str = "`search.db` is damaged";

/// Maps an error of the index to a store error.
fn failed(error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        // A statement of this file that SQLite does not understand: a table is missing or has another shape.
        Some(
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown | ErrorCode::ConstraintViolation,
        ) => damaged(&error.to_string()),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::SystemIoFailure) => {
            Error::Database { why: format!("search.db: {error}"), retryable: true }
        }
        Some(_) => Error::Database { why: format!("search.db: {error}"), retryable: false },
        // A value of another type than the tables have.
        None => damaged(&error.to_string()),
    }
}

fn damaged(why: &str) -> Error {
    let hint = "remove the file: the next search builds it anew from the logs".to_owned();
    Error::Integrity { what: DAMAGED.to_owned(), why: why.to_owned(), hint: Some(hint) }
}

fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Integrity { what, .. } if what == DAMAGED)
}

/// A blob's name as it is stored.
fn name_of(blob: Option<&Digest>) -> Option<&[u8]> {
    blob.map(|blob| &blob.0[..])
}

/// Removes the index of a store, which the next search builds anew. The caller holds its lock, or no process has the store open for writing.
pub(crate) fn remove_files(layout: &Layout, disk: &dyn Disk) -> Result<()> {
    for ending in ["db", "db-wal", "db-shm"] {
        let path = layout.search().with_extension(ending);
        disk.remove(&path).map_err(io_error("remove", &path))?;
    }
    Ok(())
}

fn connect(path: &PathBuf, access: OpenFlags) -> Result<Connection> {
    let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    schema::configure(connection)
}

fn meta(connection: &Connection, name: &str) -> Result<Option<String>> {
    let mut statement = connection.prepare_cached("SELECT value FROM meta WHERE name = ?").map_err(failed)?;
    statement.query_row([name], |row| row.get(0)).optional().map_err(failed)
}

fn set_meta(connection: &Connection, name: &str, value: &str) -> Result<()> {
    execute(connection, "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", [name, value])
}

fn cursor(connection: &Connection) -> Result<u64> {
    let found = meta(connection, "position")?.unwrap_or_default();
    found.parse().map_err(|_| damaged("its cursor is not a number"))
}

fn execute(connection: &Connection, sql: &str, values: impl rusqlite::Params) -> Result<()> {
    connection.prepare_cached(sql).and_then(|mut statement| statement.execute(values)).map_err(failed)?;
    Ok(())
}

/// Runs `work` in one transaction that writes.
fn transaction<T>(connection: &Connection, work: impl FnOnce() -> Result<T>) -> Result<T> {
    connection.execute_batch("BEGIN IMMEDIATE").map_err(failed)?;
    match work() {
        Ok(value) => connection.execute_batch("COMMIT").map_err(failed).map(|()| value),
        Err(error) => {
            // Closing the connection rolls back too.
            _ = connection.execute_batch("ROLLBACK");
            Err(error)
        }
    }
}

/// Adds the passages of a text.
fn add(connection: &Connection, thread: i64, place: &TextLocation<'_>, text: &str) -> Result<()> {
    for passage in passages(text) {
        let Passage { offset, text } = passage;
        let kind = if place.blob.is_some() { PassageKind::Blob } else { PassageKind::Message };
        let sql = "INSERT INTO documents (thread, kind, version, line, blob, offset, digest, at, text) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
        let values = params![
            thread,
            kind.number(),
            signed(place.version),
            signed(place.line.seq),
            name_of(place.blob),
            signed(offset as u64),
            passage.digest(),
            place.line.timestamp.as_micros(),
            text
        ];
        execute(connection, sql, values)?;
        let id = connection.last_insert_rowid();
        execute(connection, "INSERT INTO unembedded (document) VALUES (?)", [id])?;
        execute(connection, "INSERT INTO words (rowid, text) VALUES (?, ?)", params![id, segmented(text)])?;
        execute(connection, "INSERT INTO trigrams (rowid, text) VALUES (?, ?)", params![id, text])?;
    }
    Ok(())
}

/// Where a text is.
struct TextLocation<'a> {
    version: u64,
    line: &'a Line,
    blob: Option<&'a Digest>,
}

/// Removes the documents of a thread, or of one of its blobs.
fn remove_documents(connection: &Connection, thread: i64, blob: Option<&Digest>) -> Result<()> {
    let condition = if blob.is_some() { "thread = ?1 AND blob = ?2" } else { "thread = ?1 AND ?2 IS NULL" };
    let sql = format!("SELECT id, text FROM documents WHERE {condition}");
    let mut statement = connection.prepare_cached(&sql).map_err(failed)?;
    let found = statement.query_map(params![thread, name_of(blob)], |row| Ok((row.get(0)?, row.get(1)?)));
    let found: Vec<(i64, String)> = found.and_then(Iterator::collect).map_err(failed)?;
    if !found.is_empty() {
        // If the same passages are indexed again, their vectors are in the files.
        vectors::forget_files(connection)?;
    }
    for (id, text) in found {
        let sql = "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)";
        execute(connection, sql, params![id, segmented(&text)])?;
        let sql = "INSERT INTO trigrams (trigrams, rowid, text) VALUES ('delete', ?, ?)";
        execute(connection, sql, params![id, text])?;
        execute(connection, "DELETE FROM vectors WHERE document = ?", [id])?;
        execute(connection, "DELETE FROM unembedded WHERE document = ?", [id])?;
        execute(connection, "DELETE FROM documents WHERE id = ?", [id])?;
    }
    Ok(())
}

/// The row of a thread: its number, log, version and lines.
fn known(connection: &Connection, thread: &ThreadId) -> Result<Option<(i64, String, u64, u64)>> {
    let sql = "SELECT id, log_id, version, lines FROM threads WHERE thread_id = ?";
    let mut statement = connection.prepare_cached(sql).map_err(failed)?;
    let found = statement.query_row([thread.as_str()], |row| {
        Ok((row.get(0)?, row.get(1)?, unsigned(row.get(2)?), unsigned(row.get(3)?)))
    });
    found.optional().map_err(failed)
}

fn remove_thread(connection: &Connection, thread: &ThreadId) -> Result<()> {
    if let Some((id, ..)) = known(connection, thread)? {
        remove_documents(connection, id, None)?;
        execute(connection, "DELETE FROM threads WHERE id = ?", [id])?;
    }
    Ok(())
}

impl Core {
    /// Waits until no other process writes to the index.
    fn lock_search(&self) -> Result<Box<dyn DiskFile>> {
        let path = self.layout.search().with_extension("db.lock");
        let file = self.disk.open(&path, OpenMode::Create).map_err(io_error("open", &path))?;
        file.lock().map_err(io_error("lock", &path))?;
        Ok(file)
    }

    /// Opens the index for writing; creates it if there is none, and reports one that can't be used as damaged. Under its lock.
    fn open_search(&self) -> Result<Connection> {
        let path = self.layout.search();
        if !is_there(&path)? {
            drop(self.disk.open(&path, OpenMode::CreateNew).map_err(io_error("create", &path))?);
        }
        let connection = connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let mode = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0));
        mode.map_err(failed)?;
        connection.pragma_update(None, "synchronous", "NORMAL").map_err(failed)?;
        // Removed content is overwritten in the file.
        connection.pragma_update(None, "secure_delete", true).map_err(failed)?;
        let store = open::check_kind(&self.layout, &*self.disk)?.id;
        let format: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
        let is_empty = |connection: &Connection| {
            connection.query_row("SELECT COUNT(*) = 0 FROM sqlite_schema", [], |row| row.get::<_, bool>(0))
        };
        if format == 0 && is_empty(&connection).map_err(failed)? {
            transaction(&connection, || {
                connection.execute_batch(TABLES).map_err(failed)?;
                set_meta(&connection, "store", &store)?;
                set_meta(&connection, "position", "0")?;
                connection.pragma_update(None, "user_version", FORMAT).map_err(failed)
            })?;
        } else if format != FORMAT || meta(&connection, "store")? != Some(store) {
            return Err(damaged("it has another format, or belongs to another store"));
        }
        Ok(connection)
    }

    /// Runs `work` on the index, under its lock. One that is damaged is built anew, once.
    fn with_search<T>(&self, mut work: impl FnMut(&Connection) -> Result<T>) -> Result<(T, bool)> {
        self.writer()?;
        let _lock = self.lock_search()?;
        match self.open_search().and_then(|connection| work(&connection)) {
            Err(error) if is_damage(&error) => {
                remove_files(&self.layout, &*self.disk)?;
                self.open_search().and_then(|connection| work(&connection)).map(|done| (done, true))
            }
            done => done.map(|done| (done, false)),
        }
    }

    /// Opens the index for reading, if there is one.
    fn read_search(&self) -> Result<Option<Connection>> {
        let path = self.layout.search();
        if !is_there(&path)? {
            return Ok(None);
        }
        connect(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).map(Some)
    }

    /// Removes a deleted thread, or an erased blob, from the index and from the bytes of its files. Called after the deletion or the erasure
    /// is committed, and again by the next process until it succeeds.
    pub(crate) fn leave_search(&self, thread: &ThreadId, blob: Option<&Digest>) -> Result<()> {
        if !is_there(&self.layout.search())? {
            return Ok(());
        }
        let removed = self.with_search(|connection| {
            transaction(connection, || match (blob, known(connection, thread)?) {
                (Some(blob), Some((id, ..))) => remove_documents(connection, id, Some(blob)),
                (None, Some(_)) => remove_thread(connection, thread),
                (_, None) => Ok(()),
            })?;
            // The write-ahead log still has the pages as they were.
            let busy = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
            if busy.map_err(failed)? == 0 {
                return Ok(());
            }
            let why = "search.db: checkpoint blocked by a long-running reader".to_owned();
            Err(Error::Database { why, retryable: true })
        });
        removed.map(|_| ())
    }
}

impl LocalStore {
    fn search_once(&self, ask: &SearchRequest<'_>) -> Result<SearchHits> {
        let Some(connection) = self.core.read_search()? else { return Ok(SearchHits::default()) };
        let conditions = Conditions::of(&ask.query.filters);
        let expr = &ask.query.expr;
        let words = expression(expr, Terms::Words);
        let words = words.map_or(Ok(Vec::new()), |words| conditions.ranked(&connection, "words", words))?;
        // Parts of words are looked for in code, and where no whole word is found.
        let trigrams = expression(expr, Terms::Trigrams).filter(|_| words.is_empty() || is_like_code(expr));
        let trigrams = trigrams.map_or(Ok(Vec::new()), |all| conditions.ranked(&connection, "trigrams", all))?;
        let mut closest = Vec::new();
        let mut without_vectors = 0;
        if let Some((name, vector)) = ask.vector {
            let has_vectors = meta(&connection, "embedder")? == Some(vectors::embedder(name, vector.len()));
            if has_vectors {
                closest = conditions.closest(&connection, vector)?;
            }
            without_vectors = conditions.without_vectors(&connection, has_vectors)?;
        }
        let mut hits: Vec<Hit> = Vec::new();
        let mut places: HashMap<ThreadId, usize> = HashMap::new();
        for (document, score) in fused(&[&trigrams, &words, &closest]) {
            let found = hit(&connection, document)?;
            match places.get(&found.thread) {
                Some(place) => hits[*place].matches += 1,
                None => {
                    places.insert(found.thread.clone(), hits.len());
                    hits.push(Hit { score, matches: 1, ..found });
                }
            }
        }
        // A list that is full may have left out other threads.
        let is_full = [&words, &trigrams].into_iter().any(|list| list.len() == CANDIDATES_MAX);
        let has_more = hits.len() > ask.limit || is_full;
        hits.truncate(ask.limit);
        Ok(SearchHits { hits, has_more, unsearched: conditions.unsearched(&connection)?, without_vectors })
    }

    /// Searches in an index that is built anew, unless another process has done that meanwhile.
    fn search_anew(&self, ask: &SearchRequest<'_>) -> Result<SearchHits> {
        {
            let _lock = self.core.lock_search()?;
            match self.search_once(ask) {
                Err(error) if is_damage(&error) => remove_files(&self.core.layout, &*self.core.disk)?,
                done => return done,
            }
            self.core.open_search().and_then(|connection| self.follow(&connection, &Cancel::new()))?;
        }
        self.search_once(ask)
    }

    /// Indexes what was committed after the cursor, transaction by transaction.
    fn follow(&self, connection: &Connection, cancel: &Cancel) -> Result<IndexProgress> {
        let mut done = IndexProgress::default();
        loop {
            let from = cursor(connection)?;
            let entries = self.core.after(from, COMMITS_AT_ONCE)?;
            let Some(last) = entries.last() else { return Ok(done) };
            if cancel.said().is_some() {
                let newest = self.core.read(|db| crate::feed::position(db))?;
                done.behind = newest.saturating_sub(from);
                return Ok(done);
            }
            transaction(connection, || {
                let mut seen = HashSet::new();
                for entry in &entries {
                    if seen.insert(&entry.thread) {
                        self.index_thread(connection, &entry.thread, Some(&entries))?;
                    }
                }
                set_meta(connection, "position", &last.position.to_string())
            })?;
            done.commits += entries.len() as u64;
        }
    }

    /// Brings one thread up to its head; all of it, unless these commits continue what is indexed.
    fn index_thread(&self, connection: &Connection, thread: &ThreadId, entries: Option<&[FeedEntry]>) -> Result<()> {
        let Some(row) = self.core.read(|db| rows::find_any(db, thread))? else {
            return remove_thread(connection, thread);
        };
        let log = row.head.log_id.to_string();
        let mut from = 0;
        if let Some((_, known_log, version, lines)) = known(connection, thread)? {
            let is_same = known_log == log && entries.is_some();
            let continues = |entry: &FeedEntry| {
                entry.thread == *thread && entry.version == version + 1 && entry.first_line == lines && entry.lines > 0
            };
            if is_same && row.head.version == version && row.head.lines == lines {
                return self.describe(connection, &row);
            }
            if is_same && entries.unwrap_or_default().iter().any(continues) {
                from = lines;
            } else {
                remove_thread(connection, thread)?;
            }
        }
        self.describe(connection, &row)?;
        let Some((id, ..)) = known(connection, thread)? else { return Err(damaged("a row is missing")) };
        let mut pending = Vec::new();
        let read = self.each_line(thread, from, row.head.lines, &mut |line| {
            let version = if let Event::Checkpoint(checkpoint) = &line.event { Some(checkpoint.version) } else { None };
            pending.push(line);
            match version {
                Some(version) => pending.drain(..).try_for_each(|line| self.index_line(connection, id, version, &line)),
                None => Ok(()),
            }
        });
        match read {
            // A log that can't be read must not keep the others from being found.
            Err(error) if !is_damage(&error) && !error.retryable() => {
                execute(connection, "UPDATE threads SET broken = 1 WHERE id = ?", [id])
            }
            Err(error) => Err(error),
            Ok(()) => {
                let sql = "UPDATE threads SET broken = 0, version = ?, lines = ? WHERE id = ?";
                execute(connection, sql, params![signed(row.head.version), signed(row.head.lines), id])
            }
        }
    }

    /// Writes what the filters compare.
    fn describe(&self, connection: &Connection, row: &Row) -> Result<()> {
        let sql = "INSERT INTO threads (thread_id, log_id, version, lines, agent_id, directive, status) VALUES (?, ?, 0, 0, ?, ?, ?) \
                   ON CONFLICT (thread_id) DO UPDATE SET agent_id = excluded.agent_id, directive = excluded.directive, \
                   status = excluded.status";
        let manifest = &row.manifest;
        let directive = manifest.directive.as_ref().map(ToString::to_string);
        let log = row.head.log_id.to_string();
        let status = manifest.status.to_string();
        execute(
            connection,
            sql,
            params![manifest.thread_id.as_str(), log, manifest.agent_id.as_str(), directive, status],
        )
    }

    /// Passes the lines `from..to` of a log to `each`.
    fn each_line(&self, thread: &ThreadId, from: u64, to: u64, each: &mut dyn FnMut(Line) -> Result<()>) -> Result<()> {
        if from > 0 {
            let count = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
            return self.read(thread, from, count)?.into_iter().try_for_each(each);
        }
        let path = self.core.layout.transcript(thread);
        let (_, mut reader) = self.transcript(thread)?;
        let mut buffer = Vec::new();
        for _ in 0..to {
            if !lines::next_line(&mut reader, &mut buffer).map_err(io_error("read", &path))? {
                break;
            }
            each(line::decode(buffer.strip_suffix(b"\n").unwrap_or(&buffer))?)?;
        }
        Ok(())
    }

    fn index_line(&self, connection: &Connection, thread: i64, version: u64, line: &Line) -> Result<()> {
        if let Event::BlobErased(erased) = &line.event {
            remove_documents(connection, thread, Some(&erased.blob))?;
        }
        if let Some(text) = said(&line.event) {
            add(connection, thread, &TextLocation { version, line, blob: None }, &text)?;
        }
        for blob in line.event.blobs() {
            let sql = "SELECT 1 FROM documents WHERE thread = ? AND blob = ?";
            let mut statement = connection.prepare_cached(sql).map_err(failed)?;
            if statement.exists(params![thread, name_of(Some(&blob))]).map_err(failed)? {
                continue;
            }
            let lacks = match self.core.blob(&line.thread_id, &blob) {
                Ok(bytes) => match text_of_blob(&bytes) {
                    Some((text, is_whole)) => {
                        add(connection, thread, &TextLocation { version, line, blob: Some(&blob) }, text)?;
                        if is_whole { None } else { Some("cut") }
                    }
                    None => Some("not_text"),
                },
                Err(Error::Erased { .. }) => None,
                Err(error) if error.retryable() => return Err(error),
                Err(_) => Some("unreadable"),
            };
            if let Some(column) = lacks {
                execute(connection, &format!("UPDATE threads SET {column} = {column} + 1 WHERE id = ?"), [thread])?;
            }
        }
        Ok(())
    }
}

/// The filters as conditions on `documents AS d` and `threads AS t`, with their values.
struct Conditions {
    of_thread: String,
    of_document: String,
    values: Vec<Value>,
    document_values: Vec<Value>,
}

impl Conditions {
    fn of(filters: &Filters) -> Self {
        let mut of_thread = String::new();
        let mut values = Vec::new();
        let mut any = |column: &str, is_not: bool, all: Vec<String>| {
            if !all.is_empty() {
                let marks = vec!["?"; all.len()].join(", ");
                // A thread without a directive is not of the excluded one.
                let not = if is_not { format!("{column} IS NULL OR {column} NOT") } else { column.to_owned() };
                of_thread.push_str(&format!(" AND ({not} IN ({marks}))"));
                values.extend(all.into_iter().map(Value::Text));
            }
        };
        any("t.agent_id", false, filters.agents.iter().map(ToString::to_string).collect());
        any("t.agent_id", true, filters.not_agents.iter().map(ToString::to_string).collect());
        any("t.directive", false, filters.directives.iter().map(ToString::to_string).collect());
        any("t.directive", true, filters.not_directives.iter().map(ToString::to_string).collect());
        any("t.status", false, filters.statuses.iter().map(ToString::to_string).collect());
        any("t.status", true, filters.not_statuses.iter().map(ToString::to_string).collect());
        let mut of_document = String::new();
        let mut document_values = Vec::new();
        for (condition, time) in [(" AND d.at >= ?", filters.since), (" AND d.at < ?", filters.before)] {
            if let Some(time) = time {
                of_document.push_str(condition);
                document_values.push(Value::Integer(time.as_micros()));
            }
        }
        Self { of_thread, of_document, values, document_values }
    }

    fn values(&self) -> impl Iterator<Item = Value> {
        self.values.iter().chain(&self.document_values).cloned()
    }

    /// The statement that lists the best passages of a full-text table.
    fn sql(&self, table: &str) -> String {
        let Self { of_thread, of_document, .. } = self;
        // In this order: the full-text table finds the rows, and the others are looked up.
        format!(
            "SELECT d.id FROM {table} CROSS JOIN documents AS d ON d.id = {table}.rowid \
             CROSS JOIN threads AS t ON t.id = d.thread WHERE {table} MATCH ?{of_thread}{of_document} \
             ORDER BY bm25({table}), d.id LIMIT {CANDIDATES_MAX}"
        )
    }

    /// The best passages by an expression.
    fn ranked(&self, connection: &Connection, table: &str, expression: String) -> Result<Vec<i64>> {
        let values = [Value::Text(expression)].into_iter().chain(self.values());
        let mut statement = connection.prepare_cached(&self.sql(table)).map_err(failed)?;
        let found = statement.query_map(params_from_iter(values), |row| row.get(0)).map_err(failed)?;
        found.collect::<rusqlite::Result<_>>().map_err(failed)
    }

    /// The passages whose vectors are the closest.
    fn closest(&self, connection: &Connection, wanted: &[f32]) -> Result<Vec<i64>> {
        let Self { of_thread, of_document, .. } = self;
        let sql = format!(
            "SELECT d.id, v.vector FROM vectors AS v CROSS JOIN documents AS d ON d.id = v.document \
             CROSS JOIN threads AS t ON t.id = d.thread WHERE 1{of_thread}{of_document}"
        );
        let mut statement = connection.prepare_cached(&sql).map_err(failed)?;
        let mut found = statement.query(params_from_iter(self.values())).map_err(failed)?;
        let mut scored: Vec<(f32, i64)> = Vec::new();
        while let Some(row) = found.next().map_err(failed)? {
            let bytes: Vec<u8> = row.get(1).map_err(failed)?;
            let parts = bytes.chunks_exact(4).map(|part| f32::from_le_bytes([part[0], part[1], part[2], part[3]]));
            let score: f32 = parts.zip(wanted).map(|(a, b)| a * b).sum();
            if bytes.len() == wanted.len() * 4 && score > 0.0 {
                scored.push((score, row.get(0).map_err(failed)?));
            }
        }
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        Ok(scored.into_iter().take(CLOSEST_MAX).map(|(_, id)| id).collect())
    }

    /// How many passages have no vector, if there are any.
    fn without_vectors(&self, connection: &Connection, has_vectors: bool) -> Result<u64> {
        let Self { of_thread, of_document, .. } = self;
        let from = if has_vectors {
            "unembedded AS u CROSS JOIN documents AS d ON d.id = u.document"
        } else {
            "documents AS d"
        };
        let sql = format!(
            "SELECT COUNT(*) FROM {from} CROSS JOIN threads AS t ON t.id = d.thread WHERE 1{of_thread}{of_document}"
        );
        let mut statement = connection.prepare_cached(&sql).map_err(failed)?;
        statement.query_row(params_from_iter(self.values()), |row| row.get(0)).map(unsigned).map_err(failed)
    }

    fn unsearched(&self, connection: &Connection) -> Result<NotSearched> {
        let sql = format!(
            "SELECT COALESCE(SUM(not_text), 0), COALESCE(SUM(cut), 0), COALESCE(SUM(unreadable), 0), COALESCE(SUM(broken), 0) \
             FROM threads AS t WHERE 1{}",
            self.of_thread
        );
        let mut statement = connection.prepare_cached(&sql).map_err(failed)?;
        let found = statement.query_row(params_from_iter(self.values.clone()), |row| {
            Ok(NotSearched {
                blobs_not_text: unsigned(row.get(0)?),
                blobs_cut: unsigned(row.get(1)?),
                blobs_unreadable: unsigned(row.get(2)?),
                threads_unreadable: unsigned(row.get(3)?),
            })
        });
        found.map_err(failed)
    }
}

/// The passage of a number, as a hit.
fn hit(connection: &Connection, document: i64) -> Result<Hit> {
    let sql = "SELECT t.thread_id, d.kind, d.version, d.line, d.blob, d.offset, LENGTH(CAST(d.text AS BLOB)), d.digest, d.at \
               FROM documents AS d JOIN threads AS t ON t.id = d.thread WHERE d.id = ?";
    let mut statement = connection.prepare_cached(sql).map_err(failed)?;
    let mut found = statement.query([document]).map_err(failed)?;
    let row = found.next().map_err(failed)?.ok_or_else(|| damaged("a row is missing"))?;
    let number = |column: usize| row.get::<_, i64>(column).map_err(failed);
    let blob: Option<Vec<u8>> = row.get(4).map_err(failed)?;
    let blob = blob.map(|bytes| bytes.try_into().map(Digest).map_err(|_| damaged("a digest has not 32 bytes")));
    Ok(Hit {
        thread: ThreadId::new(row.get::<_, String>(0).map_err(failed)?).map_err(bad_row)?,
        kind: PassageKind::of_number(number(1)?).ok_or_else(|| damaged("the kind of a document is unknown"))?,
        version: unsigned(number(2)?),
        line: unsigned(number(3)?),
        blob: blob.transpose()?,
        offset: unsigned(number(5)?),
        bytes: unsigned(number(6)?),
        digest: number(7)?,
        at: Timestamp::from_micros(number(8)?),
        score: 0.0,
        matches: 0,
    })
}

impl Search for LocalStore {
    fn catch_up(&self, cancel: &Cancel) -> Result<IndexProgress> {
        if self.core.writer.is_some() {
            let (done, rebuilt) = self.core.with_search(|connection| self.follow(connection, cancel))?;
            return Ok(IndexProgress { rebuilt, ..done });
        }
        let seen = self.core.read_search()?.map_or(Ok(0), |connection| cursor(&connection))?;
        let newest = self.core.read(|db| crate::feed::position(db))?;
        Ok(IndexProgress { behind: newest.saturating_sub(seen), ..IndexProgress::default() })
    }

    fn search(&self, ask: &SearchRequest<'_>) -> Result<SearchHits> {
        match self.search_once(ask) {
            // In a page that nothing has read while the index caught up.
            Err(error) if is_damage(&error) && self.core.writer.is_some() => self.search_anew(ask),
            done => done,
        }
    }

    fn index_again(&self, thread: &ThreadId) -> Result<()> {
        let indexed = |connection: &Connection| transaction(connection, || self.index_thread(connection, thread, None));
        self.core.with_search(indexed).map(|_| ())
    }

    fn pending_vectors(&self, name: &str, dimensions: usize, limit: usize) -> Result<Vec<UnembeddedPassage>> {
        let pending =
            self.core.with_search(|connection| vectors::pending(&self.core, connection, name, dimensions, limit));
        pending.map(|(pending, _)| pending)
    }

    fn put_vectors(&self, name: &str, vectors: &[(UnembeddedPassage, Vec<f32>)]) -> Result<()> {
        self.core.with_search(|connection| vectors::put(&self.core, connection, name, vectors)).map(|_| ())
    }

    fn dump(&self) -> Result<String> {
        let Some(connection) = self.core.read_search()? else { return Ok(String::new()) };
        let sql = "SELECT json_array(t.thread_id, t.log_id, t.version, t.lines, t.agent_id, t.directive, t.status, t.not_text, \
                       t.cut, t.unreadable, t.broken, d.kind, d.version, d.line, hex(d.blob), d.offset, d.digest, d.at, d.text) \
                   FROM threads AS t LEFT JOIN documents AS d ON d.thread = t.id ORDER BY 1";
        let mut statement = connection.prepare(sql).map_err(failed)?;
        let found = statement.query_map([], |row| row.get::<_, String>(0)).map_err(failed)?;
        let lines: Vec<String> = found.collect::<rusqlite::Result<_>>().map_err(failed)?;
        Ok(lines.join("\n"))
    }
}
