//! Spawns children: one batch for parent and child, and the outcome of the call that asked for it.
//!
//! Spawning a child is a call that may be made once. Its intent is the batch that creates the child: the parent's `tool_intent` and
//! `child_spawned`, the child's first changeset, and the money that is reserved for it. So after a crash there is a child with an intent or
//! neither, and the outcome of the call is the outcome of the child.
//!
//! - A child that is waited for runs in this process, as a task of its own; the next process that runs the parent resumes it.
//! - A detached child is a process of its own, started behind a gate: its identity is in the intent, and it runs once the batch is durable. It
//!   lives on without its parent.
//! - Only a limited number of children of a thread run at the same time; the rest wait for a slot, behind their gate if they have one.
//! - A child whose process died is settled by the next process that finds it: `orphans`.
//! - A child may do no more than its parent: the lower of both limits, the intersection of both capabilities, one level deeper. It has no more
//!   money than its parent has left, less a share that the parent keeps; what it gets less than it asked for is in the result.

use std::sync::Arc;

use selvedge_items::capability::{Capabilities, Capability};
use selvedge_model::account::Posting;
use selvedge_model::blocking::on_thread;
use selvedge_model::event::{CallOrigin, Fields, SuspendReason, Suspended, ToolFailure, ToolFailureClass};
use selvedge_model::limits::Limits;
use selvedge_model::request::ChildEnd;
use selvedge_model::tool::Started;
use selvedge_model::{
    Call, CallId, Cancel, Changeset, Event, Expect, Input, Manifest, Message, Money, NewThread, Origin, Output, Part,
    Posted, Request, Status, Stop, ThreadId, ToolError,
};
use selvedge_store::{Error as StoreError, Summary};
use serde_json::{Value, json};

use crate::child_slots::Slot;
use crate::decide::ending::over;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::CallerEvents;
use crate::held::HeldThread;
use crate::ledger::Book;
use crate::outcome::{Outcome, get_status};
use crate::run_config::RunConfig;
use crate::thread_state::started_for;

/// How many levels of threads a hook can start: so hooks that start threads whose hooks start threads come to an end.
const HOOK_DEPTH: u64 = 1;

/// Turns the arguments of a call into a child, and knows the run configuration of its runs.
pub trait Children: Send + Sync {
    /// The child that a call asks for; the error is written for the model.
    fn new_child(&self, call: &Call, parent: &Manifest) -> std::result::Result<NewChild, String>;

    /// The run configuration of a child's runs.
    fn run_config(&self, child: &Manifest) -> std::result::Result<RunConfig, String>;

    /// The result of a call whose child has ended, from the child's own. It may be asked for more than once, and leaves the same behind.
    fn returned(&self, call: &Call, output: Output) -> Output {
        _ = call;
        output
    }

    /// A process that will run a child, behind a gate: dispatching it opens the gate and does not wait. If it is dropped, it never ran.
    fn launch(&self, child: &ThreadId) -> std::result::Result<Box<dyn Started>, String>;
}

/// A child to be spawned.
#[derive(Clone, Debug, PartialEq)]
pub struct NewChild {
    /// The thread, with the limits and capabilities that are requested for it.
    pub thread: NewThread,
    /// Its first messages.
    pub messages: Vec<Message>,
    /// Whether its parent does not wait for it.
    pub detached: bool,
}

/// Checks whether everything signed about a thread agrees with its manifest, which comes from the verified log; the error is written for the
/// model.
pub type CheckParent = Arc<dyn Fn(&Manifest) -> std::result::Result<(), String> + Send + Sync>;

/// How a run spawns children.
#[derive(Clone)]
pub struct Spawning {
    /// Creates children; a tool that spawns one is of the kind [`ToolKind::Child`](selvedge_model::ToolKind::Child).
    pub children: Arc<dyn Children>,
    /// The most children of a thread that run at the same time.
    pub at_once: usize,
    /// Checks the parent's manifest; a parent whose manifest was forged spawns nothing.
    pub check_parent: CheckParent,
}

