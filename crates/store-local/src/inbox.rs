//! Requests to threads: stored sealed in the database, moved along their chain, and remembered after they are consumed.
//!
//! A request is a row of `requests` until a batch consumes it; then the log has its verdict, and a row of `answers` records where, so that
//! a request that is sent again is answered and not handled a second time. `answers` is derived from the logs and rebuilt with them.

use rusqlite::{OptionalExtension, params};
use selvedge_model::{Posted, Request, RequestId, RequestKind, Status, ThreadId, Timestamp};
use selvedge_store::prepare::Prepared;
use selvedge_store::seal::{ConsumedRequests, SealedRow};
use selvedge_store::{Delivery, Error, PostedNotice, QueuedRequest, Result, inbox};

use crate::anchor::{self, Bucket};
use crate::commit::{Job, JobOutcome};
use crate::core::Core;
use crate::db::Db;
use crate::rows::{self, Row, bad_row, signed, unsigned};
use crate::schema::database;
use crate::sealed::{self, Mark};

/// The highest number that a request can have; no store posts so many.
const NUMBER_MAX: u64 = 1 << 53;

/// The most threads of a chain that a request is passed along.
const LINKS_MAX: usize = 10_000;

impl Core {
    /// Posts a request, in one transaction with other waiting commits.
    pub(crate) fn post(&self, posted: Posted) -> Result<Delivery> {
        let thread = posted.thread.clone();
        let job = Job::of(Prepared::posting(posted));
        match self.group.submit(job, |jobs| self.commit_together(jobs)) {
            JobOutcome::Durable(_, mut written) => {
                written.left.pop().ok_or_else(|| Error::NoThread(thread.to_string()))
            }
            JobOutcome::Refused(error) => Err(error),
            JobOutcome::Stale => {
                Err(Error::Database { why: "the request was not written".to_owned(), retryable: true })
            }
        }
    }

    /// Puts a request into the inbox of the end of its chain; must be called in the transaction that posts it.
    pub(crate) fn put_request(&self, connection: &Db, posted: &Posted) -> Result<Delivery> {
        let row = tail(connection, &posted.thread)?;
        let root = &row.manifest.chain_root_id;
        let thread = row.manifest.thread_id.clone();
        if let Some((thread, version)) = answered(connection, root, &posted.id)? {
            return Ok(Delivery { thread, answered: Some(version) });
        }
        let posted = Posted { thread: thread.clone(), ..posted.clone() };
        let waiting = read(connection, &row)?;
        if let Some(known) = waiting.iter().find(|known| known.posted.id == posted.id) {
            return if known.posted.request == posted.request && known.is_sealed(connection, root) {
                Ok(Delivery { thread, answered: None })
            } else {
                Err(Error::RequestReused { thread, id: posted.id })
            };
        }
        self.signing()?;
        self.check_anchor(connection, Bucket::of_inbox(row.id), row.anchor)?;
        if is_missing(connection, &row, &waiting)? {
            self.note_problem(removed(&thread));
        }
        // The counter is not sealed: a number that was posted to this thread before is never given again.
        let highest = newest(connection)?.max(row.consumed.newest).max(newest_posted(connection, &row)?);
        if highest >= NUMBER_MAX {
            return Err(bad_row("its counter of requests can't be right: another program changed it"));
        }
        put(connection, &row, highest + 1, &posted)?;
        Ok(Delivery { thread, answered: None })
    }

    /// The requests that wait for a thread. Without a key no seal can be checked, and none is accepted; nor is one that was consumed before
    /// and inserted again.
    pub(crate) fn pending(&self, thread: &ThreadId) -> Result<Vec<QueuedRequest>> {
        let (found, missing) = self.read(|connection| {
            let row = rows::existing(connection, thread)?;
            self.note_anchor(self.check_anchor(connection, Bucket::of_inbox(row.id), row.anchor))?;
            let found = read(connection, &row)?;
            let missing = is_missing(connection, &row, &found)?;
            let waiting = found.into_iter().map(|one| {
                let is_sealed = one.is_sealed(connection, &row.manifest.chain_root_id) && !row.consumed.has(one.number);
                QueuedRequest { posted: one.posted, is_sealed }
            });
            Ok((waiting.collect(), missing))
        })?;
        if missing {
            self.note_problem(removed(thread));
        }
        Ok(found)
    }

