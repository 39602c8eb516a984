//! How a thread stands, in one word, and what came of it.
//!
//! Everything here only reads: it is what people, programs and agents are told, through whichever door they ask.

use std::collections::BTreeMap;

use selvedge_log::Trust;
use selvedge_model::error::{Classify, Kind};
use selvedge_model::event::{Ask, Process, Suspended};
use selvedge_model::limits::Cost;
use selvedge_model::{DirectiveId, Manifest, Message, OwnerId, Role, RunId, Status, ThreadId, Timestamp};
use selvedge_store::load::load;
use selvedge_store::{Error as StoreError, Filter, Store};
use serde::Serialize;
use serde_json::Value;

use crate::chain;
use crate::error::Result;
use crate::fold::Fold;

/// The most characters of a thread's last words that are given.
pub const RESULT_CHARS_MAX: usize = 4000;
/// How many threads are looked at in one go.
const PAGE: usize = 200;

/// How a thread stands, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// As its status says; if that is running, somebody alive runs it.
    Is(Status),
    /// It should go on, and nobody is there who does.
    Stalled,
    /// It was deleted.
    Deleted,
    /// Nobody knows it.
    NotFound,
    /// Its log is not what was signed, or nobody who is trusted signed it: nothing of it is shown.
    Unverified,
    /// It had not ended when the time was up.
    Timeout,
    /// Whoever waited for it was stopped.
    Interrupted,
}

impl Standing {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Is(status) => status.as_str(),
            Self::Stalled => "stalled",
            Self::Deleted => "deleted",
            Self::NotFound => "not_found",
            Self::Unverified => "unverified",
            Self::Timeout => "timeout",
            Self::Interrupted => "interrupted",
        }
    }

    /// The status of a thread of which this is said, if it has one.
    pub fn status(self) -> Option<Status> {
        match self {
            Self::Is(status) => Some(status),
            _ => None,
        }
    }
}

impl From<Status> for Standing {
    fn from(status: Status) -> Self {
        Self::Is(status)
    }
}

impl Serialize for Standing {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl std::fmt::Display for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// What came of one thread that somebody asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// How it stands.
    pub status: Standing,
    /// The thread at the end of its chain.
    pub thread_id: ThreadId,
    /// The run that this is about.
    pub run_id: Option<RunId>,
    /// Why it ended so, or why it can't be said how it ended.
    pub why: Option<String>,
    /// The last words of the model in that run, shortened if they are long.
    pub result: Option<String>,
    /// What it returned.
    pub outputs: Option<Value>,
    /// What its whole chain used so far.
    pub cost: Cost,
    /// Why it waits.
    pub suspended: Option<Suspended>,
    /// What somebody is asked about its calls.
    pub asks: Vec<Ask>,
}

impl Outcome {
    /// What can be said of a thread of which there is nothing to show.
    pub(crate) fn bare(status: Standing, thread_id: ThreadId, why: Option<String>) -> Self {
        Self {
            status,
            thread_id,
            run_id: None,
            why,
            result: None,
            outputs: None,
            cost: Cost::default(),
            suspended: None,
            asks: Vec::new(),
        }
    }

    /// What is said of a thread that nobody knows.
    pub(crate) fn unknown(thread: ThreadId) -> Self {
        let why = no_such(&thread);
        Self::bare(Standing::NotFound, thread, Some(why))
    }

    /// The same, for this reason; why a log can't be shown is more than any other.
    pub(crate) fn because(self, why: Option<String>) -> Self {
        match self.status {
            Standing::Unverified => self,
            _ => Self { why: why.or(self.why), ..self },
        }
    }

