//! How a batch becomes durable.
//!
//! 1. In the calling thread, holding the queue of each thread it touches: prepare, hash, sign. What is remembered is used first.
//! 2. One call of the function `commit_batch`, which is one round trip and one transaction: every row that the batch was prepared from must
//!    still have the seal that was seen; then rows, log bytes, feed, postings, key and requests are written.
//! 3. If a row changed, memory is dropped and the batch is prepared again from the database.
//!
//! A lost connection says nothing about the commit. The server's process for it is ended and waited for; then the log itself says whether
//! the batch is there, and the caller gets the truth. Only if the server can't be asked for a while the outcome is unknown.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use selvedge_log::hash::{Seals, sha256};
use selvedge_model::digest::hex;
use selvedge_model::event::BlobErased;
use selvedge_model::{Batch, CommitKey, Digest, MessageId, RequestId, Right, Run, RunId, ThreadId};
use selvedge_store::prepare::{Prepared, PreparedPart, prepare, request_hash};
use selvedge_store::seal::{self, ConsumedRequests};
use selvedge_store::{Committed, Error, Result};
use serde_json::{Value, json};

use crate::core::{Core, KnownThread, Signing, binding};
use crate::error::{Failure, GONE, bad_row};
use crate::inbox::Post;
use crate::ledger::StoredAccount;
use crate::rows::{self, Row};
use crate::view::{Basis, PostgresView, Seen};

/// What each attempt reads. If all of them lose to other processes, the threads are too busy.
const ATTEMPTS: [Basis; 40] = {
    let mut all = [Basis::Database; 40];
    all[0] = Basis::Memory;
    all
};
/// The most parts of a batch: the positions of one transaction.
pub(crate) const PARTS_MAX: usize = 4000;
/// How long a lost commit is asked for.
const RESOLVE: Duration = Duration::from_secs(60);

/// A prepared batch, what it was prepared from, and what it writes.
struct Job {
    prepared: Prepared,
    seen: Seen,
    /// The new row of each part.
    rows: Vec<Row>,
    accounts: Vec<StoredAccount>,
    document: Value,
}

impl Core {
    pub(crate) fn commit(&self, batch: &Batch) -> Result<Committed> {
        self.signing()?;
        if batch.parts.len() > PARTS_MAX {
            return Err(Error::BadBatch);
        }
        let mut threads: Vec<_> = batch.parts.iter().map(|part| &part.thread).collect();
        threads.sort_unstable();
        threads.dedup();
        let _turns: Vec<_> = threads.iter().map(|thread| self.queues.enter(thread, None)).collect();
        for basis in ATTEMPTS {
            // A key that was used is noticed by the transaction too.
            if basis == Basis::Database
                && let Some(answer) = self.answered_before(batch)?
            {
                return Ok(answer);
            }
            let job = match self.job(batch, basis) {
                Err(_) if basis == Basis::Memory => {
                    self.forget_all(&threads);
                    continue;
                }
                job => job?,
            };
            match self.write(&job) {
                Ok(()) => return Ok(self.conclude(job)),
                Err(Wrote::Stale) => self.forget_all(&threads),
                Err(Wrote::Gone(_)) if basis == Basis::Memory => self.forget_all(&threads),
                Err(Wrote::Gone(index)) => {
                    let (thread, id) =
                        batch.consumed.get(index).cloned().ok_or_else(|| bad_row("an unknown request"))?;
                    return Err(Error::RequestGone { thread, id });
                }
                Err(Wrote::Failed(error)) => {
                    self.forget_all(&threads);
                    return Err(error);
                }
            }
        }
        Err(Error::Database { why: "gave up after 40 conflicting commits".to_owned(), retryable: true })
    }

    fn forget_all(&self, threads: &[&ThreadId]) {
        let mut memory = self.memory();
        threads.iter().for_each(|thread| memory.forget(thread));
        memory.forget_accounts();
    }

    /// The answer to an earlier commit of the same key.
    fn answered_before(&self, batch: &Batch) -> Result<Option<Committed>> {
        let Some(key) = &batch.key else { return Ok(None) };
        match self.outcome(key)? {
            Some((request, _)) if request != request_hash(batch) => Err(Error::KeyReused(key.clone())),
            Some((_, mut committed)) => {
                let place = |(thread, _): &(ThreadId, u64)| batch.parts.iter().position(|part| part.thread == *thread);
                committed.versions.sort_by_key(place);
                Ok(Some(Committed { replayed: true, ..committed }))
            }
            None => Ok(None),
        }
    }

