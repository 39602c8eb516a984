//! How a batch becomes durable and visible.
//!
//! 1. In the calling thread, holding the queue of each thread it touches: prepare, hash, sign.
//! 2. Together with other waiting batches, under `commit.lock` and in one SQLite transaction: compare heads, epochs, accounts, keys and
//!    requests with those that the batch was prepared from; write heads, redo, index and feed; one sync.
//! 3. New threads get their folder and file, still under `commit.lock`: no process can delete a thread before its file exists, and
//!    have the file created again afterwards.
//! 4. Back in the calling thread, while other threads commit: drain the redo into the transcripts, unsynced. Then acknowledge.
//!
//! A crash before the transaction's sync leaves nothing. A crash after it leaves redo, which the next process that opens the store drains.
//! After the transaction the answer is never "failed": a drain that fails is repeated by the next writer. A drain that comes late, when
//! another process has drained the same bytes and committed more, writes bytes that are there already.

use std::collections::HashMap;
use std::sync::Arc;

use selvedge_model::{Batch, CommitKey, Right, ThreadId};
use selvedge_store::prepare::{Prepared, PreparedPart, prepare, request_hash};
use selvedge_store::seal::ConsumedRequests;
use selvedge_store::{Committed, Delivery, Error, Result, seal};

use crate::core::{CachedThread, Core, DbWriter, Durability, PendingThread, Signing, TransactionEnd, lock, run};
use crate::db::Db;
use crate::feed::FeedEnd;
use crate::inbox;
use crate::index::{self, AddedRows, RowUpdate};
use crate::leading_events::LeadingEvents;
use crate::redo;
use crate::rows::{self, Row};
use crate::sealed::Mark;
use crate::view::{LocalView, ReadSource};
use selvedge_store::saved_state;

/// What each attempt to commit a batch reads. A batch that lost to other processes three times is prepared under `commit.lock`, where no
/// other process can commit; if that keeps failing, a file is being damaged faster than it is repaired.
const ATTEMPTS: [ReadSource; 10] = {
    use ReadSource::{Cache, Database, Locked};
    [Cache, Database, Database, Locked, Database, Locked, Database, Locked, Database, Locked]
};

/// A prepared batch and what it was prepared from.
pub(crate) struct Job {
    prepared: Prepared,
    seen: HashMap<ThreadId, Arc<CachedThread>>,
    /// The new row of each part, and the text of its manifest if that changed.
    rows: Vec<(Row, Option<String>)>,
}

impl Job {
    /// A job that was prepared without reading any thread.
    pub(crate) fn of(prepared: Prepared) -> Self {
        Self { prepared, seen: HashMap::new(), rows: Vec::new() }
    }
}

/// What a job wrote.
#[derive(Default)]
pub(crate) struct WrittenJob {
    /// The row numbers of each part.
    numbers: Vec<Numbers>,
    /// Where each posted request was delivered.
    pub(crate) left: Vec<Delivery>,
}

/// The outcome of a job.
pub(crate) enum JobOutcome {
    /// It is durable; the caller that submitted it drains it.
    Durable(Box<Job>, WrittenJob),
    /// It was prepared from data that has changed since; nothing was written.
    Stale,
    /// It was refused; nothing was written.
    Refused(Error),
}