    /// The numbers that a thread has consumed after these requests are consumed too.
    pub(crate) fn consumed_after(&self, row: &Row, taken: &[&RequestId]) -> Result<ConsumedRequests> {
        let mut after = row.consumed.clone();
        if taken.is_empty() {
            return Ok(after);
        }
        let (waiting, mut pending) =
            self.read(|connection| Ok((read(connection, row)?, posted_to(connection, row)?.unwrap_or_default())))?;
        let is_taken = |one: &&StoredRequest| taken.contains(&&one.posted.id);
        let consumed: Vec<u64> = waiting.iter().filter(is_taken).map(|one| one.number).collect();
        // A number that was posted and has no row was removed: it stays unconsumed, and is reported until the database is rebuilt.
        pending.extend(waiting.iter().map(|one| one.number));
        pending.sort_unstable();
        pending.dedup();
        after.consume(&consumed, &pending);
        Ok(after)
    }
}

/// A request as it is stored.
pub(crate) struct StoredRequest {
    pub(crate) number: u64,
    pub(crate) posted: Posted,
    mark: Mark,
}

impl StoredRequest {
    /// Whether a holder of the key posted it to this chain.
    pub(crate) fn is_sealed(&self, db: &Db, root: &ThreadId) -> bool {
        let marked = |(seals, mark)| inbox::is_marked(seals, root, self.number, &self.posted, mark);
        db.seals().zip(self.mark.digest()).is_some_and(marked)
    }
}

/// The report of a request that is neither there nor consumed.
fn removed(thread: &ThreadId) -> String {
    format!("a request to `{thread}` was removed from the database before it was consumed")
}

/// Inserts a request under a number that is higher than any before it.
pub(crate) fn put(db: &Db, row: &Row, number: u64, posted: &Posted) -> Result<()> {
    let body = serde_json::to_string(&posted.request).map_err(bad_row)?;
    let root = &row.manifest.chain_root_id;
    let mark = db.seals().map_or(Mark::NONE, |seals| inbox::mark(seals, root, number, posted).into());
    let sql = "INSERT INTO requests (id, thread, request_id, kind, posted_at, body, mark) VALUES (?, ?, ?, ?, ?, ?, ?)";
    let kind = posted.request.kind().as_str();
    let at = posted.at.as_micros();
    rows::execute(db, sql, params![signed(number), row.id, posted.id.as_str(), kind, at, body, mark.bytes()])?;
    let mut posted = posted_to(db, row)?.unwrap_or_default();
    posted.retain(|known| !row.consumed.has(*known));
    posted.push(number);
    set_posted(db, row, &posted)
}

/// Records the numbers of the requests that wait for a thread.
fn set_posted(db: &Db, row: &Row, posted: &[u64]) -> Result<()> {
    let text = serde_json::to_string(posted).map_err(bad_row)?;
    let before = newest_posted(db, row)?;
    let after = posted.iter().copied().max().unwrap_or(0);
    anchor::moved(db, Bucket::of_inbox(row.id), before, after)?;
    let mark = sealed::mark(db, &sealed_inbox(row, &text));
    let sql = "INSERT INTO inboxes (thread, posted, mark) VALUES (?, ?, ?) \
               ON CONFLICT (thread) DO UPDATE SET posted = excluded.posted, mark = excluded.mark";
    rows::execute(db, sql, params![row.id, text, mark.bytes()])?;
    Ok(())
}

