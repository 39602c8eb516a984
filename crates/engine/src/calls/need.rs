//! What a call without a result needs, from what is on record; looking changes nothing.
//!
//! Whether somebody must allow a call is on record with the answer that asks for it, so that people see it, and can say their word, while
//! the other calls of the round still run.

use std::ops::ControlFlow;
use std::sync::Arc;

use selvedge_log::hash::sha256;
use selvedge_model::event::{Ask, Decision, Fields};
use selvedge_model::fold::{Call as Known, Spawned};
use selvedge_model::message::Block;
use selvedge_model::tool::{Call, Output, Reconciled};
use selvedge_model::{CallId, Event, Message, Tool, ToolSpec};
use serde_json::{Value, json};

use crate::approval::{self, Word};
use crate::assignment::Permission;
use crate::calls::flight::told_of_change;
use crate::calls::guarded;
use crate::conversation::OpenCall;
use crate::run::Running;

/// What a call without a result needs.
pub(super) enum Need {
    /// It has its answer: it is denied, its tool is gone, or a person said what became of it.
    Answer(Output, Option<Event>),
    /// It is dispatched.
    Dispatch(Ready),
    /// Somebody must allow it first.
    Word(Ask),
    /// Nobody knows what became of it.
    Unknown,
}

/// A call that may be dispatched.
pub(super) struct Ready {
    pub(super) tool: Arc<dyn Tool>,
    pub(super) call: Call,
    /// Who changed its arguments before allowing it.
    pub(super) changed_by: Option<String>,
    /// Whether somebody had to allow it.
    pub(super) by_word: bool,
    /// Whether its tool was defined anew after somebody had allowed it.
    pub(super) redefined: bool,
    /// The child that it has started already.
    pub(super) child: Option<Spawned>,
}

/// What a call is made with.
struct Given {
    arguments: Value,
    /// Who changed them before allowing it.
    changed_by: Option<String>,
    /// Whether somebody had to allow it.
    by_word: bool,
}

impl Given {
    /// What a call was made with that was dispatched before.
    fn before(open: &OpenCall, known: Option<&Known>) -> Self {
        let (arguments, changed_by) = approval::allowed_with(open, known);
        let by_word = known.is_some_and(|known| known.decisions.iter().any(Decision::is_word));
        Self { arguments, changed_by, by_word }
    }
}

impl Ready {
    fn told(&self, output: Output) -> Output {
        told_of_change(output, self)
    }
}

impl Running<'_, '_> {
    /// What somebody is asked about the calls of an answer that is about to be committed.
    pub(crate) fn asks(&self, answer: &Message) -> Vec<Event> {
        let now = self.held.engine.clock.now();
        let calls = answer.content.iter().filter_map(|block| match block {
            Block::ToolCall { id, name, arguments, .. } => Some((id, name, arguments)),
            _ => None,
        });
        let asks = calls.filter_map(|(id, name, arguments)| {
            let tool = self.work.tool(name)?;
            // As they will be on record.
            let mut arguments = arguments.clone();
            self.held.engine.redactor.value(&mut arguments);
            let Permission::Ask(asking) = (self.work.gate)(tool.spec(), &arguments) else { return None };
            let open = self.held.fold.conversation.next_call(id, name, arguments);
            let hash = approval::action_hash(&self.held.fold.head.log_id, &open, tool.spec());
            Some(Event::Asked(approval::ask(&asking, hash, &open, now)))
        });
        asks.collect()
    }

    pub(super) fn need(&self, open: &OpenCall) -> Need {
        let known = self.held.fold.call(&open.id);
        if let Some(answer) = known.and_then(decided) {
            return Need::Answer(answer, None);
        }
        let Some(tool) = self.work.tool(&open.name) else {
            let text = match known.and_then(|known| known.intent.as_ref()) {
                None => format!("there is no tool `{}`", open.name),
                Some(_) => {
                    "interrupted: this call was dispatched, its tool is gone, and what became of it is not known"
                        .to_owned()
                }
            };
            return Need::Answer(Output::error(text), None);
        };
        let intent = known.and_then(|known| known.intent.as_ref());
        let Given { arguments, changed_by, by_word } = match intent {
            // It was allowed before it was dispatched.
            Some(_) => Given::before(open, known),
            None => match self.permitted(open, known, tool.spec()) {
                ControlFlow::Continue(given) => given,
                ControlFlow::Break(need) => return need,
            },
        };
        let key = intent.map_or_else(|| self.key_of(&open.id), |intent| intent.key.clone());
        let call = Call {
            thread: self.held.thread().clone(),
            run: self.run.clone(),
            id: open.id.clone(),
            name: open.name.clone(),
            arguments,
            key,
        };
        let child = known.and_then(|known| known.child.clone());
        let redefined = by_word && approval::was_redefined(known);
        let ready = Ready { tool: tool.clone(), call, changed_by, by_word, redefined, child };
        // What an earlier life began must not go on beside what is done now, whatever a person or the tool says of it. A child may.
        if ready.child.is_none()
            && let Some(process) = intent.and_then(|intent| intent.process.as_ref())
            && self.held.engine.processes.end(process).is_err()
        {
            return Need::Unknown;
        }
        // A child that is there was started, whatever a person says.
        let is_undone = known.is_some_and(is_not_done) && (ready.child.is_none() || self.has_recorded_children());
        let was_dispatched = intent.is_some() && !is_undone;
        // Only a call that may run at most once has an intent; what its tool says of itself today does not count. What became of it does
        // not depend on a rule; whether it is made again does.
        let need = if was_dispatched { self.reconcile(ready) } else { Need::Dispatch(ready) };
        match (need, (self.work.gate)(tool.spec(), &open.arguments)) {
            (Need::Dispatch(_), Permission::Denied(why)) => refused(open, tool.spec(), &why),
            (need, _) => need,
        }
    }