    pub(crate) fn outcome(&self, key: &CommitKey) -> Result<Option<(Digest, Committed)>> {
        let sql = "SELECT root, request, answer, mark FROM keys WHERE key = $1";
        let found = self.read(|connection| Ok(connection.first(sql, &[&key.as_str()])?))?;
        let Some(found) = found else { return Ok(None) };
        let (root, request, answer): (String, Vec<u8>, String) = (found.get(0), found.get(1), found.get(2));
        let fields = [root.as_bytes(), key.as_str().as_bytes(), &request, answer.as_bytes()];
        rows::check(self.seals(), "keys", &fields, found.get(3), || format!("commit key `{key}`"))?;
        Ok(Some((rows::digest(&request)?, rows::json(&answer)?)))
    }

    fn job(&self, batch: &Batch, basis: Basis) -> Result<Job> {
        let view = PostgresView::new(self, basis);
        let signing = self.signing()?;
        let prepared = prepare(batch.clone(), &view, &signing.signer, &*self.ids, self.clock.now())?;
        let seen = view.into_seen();
        let consumed = self.consumed(&prepared, &seen)?;
        let mut rows = Vec::with_capacity(prepared.parts.len());
        for (part, consumed) in prepared.parts.iter().zip(consumed) {
            let seen = seen.threads.get(&part.thread).map(|seen| &seen.row);
            rows.push(self.row_after(signing, part, seen, consumed)?);
        }
        let posts = self.posts_of(&prepared, &rows)?;
        let accounts = accounts_after(signing, &prepared, &seen, &rows)?;
        let document = document(signing, &prepared, &seen, &rows, &accounts, &posts)?;
        Ok(Job { prepared, seen, rows, accounts, document })
    }

    /// The requests that each part has consumed after the commit. A successor inherits those of the thread that it continues.
    fn consumed(&self, prepared: &Prepared, seen: &Seen) -> Result<Vec<ConsumedRequests>> {
        let mut all = Vec::new();
        for part in &prepared.parts {
            let ids: Vec<_> = prepared.consumed.iter().filter(|(at, _)| *at == part.thread).map(|(_, id)| id).collect();
            all.push(match seen.threads.get(&part.thread) {
                Some(seen) => self.consumed_after(&seen.row, &ids)?,
                None => match ids.first() {
                    Some(id) => {
                        return Err(Error::RequestGone { thread: part.thread.clone(), id: (*id).clone() });
                    }
                    None => ConsumedRequests::default(),
                },
            });
        }
        for (index, part) in prepared.parts.iter().enumerate() {
            let next = part.continued_as.as_ref();
            if let Some(next) = next.and_then(|next| prepared.parts.iter().position(|part| part.thread == *next)) {
                all[next] = all[index].clone();
            }
        }
        Ok(all)
    }

    /// The row of a thread after a part is committed, sealed.
    fn row_after(
        &self,
        signing: &Signing,
        part: &PreparedPart,
        seen: Option<&Row>,
        consumed: ConsumedRequests,
    ) -> Result<Row> {
        let stored = match seen.filter(|_| !part.manifest_changed) {
            Some(seen) => seen.stored,
            None => sha256(rows::to_json(&part.manifest)?.as_bytes()),
        };
        let mut posted = seen.map(|seen| seen.posted.clone()).unwrap_or_default();
        seal::note_postings(&mut posted, &part.events);
        let owner = match part.right {
            Right::Lease(_) => seen.map_or(Some(self.owner.clone()), |seen| seen.owner.clone()),
            Right::Brief => None,
        };
        let number = match seen {
            Some(seen) => seen.number,
            None => self
                .read(|connection| Ok(connection.first("SELECT nextval('thread_numbers')", &[])?))?
                .map_or(0, |row| row.get(0)),
        };
        if owner.is_some() && seen.is_none() {
            self.pulse.register(self)?;
        }
        let head = part.written.head.clone();
        Ok(Row {
            root: part.manifest.family_root().clone(),
            number,
            manifest: part.manifest.clone(),
            stored,
            hash: signing.seal.seal(&binding(&head), &part.written.tail.hash),
            head,
            epoch: part.epoch,
            is_alive: owner.is_some(),
            owner,
            posted,
            consumed,
            is_imported: seen.is_some_and(|seen| seen.is_imported),
            mark: Vec::new(),
        }
        .sealed(&signing.rows))
    }