impl From<Error> for JobOutcome {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// A thread whose `thread.json` must be written.
pub(crate) struct StaleManifest {
    pub(crate) thread: ThreadId,
    pub(crate) id: i64,
}

/// Why a job was not written.
enum Refusal {
    Stale,
    Because(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Because(error)
    }
}

/// Why a transaction of several jobs was not written.
enum GroupError {
    /// One of them was refused after some of it was written.
    OneRefused,
    Because(Error),
}

impl From<Error> for GroupError {
    fn from(error: Error) -> Self {
        Self::Because(error)
    }
}

/// One result per job.
type Results = Vec<Result<WrittenJob, Refusal>>;

impl Core {
    pub(crate) fn commit(&self, batch: &Batch) -> Result<Committed> {
        // A store that only reads says so, whatever it is asked to commit.
        self.writer()?;
        let mut threads: Vec<_> = batch.parts.iter().map(|part| &part.thread).collect();
        threads.sort_unstable();
        threads.dedup();
        let _turns: Vec<_> = threads.iter().map(|thread| self.queues.enter(thread, None)).collect();
        for basis in ATTEMPTS {
            if let Some(answer) = self.answered(batch)? {
                return Ok(answer);
            }
            let outcome = match basis {
                ReadSource::Locked => self.commit_locked(batch),
                ReadSource::Cache | ReadSource::Database => {
                    self.job(batch, basis).map(|job| self.group.submit(job, |jobs| self.commit_together(jobs)))
                }
            };
            let outcome = match outcome {
                // Memory may be outdated, and an unrepaired file can't be repaired under the lock; only an error from the database is
                // final.
                Err(_) if basis != ReadSource::Database => continue,
                outcome => outcome?,
            };
            match outcome {
                JobOutcome::Durable(job, written) => {
                    let (committed, stale_manifests) = self.conclude(*job, written.numbers);
                    self.show_manifests(&stale_manifests);
                    self.erase_committed(batch);
                    return Ok(committed);
                }
                JobOutcome::Stale => threads.iter().for_each(|thread| self.forget(thread)),
                JobOutcome::Refused(error) => return Err(error),
            }
        }
        Err(Error::Database { why: "gave up after 10 conflicting commits".to_owned(), retryable: true })
    }

    fn job(&self, batch: &Batch, basis: ReadSource) -> Result<Job> {
        let view = LocalView::new(self, basis);
        let signing = self.signing()?;
        let prepared = prepare(batch.clone(), &view, &signing.signer, &*self.ids, self.clock.now())?;
        let seen = view.into_seen();
        let consumed = self.consumed(&prepared, &seen)?;
        let row = |(part, consumed): (&PreparedPart, ConsumedRequests)| {
            self.row_after(signing, part, seen.get(&part.thread).map(|seen| &seen.row), consumed)
        };
        let rows = prepared.parts.iter().zip(consumed).map(row).collect::<Result<_>>()?;
        Ok(Job { prepared, seen, rows })
    }

    /// The requests that each part has consumed after the commit. A successor inherits those of the thread that it continues.
    fn consumed(
        &self,
        prepared: &Prepared,
        seen: &HashMap<ThreadId, Arc<CachedThread>>,
    ) -> Result<Vec<ConsumedRequests>> {
        let after = |part: &PreparedPart| {
            let consumed: Vec<_> =
                prepared.consumed.iter().filter(|(at, _)| *at == part.thread).map(|(_, id)| id).collect();
            match seen.get(&part.thread) {
                Some(seen) => self.consumed_after(&seen.row, &consumed),
                None => Ok(ConsumedRequests::default()),
            }
        };
        let mut consumed = prepared.parts.iter().map(after).collect::<Result<Vec<_>>>()?;
        for (index, part) in prepared.parts.iter().enumerate() {
            let next = part.continued_as.as_ref();
            let next = next.and_then(|next| prepared.parts.iter().position(|part| part.thread == *next));
            if let Some(next) = next {
                consumed[next] = consumed[index].clone();
            }
        }
        Ok(consumed)
    }