impl std::fmt::Debug for Spawning {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Spawning").field("at_once", &self.at_once).finish_non_exhaustive()
    }
}

/// A child that is being spawned.
pub(crate) struct Child {
    pub(crate) thread: ThreadId,
    /// What creates it; none once it exists.
    pub(crate) birth: Option<ChildCreation>,
    /// The process that runs it, if its parent does not wait.
    pub(crate) launched: Option<Box<dyn Started>>,
    pub(crate) is_detached: bool,
    /// The limits that are lower than requested.
    pub(crate) lowered: Limits,
    /// Its slot, once it was waited for.
    pub(crate) slot: Option<Slot>,
}

/// What creates a child.
pub(crate) struct ChildCreation {
    /// Its first changeset.
    pub(crate) part: Part,
    /// Its first input.
    pub(crate) first: Option<Posted>,
    /// The money for it.
    pub(crate) postings: Vec<Posting>,
}

/// What a parent needs besides a child.
#[derive(Clone, Copy)]
pub(crate) struct ParentNeeds {
    /// How many children of the same batch come before it.
    pub(crate) born: u64,
    /// What its own next turn may cost.
    pub(crate) turn: Money,
}

/// Why a child is not spawned.
pub(crate) enum Refused {
    /// The model gets an error.
    Told(Refusal),
    /// A limit is reached, and the thread is suspended.
    Waits(Box<Suspended>),
}

/// The error that the model gets, and how it is recorded.
pub(crate) struct Refusal {
    pub(crate) text: String,
    pub(crate) failure: Option<ToolFailure>,
}

impl Refused {
    /// With an error that is written for the model.
    pub(crate) fn told(text: impl Into<String>) -> Self {
        Self::Told(Refusal { text: text.into(), failure: None })
    }

    /// For a reason outside of the thread's own record.
    pub(crate) fn outside(failure: ToolFailure) -> Self {
        let ToolFailure { class, why } = &failure;
        let text = match class {
            ToolFailureClass::ParentUnverified => format!("the thread can't spawn a child: {why}"),
            ToolFailureClass::OverBudget => format!("the budget does not allow it: {why}"),
            ToolFailureClass::NotLaunched
            | ToolFailureClass::NotStarted
            | ToolFailureClass::Panicked
            | ToolFailureClass::Integrity => {
                format!("the child could not be started: {why}")
            }
        };
        Self::Told(Refusal { text, failure: Some(failure) })
    }

    fn because(class: ToolFailureClass, why: impl ToString) -> Self {
        Self::outside(ToolFailure { class, why: why.to_string() })
    }
}

impl From<ToolError> for Refused {
    fn from(error: ToolError) -> Self {
        Self::Told(Refusal { text: error.to_string(), failure: error.failure() })
    }
}

impl HeldThread {
    /// The child that a call asks for, ready to be created.
    pub(crate) fn child(
        &self,
        call: &Call,
        work: &RunConfig,
        spawning: &Spawning,
        own: ParentNeeds,
        book: &mut Book<'_>,
    ) -> Result<std::result::Result<Child, Refused>> {
        let parent = self.fold.manifest();
        let (mut order, wished, limits) = match self.admit_child(call, work, spawning, own.born) {
            Ok(ordered) => ordered,
            Err(refused) => return Ok(Err(refused)),
        };
        let thread = self.child_id(&order.thread);
        let limits = match self.fund_child(&thread, &wished, limits, work, own.turn, book) {
            Ok(limits) => limits,
            Err(Error::Store(error @ StoreError::Posting(_))) => {
                return Ok(Err(Refused::because(ToolFailureClass::OverBudget, error)));
            }
            Err(error) => return Err(error),
        };
        let lowered = limits.below(&wished);
        order.thread.limits = Some(limits);
        order.thread.capabilities = narrowed(order.thread.capabilities.take(), parent.capabilities.as_deref());
        order.thread.acknowledged.retain(|risk| parent.acknowledged.iter().any(|known| known >= risk));
        order.thread.parent_id = Some(parent.thread_id.clone());
        order.thread.parent_run_id = Some(call.run.clone());
        order.thread.family_root_id = Some(parent.family_root().clone());
        let launched = match order.detached.then(|| spawning.children.launch(&thread)).transpose() {
            Ok(launched) => launched,
            Err(why) => return Ok(Err(Refused::because(ToolFailureClass::NotLaunched, why))),
        };
        self.engine.redactor.thread(&mut order.thread);
        self.engine.redactor.messages(&mut order.messages);
        let input = Input { origin: Origin::Subagent, ..Input::messages(order.messages) };
        let birth = Some(ChildCreation {
            part: Part::new(thread.clone(), Expect::Absent, Changeset::creating(order.thread)),
            first: self.engine.first_send(&thread, input)?,
            postings: book.take_postings(),
        });
        Ok(Ok(Child { thread, birth, launched, is_detached: order.detached, lowered, slot: None }))
    }