    /// What a call that was never dispatched is made with; or what it needs, if it may not be made now.
    ///
    /// What was asked is asked until somebody answers it, and what was answered counts, whatever a rule says by now. Only a rule that
    /// refuses counts for more than a word that allows.
    fn permitted(&self, open: &OpenCall, known: Option<&Known>, tool: &ToolSpec) -> ControlFlow<Need, Given> {
        let now = self.held.engine.clock.now();
        let hash = approval::action_hash(&self.held.fold.head.log_id, open, tool);
        let asked = known.and_then(|known| known.ask.as_ref());
        match ((self.work.gate)(tool, &open.arguments), approval::word(open, known, &hash, now)) {
            (_, Word::Answer(output)) => ControlFlow::Break(Need::Answer(output, None)),
            (Permission::Denied(why), _) => ControlFlow::Break(refused(open, tool, &why)),
            (_, Word::Given { arguments, changed_by }) => {
                ControlFlow::Continue(Given { arguments, changed_by, by_word: true })
            }
            (permission, Word::Awaited) => match (permission, asked) {
                // What was asked before is asked again as it was, its time included.
                (_, Some(ask)) if ask.action_hash == hash => ControlFlow::Break(Need::Word(ask.clone())),
                // The log, the call and its arguments are the same, so it is the tool that is not.
                (Permission::Ask(asking), Some(_)) => {
                    ControlFlow::Break(Need::Word(Ask { redefined: true, ..approval::ask(&asking, hash, open, now) }))
                }
                (_, Some(ask)) => {
                    ControlFlow::Break(Need::Word(Ask { action_hash: hash, redefined: true, ..ask.clone() }))
                }
                (Permission::Ask(asking), None) => {
                    ControlFlow::Break(Need::Word(approval::ask(&asking, hash, open, now)))
                }
                (_, None) => {
                    ControlFlow::Continue(Given { arguments: open.arguments.clone(), changed_by: None, by_word: false })
                }
            },
        }
    }

    /// What tells a tool that two dispatches are the same call: the same in every life of the thread.
    fn key_of(&self, call: &CallId) -> String {
        let log = &self.held.fold.head.log_id;
        sha256(format!("{log}:{call}").as_bytes()).to_string()
    }

    fn has_recorded_children(&self) -> bool {
        self.work.spawning.as_ref().is_some_and(|spawning| spawning.children.are_recorded())
    }

    fn reconcile(&self, ready: Ready) -> Need {
        // What became of a call that started a child is what became of the child.
        if let Some(child) = ready.child.as_ref().filter(|_| !self.has_recorded_children()) {
            return match self.held.engine.child_standing(&child.thread_id, child.detached) {
                Ok(Some(output)) => Need::Answer(ready.told(output), None),
                Ok(None) => Need::Dispatch(ready),
                Err(error) => {
                    Need::Answer(Output::error(format!("what became of the child is not known: {error}")), None)
                }
            };
        }
        match guarded::reconcile(&*ready.tool, &ready.call, self.cancel) {
            Reconciled::Done(output) => Need::Answer(ready.told(output), None),
            Reconciled::NotDone => Need::Dispatch(ready),
            Reconciled::Unknown => Need::Unknown,
        }
    }
}

/// What a person said became of a call.
fn decided(known: &Known) -> Option<Output> {
    let decision = known.decisions.iter().rev().find(|decision| !decision.is_word())?;
    match decision.action.as_str() {
        "done" => Some(Output { content: decision.result.clone().unwrap_or(json!("done")), ..Output::default() }),
        "unknown" => {
            Some(Output::error("nobody knows whether this call was carried out; find out before doing it again"))
        }
        _ => None,
    }
}

fn is_not_done(known: &Known) -> bool {
    known.decisions.iter().any(|decision| decision.action == "not_done")
}

/// A call that a rule refuses.
fn refused(open: &OpenCall, tool: &ToolSpec, why: &str) -> Need {
    let fields = json!({"call_id": open.id, "tool": open.name, "capability": tool.capability, "why": why});
    let denied = match fields {
        Value::Object(fields) => Event::CapabilityDenied(fields),
        _ => Event::CapabilityDenied(Fields::new()),
    };
    Need::Answer(Output::error(format!("not allowed: {why}")), Some(denied))
}
