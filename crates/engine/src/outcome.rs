//! How a thread ended, or its state: one type and one JSON form for every command, every tool and every embedding program.
//!
//! It is built in two places:
//!
//! - `HeldThread::outcome`: for a run of this process, from memory.
//! - `Outcome::of_log`: for a run of any process, from the verified log. A log that is not valid gives nothing.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use selvedge_log::Trust;
use selvedge_model::error::{Classify, Kind};
use selvedge_model::event::{Ask, Suspended};
use selvedge_model::limits::Cost;
use selvedge_model::{DirectiveId, Manifest, Message, OwnerId, Role, Run, RunId, RunMeta, Status, ThreadId};
use selvedge_store::load::load;
use selvedge_store::{Error as StoreError, Store, Summary};
use serde::Serialize;
use serde_json::Value;

use crate::chain;
use crate::error::Result;
use crate::held::HeldThread;
use crate::thread_state::{ThreadState, holder, shortened};

/// The most characters of a thread's last answer that are returned.
pub const RESULT_CHARS_MAX: usize = 4000;

/// How a thread ended, or its state. Empty fields are left out of the JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The thread at the end of the chain.
    pub thread_id: ThreadId,
    /// The thread that was asked for, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_thread_id: Option<ThreadId>,
    /// Its state.
    pub status: ThreadState,
    /// The run that this is about; absent if there was nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// Why it ended or is suspended, as a code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Why it ended or is suspended, as a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The last text of the model in that run, shortened if it is long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// What it returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Value>,
    /// What its whole chain used so far.
    pub cost: Cost,
    /// Whether logs of its family are not here, so that what was spent is not wholly known; what is not known counts as spent.
    #[serde(skip_serializing_if = "is_false")]
    pub incomplete: bool,
    /// What the run used, including the runs that continued it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_cost: Option<Cost>,
    /// Why it is suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspended: Option<Suspended>,
    /// The pending approval requests about its calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub asks: Vec<Ask>,
    /// What was resumed, if a thread that had ended was continued in a successor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Resumed>,
    /// The live process that holds it, while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<OwnerId>,
    /// Its directive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directive: Option<DirectiveId>,
    /// Its title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

/// A thread that had ended and was continued in a successor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resumed {
    /// The thread that was resumed.
    pub old_thread_id: ThreadId,
    /// The successor.
    pub new_thread_id: ThreadId,
    /// The thread that was asked for, if it was an earlier link of the chain.
    pub original_thread_id: Option<ThreadId>,
    /// The end of its chain, which was resumed.
    pub resolved_thread_id: ThreadId,
    /// Its directive.
    pub directive: Option<DirectiveId>,
    /// How many answers of the model the successor started with.
    pub reconstructed_turns: u64,
}

impl Outcome {
    /// The outcome of a thread with nothing but a state and a reason.
    pub(crate) fn bare(status: ThreadState, thread_id: ThreadId, why: Option<String>) -> Self {
        Self {
            thread_id,
            original_thread_id: None,
            status,
            run_id: None,
            code: None,
            why,
            result: None,
            outputs: None,
            cost: Cost::default(),
            incomplete: false,
            run_cost: None,
            suspended: None,
            asks: Vec::new(),
            resumed: None,
            holder: None,
            directive: None,
            title: None,
        }
    }

    /// The outcome of a thread that does not exist.
    pub(crate) fn unknown(thread: ThreadId) -> Self {
        let why = StoreError::NoThread(thread.to_string()).to_string();
        Self::bare(ThreadState::NotFound, thread, Some(why))
    }

    /// The outcome by a manifest, of no run in particular. Its cost is that of the thread alone.
    pub(crate) fn of_manifest(manifest: &Manifest, status: ThreadState) -> Self {
        Self {
            outputs: manifest.outputs.clone(),
            cost: manifest.cost.clone(),
            suspended: manifest.suspended.clone(),
            asks: manifest.asks.clone(),
            directive: manifest.directive.clone(),
            title: manifest.title.clone(),
            ..Self::bare(status, manifest.thread_id.clone(), None)
        }
    }