    /// The child that a call asks for, with the limits that are requested and those that it gets; `before` children of the batch come first.
    pub(crate) fn admit_child(
        &self,
        call: &Call,
        work: &RunConfig,
        spawning: &Spawning,
        before: u64,
    ) -> std::result::Result<(NewChild, Limits, Limits), Refused> {
        let parent = self.fold.manifest();
        (spawning.check_parent)(parent).map_err(|why| Refused::because(ToolFailureClass::ParentUnverified, why))?;
        let mut order = spawning.children.new_child(call, parent).map_err(Refused::told)?;
        let ceilings = self.limits(work);
        let mut used = self.fold.meter().used(0);
        used.spawns = used.spawns.saturating_add(before);
        if let Some(reached) = ceilings.reached_by_children(&used) {
            return Err(Refused::Waits(Box::new(over(reached))));
        }
        let wished = order.thread.limits.take().unwrap_or_default();
        match wished.under(&ceilings) {
            Some(limits) if self.is_of_hook(call) => {
                // Its own hooks may start threads, and those of these may not.
                let depth = limits.depth.map_or(HOOK_DEPTH, |depth| depth.min(HOOK_DEPTH));
                Ok((order, wished, Limits { depth: Some(depth), ..limits }))
            }
            Some(limits) => Ok((order, wished, limits)),
            None => Err(Refused::told("the depth limit allows no further children")),
        }
    }

    fn is_of_hook(&self, call: &Call) -> bool {
        let origin = self.fold.call(&call.id).and_then(|known| known.origin.as_ref());
        matches!(origin, Some(CallOrigin::Hook { .. }))
    }

    pub(crate) fn child_id(&self, child: &NewThread) -> ThreadId {
        ThreadId::generate(child.name(), &self.engine.ids.hex12())
    }

    /// Reserves the money of a child; returns its limits. A child without a requested budget gets an equal share of what is left, among the
    /// most children that run at the same time and their parent: so something is left for the parent and for the next child. A child that
    /// asks for more gets no more than what is left without one such share, or without the cost of the parent's own next turn.
    fn fund_child(
        &self,
        child: &ThreadId,
        wished: &Limits,
        mut limits: Limits,
        work: &RunConfig,
        own_turn: Money,
        book: &mut Book<'_>,
    ) -> Result<Limits> {
        let parent = &self.fold.manifest().chain_root_id;
        // A limit holds for everything below it, whatever the parent's own calls cost.
        if self.limits(work).spend.is_none() && book.account(parent)?.is_none() {
            return Ok(limits);
        }
        book.ensure(parent, self.limits(work).spend)?;
        let left = book.account(parent)?.and_then(|account| account.remaining());
        if let Some(left) = left {
            let children = work.spawning.as_ref().map_or(1, |spawning| spawning.at_once.max(1));
            let share = left.share((children as u64).saturating_add(1));
            let most = left.saturating_sub(share.max(own_turn));
            limits.spend = match wished.spend {
                None => Some(share),
                // Nothing is left to give: the account refuses it.
                Some(_) if most.is_zero() => limits.spend,
                Some(_) => limits.spend.map(|spend| spend.min(most)),
            };
        }
        book.spawn(parent, child, limits.spend)?;
        Ok(limits)
    }
}