    /// The row of a thread after a part is committed, sealed, and the text of its manifest if that changed.
    fn row_after(
        &self,
        signing: &Signing,
        part: &PreparedPart,
        seen: Option<&Row>,
        consumed: ConsumedRequests,
    ) -> Result<(Row, Option<String>)> {
        let (text, stored) = match seen.filter(|_| !part.manifest_changed) {
            Some(seen) => (None, seen.stored),
            None => index::stored(&part.manifest).map(|(text, digest)| (Some(text), digest))?,
        };
        let mut posted = seen.map(|seen| seen.posted.clone()).unwrap_or_default();
        seal::note_postings(&mut posted, &part.events);
        let owner = match part.right {
            Right::Lease(_) => seen.map_or(Some(self.owner.clone()), |seen| seen.owner.clone()),
            Right::Brief => None,
        };
        let head = part.written.head.clone();
        let manifest = part.manifest.clone();
        let sealed = index::seal(&signing.seal, &head, &part.written.tail.hash);
        let id = seen.map_or(0, |seen| seen.id);
        let epoch = part.epoch;
        let mark = Mark::NONE;
        // Lines that waited to lead a changeset lead this one.
        let leads = 0;
        let anchor = seen.map_or(0, |seen| seen.anchor).max(self.anchor.epoch());
        let row = Row { id, manifest, stored, head, sealed, epoch, owner, posted, consumed, leads, anchor, mark };
        // A new row is sealed when it is inserted, because its seal covers its number.
        let row = if seen.is_some() { row.sealed(Some(&signing.rows.seals)) } else { row };
        Ok((row, text))
    }

    /// The answer to an earlier commit of the same key.
    fn answered(&self, batch: &Batch) -> Result<Option<Committed>> {
        let Some(key) = &batch.key else { return Ok(None) };
        match self.outcome(key)? {
            Some((request, _)) if request != request_hash(batch) => Err(Error::KeyReused(key.clone())),
            Some((_, mut committed)) => {
                self.refuse_lost(&committed)?;
                // An answer that was restored from the logs has lost the order of its parts; the request still has it.
                let place = |(thread, _): &(ThreadId, u64)| batch.parts.iter().position(|part| part.thread == *thread);
                committed.versions.sort_by_key(place);
                Ok(Some(Committed { replayed: true, ..committed }))
            }
            None => Ok(None),
        }
    }

    /// Refuses the answer to an earlier commit of which a version is lost: nothing of it would be there, and nothing would be added.
    fn refuse_lost(&self, committed: &Committed) -> Result<()> {
        for (thread, version) in &committed.versions {
            let Some(row) = self.read(|connection| rows::find(connection, thread))? else { continue };
            // Until the loss is signed, the head is still before it.
            if *version > row.head.version || row.manifest.lost.iter().any(|lost| lost.contains(*version)) {
                return Err(Error::VersionLost { thread: thread.clone(), version: *version });
            }
        }
        Ok(())
    }

    pub(crate) fn outcome(&self, key: &CommitKey) -> Result<Option<(selvedge_model::Digest, Committed)>> {
        self.read(|connection| rows::key(connection, key))
    }

    /// Commits jobs in one transaction; returns one outcome per job, in order.
    pub(crate) fn commit_together(&self, jobs: Vec<Job>) -> Vec<JobOutcome> {
        let count = jobs.len();
        self.commit_jobs(|| Ok(jobs)).unwrap_or_else(|error| refuse_all(count, &error))
    }

    /// Prepares and commits a batch while no other process can write.
    fn commit_locked(&self, batch: &Batch) -> Result<JobOutcome> {
        let mut outcomes = self.commit_jobs(|| Ok(vec![self.job(batch, ReadSource::Locked)?]))?;
        Ok(outcomes.pop().unwrap_or(JobOutcome::Stale))
    }

    fn commit_jobs(&self, jobs: impl FnOnce() -> Result<Vec<Job>>) -> Result<Vec<JobOutcome>> {
        let outcomes = lock(self.writer()?).exclusive(&self.layout, |writer| {
            let jobs = jobs()?;
            let written = self.write_jobs(writer, &jobs);
            let used = written.iter().flatten().flatten().flat_map(|written| &written.numbers);
            let used = used.map(|numbers| numbers.redo.id()).collect();
            lock(&self.spares).settle(used);
            let outcome = |(job, result): (Job, Result<WrittenJob, Refusal>)| match result {
                Ok(mut written) => {
                    self.make_files(&job, &mut written.numbers);
                    JobOutcome::Durable(Box::new(job), written)
                }
                Err(Refusal::Stale) => JobOutcome::Stale,
                Err(Refusal::Because(error)) => JobOutcome::Refused(error),
            };
            Ok(jobs.into_iter().zip(written?).map(outcome).collect::<Vec<_>>())
        })?;
        self.notify_waiters();
        Ok(outcomes)
    }