    /// What came of a run of a thread, by its log: every hash and the last signature of it are checked, once. Of a log that does not
    /// hold nothing is given.
    pub(crate) fn of(
        store: &dyn Store,
        trust: &Trust,
        thread: &ThreadId,
        status: Standing,
        run: Option<RunId>,
    ) -> Result<Self> {
        let loaded = match load(store, thread, trust, None) {
            Ok(loaded) => loaded.thread,
            Err(StoreError::Deleted(_)) => return Ok(Self::bare(Standing::Deleted, thread.clone(), None)),
            Err(error) if error.kind() == Kind::Integrity => {
                return Ok(Self::bare(Standing::Unverified, thread.clone(), Some(error.to_string())));
            }
            Err(error) => return Err(error.into()),
        };
        let ran = run.as_ref().and_then(|run| loaded.runs.get(run)).map(|run| run.meta.clone());
        let is_last_word = |message: &&Message| {
            run.is_some()
                && message.run_id == run
                && message.role == Role::Assistant
                && !message.plain_text().is_empty()
        };
        let last = loaded.messages.iter().rev().find(is_last_word);
        Ok(Self {
            status,
            thread_id: thread.clone(),
            why: ran.and_then(|ran| ran.termination_detail.or(ran.termination_code)),
            result: last.map(|message| shortened(message.plain_text(), RESULT_CHARS_MAX)),
            run_id: run,
            outputs: loaded.manifest.outputs,
            cost: chain::cost(store, thread)?,
            suspended: loaded.manifest.suspended,
            asks: loaded.manifest.asks,
        })
    }
}

/// What came of several threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcomes {
    /// Whether all of them completed.
    pub success: bool,
    /// Each by the id that was asked for.
    pub results: BTreeMap<ThreadId, Outcome>,
}

impl Outcomes {
    pub(crate) fn new(results: BTreeMap<ThreadId, Outcome>) -> Self {
        let success = results.values().all(|outcome| outcome.status == Standing::Is(Status::Completed));
        Self { success, results }
    }
}

fn no_such(thread: &ThreadId) -> String {
    StoreError::NoThread(thread.to_string()).to_string()
}

/// What came of threads so far; nobody waits.
pub fn aggregate_results(store: &dyn Store, trust: &Trust, threads: &[ThreadId]) -> Result<Outcomes> {
    let outcome = |thread: &ThreadId| Ok((thread.clone(), outcome_now(store, trust, thread)?));
    Ok(Outcomes::new(threads.iter().map(outcome).collect::<Result<_>>()?))
}

fn outcome_now(store: &dyn Store, trust: &Trust, thread: &ThreadId) -> Result<Outcome> {
    let end = chain::end(store, thread)?;
    match end.manifest {
        Some(manifest) if !end.is_deleted => {
            let run = store.runs(&manifest.thread_id)?.pop().map(|run| run.run_id);
            let standing = match end.why {
                Some(_) => Standing::Stalled,
                None => standing(store, &manifest)?,
            };
            let outcome = Outcome::of(store, trust, &manifest.thread_id, standing, run)?;
            Ok(outcome.because(end.why))
        }
        Some(manifest) => Ok(Outcome {
            outputs: manifest.outputs.clone(),
            cost: chain::cost(store, &manifest.thread_id)?,
            ..Outcome::bare(Standing::Deleted, manifest.thread_id, None)
        }),
        None => Ok(Outcome::unknown(end.thread)),
    }
}

/// How a thread stands. One that an engine runs and that no live process holds is stalled; a run that no engine makes is its writer's own.
pub fn standing(store: &dyn Store, manifest: &Manifest) -> Result<Standing> {
    match manifest.status {
        Status::Running if !manifest.is_run_outside() && holder(store, &manifest.thread_id)?.is_none() => {
            // Whoever ran it may have ended it and left in between.
            let now = store.get(&manifest.thread_id).map(|summary| summary.manifest.status);
            Ok(now.map_or(Standing::Stalled, |now| match now {
                Status::Running => Standing::Stalled,
                other => other.into(),
            }))
        }
        status => Ok(status.into()),
    }
}