    /// The outcome by a manifest and the record of a run, with the last text of the model in it.
    pub(crate) fn of_run(
        manifest: &Manifest,
        status: ThreadState,
        run: &RunId,
        meta: Option<&RunMeta>,
        text: Option<String>,
    ) -> Self {
        Self {
            run_id: Some(run.clone()),
            code: meta.and_then(|meta| meta.termination_code.clone()),
            why: meta.and_then(|meta| meta.termination_detail.clone()),
            result: text.filter(|text| !text.is_empty()).map(|text| shortened(text, RESULT_CHARS_MAX)),
            run_cost: if manifest.run_id.as_ref() == Some(run) {
                Some(manifest.run_cost.clone())
            } else {
                meta.map(RunMeta::total_cost)
            },
            ..Self::of_manifest(manifest, status)
        }
    }

    /// The same, for this reason; the reason why a log is not valid takes precedence.
    pub(crate) fn because(self, why: Option<String>) -> Self {
        match self.status {
            ThreadState::Unverified => self,
            _ => Self { why: why.or(self.why), ..self },
        }
    }

    /// The outcome of a run of a thread, by its log: every hash and the last signature are checked, once. Nothing is given of a log that is
    /// not valid.
    pub(crate) fn of_log(
        store: &dyn Store,
        trust: &Trust,
        thread: &ThreadId,
        status: ThreadState,
        run: Option<&RunId>,
    ) -> Result<Self> {
        let loaded = match load(store, thread, trust, None) {
            Ok(loaded) => loaded.thread,
            Err(StoreError::Deleted(_)) => return Ok(Self::bare(ThreadState::Deleted, thread.clone(), None)),
            Err(error) if error.kind() == Kind::Integrity => {
                let why = Some(error.to_string());
                let code = Some(error.code().to_owned());
                return Ok(Self { code, ..Self::bare(ThreadState::Unverified, thread.clone(), why) });
            }
            Err(error) => return Err(error.into()),
        };
        let manifest = &loaded.manifest;
        let outcome = match run {
            Some(run) => {
                let meta = loaded.runs.get(run).map(|run| &run.meta);
                Self::of_run(manifest, status, run, meta, last_words(&loaded.messages, run, meta))
            }
            None => Self::of_manifest(manifest, status),
        };
        let holder = if manifest.status == Status::Running { holder(store, thread)? } else { None };
        let incomplete = is_incomplete(store, manifest)?;
        Ok(Self { holder, cost: chain::cost(store, thread)?, incomplete, ..outcome })
    }

    /// Whether the thread completed.
    pub fn is_completed(&self) -> bool {
        self.status == Status::Completed
    }

    /// Why it ended or is suspended: the sentence if there is one, or the code.
    pub fn reason(&self) -> Option<&str> {
        self.why.as_deref().or(self.code.as_deref())
    }
}

/// The last text of the model in a run; or, if the run only recorded the end of one that was lost after its answer, that answer.
fn last_words<M: Borrow<Message>>(messages: &[M], run: &RunId, meta: Option<&RunMeta>) -> Option<String> {
    let all = || messages.iter().map(Borrow::borrow);
    let own = last_text(all().filter(|message| message.run_id.as_ref() == Some(run)));
    own.or_else(|| meta.filter(|meta| meta.result.is_some()).and_then(|_| last_text(all())))
}

/// The last text of the model in messages.
pub(crate) fn last_text<'a>(messages: impl DoubleEndedIterator<Item = &'a Message>) -> Option<String> {
    let mut answers = messages.rev().filter(|message| message.role == Role::Assistant).map(Message::plain_text);
    answers.find(|text| !text.is_empty())
}

impl HeldThread {
    /// The outcome of a run of this thread, from memory; `text` is the last text of its model.
    pub(crate) fn outcome(&self, run: &RunId, text: Option<String>) -> Outcome {
        let manifest = self.fold.manifest();
        let meta = self.fold.run(run).map(|run| &run.meta);
        let text = text.or_else(|| last_words(self.fold.conversation.messages(), run, meta));
        let outcome = Outcome::of_run(manifest, manifest.status.into(), run, meta, text);
        Outcome { cost: self.chain_cost(), incomplete: self.is_incomplete(), ..outcome }
    }

    /// The outcome of its last run, whichever process made it.
    pub(crate) fn last_outcome(&self) -> Outcome {
        let last = self.fold.thread().runs.values().max_by_key(|run: &&Run| run.created_at);
        last.map_or_else(|| self.nothing_done(), |run| self.outcome(&run.run_id, None))
    }