    /// Writes a job in one transaction.
    fn write(&self, job: &Job) -> Result<(), Wrote> {
        let text = job.document.to_string();
        let logs: Vec<&[u8]> = job.prepared.parts.iter().map(|part| part.written.bytes.as_slice()).collect();
        let mut connection = self.pool.get().map_err(Wrote::of)?;
        let warnings = connection.warnings();
        let backend = connection.backend.clone();
        let written = connection.execute("SELECT commit_batch($1::text::jsonb, $2)", &[&text, &logs]);
        let is_warned = connection.warnings() != warnings;
        drop(connection);
        match written {
            Ok(_) if is_warned => Err(Wrote::Failed(Error::OutcomeUnknown {
                why: "the server committed it, but does not know whether its standby has it".to_owned(),
            })),
            Ok(_) => Ok(()),
            Err(Failure::Lost(why)) => match self.is_committed(job, &backend) {
                Ok(true) => Ok(()),
                // Nothing of it is there, nor will be: it is written again.
                Ok(false) => Err(Wrote::Stale),
                Err(error) => Err(Wrote::Failed(Error::OutcomeUnknown { why: format!("{why}; {error}") })),
            },
            Err(failure) => Err(Wrote::of(failure)),
        }
    }

    /// Whether a job whose answer was lost is committed. The server's process that may still be at it is ended first.
    fn is_committed(&self, job: &Job, backend: &(i32, String)) -> Result<bool> {
        let until = Instant::now() + RESOLVE;
        loop {
            match self.look_for(job, backend) {
                Ok(Some(answer)) => return Ok(answer),
                Err(error) if Instant::now() >= until => return Err(error),
                Ok(None) if Instant::now() >= until => {
                    let why = "the server's process of the lost connection does not end".to_owned();
                    return Err(Error::Database { why, retryable: true });
                }
                // A server that restarts accepts no connections for a moment.
                Ok(None) | Err(_) => sleep(Duration::from_millis(20)),
            }
        }
    }

    /// None while the server's process of the lost connection is still there.
    fn look_for(&self, job: &Job, (pid, started): &(i32, String)) -> Result<Option<bool>> {
        let mut connection = self.pool.get()?;
        let sql = "SELECT pid FROM pg_stat_activity WHERE pid = $1 AND backend_start::text = $2";
        if connection.first(sql, &[pid, started])?.is_some() {
            // Refused to a role that may not: then it is waited for.
            _ = connection.execute("SELECT pg_terminate_backend($1)", &[pid]);
            return Ok(None);
        }
        let Some(part) = job.prepared.parts.first() else { return Ok(Some(false)) };
        let root = job.rows[0].root.as_str();
        if let Some((key, _)) = &job.prepared.key {
            // Waits for a transaction that has inserted the key, wherever it is.
            connection.execute("SELECT settle_key($1, $2)", &[&root, &key.as_str()])?;
        }
        let first_byte = rows::signed(part.before.as_ref().map_or(0, |before| before.bytes));
        let sql = "SELECT sha256(bytes) = $4 FROM log WHERE root = $1 AND thread = $2 AND first_byte = $3";
        let (thread, hash) = (part.thread.as_str(), sha256(&part.written.bytes));
        let found = connection.first(sql, &[&root, &thread, &first_byte, &hash.0.as_slice()])?;
        // The signed bytes name their time, their key and their mates: no other commit has them.
        Ok(Some(found.is_some_and(|row| row.get(0))))
    }

    /// Remembers what was written, and tells followers.
    fn conclude(&self, job: Job) -> Committed {
        let mut committed = job.prepared.committed();
        let is_posted = !job.prepared.posted.is_empty();
        let is_freed = job.prepared.parts.iter().any(|part| matches!(part.right, Right::Brief));
        let mut memory = self.memory();
        for (mut part, row) in job.prepared.parts.into_iter().zip(job.rows) {
            committed.parts.push(part.take_committed());
            let before = job.seen.threads.get(&part.thread).and_then(|seen| seen.state.clone());
            let is_new = part.before.is_none();
            let state = part.state.or(before);
            let state =
                if is_new { state.or_else(|| Some(Arc::new(selvedge_model::fold::empty_state()))) } else { state };
            memory.remember(KnownThread { row, tail: part.written.tail, state });
        }
        for account in job.accounts {
            memory.remember_account(&account.account.id.clone(), account);
        }
        drop(memory);
        self.pulse.tell(crate::pulse::Told { commits: true, requests: is_posted, leases: is_freed });
        self.watch.ring();
        committed
    }
}

