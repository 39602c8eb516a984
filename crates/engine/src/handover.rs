//! How a chain passes from one thread to the next while others wait for it, speak to it or stop it.
//!
//! Whoever hands a thread over takes its successor before it gives the thread back, and nobody else takes a successor that has not begun
//! while its predecessor is held. So a chain belongs to whoever runs it from its first thread to its last; if that one dies in
//! between, nobody holds either, and whoever finds the successor goes on with it.
//!
//! Who finds all the same that somebody else goes on with its chain waits for what comes of it, and says that.

use std::time::{Duration, Instant};

use selvedge_model::{Cancel, Note, NoteKey, OwnerId, Reason, Role, Run, Status, ThreadId};
use selvedge_store::{Acquire, Error as StoreError};

use crate::engine::{Engine, ended_elsewhere};
use crate::error::Result;
use crate::held::{Held, Leased, More, Of};
use crate::told::{Ended, Told};

/// How often is looked whether somebody has come to an end.
const LOOK: Duration = Duration::from_millis(100);
/// How often is looked whether a successor was taken, which is a matter of a commit.
const SOON: Duration = Duration::from_millis(5);

/// What became of a chain that somebody else went on with.
pub(crate) enum Awaited<'e> {
    /// It came to its end, or waits.
    Ended(Box<Ended>),
    /// Nobody goes on with it any more, and this thread of it has not begun.
    Free(Leased<'e>),
}

impl Engine {
    /// Takes the lease of a thread, as everybody does but whoever just handed its predecessor over.
    pub(crate) fn lease(&self, thread: &ThreadId, how: Acquire) -> selvedge_store::Result<Leased<'_>> {
        let until = Instant::now() + how.wait;
        while let Some(holder) = self.handed_over_by(thread)?.filter(|_| !how.take_over) {
            if Instant::now() >= until {
                return Err(StoreError::LeaseHeld { thread: thread.clone(), holder });
            }
            std::thread::sleep(SOON);
        }
        self.acquire(thread, how)
    }

    /// Takes the lease of a thread.
    pub(crate) fn acquire(&self, thread: &ThreadId, how: Acquire) -> selvedge_store::Result<Leased<'_>> {
        Ok(Leased::new(self, self.store.acquire(thread, how)?))
    }

    /// Who holds the predecessor of a thread that has not begun.
    fn handed_over_by(&self, thread: &ThreadId) -> selvedge_store::Result<Option<OwnerId>> {
        let manifest = self.store.get(thread)?.manifest;
        match (manifest.status, manifest.continuation_of) {
            (Status::Created, Some(before)) => match self.store.holder(&before) {
                Err(StoreError::NoThread(_) | StoreError::Deleted(_)) => Ok(None),
                other => other,
            },
            _ => Ok(None),
        }
    }

    /// Waits for what comes of a chain that somebody else goes on with. Who is told to stop meanwhile says so to that one.
    pub(crate) fn await_end(
        &self,
        thread: &ThreadId,
        cancel: &Cancel,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Awaited<'_>> {
        let mut is_said = false;
        loop {
            let position = self.store.position()?;
            let end = self.end_of_chain(thread)?;
            match self.lease(&end, Acquire::default()) {
                Ok(lease) => {
                    if self.store.get(&end)?.manifest.status == Status::Created {
                        return Ok(Awaited::Free(lease));
                    }
                    let held = self.take(lease, tell)?;
                    let ended = held.ended();
                    let is_over = ended.status != Status::Continued;
                    self.give_back(held)?;
                    if is_over {
                        return Ok(Awaited::Ended(Box::new(ended)));
                    }
                }
                Err(StoreError::LeaseHeld { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            if let Some(stop) = cancel.said().filter(|_| !std::mem::replace(&mut is_said, true)) {
                self.stop(&end, stop)?;
            }
            self.store.wait(position, LOOK)?;
        }
    }
}

impl Held<'_> {
    /// How its last run ended, whoever ran it.
    pub(crate) fn ended(&self) -> Ended {
        let manifest = self.fold.manifest().clone();
        let said = self.fold.conversation.messages().iter().rev().find(|message| message.role == Role::Assistant);
        let text = said.map(|message| message.plain_text()).filter(|text| !text.is_empty());
        let ended = Ended { text, ..ended_elsewhere(manifest) };
        let run = self.fold.thread().runs.values().max_by_key(|run| run.created_at).cloned();
        match run {
            Some(run) => Ended {
                run: Some(run.run_id.clone()),
                code: run.meta.termination_code.clone().unwrap_or(ended.code),
                detail: run.meta.termination_detail.clone(),
                cost: run.meta.total_cost(),
                ..ended
            },
            None => ended,
        }
    }

    /// Takes over what was left for the thread that this one goes on for, by somebody who came when that had ended already: in one
    /// batch, so that it is neither lost nor heard twice.
    pub(crate) fn heed_predecessor(&mut self, tell: &mut dyn FnMut(Told<'_>)) -> Result<()> {
        let Some(before) = self.fold.manifest().continuation_of.clone() else { return Ok(()) };
        let left = match self.engine.store.pending(&before) {
            Err(StoreError::NoThread(_) | StoreError::Deleted(_)) => return Ok(()),
            other => other?,
        };
        if left.is_empty() {
            return Ok(());
        }
        let here = self.engine.store.pending(self.thread())?;
        let runs = self.engine.store.runs(&before)?;
        let mut more = More::default();
        for note in left {
            let was_answered = is_named_by_chance(&note) && answers(&runs, &note.key);
            let is_known = here.iter().any(|other| other.key == note.key) || was_answered || self.has_answered(&note);
            more.consumed.push((before.clone(), note.key.clone()));
            more.posted.extend((!is_known).then(|| Note { thread: self.thread().clone(), ..note }));
        }
        self.commit_with(Reason::Lifecycle, Of::default(), more, tell).map(|_| ())
    }

    /// Whether a run of this thread answered a note of this name.
    pub(crate) fn has_heard(&self, note: &NoteKey) -> bool {
        answers(self.fold.thread().runs.values(), note)
    }

    /// Whether a run of this thread answered a note, which somebody left again who did not see that.
    pub(crate) fn has_answered(&self, note: &Note) -> bool {
        is_named_by_chance(note) && self.has_heard(&note.key)
    }
}

fn answers<'r>(runs: impl IntoIterator<Item = &'r Run>, note: &NoteKey) -> bool {
    runs.into_iter().any(|run| run.meta.source_mailbox_entry_id.as_deref() == Some(note.as_str()))
}

/// Whether a name is of this one note. One that is named after its message may be another one with the same message, and is judged by
/// what it says.
fn is_named_by_chance(note: &Note) -> bool {
    note.kind == "send" && note.body["messages"][0]["id"].is_null()
}