    /// Writes jobs in one transaction. Few are refused, and most of those before anything of them is written. Savepoints cost a copy of
    /// every changed page, so they are used only once a job turns out to need one.
    fn write_jobs(&self, writer: &mut DbWriter, jobs: &[Job]) -> Result<Results> {
        let at_once = |connection: &Db| self.write_at_once(connection, jobs);
        let ended = match writer.transaction(&self.layout, Durability::Synced, at_once) {
            TransactionEnd::Known(Err(GroupError::OneRefused)) => {
                let each = |connection: &Db| Ok(self.write_each(connection, jobs)?);
                writer.transaction(&self.layout, Durability::Synced, each)
            }
            ended => ended,
        };
        match ended {
            TransactionEnd::Known(Ok(results)) => Ok(results),
            TransactionEnd::Known(Err(GroupError::Because(error))) => Err(error),
            TransactionEnd::Known(Err(GroupError::OneRefused)) => {
                Ok(jobs.iter().map(|_| Err(Refusal::Stale)).collect())
            }
            TransactionEnd::Unknown(results, why) => Ok(self.look_up(jobs, results, &why)),
        }
    }

    /// Writes jobs without savepoints; gives up when a job is refused after some of it was written.
    fn write_at_once(&self, connection: &Db, jobs: &[Job]) -> Result<Results, GroupError> {
        let mut results = Vec::with_capacity(jobs.len());
        let mut newest = FeedEnd::newest(connection)?;
        for job in jobs {
            let changes = connection.total_changes();
            let result = self.write_job(connection, &mut newest, job);
            match &result {
                Ok(_) => {}
                Err(Refusal::Stale) if connection.total_changes() == changes => {}
                Err(_) => return Err(GroupError::OneRefused),
            }
            results.push(result);
        }
        Ok(results)
    }

    /// Writes jobs, each in a savepoint that is rolled back if the job is refused.
    fn write_each(&self, connection: &Db, jobs: &[Job]) -> Result<Results> {
        let mut results = Vec::with_capacity(jobs.len());
        let mut newest = FeedEnd::newest(connection)?;
        for job in jobs {
            let before = newest.clone();
            run(connection, "SAVEPOINT job")?;
            let result = self.write_job(connection, &mut newest, job);
            if let Err(refusal) = result {
                // Some errors, such as a counter at its end, undo the whole transaction, and with it the place to go back to.
                if connection.is_autocommit() {
                    return Err(match refusal {
                        Refusal::Because(error) => error,
                        Refusal::Stale => Error::Database { why: "the transaction ended".to_owned(), retryable: true },
                    });
                }
                run(connection, "ROLLBACK TO job")?;
                newest = before;
                run(connection, "RELEASE job")?;
                results.push(Err(refusal));
                continue;
            }
            run(connection, "RELEASE job")?;
            results.push(result);
        }
        Ok(results)
    }

    /// After a commit whose sync failed: jobs whose rows are visible were committed; the outcome of the others is unknown.
    fn look_up(&self, jobs: &[Job], results: Results, why: &str) -> Results {
        let is_there = |part: &PreparedPart| {
            let row = self.read(|connection| rows::find(connection, &part.thread));
            row.is_ok_and(|row| row.is_some_and(|row| row.head == part.written.head))
        };
        let look = |(job, result): (&Job, Result<WrittenJob, Refusal>)| match result {
            Ok(_) if job.prepared.parts.is_empty() || !job.prepared.parts.iter().all(is_there) => {
                Err(Refusal::Because(Error::OutcomeUnknown { why: why.to_owned() }))
            }
            other => other,
        };
        jobs.iter().zip(results).map(look).collect()
    }