/// The capabilities of a child: those that it requests and its parent has, too. A parent without a record does not restrict it.
fn narrowed(wished: Option<Vec<String>>, parent: Option<&[String]>) -> Option<Vec<String>> {
    let parse =
        |tokens: &[String]| Capabilities::new(tokens.iter().filter_map(|token| token.parse::<Capability>().ok()));
    match (wished, parent) {
        (Some(wished), Some(parent)) => Some(parse(&wished).meet(&parse(parent)).to_strings()),
        (None, Some(parent)) => Some(parent.to_vec()),
        (wished, None) => wished,
    }
}

impl Child {
    /// Runs it, or opens its gate; returns the result that its parent gets.
    pub(crate) async fn start(self, engine: &Engine, spawning: &Spawning, cancel: &Cancel) -> Output {
        let lowered = self.lowered.clone();
        with_lowered(self.run(engine, spawning, cancel).await, &lowered)
    }

    /// Waits for a slot among the children of its parent.
    pub(crate) async fn wait_for_slot(&mut self, engine: &Engine, spawning: &Spawning, cancel: &Cancel) {
        let process = self.launched.as_ref().and_then(|launched| launched.process());
        self.slot = Some(engine.take_slot(&self.thread, process, spawning.at_once, cancel).await);
    }

    async fn run(self, engine: &Engine, spawning: &Spawning, cancel: &Cancel) -> Output {
        let slot = self.slot.unwrap_or(Slot::Taken);
        if slot == Slot::Over {
            // It was stopped, or ended, while it waited for a slot. If there is a gate, it never opens.
            return match engine.existing_child_result(&self.thread, self.is_detached) {
                Ok(state) => state.unwrap_or_else(|| running(&self.thread)),
                Err(error) => Output::error(format!("the outcome of the child is unknown: {error}")),
            };
        }
        if let Some(launched) = self.launched {
            if slot == Slot::Stopped {
                // Its gate never opens.
                drop(launched);
                let engine = engine.clone();
                let stop = cancel.said().unwrap_or(Stop::Cancelled);
                on_thread(move || _ = engine.stop(&self.thread, stop)).await;
                return Output::error("interrupted: the thread was stopped before the child could be started");
            }
            return match launched.dispatch(cancel).wait() {
                Ok(_) => running(&self.thread),
                Err(error) => Output::error(error.to_string()),
            };
        }
        // A child that got no slot because of a stop sees the stop at once.
        let slot = engine.slot_of(&self.thread);
        let ended = engine.run_child(&self.thread, spawning, cancel).await;
        drop(slot);
        match ended {
            Ok(ended) => child_result(&ended),
            Err(why) => Output::error(format!("child `{}` could not be run: {why}", self.thread)),
        }
    }
}

/// The parent's record of a child that a call spawned.
pub(crate) fn spawned(call: &CallId, child: &ThreadId, is_detached: bool) -> Event {
    let fields = json!({"call_id": call, "thread_id": child, "detached": is_detached});
    Event::ChildSpawned(match fields {
        Value::Object(fields) => fields,
        _ => Fields::new(),
    })
}

impl Engine {
    async fn run_child(
        &self,
        child: &ThreadId,
        spawning: &Spawning,
        cancel: &Cancel,
    ) -> std::result::Result<Outcome, String> {
        let end = self.end_of_chain(child).map_err(|error| error.to_string())?;
        let manifest = self.store.get(&end).map_err(|error| error.to_string())?.manifest;
        let work = spawning.children.run_config(&manifest)?;
        let input = Input { origin: Origin::Subagent, ..Input::nothing() };
        // A stop of the parent stops the child; a stop of the child does not stop its parent.
        let resumed = self.clone().resumed(end, input, Arc::new(work), cancel.child(), CallerEvents::default());
        // A task of its own: it completes even if its parent's task ends.
        let task = self.tasks.spawn(resumed).map_err(|error| error.to_string())?;
        task.await.map_err(|error| error.to_string())
    }

