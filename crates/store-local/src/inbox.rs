//! Requests to threads: left sealed in the database, moved along with their chain, and remembered once they were consumed.
//!
//! A request is a row of `requests` until a batch consumes it; then the log has its verdict, and a row of `answers` says where, so that
//! a request that is sent again is answered and not served a second time. `answers` follows from the logs and is rebuilt with them.

use rusqlite::{Connection, OptionalExtension, params};
use selvedge_model::{Digest, Posted, Request, RequestId, RequestKind, Status, ThreadId, Timestamp};
use selvedge_store::prepare::Prepared;
use selvedge_store::{Arrival, Error, Left, Result, Waiting, inbox};

use crate::commit::{Job, Outcome};
use crate::core::Core;
use crate::rows::{self, Row, bad_row, signed, unsigned};
use crate::schema::{self, database};

/// The most threads of a chain that a request is passed along.
const LINKS_MAX: usize = 10_000;

/// The first format that has these tables.
const FORMAT_OF_REQUESTS: i64 = 6;

impl Core {
    /// Leaves a request, together with whatever else waits to be committed.
    pub(crate) fn post(&self, posted: Posted) -> Result<Left> {
        let thread = posted.thread.clone();
        let job = Job::of(Prepared::posting(posted));
        match self.group.submit(job, |jobs| self.commit_together(jobs)) {
            Outcome::Durable(_, mut written) => written.left.pop().ok_or_else(|| Error::NoThread(thread.to_string())),
            Outcome::Refused(error) => Err(error),
            Outcome::Stale => Err(Error::Database { why: "the request was not written".to_owned(), retryable: true }),
        }
    }

    /// Puts a request into the inbox of the end of its chain; must be called in the transaction that posts it.
    pub(crate) fn put_request(&self, connection: &Connection, posted: &Posted) -> Result<Left> {
        let row = tail(connection, &posted.thread)?;
        let (root, thread) = (&row.manifest.chain_root_id, row.manifest.thread_id.clone());
        if let Some((thread, version)) = answered(connection, root, &posted.id)? {
            return Ok(Left { thread, answered: Some(version) });
        }
        let posted = Posted { thread: thread.clone(), ..posted.clone() };
        let body = serde_json::to_string(&posted.request).map_err(bad_row)?;
        let mark = inbox::mark(&self.signing()?.seals, root, &posted);
        let sql = "INSERT INTO requests (thread, request_id, kind, posted_at, body, mark) VALUES (?, ?, ?, ?, ?, ?) \
                   ON CONFLICT DO NOTHING";
        let kind = posted.request.kind().as_str();
        let values = params![row.id, posted.id.as_str(), kind, posted.at.as_micros(), body, &mark.0[..]];
        if rows::execute(connection, sql, values)? == 0 {
            let known = read(connection, &row)?.into_iter().find(|(known, _)| known.id == posted.id);
            if known.is_none_or(|(known, _)| known.request != posted.request) {
                return Err(Error::RequestReused { thread, id: posted.id });
            }
        }
        Ok(Left { thread, answered: None })
    }

    /// The requests that wait for a thread. Without a key no seal can be checked, and none counts.
    pub(crate) fn pending(&self, thread: &ThreadId) -> Result<Vec<Waiting>> {
        self.read(|connection| {
            let row = rows::existing(connection, thread)?;
            let root = &row.manifest.chain_root_id;
            let sealed = |posted: &Posted, mark: &Digest| {
                self.signing.as_ref().is_some_and(|signing| inbox::is_marked(&signing.seals, root, posted, mark))
            };
            let waiting = |(posted, mark): (Posted, Option<Digest>)| {
                let is_sealed = mark.is_some_and(|mark| sealed(&posted, &mark));
                Waiting { posted, is_sealed }
            };
            Ok(read(connection, &row)?.into_iter().map(waiting).collect())
        })
    }
}

/// Consumes a request; refused if it does not wait.
pub(crate) fn take(connection: &Connection, thread: &ThreadId, id: &RequestId) -> Result<()> {
    let row = rows::existing(connection, thread)?;
    let sql = "DELETE FROM requests WHERE thread = ? AND request_id = ?";
    match rows::execute(connection, sql, params![row.id, id.as_str()])? {
        1 => Ok(()),
        _ => Err(Error::RequestGone { thread: thread.clone(), id: id.clone() }),
    }
}

/// Moves everything that waits for a thread to the one that goes on in its place.
pub(crate) fn pass_on(connection: &Connection, thread: i64, next: &ThreadId) -> Result<()> {
    let sql = "UPDATE requests SET thread = (SELECT id FROM threads WHERE thread_id = ?2) WHERE thread = ?1 \
               AND EXISTS (SELECT 1 FROM threads WHERE thread_id = ?2)";
    rows::execute(connection, sql, params![thread, next.as_str()])?;
    Ok(())
}