    /// `newest` is the newest feed position; a caller that rolls back a job restores it too.
    fn write_job(&self, connection: &Db, newest: &mut FeedEnd, job: &Job) -> Result<WrittenJob, Refusal> {
        let prepared = &job.prepared;
        let mut written = WrittenJob::default();
        for (part, (row, manifest)) in prepared.parts.iter().zip(&job.rows) {
            let seen = job.seen.get(&part.thread).map(Arc::as_ref);
            written.numbers.push(self.write_part(connection, newest, part, (row, manifest.as_deref()), seen)?);
        }
        for (id, account) in &prepared.accounts {
            // The seal of the new row must not cover rows that fail their own seal, or that no account sealed.
            if rows::accounts(connection, "thread_id = ?", id.as_str())?.is_empty() {
                rows::refuse_stray_reservations(connection, id)?;
            }
            for (name, reservation) in &account.reservations {
                rows::put_reservation(connection, id, name, reservation.as_ref())?;
            }
            if let Some(after) = &account.after
                && !rows::put_account(connection, account.before, after)?
            {
                return Err(Refusal::Stale);
            }
        }
        for (thread, id) in &prepared.consumed {
            inbox::take(connection, thread, id)?;
        }
        for part in &prepared.parts {
            if let Some(next) = &part.continued_as {
                inbox::pass_on(connection, &part.thread, next)?;
            }
        }
        for posted in &prepared.posted {
            written.left.push(self.put_request(connection, posted)?);
        }
        if let Some((key, request)) = &prepared.key
            && !rows::put_key(connection, key, request, &prepared.committed())?
        {
            return Err(Refusal::Stale);
        }
        Ok(written)
    }

    fn write_part(
        &self,
        connection: &Db,
        newest: &mut FeedEnd,
        part: &PreparedPart,
        (row, manifest): (&Row, Option<&str>),
        seen: Option<&CachedThread>,
    ) -> Result<Numbers, Refusal> {
        let head = &part.written.head;
        let lines = part.lines();
        let counts = seen.map(|seen| newest.head_counts(seen.row.id, head.version, &lines));
        let spare = lock(&self.spares).lend(part.written.bytes.len());
        let now = RowUpdate {
            row,
            manifest,
            manifest_shown: part.manifest_shown,
            counts: counts.as_deref(),
            redo: spare.map(|spare| spare.id()),
        };
        let (id, mark) = match seen {
            Some(seen) => {
                if !index::move_head(connection, &now, &seen.row)? {
                    return Err(Refusal::Stale);
                }
                for lead in &seen.leads.rows {
                    rows::execute(connection, "DELETE FROM leads WHERE id = ?", [lead])?;
                }
                (seen.row.id, row.mark)
            }
            None => {
                let seals = &self.signing()?.rows.seals;
                let inserted = index::insert_thread(connection, &now, Some(seals))?.ok_or(Refusal::Stale)?;
                (inserted.id, inserted.mark)
            }
        };
        let offset = part.before.as_ref().map_or(0, |before| before.bytes);
        let before = seen.map_or(redo::NONE, |seen| seen.redo);
        let redo = redo::put(connection, spare, (id, offset), &part.written.bytes, before)?;
        if let Some(lost) = spare.filter(|spare| spare.id() != redo.id()) {
            lock(&self.spares).forget(&lost);
        }
        newest.announce(connection, id, head.version, &lines)?;
        let added = AddedRows {
            log: &head.log_id,
            messages: &part.messages,
            runs: &part.runs,
            erased: &part.erased,
            touched_run: part.touched_run.as_ref(),
            at: part.manifest.updated_at,
        };
        if !index::add(connection, id, &added)? {
            return Err(Refusal::Stale);
        }
        let chain = (&part.thread, &part.manifest.chain_root_id);
        inbox::remember(connection, id, chain, &part.answered, head.version)?;
        let saved_state = self.save_state(connection, id, part, seen.and_then(|seen| seen.saved_state))?;
        Ok(Numbers { id, mark, redo, saved_state, is_drained: false })
    }

