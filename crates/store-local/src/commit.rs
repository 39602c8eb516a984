//! How a batch becomes durable and visible.
//!
//! 1. In the caller's thread, in line for each thread it touches: prepare, hash, sign.
//! 2. With whoever else waits, under `commit.lock` and in one SQLite transaction: compare heads, epochs, accounts, keys
//!    and requests with what was prepared from; write heads, redo, index and feed; one sync.
//! 3. New threads get their folder and file, still under `commit.lock`: nobody can delete one before its file is there,
//!    and find it made again afterwards.
//! 4. Back in the caller's thread, while others commit: drain the redo into the transcripts, unsynced. Then acknowledge.
//!
//! A crash before the transaction's sync leaves nothing. A crash after it leaves redo, which whoever opens the store next
//! drains. After the transaction the answer is never "failed": a drain that fails is repeated by whoever comes next. And one
//! that comes late, when another process has drained the same and gone on, writes what stands there already.

use std::collections::HashMap;
use std::sync::Arc;

use selvedge_model::{Batch, CommitKey, Right, ThreadId};
use selvedge_store::prepare::{Prepared, PreparedPart, prepare, request_hash};
use selvedge_store::seal::Heard;
use selvedge_store::{Committed, Error, Left, Result, seal};

use crate::core::{Core, Durability, Ended, Gate, PendingThread, Remembered, Signing, lock, run};
use crate::db::Db;
use crate::feed::Place;
use crate::inbox;
use crate::index::{self, Added, Standing};
use crate::leads::Leads;
use crate::redo;
use crate::rows::{self, Row};
use crate::saved_state;
use crate::sealed::Mark;
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
    /// The row of each part as it is to be, and the text of its manifest if that changed.
    rows: Vec<(Row, Option<String>)>,
}

impl Job {
    /// A job that needs nothing but what it says.
    pub(crate) fn of(prepared: Prepared) -> Self {
        Self { prepared, seen: HashMap::new(), rows: Vec::new() }
    }
}

/// What a job wrote.
#[derive(Default)]
pub(crate) struct Written {
    /// The numbers of the rows of each part.
    numbers: Vec<Numbers>,
    /// Where each request was left that it posted.
    pub(crate) left: Vec<Left>,
}

/// What became of a job.
pub(crate) enum Outcome {
    /// It is durable; whoever handed it in drains it.
    Durable(Box<Job>, Written),
    /// It was prepared from something that has changed; nothing of it was written.
    Stale,
    /// It was refused; nothing of it was written.
    Refused(Error),
}

impl From<Error> for Outcome {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
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

/// Why a transaction of several jobs was not written.
enum Spoiled {
    /// One of them was refused after some of it was written.
    ByOne,
    Because(Error),
}

impl From<Error> for Spoiled {
    fn from(error: Error) -> Self {
        Self::Because(error)
    }
}

/// One result per job.
type Results = Vec<Result<Written, Refusal>>;

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
                Outcome::Durable(job, written) => {
                    let (committed, manifested) = self.conclude(*job, written.numbers);
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
        let signing = self.signing()?;
        let prepared = prepare(batch.clone(), &view, &signing.signer, &*self.ids, self.clock.now())?;
        let seen = view.into_seen();
        let heard = self.heard(&prepared, &seen)?;
        let row = |(part, heard): (&PreparedPart, Heard)| {
            self.row_after(signing, part, seen.get(&part.thread).map(|seen| &seen.row), heard)
        };
        let rows = prepared.parts.iter().zip(heard).map(row).collect::<Result<_>>()?;
        Ok(Job { prepared, seen, rows })
    }

    /// The requests that each part has consumed then. A thread that goes on in the place of another has consumed what that one has.
    fn heard(&self, prepared: &Prepared, seen: &HashMap<ThreadId, Arc<Remembered>>) -> Result<Vec<Heard>> {
        let after = |part: &PreparedPart| {
            let consumed: Vec<_> =
                prepared.consumed.iter().filter(|(at, _)| *at == part.thread).map(|(_, id)| id).collect();
            match seen.get(&part.thread) {
                Some(seen) => self.heard_after(&seen.row, &consumed),
                None => Ok(Heard::default()),
            }
        };
        let mut heard = prepared.parts.iter().map(after).collect::<Result<Vec<_>>>()?;
        for (index, part) in prepared.parts.iter().enumerate() {
            let next = part.continued_as.as_ref();
            let next = next.and_then(|next| prepared.parts.iter().position(|part| part.thread == *next));
            if let Some(next) = next {
                heard[next] = heard[index].clone();
            }
        }
        Ok(heard)
    }

