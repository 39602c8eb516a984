//! Threads that a thread starts: one batch for both, and what becomes of the call that asked for it.
//!
//! Starting a child is a call that may be made once. Its intent is the batch that creates the child: the parent's `tool_intent` and
//! `child_spawned`, the child's first changeset, and the money that is set aside for it. So after a crash there is a child with an
//! intent or neither, and what became of the call is what became of the child.
//!
//! - A child that is waited for runs in this process, as a task of its own; the process that takes up the parent goes on with it.
//! - A child that is not waited for is a process of its own, started behind a gate: its identity stands in the intent, and it runs
//!   once the batch is durable. It lives on without its parent.
//! - Only so many children of a thread run at the same time; others wait their turn, behind their gate if they have one.
//! - A child whose process died is settled by whoever finds it: `orphans`.
//! - A child may do no more than its parent: ceilings by the lower of both, capabilities by intersection, one level deeper. It has no more
//!   money than its parent has left, less a share that the parent keeps; what it has less than was asked for is in the answer.

use std::sync::Arc;

use selvedge_items::capability::{Capabilities, Capability};
use selvedge_model::account::Posting;
use selvedge_model::blocking::on_thread;
use selvedge_model::event::{Fields, SuspendReason, Suspended, ToolFailure, ToolFailureClass};
use selvedge_model::limits::Limits;
use selvedge_model::request::ChildEnd;
use selvedge_model::tool::Started;
use selvedge_model::{
    Call, CallId, Cancel, Changeset, Event, Expect, Input, Manifest, Message, Money, NewThread, Origin, Output, Part,
    Posted, Request, Status, Stop, ThreadId, ToolError,
};
use selvedge_store::{Error as StoreError, Summary};
use serde_json::{Value, json};

use crate::assignment::Assignment;
use crate::decide::ending::over;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::Audience;
use crate::held::Held;
use crate::ledger::Book;
use crate::outcome::{Outcome, get_status};
use crate::places::Place;
use crate::standing::started_for;

/// Makes the arguments of a call into a child, and knows how its runs are done.
pub trait Children: Send + Sync {
    /// The child that a call asks for; in words that help a model if it can't be one.
    fn order(&self, call: &Call, parent: &Manifest) -> std::result::Result<Order, String>;

    /// What the runs of a child are done with.
    fn assignment(&self, child: &Manifest) -> std::result::Result<Assignment, String>;

    /// A process that will run a child, behind a gate: dispatching it opens the gate and does not wait. Dropped, it never ran.
    fn launch(&self, child: &ThreadId) -> std::result::Result<Box<dyn Started>, String>;
}

/// A child to be started.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// The thread, with the ceilings and capabilities that are wished for it.
    pub thread: NewThread,
    /// What it begins with.
    pub messages: Vec<Message>,
    /// Whether its parent goes on without waiting for it.
    pub detached: bool,
}

/// Whether what is signed about a thread says the same as its record, which is given as the verified log tells it; why not, in words that
/// help a model.
pub type Vouch = Arc<dyn Fn(&Manifest) -> std::result::Result<(), String> + Send + Sync>;

/// How a run starts children.
#[derive(Clone)]
pub struct Spawning {
    /// Who knows how; the tool that starts one is of the kind [`ToolKind::Child`](selvedge_model::ToolKind::Child).
    pub children: Arc<dyn Children>,
    /// How many children of a thread run at the same time.
    pub at_once: usize,
    /// Whether what is signed about a thread says the same as its record; a parent that was forged starts nothing.
    pub vouch: Vouch,
}

impl std::fmt::Debug for Spawning {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Spawning").field("at_once", &self.at_once).finish_non_exhaustive()
    }
}

