//! How a batch becomes durable and visible.
//!
//! 1. In the caller's thread, in line for each thread it touches: prepare, hash, sign.
//! 2. With whoever else waits, under `commit.lock` and in one SQLite transaction: compare heads, epochs, accounts, keys
//!    and notes with what was prepared from; write heads, redo, index and feed; one sync.
//! 3. Still under `commit.lock`: drain the redo into the transcripts, unsynced. Then acknowledge.
//!
//! A crash before the transaction's sync leaves nothing. A crash after it leaves redo, which whoever opens the store next
//! drains. After the transaction the answer is never "failed": a drain that fails is repeated by whoever comes next.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::Connection;
use selvedge_model::{Batch, CommitKey, Committed, Right, ThreadId};
use selvedge_store::prepare::{Prepared, PreparedPart, prepare, request_hash};
use selvedge_store::{Error, Result};

use crate::core::{Core, Durability, Ended, Gate, PendingThread, Remembered, lock, run};
use crate::index::{self, Added, Standing};
use crate::redo;
use crate::rows::{self, Row};
use crate::saved_state;
use crate::view::{LocalView, Sight};

/// Where each attempt to commit a batch looks. Whoever was overtaken by other processes three times prepares under
/// `commit.lock`, where nobody overtakes; what keeps failing there is a file that somebody spoils faster than it is settled.
const ATTEMPTS: [Sight; 10] = {
    use Sight::{Alone, Database, Memory};
    [Memory, Database, Database, Alone, Database, Alone, Database, Alone, Database, Alone]
};

/// A prepared batch and what it was prepared from.
pub(crate) struct Job {
    prepared: Prepared,
    seen: HashMap<ThreadId, Arc<Remembered>>,
}

/// What became of a job.
pub(crate) enum Outcome {
    /// It is durable.
    Done(Committed, Vec<Manifested>),
    /// It was prepared from something that has changed; nothing of it was written.
    Stale,
    /// It was refused; nothing of it was written.
    Refused(Error),
}

/// A thread whose `thread.json` must be written.
pub(crate) struct Manifested {
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

impl Core {
    pub(crate) fn commit(&self, batch: &Batch) -> Result<Committed> {
        let mut threads: Vec<_> = batch.parts.iter().map(|part| &part.thread).collect();
        threads.sort_unstable();
        threads.dedup();
        let _turns: Vec<_> = threads.iter().map(|thread| self.turns.enter(thread, None)).collect();
        for sight in ATTEMPTS {
            if let Some(answer) = self.answered(batch)? {
                return Ok(answer);
            }
            let outcome = match sight {
                Sight::Alone => self.commit_alone(batch),
                Sight::Memory | Sight::Database => {
                    self.job(batch, sight).map(|job| self.group.submit(job, |jobs| self.commit_together(jobs)))
                }
            };
            let outcome = match outcome {
                // Memory may have been wrong, and an unsettled file can't be settled alone; the database has the last word.
                Err(_) if sight != Sight::Database => continue,
                outcome => outcome?,
            };
            match outcome {
                Outcome::Done(committed, manifested) => {
                    self.show_manifests(&manifested);
                    self.erase_committed(batch);
                    return Ok(committed);
                }
                Outcome::Stale => threads.iter().for_each(|thread| self.forget(thread)),
                Outcome::Refused(error) => return Err(error),
            }
        }
        Err(Error::Database { why: "the log is changed by others all the time".to_owned(), retryable: true })
    }

    fn job(&self, batch: &Batch, sight: Sight) -> Result<Job> {
        let view = LocalView::new(self, sight);
        let prepared = prepare(batch.clone(), &view, &self.signing()?.signer, &*self.ids, self.clock.now())?;
        Ok(Job { prepared, seen: view.into_seen() })
    }

    /// The answer to an earlier commit of the same key.
    fn answered(&self, batch: &Batch) -> Result<Option<Committed>> {
        let Some(key) = &batch.key else { return Ok(None) };
        match self.outcome(key)? {
            Some((request, _)) if request != request_hash(batch) => Err(Error::KeyReused(key.clone())),
            Some((_, mut committed)) => {
                // An answer that was found again in the logs has lost the order of its parts; the request still has it.
                let place = |(thread, _): &(ThreadId, u64)| batch.parts.iter().position(|part| part.thread == *thread);
                committed.versions.sort_by_key(place);
                Ok(Some(Committed { replayed: true, ..committed }))
            }
            None => Ok(None),
        }
    }

    pub(crate) fn outcome(&self, key: &CommitKey) -> Result<Option<(selvedge_model::Digest, Committed)>> {
        self.read(|connection| rows::key(connection, key))
    }