/// The process that was started to run a thread, or the chain that it is a part of: the parent's log names that of a child, the root's
/// own log that of a chain which nobody started. None if whoever started it runs it too, or if who said so is gone.
pub(crate) fn started_for(store: &dyn Store, trust: &Trust, manifest: &Manifest) -> Result<Option<Process>> {
    let root = &manifest.chain_root_id;
    match Fold::load(store, manifest.parent_id.as_ref().unwrap_or(root), trust) {
        Ok(fold) if manifest.parent_id.is_some() => Ok(fold.process_of(root).cloned()),
        Ok(fold) => Ok(fold.thread().process.clone()),
        // A number alone names nobody.
        Err(StoreError::Deleted(_) | StoreError::NoThread(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Who holds a thread and lives; nobody holds what is not there.
pub(crate) fn holder(store: &dyn Store, thread: &ThreadId) -> Result<Option<OwnerId>> {
    match store.holder(thread) {
        Err(StoreError::NoThread(_) | StoreError::Deleted(_)) => Ok(None),
        other => Ok(other?),
    }
}

/// Where a thread stands, for whoever asks in passing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StatusShown {
    /// Whether there is such a thread.
    pub success: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How the end of its chain stands.
    pub status: Standing,
    /// The end of its chain.
    pub thread_id: ThreadId,
    /// The thread that was asked for, if that is another one.
    pub original_thread_id: Option<ThreadId>,
    /// What it is told to do.
    pub directive: Option<DirectiveId>,
    /// What people call it.
    pub title: Option<String>,
    /// The active run.
    pub run_id: Option<RunId>,
    /// Who holds it and lives.
    pub holder: Option<OwnerId>,
    /// What its whole chain used so far.
    pub cost: Cost,
    /// Why it waits.
    pub suspended: Option<Suspended>,
    /// What somebody is asked about its calls.
    pub asks: Vec<Ask>,
}

/// Where a thread, or the end of its chain, stands.
pub fn get_status(store: &dyn Store, thread: &ThreadId) -> Result<StatusShown> {
    let end = chain::end(store, thread)?;
    let status = match &end.manifest {
        Some(_) if end.is_deleted => Standing::Deleted,
        Some(_) if end.why.is_some() => Standing::Stalled,
        Some(manifest) => standing(store, manifest)?,
        None => Standing::NotFound,
    };
    let manifest = end.manifest.as_ref();
    Ok(StatusShown {
        success: status != Standing::NotFound,
        error: (status == Standing::NotFound).then(|| no_such(&end.thread)),
        status,
        original_thread_id: (end.thread != *thread).then(|| thread.clone()),
        directive: manifest.and_then(|manifest| manifest.directive.clone()),
        title: manifest.and_then(|manifest| manifest.title.clone()),
        run_id: manifest.and_then(|manifest| manifest.run_id.clone()),
        holder: holder(store, &end.thread)?,
        cost: if manifest.is_some() { chain::cost(store, &end.thread)? } else { Cost::default() },
        suspended: manifest.and_then(|manifest| manifest.suspended.clone()),
        asks: manifest.map(|manifest| manifest.asks.clone()).unwrap_or_default(),
        thread_id: end.thread,
    })
}

/// A thread that somebody runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Active {
    /// The thread.
    pub thread_id: ThreadId,
    /// What it is told to do.
    pub directive: Option<DirectiveId>,
    /// What people call it.
    pub title: Option<String>,
    /// The thread that started it.
    pub parent_id: Option<ThreadId>,
    /// The active run.
    pub run_id: Option<RunId>,
    /// Who runs it.
    pub holder: OwnerId,
    /// When something was last heard of it.
    pub updated_at: Timestamp,
}

/// The threads that somebody runs, in whichever process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActiveThreads {
    /// Always: there may be none.
    pub success: bool,
    /// They, the newest first.
    pub active_threads: Vec<Active>,
    /// How many.
    pub count: usize,
}

/// The threads that somebody alive runs, in whichever process.
pub fn list_active(store: &dyn Store) -> Result<ActiveThreads> {
    let running = Filter { status: Some(Status::Running), ..Filter::default() };
    let (mut active_threads, mut after) = (Vec::new(), None);
    loop {
        let page = store.list(&running, after, PAGE)?;
        for manifest in page.items.into_iter().map(|summary| summary.manifest) {
            if let Some(holder) = holder(store, &manifest.thread_id)? {
                active_threads.push(Active {
                    thread_id: manifest.thread_id,
                    directive: manifest.directive,
                    title: manifest.title,
                    parent_id: manifest.parent_id,
                    run_id: manifest.run_id,
                    holder,
                    updated_at: manifest.updated_at,
                });
            }
        }
        after = page.next;
        if after.is_none() {
            let count = active_threads.len();
            return Ok(ActiveThreads { success: true, active_threads, count });
        }
    }
}

/// A text of at most this many characters.
pub(crate) fn shortened(mut text: String, chars_max: usize) -> String {
    if let Some((at, _)) = text.char_indices().nth(chars_max) {
        let (last, _) = text[..at].char_indices().next_back().unwrap_or_default();
        text.truncate(last);
        text.push('…');
    }
    text
}