/// Why a job was not written.
enum Wrote {
    Stale,
    /// The request of this place is not pending.
    Gone(usize),
    Failed(Error),
}

impl Wrote {
    fn of(failure: Failure) -> Self {
        if failure.is_in_the_way() {
            return Self::Stale;
        }
        match failure {
            Failure::Refused(refusal) if refusal.code == GONE => {
                Self::Gone(refusal.detail.and_then(|index| index.parse().ok()).unwrap_or_default())
            }
            failure => Self::Failed(failure.into()),
        }
    }
}

/// The accounts after a batch, sealed with all their reservations.
fn accounts_after(signing: &Signing, prepared: &Prepared, seen: &Seen, rows: &[Row]) -> Result<Vec<StoredAccount>> {
    let mut all = Vec::new();
    for (id, change) in &prepared.accounts {
        let before = seen.accounts.get(id).cloned().flatten();
        let account = change.after.clone().or_else(|| before.as_ref().map(|before| before.account.clone()));
        let account = account.ok_or_else(|| bad_row(format!("account `{id}` has reservations and no row")))?;
        let root = match &before {
            Some(before) => before.root.clone(),
            None => rows
                .iter()
                .find(|row| row.chain() == id)
                .or(rows.first())
                .map(|row| row.root.clone())
                .ok_or_else(|| bad_row("a posting without a thread"))?,
        };
        let mut reservations = before.map(|before| before.reservations).unwrap_or_default();
        for (name, reservation) in &change.reservations {
            match reservation {
                Some(reservation) => _ = reservations.insert(name.clone(), reservation.clone()),
                None => _ = reservations.remove(name),
            }
        }
        all.push(StoredAccount::sealed(&signing.rows, root, account, reservations));
    }
    Ok(all)
}

/// What `commit_batch` writes.
fn document(
    signing: &Signing,
    prepared: &Prepared,
    seen: &Seen,
    rows: &[Row],
    accounts: &[StoredAccount],
    posts: &Post,
) -> Result<Value> {
    let mut threads = Vec::new();
    for (index, (part, row)) in prepared.parts.iter().zip(rows).enumerate() {
        let before = seen.threads.get(&part.thread).map(|seen| &seen.row);
        let added = Added {
            index,
            feed: index,
            first_byte: part.before.as_ref().map_or(0, |before| before.bytes),
            lines: part.lines(),
            manifest_changed: part.manifest_changed,
            messages: &part.messages,
            runs: &part.runs,
            touched_run: part.touched_run.as_ref(),
            answered: &part.answered,
            erased: &part.erased,
            continued_as: part.continued_as.as_ref(),
        };
        threads.push(thread_document(&signing.rows, row, &added, before)?);
    }
    let mut written = Vec::new();
    for account in accounts {
        let change = &prepared.accounts[&account.account.id];
        let before = seen.accounts.get(&account.account.id).cloned().flatten();
        let mut kept = Vec::new();
        for (name, reservation) in &change.reservations {
            if let Some(reservation) = reservation {
                kept.push(json!([name, rows::to_json(reservation)?]));
            }
        }
        let gone: Vec<_> = change.reservations.iter().filter(|(_, now)| now.is_none()).map(|(name, _)| name).collect();
        written.push(json!({
            "root": account.root, "account": account.account.id, "parent": account.account.parent,
            "body": rows::to_json(&account.account)?, "mark": hex(&account.mark), "seen": before.map(|before| hex(&before.mark)),
            "reservations": kept, "gone": gone,
        }));
    }
    let root_of =
        |thread: &ThreadId| rows.iter().find(|row| row.thread() == thread).or(rows.first()).map(|row| row.root.clone());
    let consumed: Vec<_> = prepared.consumed.iter().enumerate().map(|(index, (thread, id))| {
        json!({"root": root_of(thread), "thread": thread, "request": id, "index": index.to_string()})
    }).collect();
    let key = match &prepared.key {
        Some((key, request)) => {
            let root = rows.first().map(|row| row.root.as_str().to_owned()).unwrap_or_default();
            let answer = rows::to_json(&prepared.committed())?;
            let fields = [root.as_bytes(), key.as_str().as_bytes(), &request.0[..], answer.as_bytes()];
            let mark = rows::mark(&signing.rows, "keys", &fields);
            json!({"root": root, "key": key, "request": hex(&request.0), "answer": answer, "mark": mark})
        }
        None => Value::Null,
    };
    Ok(json!({
        "key": key, "threads": threads, "accounts": written, "consumed": consumed,
        "posted": posts.requests, "inboxes": posts.inboxes,
    }))
}