/// Remembers where requests were consumed.
pub(crate) fn remember(
    connection: &Connection,
    thread: i64,
    root: &ThreadId,
    ids: &[RequestId],
    version: u64,
) -> Result<()> {
    let sql =
        "INSERT INTO answers (chain_root, request_id, thread, version) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING";
    for id in ids {
        rows::execute(connection, sql, params![root.as_str(), id.as_str(), thread, signed(version)])?;
    }
    Ok(())
}

/// Where in a chain a request was consumed.
pub(crate) fn answered(connection: &Connection, root: &ThreadId, id: &RequestId) -> Result<Option<(ThreadId, u64)>> {
    if is_older(connection)? {
        return Ok(None);
    }
    let sql = "SELECT t.thread_id, a.version FROM answers AS a JOIN threads AS t ON t.id = a.thread \
               WHERE a.chain_root = ? AND a.request_id = ?";
    let mut statement = connection.prepare_cached(sql).map_err(database)?;
    let found = statement
        .query_row([root.as_str(), id.as_str()], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))
        .optional()
        .map_err(database)?;
    found.map(|(thread, version)| Ok((ThreadId::new(thread).map_err(bad_row)?, unsigned(version)))).transpose()
}

/// How many requests wait that keep a lease from being released.
pub(crate) fn holding(connection: &Connection, row: &Row) -> Result<usize> {
    // A row that can't be read is no request, and must not hold a lease for ever.
    let is_send = |(posted, _): &(Posted, Option<Digest>)| posted.request.kind() == RequestKind::Send;
    Ok(read(connection, row)?.iter().filter(|waiting| is_send(waiting)).count())
}

/// The number of the newest request that was ever posted.
pub(crate) fn newest(connection: &Connection) -> Result<u64> {
    let sql = "SELECT COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'requests'), 0)";
    let mut statement = connection.prepare_cached(sql).map_err(database)?;
    statement.query_row([], |row| row.get(0)).map(unsigned).map_err(database)
}

/// Requests posted behind a number that still wait.
pub(crate) fn arrivals(connection: &Connection, after: u64, limit: usize) -> Result<Vec<Arrival>> {
    if is_older(connection)? {
        return Ok(Vec::new());
    }
    let sql = "SELECT r.id, t.thread_id FROM requests AS r JOIN threads AS t ON t.id = r.thread WHERE r.id > ? \
               ORDER BY r.id LIMIT ?";
    let mut statement = connection.prepare_cached(sql).map_err(database)?;
    let values = params![signed(after), signed(limit as u64)];
    let found =
        statement.query_map(values, |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))).map_err(database)?;
    let arrival = |(number, thread): (i64, String)| {
        Ok(Arrival { number: unsigned(number), thread: ThreadId::new(thread).map_err(bad_row)? })
    };
    found.map(|raw| arrival(raw.map_err(database)?)).collect()
}

/// What waits for a thread, with the marks; a body that can't be read is no request of ours, and is left out.
fn read(connection: &Connection, row: &Row) -> Result<Vec<(Posted, Option<Digest>)>> {
    if is_older(connection)? {
        return Ok(Vec::new());
    }
    let sql = "SELECT request_id, posted_at, body, mark FROM requests WHERE thread = ? ORDER BY id";
    let mut statement = connection.prepare_cached(sql).map_err(database)?;
    let mut found = statement.query([row.id]).map_err(database)?;
    let mut waiting = Vec::new();
    while let Some(raw) = found.next().map_err(database)? {
        let (id, at): (String, i64) = (raw.get(0).map_err(database)?, raw.get(1).map_err(database)?);
        let (body, mark): (String, Vec<u8>) = (raw.get(2).map_err(database)?, raw.get(3).map_err(database)?);
        let (Ok(id), Ok(request)) = (RequestId::new(id), serde_json::from_str::<Request>(&body)) else { continue };
        let (thread, at) = (row.manifest.thread_id.clone(), Timestamp::from_micros(at));
        waiting.push((Posted { thread, id, at, request }, mark.try_into().ok().map(Digest)));
    }
    Ok(waiting)
}

/// The end of the chain of a thread, as far as it is there.
fn tail(connection: &Connection, thread: &ThreadId) -> Result<Row> {
    let mut row = rows::existing(connection, thread)?;
    for _ in 0..LINKS_MAX {
        let next = row.manifest.continuation_thread_id.as_ref().filter(|_| row.manifest.status == Status::Continued);
        let Some(next) = next.map(|next| rows::find(connection, next)).transpose()?.flatten() else { break };
        row = next;
    }
    Ok(row)
}

fn is_older(connection: &Connection) -> Result<bool> {
    Ok(schema::version(connection)? < FORMAT_OF_REQUESTS)
}