/// A child on its way.
pub(crate) struct Child {
    pub(crate) thread: ThreadId,
    /// What creates it; nothing once it is there.
    pub(crate) birth: Option<Unborn>,
    /// The process that runs it, if its parent does not wait.
    pub(crate) launched: Option<Box<dyn Started>>,
    pub(crate) is_detached: bool,
    /// The ceilings that are lower than was asked for it.
    pub(crate) lowered: Limits,
    /// Whether it may begin; it waits for that before it does.
    pub(crate) place: Option<Place>,
}

/// What creates a child.
pub(crate) struct Unborn {
    /// Its first changeset.
    pub(crate) part: Part,
    /// What it begins with.
    pub(crate) first: Option<Posted>,
    /// The money for it.
    pub(crate) postings: Vec<Posting>,
}

/// What a parent has to do with beside a child.
#[derive(Clone, Copy)]
pub(crate) struct Own {
    /// How many children of the same batch come first.
    pub(crate) born: u64,
    /// What its own next turn may cost.
    pub(crate) turn: Money,
}

/// Why a child is not started.
pub(crate) enum Refused {
    /// The model is told.
    Told(Refusal),
    /// A ceiling is reached, and the thread waits.
    Waits(Box<Suspended>),
}

/// What the model is told instead of an answer, and how that is recorded.
pub(crate) struct Refusal {
    pub(crate) text: String,
    pub(crate) failure: Option<ToolFailure>,
}

impl Refused {
    /// In words that help a model.
    pub(crate) fn told(text: impl Into<String>) -> Self {
        Self::Told(Refusal { text: text.into(), failure: None })
    }