    /// The row of a thread once a part of it is committed, sealed, and the text of its manifest if that changed.
    fn row_after(
        &self,
        signing: &Signing,
        part: &PreparedPart,
        seen: Option<&Row>,
        heard: Heard,
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
        // What waited to lead a changeset leads this one.
        let leads = 0;
        let anchor = seen.map_or(0, |seen| seen.anchor).max(self.anchor.epoch());
        let row = Row { id, manifest, stored, head, sealed, epoch, owner, posted, heard, leads, anchor, mark };
        Ok((row.sealed(Some(&signing.rows.seals)), text))
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

    /// Commits jobs in one transaction; one outcome per job, in order.
    pub(crate) fn commit_together(&self, jobs: Vec<Job>) -> Vec<Outcome> {
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
            let used = written.iter().flatten().flatten().flat_map(|written| &written.numbers);
            let used = used.map(|numbers| numbers.redo.id()).collect();
            lock(&self.spares).settle(used);
            let outcome = |(job, result): (Job, Result<Written, Refusal>)| match result {
                Ok(mut written) => {
                    self.make_files(&job, &mut written.numbers);
                    Outcome::Durable(Box::new(job), written)
                }
                Err(Refusal::Stale) => Outcome::Stale,
                Err(Refusal::Because(error)) => Outcome::Refused(error),
            };
            Ok(jobs.into_iter().zip(written?).map(outcome).collect::<Vec<_>>())
        })?;
        self.tell();
        Ok(outcomes)
    }

    /// Writes jobs in one transaction. Few are refused, and most of those before anything of them is written; so places to
    /// go back to, which cost a copy of every page that is changed, are kept only when it turns out that one is needed.
    fn write_jobs(&self, gate: &mut Gate, jobs: &[Job]) -> Result<Results> {
        let at_once = |connection: &Db| self.write_at_once(connection, jobs);
        let ended = match gate.transaction(&self.layout, Durability::Synced, at_once) {
            Ended::Known(Err(Spoiled::ByOne)) => {
                let each = |connection: &Db| Ok(self.write_each(connection, jobs)?);
                gate.transaction(&self.layout, Durability::Synced, each)
            }
            ended => ended,
        };
        match ended {
            Ended::Known(Ok(results)) => Ok(results),
            Ended::Known(Err(Spoiled::Because(error))) => Err(error),
            Ended::Known(Err(Spoiled::ByOne)) => Ok(jobs.iter().map(|_| Err(Refusal::Stale)).collect()),
            Ended::Unknown(results, why) => Ok(self.look_up(jobs, results, &why)),
        }
    }

    /// Writes jobs as long as none is refused of which something was written.
    fn write_at_once(&self, connection: &Db, jobs: &[Job]) -> Result<Results, Spoiled> {
        let mut results = Vec::with_capacity(jobs.len());
        let mut newest = Place::newest(connection)?;
        for job in jobs {
            let changes = connection.total_changes();
            let result = self.write_job(connection, &mut newest, job);
            match &result {
                Ok(_) => {}
                Err(Refusal::Stale) if connection.total_changes() == changes => {}
                Err(_) => return Err(Spoiled::ByOne),
            }
            results.push(result);
        }
        Ok(results)
    }

    /// Writes jobs, each with a place to go back to if it is refused.
    fn write_each(&self, connection: &Db, jobs: &[Job]) -> Result<Results> {
        let mut results = Vec::with_capacity(jobs.len());
        let mut newest = Place::newest(connection)?;
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

    /// After a commit whose sync failed: what is there was committed, and of the rest nobody knows.
    fn look_up(&self, jobs: &[Job], results: Results, why: &str) -> Results {
        let is_there = |part: &PreparedPart| {
            let row = self.read(|connection| rows::find(connection, &part.thread));
            row.is_ok_and(|row| row.is_some_and(|row| row.head == part.written.head))
        };
        let look = |(job, result): (&Job, Result<Written, Refusal>)| match result {
            Ok(_) if job.prepared.parts.is_empty() || !job.prepared.parts.iter().all(is_there) => {
                Err(Refusal::Because(Error::OutcomeUnknown { why: why.to_owned() }))
            }
            other => other,
        };
        jobs.iter().zip(results).map(look).collect()
    }

    /// `newest` is the newest place in the feed, of which whoever undoes a job keeps a copy.
    fn write_job(&self, connection: &Db, newest: &mut Place, job: &Job) -> Result<Written, Refusal> {
        let prepared = &job.prepared;
        let mut written = Written::default();
        for (part, (row, manifest)) in prepared.parts.iter().zip(&job.rows) {
            let seen = job.seen.get(&part.thread).map(Arc::as_ref);
            written.numbers.push(self.write_part(connection, newest, part, (row, manifest.as_deref()), seen)?);
        }
        for (id, account) in &prepared.accounts {
            // What is sealed together with the change is what was sealed before it.
            rows::accounts(connection, "thread_id = ?", id.as_str())?;
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
        newest: &mut Place,
        part: &PreparedPart,
        (row, manifest): (&Row, Option<&str>),
        seen: Option<&Remembered>,
    ) -> Result<Numbers, Refusal> {
        let head = &part.written.head;
        let lines = part.lines();
        let counts = seen.map(|seen| newest.kept(seen.row.id, head.version, &lines));
        let spare = lock(&self.spares).lend(part.written.bytes.len());
        let now = Standing {
            row,
            manifest,
            manifest_shown: part.manifest_shown,
            counts: counts.as_deref(),
            redo: spare.map(|spare| spare.id()),
        };
        let id = match seen {
            Some(seen) => {
                if !index::move_head(connection, &now, &seen.row)? {
                    return Err(Refusal::Stale);
                }
                for lead in &seen.leads.rows {
                    rows::execute(connection, "DELETE FROM leads WHERE id = ?", [lead])?;
                }
                seen.row.id
            }
            None => index::insert_thread(connection, &now)?.ok_or(Refusal::Stale)?,
        };
        let offset = part.before.as_ref().map_or(0, |before| before.bytes);
        let before = seen.map_or(redo::NONE, |seen| seen.redo);
        let redo = redo::put(connection, spare, (id, offset), &part.written.bytes, before)?;
        if let Some(lost) = spare.filter(|spare| spare.id() != redo.id()) {
            lock(&self.spares).forget(&lost);
        }
        newest.announce(connection, id, head.version, &lines)?;
        let added = Added {
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
        Ok(Numbers { id, redo, saved_state, is_drained: false })
    }

    /// Saves a changed state once the log has grown by its size since it was saved last, so that saving costs no more
    /// than the log itself, however large the state.
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

    /// Drains those parts of a job that begin a log; must be called under `commit.lock`.
    fn make_files(&self, job: &Job, numbers: &mut [Numbers]) {
        for (part, numbers) in job.prepared.parts.iter().zip(numbers) {
            if part.before.is_none() {
                numbers.is_drained = self.write_transcript(&part.thread, 0, &part.written.bytes).is_ok();
            }
        }
    }

    /// Drains a job that is durable, and remembers its threads.
    fn conclude(&self, job: Job, numbers: Vec<Numbers>) -> (Committed, Vec<Manifested>) {
        let mut committed = job.prepared.committed();
        let mut manifested = Vec::new();
        for ((mut part, (row, _)), mut numbers) in job.prepared.parts.into_iter().zip(job.rows).zip(numbers) {
            committed.parts.push(part.take_committed());
            let is_shown = job.seen.get(&part.thread).is_none_or(|seen| seen.is_shown);
            if part.manifest_shown || !is_shown {
                manifested.push(Manifested { thread: part.thread.clone(), id: numbers.id });
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
                // The redo is durable: the next writer or opener drains it.
                self.forget(&part.thread);
            }
        }
        (committed, manifested)
    }

    fn remember_part<'a>(
        &self,
        part: PreparedPart,
        row: Row,
        numbers: Numbers,
        mut seen: impl Iterator<Item = &'a Arc<Remembered>>,
    ) {
        let before = seen.find(|seen| seen.row.id == numbers.id);
        let state = part.state.or_else(|| before.and_then(|before| before.state.clone()));
        let row = Row { id: numbers.id, ..row };
        let remembered = Remembered {
            row,
            tail: part.written.tail,
            leads: Leads::default(),
            state,
            saved_state: numbers.saved_state,
            redo: numbers.redo.id(),
            is_shown: true,
        };
        self.remember(&part.thread, remembered);
    }
}

/// The numbers of the rows that a part became.
pub(crate) struct Numbers {
    id: i64,
    redo: redo::Row,
    saved_state: Option<(u64, u64)>,
    /// Whether its bytes are in the transcript.
    is_drained: bool,
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

#[cfg(test)]
mod tests;