/// Remembers that requests were posted to a thread that has consumed some, if nothing else says so: its head is no evidence that a row of
/// its inbox was removed then.
pub(crate) fn note_consumed(db: &Db, row: &Row) -> Result<()> {
    if row.consumed.newest == 0 || posted_to(db, row)?.is_some() {
        return Ok(());
    }
    set_posted(db, row, &[row.consumed.newest])
}

/// The numbers that were posted to a thread and waited when the newest one came; nothing if none ever was.
fn posted_to(db: &Db, row: &Row) -> Result<Option<Vec<u64>>> {
    let mut statement = db.prepare_cached("SELECT posted, mark FROM inboxes WHERE thread = ?").map_err(database)?;
    let found = statement.query_row([row.id], |row| Ok((row.get::<_, String>(0)?, row.get(1)?))).optional();
    let Some((text, mark)) = found.map_err(database)? else { return Ok(None) };
    sealed::check_of(db, row, &sealed_inbox(row, &text), mark, || "the requests".to_owned())?;
    serde_json::from_str(&text).map(Some).map_err(bad_row)
}

/// The row of an inbox, as its mark covers it.
fn sealed_inbox<'a>(row: &'a Row, posted: &'a str) -> SealedRow<'a> {
    SealedRow::Inbox { log: row.head.log_id.as_str(), thread: row.id, posted }
}

/// The number of the newest request that was posted to a thread; 0 if none ever was.
fn newest_posted(db: &Db, row: &Row) -> Result<u64> {
    Ok(posted_to(db, row)?.unwrap_or_default().into_iter().max().unwrap_or(0))
}

fn newest_in(posted: &str) -> Result<u64> {
    let posted: Vec<u64> = serde_json::from_str(posted).map_err(bad_row)?;
    Ok(posted.into_iter().max().unwrap_or(0))
}

/// The number of the newest request of each inbox in a bucket; refused if one fails its seal.
pub(crate) fn newest_of(db: &Db, bucket: u64) -> Result<Vec<u64>> {
    let sql = "SELECT i.thread, i.posted, i.mark, t.log_id FROM inboxes AS i LEFT JOIN threads AS t ON t.id = i.thread \
               WHERE i.thread % 32 = ? ORDER BY i.thread";
    let mut statement = db.prepare_cached(sql).map_err(database)?;
    let mut found = statement.query([signed(bucket)]).map_err(database)?;
    let mut newest = Vec::new();
    let mut before = None;
    while let Some(row) = found.next().map_err(database)? {
        let thread: i64 = row.get(0).map_err(database)?;
        let posted: String = row.get(1).map_err(database)?;
        // They come from an index: what it leaves out makes the sum too small, and an entry that it has twice is found here.
        if Bucket::of_inbox(thread) != Bucket::Inboxes(bucket) || before.replace(thread) >= Some(thread) {
            return Err(bad_row("an index of inboxes was changed"));
        }
        let log: Option<String> = row.get(3).map_err(database)?;
        let log = log.unwrap_or_default();
        let sealed = SealedRow::Inbox { log: &log, thread, posted: &posted };
        sealed::check(db, &sealed, row.get(2).map_err(database)?, || "a row of `inboxes`".to_owned())?;
        newest.push(newest_in(&posted)?);
    }
    Ok(newest)
}

/// Removes the inbox of a thread.
pub(crate) fn remove(db: &Db, thread: i64) -> Result<()> {
    let sql =
        "SELECT i.posted, i.mark, t.log_id FROM inboxes AS i JOIN threads AS t ON t.id = i.thread WHERE i.thread = ?";
    let mut statement = db.prepare_cached(sql).map_err(database)?;
    let found = statement
        .query_row([thread], |row| Ok((row.get::<_, String>(0)?, row.get(1)?, row.get::<_, String>(2)?)))
        .optional();
    if let Some((posted, mark, log)) = found.map_err(database)? {
        // What the sum of the anchor is reduced by must be what was added to it.
        let sealed = SealedRow::Inbox { log: &log, thread, posted: &posted };
        sealed::check(db, &sealed, mark, || "a row of `inboxes`".to_owned())?;
        anchor::moved(db, Bucket::of_inbox(thread), newest_in(&posted)?, 0)?;
    }
    rows::execute(db, "DELETE FROM main.inboxes WHERE thread = ?", [thread])?;
    Ok(())
}