    /// By something outside of the thread's own record.
    pub(crate) fn outside(failure: ToolFailure) -> Self {
        let ToolFailure { class, why } = &failure;
        let text = match class {
            ToolFailureClass::ParentUnverified => format!("the thread can't start a child: {why}"),
            ToolFailureClass::OverBudget => format!("the budget does not hold: {why}"),
            ToolFailureClass::NotLaunched | ToolFailureClass::NotStarted | ToolFailureClass::Panicked => {
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

impl Held {
    /// The child that a call asks for, made ready.
    pub(crate) fn child(
        &self,
        call: &Call,
        work: &Assignment,
        spawning: &Spawning,
        own: Own,
        book: &mut Book<'_>,
    ) -> Result<std::result::Result<Child, Refused>> {
        let parent = self.fold.manifest();
        let (mut order, wished, limits) = match self.ordered(call, work, spawning, own.born) {
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
        let birth = Some(Unborn {
            part: Part::new(thread.clone(), Expect::Absent, Changeset::creating(order.thread)),
            first: self.engine.first_send(&thread, input)?,
            postings: book.take_postings(),
        });
        Ok(Ok(Child { thread, birth, launched, is_detached: order.detached, lowered, place: None }))
    }

    /// The child that a call asks for, with the ceilings that are wished for it and those that it may have; so many are born before it.
    pub(crate) fn ordered(
        &self,
        call: &Call,
        work: &Assignment,
        spawning: &Spawning,
        before: u64,
    ) -> std::result::Result<(Order, Limits, Limits), Refused> {
        let parent = self.fold.manifest();
        (spawning.vouch)(parent).map_err(|why| Refused::because(ToolFailureClass::ParentUnverified, why))?;
        let mut order = spawning.children.order(call, parent).map_err(Refused::told)?;
        let ceilings = self.limits(work);
        let mut used = self.fold.meter().used(0);
        used.spawns = used.spawns.saturating_add(before);
        if let Some(reached) = ceilings.reached_by_children(&used) {
            return Err(Refused::Waits(Box::new(over(reached))));
        }
        let wished = order.thread.limits.take().unwrap_or_default();
        match wished.under(&ceilings) {
            Some(limits) => Ok((order, wished, limits)),
            None => Err(Refused::told("children may not go deeper")),
        }
    }

    pub(crate) fn child_id(&self, child: &NewThread) -> ThreadId {
        let name = child.directive.as_ref().map_or(child.agent_id.as_str(), |directive| directive.as_str());
        ThreadId::generate(name, &self.engine.ids.hex12())
    }

    /// Sets the money of a child aside; gives its ceilings. A child of which nobody says how much it may spend gets an equal share of
    /// what is left, among as many as may run side by side and their parent: so something is left for the parent and for the next one. One
    /// that asks for more gets no more than what is left without one such share, or without what the parent's own next turn may cost.
    fn fund_child(
        &self,
        child: &ThreadId,
        wished: &Limits,
        mut limits: Limits,
        work: &Assignment,
        own_turn: Money,
        book: &mut Book<'_>,
    ) -> Result<Limits> {
        let parent = &self.fold.manifest().chain_root_id;
        // A ceiling holds for all that is below it, whatever the parent's own calls cost.
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
                // Of nothing, nothing can be given: the account says so.
                Some(_) if most.is_zero() => limits.spend,
                Some(_) => limits.spend.map(|spend| spend.min(most)),
            };
        }
        book.spawn(parent, child, limits.spend)?;
        Ok(limits)
    }
}

/// What a child may call: what it wishes for and its parent may, too. A parent of which nothing is recorded does not restrict.
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
    /// What the parent says of it.
    pub(crate) fn spawned(&self, call: &CallId) -> Event {
        spawned(call, &self.thread, self.is_detached)
    }

    /// Runs it, or lets it run; gives what its parent is told.
    pub(crate) async fn go(self, engine: &Engine, spawning: &Spawning, cancel: &Cancel) -> Output {
        let lowered = self.lowered.clone();
        with_lowered(self.run(engine, spawning, cancel).await, &lowered)
    }

    /// Waits until there is a place for it among the children of its parent.
    pub(crate) async fn enter(&mut self, engine: &Engine, spawning: &Spawning, cancel: &Cancel) {
        let process = self.launched.as_ref().and_then(|launched| launched.process());
        // Where it can't be known who runs, it is not kept from running.
        let place = engine.take_place(&self.thread, process, spawning.at_once, cancel).await;
        self.place = Some(place.unwrap_or(Place::Taken));
    }

    async fn run(self, engine: &Engine, spawning: &Spawning, cancel: &Cancel) -> Output {
        let place = self.place.unwrap_or(Place::Taken);
        if place == Place::Over {
            // It was ended, or came to its end, while it waited for its place. If there is a gate, it never opens.
            let (other, thread) = (engine.clone(), self.thread.clone());
            return match engine.tasks.block(move || other.child_standing(&thread, self.is_detached)).await {
                Ok(standing) => standing.unwrap_or_else(|| running(&self.thread)),
                Err(error) => Output::error(format!("what became of the child is not known: {error}")),
            };
        }
        if let Some(launched) = self.launched {
            if place == Place::Stopped {
                // Its gate never opens.
                drop(launched);
                let (engine, stop) = (engine.clone(), cancel.said().unwrap_or(Stop::Cancelled));
                on_thread(move || _ = engine.stop(&self.thread, stop)).await;
                return Output::error("interrupted: the thread was stopped before the child could be started");
            }
            return match launched.dispatch(cancel).wait() {
                Ok(_) => running(&self.thread),
                Err(error) => Output::error(error.to_string()),
            };
        }
        // One that has no place because somebody said to stop hears that at once.
        let leaving = engine.place_of(&self.thread);
        let ended = engine.run_child(&self.thread, spawning, cancel).await;
        drop(leaving);
        match ended {
            Ok(ended) => told_of(&ended),
            Err(why) => Output::error(format!("child `{}` could not be run: {why}", self.thread)),
        }
    }
}

/// What a parent says of a child that a call started.
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
        let (engine, child, children) = (self.clone(), child.clone(), spawning.children.clone());
        let order = move || {
            let end = engine.end_of_chain(&child).map_err(|error| error.to_string())?;
            let manifest = engine.store.get(&end).map_err(|error| error.to_string())?.manifest;
            children.assignment(&manifest).map(|work| (end, work))
        };
        let (end, work) = self.tasks.block(order).await?;
        let input = Input { origin: Origin::Subagent, ..Input::nothing() };
        // Whoever stops the parent stops the child; whoever stops the child does not stop its parent.
        let resumed = self.clone().resumed(end, input, Arc::new(work), cancel.child(), Audience::default());
        // A task of its own: whatever becomes of its parent's, it goes on.
        let task = self.tasks.spawn(resumed).map_err(|error| error.to_string())?;
        task.await.map_err(|error| error.to_string())
    }