    /// The result of a child that was spawned before; none if it must be resumed.
    pub(crate) fn existing_child_result(&self, child: &ThreadId, is_detached: bool) -> Result<Option<Output>> {
        let end = self.end_of_chain(child)?;
        let summary = self.store.get(&end)?;
        Ok(match summary.manifest.status {
            status if status.is_terminal() => Some(child_result(&self.child_outcome(&end)?)),
            _ if is_detached => self.detached_result(&summary)?,
            _ => None,
        })
    }

    /// The outcome of a child that has ended or is suspended.
    fn child_outcome(&self, end: &ThreadId) -> Result<Outcome> {
        get_status(&*self.store, &self.trust, end)
    }

    /// The result of a detached child that has not ended; none if its process is gone, and it is started again.
    fn detached_result(&self, child: &Summary) -> Result<Option<Output>> {
        let end = &child.manifest;
        let thread = &child.manifest.thread_id;
        if end.is_run_outside() || child.holder.is_some() {
            return Ok(Some(running(thread)));
        }
        if let Some(why) = end.suspended.as_ref().filter(|_| end.status == Status::Suspended) {
            // A child that is suspended stays so; one whose process was lost is resumed.
            let is_lost = why.reason == SuspendReason::Error && why.is_process_lost();
            return if is_lost { Ok(None) } else { Ok(Some(child_result(&self.child_outcome(thread)?))) };
        }
        // A process that is about to run it is ended, so that it does not run beside the next one. What it did by then is in the log.
        let process = started_for(&*self.store, &self.trust, end)?;
        let is_gone = process.is_none_or(|process| self.processes.end(&process).is_ok());
        Ok((!is_gone).then(|| running(thread)))
    }
}

impl HeldThread {
    /// The request that reports this thread's outcome to its parent, if this is its end.
    pub(crate) fn child_settled_request(&self, status: Status) -> Option<Posted> {
        if !status.is_terminal() || status == Status::Continued {
            return None;
        }
        let returned = self.delta.events.iter().find_map(|event| match event {
            Event::ManifestChanged(changed) => changed.outputs.clone(),
            _ => None,
        });
        let outputs = returned.or_else(|| self.fold.manifest().outputs.clone());
        let parent = self.fold.manifest().parent_id.clone()?;
        let parent = self.engine.end_of_chain(&parent).ok()?;
        let thread_id = self.fold.manifest().chain_root_id.clone();
        let end_thread_id = self.thread().clone();
        let end = ChildEnd { thread_id, end_thread_id, status, outputs };
        self.engine.posted(&parent, Request::ChildSettled(end)).ok()
    }
}

/// The result of a child, with the limits that are lower than requested.
fn with_lowered(mut output: Output, lowered: &Limits) -> Output {
    if *lowered != Limits::default()
        && let Some(fields) = output.content.as_object_mut()
    {
        fields.insert("limits".to_owned(), json!(lowered));
        let note = "these limits are lower than you requested: a child gets no more than its parent has, and no more money than the \
                    parent has left after reserving what it needs itself";
        fields.insert("note".to_owned(), json!(note));
    }
    output
}

/// The result of a child that runs detached.
fn running(thread: &ThreadId) -> Output {
    let content = json!({"success": true, "thread_id": thread, "status": Status::Running});
    Output { content, ..Output::default() }
}

/// The result of a child that ended or is suspended.
fn child_result(outcome: &Outcome) -> Output {
    let is_done = outcome.is_completed();
    let mut content = json!(outcome);
    content["success"] = json!(is_done);
    Output { content, is_error: !is_done, ..Output::default() }
}