    /// Commits jobs in one transaction and drains them; one outcome per job, in order.
    fn commit_together(&self, jobs: Vec<Job>) -> Vec<Outcome> {
        let count = jobs.len();
        self.commit_made(|| Ok(jobs)).unwrap_or_else(|error| refuse_all(count, &error))
    }

    /// Prepares and commits a batch while no other process writes.
    fn commit_alone(&self, batch: &Batch) -> Result<Outcome> {
        let mut outcomes = self.commit_made(|| Ok(vec![self.job(batch, Sight::Alone)?]))?;
        Ok(outcomes.pop().unwrap_or(Outcome::Stale))
    }

    fn commit_made(&self, jobs: impl FnOnce() -> Result<Vec<Job>>) -> Result<Vec<Outcome>> {
        let outcomes = lock(self.gate()?).alone(&self.layout, |gate| {
            let jobs = jobs()?;
            let written = self.write_jobs(gate, &jobs);
            let used = written.iter().flatten().flatten().flatten().map(|numbers| numbers.redo.id()).collect();
            lock(&self.spares).settle(&used);
            let written = written?;
            Ok(jobs.into_iter().zip(written).map(|(job, result)| self.conclude(job, result)).collect::<Vec<_>>())
        })?;
        self.tell();
        Ok(outcomes)
    }

    /// One result per job: the numbers of its rows, per part.
    fn write_jobs(&self, gate: &mut Gate, jobs: &[Job]) -> Result<Vec<Result<Vec<Numbers>, Refusal>>> {
        if let [job] = jobs {
            // The transaction is its savepoint.
            let write = |connection: &Connection| self.write_job(connection, job);
            return match gate.transaction(&self.layout, Durability::Synced, write) {
                Ended::Known(result) => Ok(vec![result]),
                Ended::Unknown(numbers, why) => Ok(self.look_up(jobs, vec![Ok(numbers)], &why)),
            };
        }
        let ended = gate.transaction(&self.layout, Durability::Synced, |connection| {
            let mut results = Vec::with_capacity(jobs.len());
            for job in jobs {
                run(connection, "SAVEPOINT job")?;
                let result = self.write_job(connection, job);
                if result.is_err() {
                    run(connection, "ROLLBACK TO job")?;
                }
                run(connection, "RELEASE job")?;
                results.push(result);
            }
            Ok(results)
        });
        match ended {
            Ended::Known(results) => results,
            Ended::Unknown(results, why) => Ok(self.look_up(jobs, results, &why)),
        }
    }

    /// After a commit whose sync failed: what is there was committed, and of the rest nobody knows.
    fn look_up(
        &self,
        jobs: &[Job],
        results: Vec<Result<Vec<Numbers>, Refusal>>,
        why: &str,
    ) -> Vec<Result<Vec<Numbers>, Refusal>> {
        let is_there = |part: &PreparedPart| {
            let row = self.read(|connection| rows::find(connection, &part.thread));
            row.is_ok_and(|row| row.is_some_and(|row| row.head == part.written.head))
        };
        let look = |(job, result): (&Job, Result<Vec<Numbers>, Refusal>)| match result {
            Ok(_) if !job.prepared.parts.iter().all(is_there) => {
                Err(Refusal::Because(Error::OutcomeUnknown { why: why.to_owned() }))
            }
            other => other,
        };
        jobs.iter().zip(results).map(look).collect()
    }

    fn write_job(&self, connection: &Connection, job: &Job) -> Result<Vec<Numbers>, Refusal> {
        let prepared = &job.prepared;
        let mut numbers = Vec::with_capacity(prepared.parts.len());
        for part in &prepared.parts {
            let seen = job.seen.get(&part.thread).map(Arc::as_ref);
            numbers.push(self.write_part(connection, part, seen)?);
        }
        for (id, account) in &prepared.accounts {
            if let Some(after) = &account.after
                && !rows::put_account(connection, account.before, after)?
            {
                return Err(Refusal::Stale);
            }
            for (name, reservation) in &account.reservations {
                rows::put_reservation(connection, id, name, reservation.as_ref())?;
            }
        }
        for (thread, key) in &prepared.consumed {
            rows::take_note(connection, thread, key)?;
        }
        for note in &prepared.posted {
            rows::put_note(connection, note)?;
        }
        if let Some((key, request)) = &prepared.key
            && !rows::put_key(connection, key, request, &prepared.committed())?
        {
            return Err(Refusal::Stale);
        }
        Ok(numbers)
    }

