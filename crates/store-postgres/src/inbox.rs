//! Requests to threads: sealed, numbered within their chain, moved along it, and remembered after they are consumed.
//!
//! The number of a request is part of its seal, and the key never reaches the server. So the caller reads which numbers its chain has, takes
//! the next one, and the insertion fails if another caller was faster.

use std::collections::HashMap;

use selvedge_model::digest::hex;
use selvedge_model::{Posted, RequestId, ThreadId, Timestamp};
use selvedge_store::prepare::Prepared;
use selvedge_store::seal::ConsumedRequests;
use selvedge_store::{Delivery, Error, PostedNotice, QueuedRequest, Result, inbox};
use serde_json::{Value, json};

use crate::core::Core;
use crate::error::{Failure, bad_row};
use crate::pulse::Told;
use crate::rows::{self, Row};

/// The most threads of a chain that a request is passed along.
const LINKS_MAX: usize = 10_000;
/// How often posting is tried against other callers.
const ATTEMPTS: usize = 100;

/// The rows that posting writes.
#[derive(Default)]
pub(crate) struct Post {
    pub(crate) requests: Vec<Value>,
    pub(crate) inboxes: Vec<Value>,
}

/// A request as it is stored.
pub(crate) struct StoredRequest {
    number: u64,
    posted: Posted,
    mark: Vec<u8>,
}

/// The numbers that were posted to a chain and were not consumed when the newest one came.
#[derive(Clone, Default)]
struct Numbers {
    posted: Vec<u64>,
    /// The family and the seal of the row, if there is one.
    seen: Option<(ThreadId, Vec<u8>)>,
}

/// The end of a chain, and what waits there.
struct Target {
    thread: ThreadId,
    root: ThreadId,
    chain: ThreadId,
    /// The highest number that was ever given to a request of this chain.
    highest: u64,
    waiting: Vec<(RequestId, selvedge_model::Request)>,
    numbers: Numbers,
    is_changed: bool,
}