    /// Saves a changed state once the log has grown by the state's size since it was last saved, so that saving never costs more than the
    /// log itself, however large the state.
    fn save_state(
        &self,
        connection: &Db,
        id: i64,
        part: &PreparedPart,
        saved: Option<(u64, u64)>,
    ) -> Result<Option<(u64, u64)>> {
        let Some(state) = &part.state else { return Ok(saved) };
        let head = &part.written.head;
        if saved.is_some_and(|(bytes, size)| head.bytes - bytes < size) {
            return Ok(saved);
        }
        let text = saved_state::seal(&self.signing()?.seal, head, &part.written.tail, state)?;
        rows::save_state(connection, id, head, &text)?;
        Ok(Some((head.bytes, text.len() as u64)))
    }

    /// Drains the parts of a job that begin a log; must be called under `commit.lock`.
    fn make_files(&self, job: &Job, numbers: &mut [Numbers]) {
        for (part, numbers) in job.prepared.parts.iter().zip(numbers) {
            if part.before.is_none() {
                numbers.is_drained = self.write_transcript(&part.thread, 0, &part.written.bytes).is_ok();
            }
        }
    }

    /// Drains a durable job, and caches its threads.
    fn conclude(&self, job: Job, numbers: Vec<Numbers>) -> (Committed, Vec<StaleManifest>) {
        let mut committed = job.prepared.committed();
        let mut stale_manifests = Vec::new();
        for ((mut part, (row, _)), mut numbers) in job.prepared.parts.into_iter().zip(job.rows).zip(numbers) {
            committed.parts.push(part.take_committed());
            let is_shown = job.seen.get(&part.thread).is_none_or(|seen| seen.is_shown);
            if part.manifest_shown || !is_shown {
                stale_manifests.push(StaleManifest { thread: part.thread.clone(), id: numbers.id });
            }
            if let Some(before) = &part.before {
                let drained = self.write_transcript(&part.thread, before.bytes, &part.written.bytes);
                numbers.is_drained = drained.is_ok();
            }
            if numbers.is_drained {
                let redo = vec![numbers.redo];
                let is_new = part.before.is_none();
                let pending = PendingThread { id: numbers.id, redo, is_new, manifest: None };
                self.await_sync(&part.thread, pending, part.written.bytes.len() as u64);
                self.remember_part(part, row, numbers, job.seen.values());
            } else {
                // The redo is durable: the next writer, or the next process that opens the store, drains it.
                self.forget(&part.thread);
            }
        }
        (committed, stale_manifests)
    }

    fn remember_part<'a>(
        &self,
        part: PreparedPart,
        row: Row,
        numbers: Numbers,
        mut seen: impl Iterator<Item = &'a Arc<CachedThread>>,
    ) {
        let before = seen.find(|seen| seen.row.id == numbers.id);
        let state = part.state.or_else(|| before.and_then(|before| before.state.clone()));
        let row = Row { id: numbers.id, mark: numbers.mark, ..row };
        let remembered = CachedThread {
            row,
            tail: part.written.tail,
            leads: LeadingEvents::default(),
            state,
            saved_state: numbers.saved_state,
            redo: numbers.redo.id(),
            is_shown: true,
        };
        self.remember(&part.thread, remembered);
    }
}

/// The numbers of the rows that a part was written to.
pub(crate) struct Numbers {
    id: i64,
    /// The seal of its head.
    pub(crate) mark: Mark,
    redo: redo::RedoRow,
    saved_state: Option<(u64, u64)>,
    /// Whether its bytes are in the transcript.
    is_drained: bool,
}

fn refuse_all(count: usize, error: &Error) -> Vec<JobOutcome> {
    let copy = || match error {
        Error::Io { what, path, source } => {
            Error::Io { what, path: path.clone(), source: std::io::Error::new(source.kind(), source.to_string()) }
        }
        Error::OutcomeUnknown { why } => Error::OutcomeUnknown { why: why.clone() },
        Error::Integrity { what, why, hint } => {
            Error::Integrity { what: what.clone(), why: why.clone(), hint: hint.clone() }
        }
        other => {
            use selvedge_model::Classify;
            Error::Database { why: other.to_string(), retryable: other.retryable() }
        }
    };
    (0..count).map(|_| JobOutcome::Refused(copy())).collect()
}

#[cfg(test)]
mod tests;