    fn write_part(
        &self,
        connection: &Connection,
        part: &PreparedPart,
        seen: Option<&Remembered>,
    ) -> Result<Numbers, Refusal> {
        let head = &part.written.head;
        let seal = &self.signing()?.seal;
        let now = Standing {
            head,
            sealed: index::seal(seal, head, &part.written.tail.hash),
            epoch: part.epoch,
            owner: match part.right {
                Right::Lease(_) => seen.and_then(|seen| seen.row.owner.as_ref()),
                Right::Brief => None,
            },
            manifest: &part.manifest,
            manifest_shown: part.manifest_shown,
        };
        let id = match seen {
            Some(seen) => {
                if !index::move_head(connection, &now, &seen.row)? {
                    return Err(Refusal::Stale);
                }
                for (lead, _) in &seen.leads {
                    rows::execute(connection, "DELETE FROM leads WHERE id = ?", [lead])?;
                }
                seen.row.id
            }
            None => index::insert_thread(connection, &part.thread, &now)?.ok_or(Refusal::Stale)?,
        };
        let offset = part.before.as_ref().map_or(0, |before| before.bytes);
        let spare = lock(&self.spares).lend(part.written.bytes.len());
        let redo = redo::put(connection, spare, id, offset, &part.written.bytes)?;
        index::announce(connection, id, head.version)?;
        let added = Added {
            messages: &part.messages,
            runs: &part.runs,
            erased: &part.erased,
            touched_run: part.touched_run.as_ref(),
            at: part.manifest.updated_at,
        };
        if !index::add(connection, id, &added)? {
            return Err(Refusal::Stale);
        }
        let saved_state = self.save_state(connection, id, part, seen.and_then(|seen| seen.saved_state))?;
        Ok(Numbers { id, redo, saved_state })
    }

    /// Saves a changed state once the log has grown by its size since it was saved last, so that saving costs no more
    /// than the log itself, however large the state.
    fn save_state(
        &self,
        connection: &Connection,
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

    /// Drains a job that was written, and remembers its threads; must be called under `commit.lock`.
    fn conclude(&self, job: Job, result: Result<Vec<Numbers>, Refusal>) -> Outcome {
        let numbers = match result {
            Ok(numbers) => numbers,
            Err(Refusal::Stale) => return Outcome::Stale,
            Err(Refusal::Because(error)) => return Outcome::Refused(error),
        };
        let committed = job.prepared.committed();
        let mut manifested = Vec::new();
        for (part, numbers) in job.prepared.parts.into_iter().zip(numbers) {
            let offset = part.before.as_ref().map_or(0, |before| before.bytes);
            let is_shown = job.seen.get(&part.thread).is_none_or(|seen| seen.is_shown);
            if part.manifest_shown || !is_shown {
                manifested.push(Manifested { thread: part.thread.clone(), id: numbers.id });
            }
            let drained = self.write_transcript(&part.thread, offset, &part.written.bytes);
            if drained.is_ok() {
                let pending =
                    PendingThread { id: numbers.id, redo: vec![numbers.redo], is_new: offset == 0, manifest: None };
                self.await_sync(&part.thread, pending, part.written.bytes.len() as u64);
                self.remember_part(part, numbers, job.seen.values());
            } else {
                // The redo is durable: the next writer or opener drains it.
                self.forget(&part.thread);
            }
        }
        Outcome::Done(committed, manifested)
    }

    fn remember_part<'a>(
        &self,
        part: PreparedPart,
        numbers: Numbers,
        mut seen: impl Iterator<Item = &'a Arc<Remembered>>,
    ) {
        let before = seen.find(|seen| seen.row.id == numbers.id);
        let owner = match part.right {
            Right::Lease(_) => before.and_then(|before| before.row.owner.clone()),
            Right::Brief => None,
        };
        let state = part.state.or_else(|| before.and_then(|before| before.state.clone()));
        let row = Row {
            id: numbers.id,
            manifest: part.manifest,
            head: part.written.head,
            sealed: Vec::new(),
            epoch: part.epoch,
            owner,
        };
        let remembered = Remembered {
            row,
            tail: part.written.tail,
            leads: Vec::new(),
            state,
            saved_state: numbers.saved_state,
            is_shown: true,
        };
        self.remember(&part.thread, remembered);
    }
}

/// The numbers of the rows that a part became.
struct Numbers {
    id: i64,
    redo: redo::Row,
    saved_state: Option<(u64, u64)>,
}

fn refuse_all(count: usize, error: &Error) -> Vec<Outcome> {
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
    (0..count).map(|_| Outcome::Refused(copy())).collect()
}