/// Whether a request that was posted is neither there nor consumed, or one is there that was not posted.
pub(crate) fn is_missing(db: &Db, row: &Row, waiting: &[StoredRequest]) -> Result<bool> {
    if successor(db, row)?.is_some() {
        // What waited went along, and is missed where it went to.
        return Ok(!waiting.is_empty());
    }
    let Some(posted) = posted_to(db, row)? else {
        // A thread that has consumed a request must have an inbox.
        return Ok(row.consumed.newest > 0 || !waiting.is_empty());
    };
    let is_there = |number: &u64| waiting.iter().any(|one| one.number == *number);
    let is_lost = |number: &&u64| !row.consumed.has(**number) && !is_there(number);
    let newest = posted.iter().copied().max().unwrap_or(0);
    let is_newer = |one: &StoredRequest| !row.consumed.has(one.number) && one.number > newest;
    Ok(posted.iter().chain(&row.consumed.waiting).any(|number| is_lost(&number)) || waiting.iter().any(is_newer))
}

/// Consumes a request; refused if it is not waiting.
pub(crate) fn take(connection: &Db, thread: &ThreadId, id: &RequestId) -> Result<()> {
    let row = rows::existing(connection, thread)?;
    let sql = "DELETE FROM requests WHERE thread = ? AND request_id = ?";
    match rows::execute(connection, sql, params![row.id, id.as_str()])? {
        1 => Ok(()),
        _ => Err(Error::RequestGone { thread: thread.clone(), id: id.clone() }),
    }
}

/// Moves the waiting requests of a thread to its successor.
pub(crate) fn pass_on(connection: &Db, thread: &ThreadId, next: &ThreadId) -> Result<()> {
    let Some(next) = rows::find(connection, next)? else { return Ok(()) };
    let row = rows::existing(connection, thread)?;
    rows::execute(connection, "UPDATE requests SET thread = ? WHERE thread = ?", [next.id, row.id])?;
    if let Some(posted) = posted_to(connection, &row)? {
        set_posted(connection, &next, &posted)?;
    }
    Ok(())
}

/// Records where requests were consumed.
pub(crate) fn remember(
    db: &Db,
    id: i64,
    (thread, root): (&ThreadId, &ThreadId),
    ids: &[RequestId],
    version: u64,
) -> Result<()> {
    let sql = "INSERT INTO answers (chain_root, request_id, thread, version, mark) VALUES (?, ?, ?, ?, ?) \
               ON CONFLICT DO NOTHING";
    for request in ids {
        let version = signed(version);
        let sealed = SealedRow::Answer { root, request: request.as_str(), thread: thread.as_str(), version };
        let mark = sealed::mark(db, &sealed);
        rows::execute(db, sql, params![root.as_str(), request.as_str(), id, version, mark.bytes()])?;
    }
    Ok(())
}

/// The thread and version at which a request of a chain was consumed.
pub(crate) fn answered(connection: &Db, root: &ThreadId, id: &RequestId) -> Result<Option<(ThreadId, u64)>> {
    let sql = "SELECT t.thread_id, a.version, a.mark FROM answers AS a JOIN threads AS t ON t.id = a.thread \
               WHERE a.chain_root = ? AND a.request_id = ?";
    let mut statement = connection.prepare_cached(sql).map_err(database)?;
    let found = statement
        .query_row([root.as_str(), id.as_str()], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get(2)?))
        })
        .optional()
        .map_err(database)?;
    let Some((thread, version, mark)) = found else { return Ok(None) };
    let sealed = SealedRow::Answer { root, request: id.as_str(), thread: &thread, version };
    sealed::check(connection, &sealed, mark, || format!("request `{id}`"))?;
    Ok(Some((ThreadId::new(thread).map_err(bad_row)?, unsigned(version))))
}