    /// The outcome of the thread if there was nothing to run.
    pub(crate) fn nothing_done(&self) -> Outcome {
        let manifest = self.fold.manifest();
        Outcome { cost: self.chain_cost(), incomplete: self.is_incomplete(), ..nothing_done(manifest) }
    }

    /// Whether its account is incomplete. One that can't be read was named when the run began.
    fn is_incomplete(&self) -> bool {
        is_incomplete(&*self.engine.store, self.fold.manifest()).unwrap_or(false)
    }

    /// What the whole chain used; if it can't be read, what this thread used.
    fn chain_cost(&self) -> Cost {
        let own = self.fold.manifest();
        let is_alone = own.continuation_of.is_none() && own.continuation_thread_id.is_none();
        let chain = if is_alone { None } else { chain::cost(&*self.engine.store, self.thread()).ok() };
        chain.unwrap_or_else(|| own.cost.clone())
    }
}

/// Whether the account of a thread's chain is incomplete.
pub(crate) fn is_incomplete(store: &dyn Store, manifest: &Manifest) -> selvedge_store::Result<bool> {
    Ok(store.account(&manifest.chain_root_id)?.is_some_and(|account| account.incomplete))
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// The outcome of a thread if there was nothing to run.
pub(crate) fn nothing_done(manifest: &Manifest) -> Outcome {
    match manifest.status {
        status @ Status::Suspended => {
            Outcome { code: Some("waiting".to_owned()), ..Outcome::of_manifest(manifest, status.into()) }
        }
        status => {
            Outcome { code: Some("already_recorded".to_owned()), ..Outcome::of_manifest(manifest, status.into()) }
        }
    }
}

/// The outcomes of several threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcomes {
    /// Whether all of them completed.
    pub success: bool,
    /// Each by the id that was asked for.
    pub results: BTreeMap<ThreadId, Outcome>,
}

impl Outcomes {
    pub(crate) fn new(results: BTreeMap<ThreadId, Outcome>) -> Self {
        Self { success: results.values().all(Outcome::is_completed), results }
    }
}

/// The outcomes of threads, without waiting.
pub fn aggregate_results(store: &dyn Store, trust: &Trust, threads: &[ThreadId]) -> Result<Outcomes> {
    let outcome = |thread: &ThreadId| Ok((thread.clone(), get_status(store, trust, thread)?));
    Ok(Outcomes::new(threads.iter().map(outcome).collect::<Result<_>>()?))
}

/// The outcome of a thread, or of the end of its chain.
pub fn get_status(store: &dyn Store, trust: &Trust, thread: &ThreadId) -> Result<Outcome> {
    let end = chain::end(store, thread)?;
    let original_thread_id = (end.thread != *thread).then(|| thread.clone());
    let outcome = match end.summary {
        Some(summary) if !end.is_deleted => {
            let outcome = of_thread(store, trust, &summary)?;
            let is_cut = end.why.is_some() && outcome.status != ThreadState::Unverified;
            let status = if is_cut { ThreadState::Stalled } else { outcome.status };
            Outcome { status, ..outcome }.because(end.why)
        }
        Some(summary) => deleted(store, &summary.manifest)?,
        None => Outcome::unknown(end.thread),
    };
    Ok(Outcome { original_thread_id, ..outcome })
}

/// The outcome of a thread itself, even if it was continued: of its active run, or of its last one.
pub fn of_thread(store: &dyn Store, trust: &Trust, thread: &Summary) -> Result<Outcome> {
    let manifest = &thread.manifest;
    let run = match &manifest.run_id {
        Some(active) => Some(active.clone()),
        None => store.runs(&manifest.thread_id)?.pop().map(|run| run.run_id),
    };
    Outcome::of_log(store, trust, &manifest.thread_id, ThreadState::from(thread), run.as_ref())
}

/// The outcome of a thread that was deleted, by its tombstone.
pub(crate) fn deleted(store: &dyn Store, manifest: &Manifest) -> Result<Outcome> {
    let bare = Outcome::bare(ThreadState::Deleted, manifest.thread_id.clone(), Some("it was deleted".to_owned()));
    Ok(Outcome { outputs: manifest.outputs.clone(), cost: chain::cost(store, &manifest.thread_id)?, ..bare })
}