/// What one changeset adds to a thread.
pub(crate) struct Added<'a> {
    /// Its place among the log bytes of the batch.
    pub(crate) index: usize,
    /// Its place among the positions of the transaction.
    pub(crate) feed: usize,
    pub(crate) first_byte: u64,
    pub(crate) lines: std::ops::Range<u64>,
    /// Whether the stored text of the manifest changes.
    pub(crate) manifest_changed: bool,
    pub(crate) messages: &'a [(MessageId, Digest)],
    pub(crate) runs: &'a [Run],
    pub(crate) touched_run: Option<&'a RunId>,
    pub(crate) answered: &'a [RequestId],
    pub(crate) erased: &'a [BlobErased],
    pub(crate) continued_as: Option<&'a ThreadId>,
}

/// The rows of one changeset, as `commit_batch` takes them. Imports write with it too: there is no second way to write a head.
pub(crate) fn thread_document(seals: &Seals, row: &Row, added: &Added<'_>, before: Option<&Row>) -> Result<Value> {
    let log = row.head.log_id.as_str().as_bytes();
    let manifest = &row.manifest;
    let thread = row.thread();
    let text = match before {
        Some(_) if !added.manifest_changed => None,
        _ => Some(rows::to_json(manifest)?),
    };
    let messages = added.messages.iter().map(|(id, digest)| {
        let mark = rows::mark(seals, "messages", &[log, id.as_str().as_bytes(), &digest.0]);
        json!([id, hex(&digest.0), mark])
    });
    let mut runs = Vec::new();
    for run in added.runs {
        let body = rows::to_json(run)?;
        let mark = rows::mark(seals, "runs", &[log, run.run_id.as_str().as_bytes(), body.as_bytes()]);
        runs.push(json!([run.run_id, body, mark]));
    }
    let version = row.head.version.to_be_bytes();
    let answered = added.answered.iter().map(|id| {
        let fields = [row.chain().as_str().as_bytes(), id.as_str().as_bytes(), thread.as_str().as_bytes(), &version];
        json!([id, rows::mark(seals, "answers", &fields)])
    });
    let at = manifest.updated_at.as_micros();
    let erased = added.erased.iter().map(|erased| {
        let reason = json!(erased.reason).to_string();
        let fields = [log, &erased.blob.0[..], reason.as_bytes(), &at.to_be_bytes()];
        json!([hex(&erased.blob.0), reason, rows::mark(seals, "erasures", &fields)])
    });
    Ok(json!({
        "index": added.index, "feed": added.feed,
        "root": row.root, "thread": thread, "number": row.number, "head": rows::to_json(&row.head)?,
        "hash": hex(&row.hash), "manifest": text, "epoch": row.epoch, "owner": row.owner, "updated_at": at,
        "posted": rows::to_json(&row.posted)?, "consumed": rows::to_json(&row.consumed)?, "mark": hex(&row.mark),
        "seen": before.map(|before| hex(&before.mark)), "version": row.head.version,
        "agent": manifest.agent_id, "directive": manifest.directive, "status": manifest.status,
        "parent": manifest.parent_id, "chain": manifest.chain_root_id, "title": manifest.title.as_deref().map(rows::lower), "hex": thread.hex(),
        "first_byte": added.first_byte,
        "first_line": added.lines.start, "lines": added.lines.end - added.lines.start,
        "messages": messages.collect::<Vec<_>>(), "runs": runs, "answered": answered.collect::<Vec<_>>(),
        "touched": added.touched_run.filter(|_| added.runs.is_empty()),
        "erased": erased.collect::<Vec<_>>(), "continued_as": added.continued_as,
    }))
}