/// How many waiting requests keep the lease from being released.
pub(crate) fn holding(connection: &Db, row: &Row) -> Result<usize> {
    // A row that can't be read is ignored, or it would block the release for ever.
    let is_send = |one: &StoredRequest| one.posted.request.kind() == RequestKind::Send;
    Ok(read(connection, row)?.iter().filter(|waiting| is_send(waiting)).count())
}

/// The number of the newest request that was ever posted, as far as the database knows; at least that of every one that waits.
pub(crate) fn newest(connection: &Db) -> Result<u64> {
    let sql = "SELECT max(COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'requests'), 0), \
               COALESCE((SELECT max(id) FROM requests), 0))";
    let mut statement = connection.prepare_cached(sql).map_err(database)?;
    statement.query_row([], |row| row.get(0)).map(unsigned).map_err(database)
}

/// Requests posted after a number that still wait.
pub(crate) fn arrivals(connection: &Db, after: u64, limit: usize) -> Result<Vec<PostedNotice>> {
    let sql = "SELECT r.id, t.thread_id FROM requests AS r JOIN threads AS t ON t.id = r.thread WHERE r.id > ? \
               ORDER BY r.id LIMIT ?";
    let mut statement = connection.prepare_cached(sql).map_err(database)?;
    let values = params![signed(after), signed(limit as u64)];
    let found =
        statement.query_map(values, |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))).map_err(database)?;
    let arrival = |(number, thread): (i64, String)| {
        Ok(PostedNotice { number: unsigned(number), thread: ThreadId::new(thread).map_err(bad_row)? })
    };
    found.map(|raw| arrival(raw.map_err(database)?)).collect()
}

/// The waiting requests of a thread, with their marks; a row that can't be decoded is skipped.
pub(crate) fn read(connection: &Db, row: &Row) -> Result<Vec<StoredRequest>> {
    let sql = "SELECT request_id, posted_at, body, mark, id FROM requests WHERE thread = ? ORDER BY id";
    let mut statement = connection.prepare_cached(sql).map_err(database)?;
    let mut found = statement.query([row.id]).map_err(database)?;
    let mut waiting = Vec::new();
    while let Some(raw) = found.next().map_err(database)? {
        let id: String = raw.get(0).map_err(database)?;
        let at: i64 = raw.get(1).map_err(database)?;
        let body: String = raw.get(2).map_err(database)?;
        let mark: Vec<u8> = raw.get(3).map_err(database)?;
        let (Ok(id), Ok(request)) = (RequestId::new(id), serde_json::from_str::<Request>(&body)) else { continue };
        let thread = row.manifest.thread_id.clone();
        let at = Timestamp::from_micros(at);
        let number = unsigned(raw.get(4).map_err(database)?);
        waiting.push(StoredRequest { number, posted: Posted { thread, id, at, request }, mark: Mark::read(mark) });
    }
    Ok(waiting)
}

/// The last thread of a thread's chain, as far as it is in this store.
fn tail(connection: &Db, thread: &ThreadId) -> Result<Row> {
    let mut row = rows::existing(connection, thread)?;
    for _ in 0..LINKS_MAX {
        let Some(next) = successor(connection, &row)? else { break };
        row = next;
    }
    Ok(row)
}

/// The successor of a thread, if it is there.
fn successor(connection: &Db, row: &Row) -> Result<Option<Row>> {
    let next = row.manifest.continuation_thread_id.as_ref().filter(|_| row.manifest.status == Status::Continued);
    Ok(next.map(|next| rows::find(connection, next)).transpose()?.flatten())
}