impl Core {
    pub(crate) fn post(&self, posted: &Posted) -> Result<Delivery> {
        self.signing()?;
        for _ in 0..ATTEMPTS {
            let row = self.tail_of(&posted.thread)?;
            let mut targets = HashMap::new();
            let mut post = Post::default();
            let delivery = self.add_post(posted, &row, &mut targets, &mut post)?;
            if post.requests.is_empty() {
                return Ok(delivery);
            }
            self.finish_posts(targets, &mut post)?;
            let requests = Value::Array(post.requests).to_string();
            let boxes = Value::Array(post.inboxes).to_string();
            let sql = "SELECT put_requests($1::text::jsonb, $2::text::jsonb)";
            let put = self.pool.get().and_then(|mut connection| {
                let warnings = connection.warnings();
                connection.execute(sql, &[&requests, &boxes])?;
                Ok(connection.warnings() != warnings)
            });
            match put {
                Ok(false) => {
                    self.pulse.tell(Told { requests: true, ..Told::default() });
                    self.watch.ring();
                    return Ok(delivery);
                }
                Ok(true) => {
                    let why = "the server does not know whether its standby has the request".to_owned();
                    return Err(Error::OutcomeUnknown { why });
                }
                // A lost answer is no matter: posted again it is the same request.
                Err(Failure::Lost(_)) => {}
                Err(failure) if failure.is_in_the_way() => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(Error::Database { why: "gave up after 100 conflicting posts".to_owned(), retryable: true })
    }

    /// What a batch posts. `rows` are the threads that it writes, as they are afterwards.
    pub(crate) fn posts_of(&self, prepared: &Prepared, rows: &[Row]) -> Result<Post> {
        let mut post = Post::default();
        let mut targets = HashMap::new();
        for posted in &prepared.posted {
            let written = |thread: &ThreadId| rows.iter().find(|row| row.thread() == thread);
            let mut row = match written(&posted.thread) {
                Some(row) => row.clone(),
                None => self.tail_of(&posted.thread)?,
            };
            // A thread that this batch continues passes it on.
            while let Some(next) = row.successor() {
                row = match written(next) {
                    Some(next) => next.clone(),
                    None => self.tail_of(next)?,
                };
            }
            self.add_post(posted, &row, &mut targets, &mut post)?;
        }
        self.finish_posts(targets, &mut post)?;
        Ok(post)
    }

    /// Adds one request to the end of its chain, unless it is there or was consumed.
    fn add_post(
        &self,
        posted: &Posted,
        row: &Row,
        targets: &mut HashMap<ThreadId, Target>,
        post: &mut Post,
    ) -> Result<Delivery> {
        let thread = row.thread().clone();
        if let Some((thread, version)) = self.answered_in(row, &posted.id)? {
            return Ok(Delivery { thread, answered: Some(version) });
        }
        if !targets.contains_key(row.chain()) {
            targets.insert(row.chain().clone(), self.target(row)?);
        }
        let Some(target) = targets.get_mut(row.chain()) else { return Err(bad_row("a chain without a target")) };
        if let Some((_, known)) = target.waiting.iter().find(|(id, _)| *id == posted.id) {
            return if *known == posted.request {
                Ok(Delivery { thread, answered: None })
            } else {
                Err(Error::RequestReused { thread, id: posted.id.clone() })
            };
        }
        target.highest += 1;
        let number = target.highest;
        let stored = Posted { thread: target.thread.clone(), ..posted.clone() };
        let mark = inbox::mark(&self.signing()?.rows, &target.chain, number, &stored);
        post.requests.push(json!({
            "root": target.root, "chain": target.chain, "number": number, "thread": target.thread, "request": posted.id,
            "holds": posted.request.kind().holds_lease(), "posted_at": posted.at.as_micros(),
            "body": rows::to_json(&posted.request)?, "mark": hex(&mark.0),
        }));
        target.numbers.posted.push(number);
        target.waiting.push((posted.id.clone(), posted.request.clone()));
        target.is_changed = true;
        Ok(Delivery { thread, answered: None })
    }

    fn target(&self, row: &Row) -> Result<Target> {
        let mut numbers = self.numbers(row)?;
        let highest = numbers.posted.iter().copied().max().unwrap_or(0).max(row.consumed.newest);
        numbers.posted.retain(|number| !row.consumed.has(*number));
        // Of the whole chain: what this batch continues passes its requests on.
        let waiting = self.waiting_in(row, true)?;
        let highest = waiting.iter().map(|one| one.number).fold(highest, u64::max);
        Ok(Target {
            thread: row.thread().clone(),
            root: row.root.clone(),
            chain: row.chain().clone(),
            highest,
            waiting: waiting.into_iter().map(|one| (one.posted.id, one.posted.request)).collect(),
            numbers,
            is_changed: false,
        })
    }

    /// Seals the inboxes that were posted to.
    fn finish_posts(&self, targets: HashMap<ThreadId, Target>, post: &mut Post) -> Result<()> {
        for target in targets.into_values().filter(|target| target.is_changed) {
            let posted = rows::to_json(&target.numbers.posted)?;
            let fields = [target.chain.as_str().as_bytes(), posted.as_bytes()];
            let mark = rows::mark(&self.signing()?.rows, "inboxes", &fields);
            let (root, seen) = match target.numbers.seen {
                Some((root, seen)) => (root, Some(hex(&seen))),
                None => (target.root, None),
            };
            post.inboxes
                .push(json!({"root": root, "chain": target.chain, "posted": posted, "mark": mark, "seen": seen}));
        }
        Ok(())
    }

    fn numbers(&self, row: &Row) -> Result<Numbers> {
        let sql = "SELECT posted, mark, root FROM inboxes WHERE chain = $1";
        let chain = row.chain().as_str();
        let found = self.read(|connection| Ok(connection.first(sql, &[&chain])?))?;
        let Some(found) = found else { return Ok(Numbers::default()) };
        let (text, mark): (String, Vec<u8>) = (found.get(0), found.get(1));
        let fields = [chain.as_bytes(), text.as_bytes()];
        rows::check(self.seals(), "inboxes", &fields, &mark, || format!("the requests to `{}`", row.thread()))?;
        Ok(Numbers { posted: rows::json(&text)?, seen: Some((rows::id(found.get(2))?, mark)) })
    }

    /// The waiting requests of a thread, or of its whole chain; a row that can't be decoded is skipped.
    fn waiting_in(&self, row: &Row, is_whole_chain: bool) -> Result<Vec<StoredRequest>> {
        let sql =
            "SELECT request, posted_at, body, mark, number, thread FROM requests WHERE chain = $1 ORDER BY number";
        let chain = row.chain().as_str();
        let found = self.read(|connection| Ok(connection.query(sql, &[&chain])?))?;
        let mut waiting = Vec::new();
        for one in found {
            let thread: String = one.get(5);
            if !is_whole_chain && thread != row.thread().as_str() {
                continue;
            }
            let (id, body): (String, String) = (one.get(0), one.get(2));
            let (Ok(id), Ok(request)) = (RequestId::new(id), serde_json::from_str(&body)) else { continue };
            let thread = row.thread().clone();
            let at = Timestamp::from_micros(one.get(1));
            let number = rows::unsigned(one.get(4));
            waiting.push(StoredRequest { number, posted: Posted { thread, id, at, request }, mark: one.get(3) });
        }
        Ok(waiting)
    }

    pub(crate) fn pending(&self, thread: &ThreadId) -> Result<Vec<QueuedRequest>> {
        let row = self.existing(thread)?;
        let found = self.waiting_in(&row, false)?;
        if row.successor().is_none() {
            let numbers = self.numbers(&row)?;
            let is_there = |number: &&u64| found.iter().any(|one| one.number == **number);
            if numbers.posted.iter().any(|number| !row.consumed.has(*number) && !is_there(&number)) {
                // It may have been consumed since the row was read.
                let now = self.existing(thread)?;
                if now.head == row.head {
                    self.note_problem(format!(
                        "a request to `{thread}` was removed from the database before it was consumed"
                    ));
                }
            }
        }
        Ok(found
            .into_iter()
            .map(|one| {
                let is_sealed = self.seals().is_some_and(|seals| {
                    rows::digest(&one.mark)
                        .is_ok_and(|mark| inbox::is_marked(seals, row.chain(), one.number, &one.posted, &mark))
                }) && !row.consumed.has(one.number);
                QueuedRequest { posted: one.posted, is_sealed }
            })
            .collect())
    }

    /// The numbers that a thread has consumed after these requests are consumed too.
    pub(crate) fn consumed_after(&self, row: &Row, taken: &[&RequestId]) -> Result<ConsumedRequests> {
        let mut after = row.consumed.clone();
        if taken.is_empty() {
            return Ok(after);
        }
        let waiting = self.waiting_in(row, false)?;
        let is_taken = |one: &&StoredRequest| taken.contains(&&one.posted.id);
        let consumed: Vec<u64> = waiting.iter().filter(is_taken).map(|one| one.number).collect();
        if let Some(gone) = taken.iter().find(|id| waiting.iter().all(|one| one.posted.id != ***id)) {
            return Err(Error::RequestGone { thread: row.thread().clone(), id: (**gone).clone() });
        }
        let mut pending = self.numbers(row)?.posted;
        pending.extend(waiting.iter().map(|one| one.number));
        pending.sort_unstable();
        pending.dedup();
        after.consume(&consumed, &pending);
        Ok(after)
    }

    /// The thread and version at which a request was consumed in the chain of a thread.
    pub(crate) fn answered_in(&self, row: &Row, id: &RequestId) -> Result<Option<(ThreadId, u64)>> {
        let sql = "SELECT thread, version, mark FROM answers WHERE chain = $1 AND request = $2";
        let (chain, name) = (row.chain().as_str(), id.as_str());
        let found = self.read(|connection| Ok(connection.first(sql, &[&chain, &name])?))?;
        let Some(found) = found else { return Ok(None) };
        let (thread, version): (String, i64) = (found.get(0), found.get(1));
        let version = rows::unsigned(version);
        let fields = [chain.as_bytes(), name.as_bytes(), thread.as_bytes(), &version.to_be_bytes()];
        rows::check(self.seals(), "answers", &fields, found.get(2), || format!("request `{id}`"))?;
        Ok(Some((rows::id(thread)?, version)))
    }

    /// The last thread of a thread's chain, as far as it is in this store.
    pub(crate) fn tail_of(&self, thread: &ThreadId) -> Result<Row> {
        let mut row = self.existing(thread)?;
        for _ in 0..LINKS_MAX {
            let Some(next) = row.successor().cloned() else { break };
            let Some(found) = self.find(&next)? else { break };
            row = found;
        }
        Ok(row)
    }

    /// The number of the newest request that was ever posted.
    pub(crate) fn newest_request(&self) -> Result<u64> {
        let sql = "SELECT COALESCE(max(arrival), 0) FROM inboxes WHERE arrival < horizon()";
        let above = "SELECT horizon() FROM inboxes WHERE arrival >= horizon() LIMIT 1";
        self.below_horizon(above, |connection| {
            Ok(connection.first(sql, &[])?.map_or(0, |row| rows::unsigned(row.get(0))))
        })
    }

    pub(crate) fn arrivals(&self, after: u64, limit: usize) -> Result<Vec<PostedNotice>> {
        let sql =
            "SELECT arrival, thread FROM requests WHERE arrival > $1 AND arrival < horizon() ORDER BY arrival LIMIT $2";
        let above = "SELECT horizon() FROM requests WHERE arrival >= horizon() LIMIT 1";
        let values = (rows::signed(after), rows::signed(limit as u64));
        let found = self.below_horizon(above, |connection| Ok(connection.query(sql, &[&values.0, &values.1])?))?;
        let notice = |row: tokio_postgres::Row| {
            Ok(PostedNotice { number: rows::unsigned(row.get(0)), thread: rows::id(row.get(1))? })
        };
        found.into_iter().map(notice).collect()
    }
}