    /// What became of a child that was started before; nothing if it must be gone on with.
    pub(crate) fn child_standing(&self, child: &ThreadId, is_detached: bool) -> Result<Option<Output>> {
        let end = self.end_of_chain(child)?;
        let summary = self.store.get(&end)?;
        Ok(match summary.manifest.status {
            status if status.is_terminal() => Some(told_of(&self.child_outcome(&end)?)),
            _ if is_detached => self.elsewhere(&summary)?,
            _ => None,
        })
    }

    /// The outcome of a child that has ended or waits.
    fn child_outcome(&self, end: &ThreadId) -> Result<Outcome> {
        get_status(&*self.store, &self.trust, end)
    }

    /// What is told of a child that a process of its own was to run; nothing if there is none any more, and it is started again.
    fn elsewhere(&self, child: &Summary) -> Result<Option<Output>> {
        let (end, thread) = (&child.manifest, &child.manifest.thread_id);
        if end.is_run_outside() || child.holder.is_some() {
            return Ok(Some(running(thread)));
        }
        if let Some(why) = end.suspended.as_ref().filter(|_| end.status == Status::Suspended) {
            // One that waits for somebody goes on waiting; one whose process was lost goes on.
            let is_lost = why.reason == SuspendReason::Error && why.code.as_deref() == Some("process_lost");
            return if is_lost { Ok(None) } else { Ok(Some(told_of(&self.child_outcome(thread)?))) };
        }
        // One that is about to take it is ended, so that it does not run beside the next. What it did by then is in the log.
        let process = started_for(&*self.store, &self.trust, end)?;
        let is_gone = process.is_none_or(|process| self.processes.end(&process).is_ok());
        Ok((!is_gone).then(|| running(thread)))
    }
}

impl Held {
    /// The request that tells a parent what became of this thread, if this is its end.
    pub(crate) fn settles(&self, status: Status) -> Option<Posted> {
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
        let (thread_id, end_thread_id) = (self.fold.manifest().chain_root_id.clone(), self.thread().clone());
        let end = ChildEnd { thread_id, end_thread_id, status, outputs };
        self.engine.posted(&parent, Request::ChildSettled(end)).ok()
    }
}

/// What a parent is told of a child, with the ceilings that are lower than it asked for.
fn with_lowered(mut output: Output, lowered: &Limits) -> Output {
    if let (true, Some(fields)) = (*lowered != Limits::default(), output.content.as_object_mut()) {
        fields.insert("limits".to_owned(), json!(lowered));
        let note = "these ceilings are lower than you asked for: a child has no more than its parent, and no more money than the \
                    parent has left without what it needs itself";
        fields.insert("note".to_owned(), json!(note));
    }
    output
}

/// What a parent is told of a child that goes on by itself.
fn running(thread: &ThreadId) -> Output {
    let content = json!({"success": true, "thread_id": thread, "status": Status::Running});
    Output { content, ..Output::default() }
}

/// What a parent is told of a child that ended or waits.
fn told_of(outcome: &Outcome) -> Output {
    let is_done = outcome.is_completed();
    let mut content = json!(outcome);
    content["success"] = json!(is_done);
    Output { content, is_error: !is_done, ..Output::default() }
}
