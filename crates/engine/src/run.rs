//! One run, as a list of named steps.
//!
//! ```text
//! begin    UserMessage              what arrived, and the run's own clean-up
//! calls    ToolResultsCommitted     what an earlier life left open
//! loop     limits · ask · AssistantTurnCommitted · (ToolIntentCommitted) · ToolResultsCommitted
//! finish   RunFinished              always, even when there is nothing to say
//! ```

use selvedge_model::answer::End;
use selvedge_model::event::{ManifestChanged, SuspendReason, Suspended};
use selvedge_model::message::Block;
use selvedge_model::{
    CallId, Cancel, Classify, Event, Message, Reason, Role, RunId, RunMeta, RunStatus, Status, Stop, Timestamp,
    ToolSpec,
};
use serde_json::{Value, json};

use crate::assignment::Assignment;
use crate::calls::Settled;
use crate::error::{Error, Result};
use crate::held::{Held, Of};
use crate::input::Input;
use crate::told::{Ended, Told};
use crate::turn::{self, Asked};

/// A run that goes on.
pub(crate) struct Running<'r, 'e> {
    pub(crate) held: &'r mut Held<'e>,
    pub(crate) work: &'r Assignment,
    pub(crate) run: RunId,
    pub(crate) cancel: &'r Cancel,
    pub(crate) tell: &'r mut dyn FnMut(Told<'_>),
    /// What the model is told of its tools.
    tools: Vec<ToolSpec>,
    meta: RunMeta,
    began: Timestamp,
    turns: u64,
    /// Turns of earlier runs since somebody last spoke, which count against the ceiling too.
    turns_before: u64,
    text: Option<String>,
}

/// Why a run ends.
enum Why {
    Completed,
    Unreturned,
    Returned(Value),
    Suspended(Suspended),
    Stopped(Stop),
    Failed { code: &'static str, why: String },
}

/// Runs a thread that is held, from its input to its end.
pub(crate) fn run(
    held: &mut Held<'_>,
    input: Input,
    work: &Assignment,
    cancel: &Cancel,
    tell: &mut dyn FnMut(Told<'_>),
) -> Result<Ended> {
    let engine = held.engine;
    // Thirty-two hex characters are a run's name.
    let run = RunId::new(engine.ids.hex32()).map_err(|_| selvedge_store::Error::BadBatch)?;
    let mut meta = RunMeta::started(work.agent_id.clone(), input.origin.clone());
    meta.source_mailbox_entry_id = input.note.as_ref().map(ToString::to_string);
    let began = engine.clock.now();
    let tools = work.offered().cloned().collect();
    let mut running =
        Running { held, work, run, cancel, tell, tools, meta, began, turns: 0, turns_before: 0, text: None };
    running.begin(input)?;
    running.turns_before = running.held.fold.conversation.turns_since_input();
    let why = match running.work() {
        Ok(why) => why,
        Err(error) => {
            let why = error.to_string();
            (running.tell)(Told::StateError { why: &why });
            let code = error.code();
            match running.finish(Why::Failed { code, why }) {
                // The first failure says what happened; that the end could not be recorded either adds nothing.
                Err(_) => return Err(error),
                Ok(ended) => return Ok(ended),
            }
        }
    };
    running.finish(why)
}

impl Running<'_, '_> {
    /// Commits the delta as a part of this run.
    pub(crate) fn commit(&mut self, reason: Reason) -> Result<()> {
        let turn = (self.turns > 0).then_some(self.turns);
        let of = Of { run: Some(self.run.clone()), meta: None, turn };
        self.held.commit(reason, of, self.tell).map(|_| ())
    }

    /// Takes the input in, cleans up after earlier runs, and says that this one began.
    fn begin(&mut self, input: Input) -> Result<()> {
        let held = &mut *self.held;
        let is_known = |message: &Message| message.id.as_ref().is_some_and(|id| held.fold.conversation.knows(id));
        let messages: Vec<Message> = input.messages.into_iter().filter(|message| !is_known(message)).collect();
        let state = input.state.as_ref().unwrap_or(held.fold.state());
        let cleanup = held.engine.scopes.run_cleanup(state);
        held.delta.messages = messages;
        held.delta.patches.extend(cleanup);
        held.delta.state = input.state;
        held.delta.consumed.extend(input.note);
        let of = Of { run: Some(self.run.clone()), meta: Some(self.meta.clone()), turn: None };
        held.commit(Reason::UserMessage, of, self.tell).map(|_| ())
    }

    /// Everything between beginning and end.
    fn work(&mut self) -> Result<Why> {
        loop {
            match self.settle_calls()? {
                Settled::All => {}
                Settled::Returned(outputs) => return Ok(Why::Returned(outputs)),
                Settled::Unknown(suspended) => return Ok(Why::Suspended(suspended)),
            }
            if let Some(stop) = self.cancel.said() {
                return Ok(Why::Stopped(stop));
            }
            if !self.held.fold.conversation.wants_answer() {
                return Ok(self.completed());
            }
            if let Some(suspended) = self.limit() {
                return Ok(Why::Suspended(suspended));
            }
            if let Some(why) = self.turn()? {
                return Ok(why);
            }
        }
    }

    /// The ceiling that the next turn would break.
    fn limit(&self) -> Option<Suspended> {
        let tokens = self.meta.input_tokens.saturating_add(self.meta.output_tokens);
        let reached = |code: &str, current: u64, most: Option<u64>| {
            let most = most.filter(|most| current >= *most)?;
            Some(Suspended {
                reason: SuspendReason::Limit,
                code: Some(code.to_owned()),
                current: Some(json!(current)),
                maximum: Some(json!(most)),
                calls: Vec::new(),
            })
        };
        let limits = &self.work.limits;
        reached("turns_exceeded", self.turns_before + self.turns, limits.turns)
            .or_else(|| reached("tokens_exceeded", tokens, limits.tokens))
    }

    /// Asks the model and commits what it answered; gives why the run ends, if it does.
    fn turn(&mut self) -> Result<Option<Why>> {
        self.turns += 1;
        let session = self.held.fold.manifest().session_id.clone();
        let conversation = &self.held.fold.conversation;
        let (asked, used) = turn::ask(self.work, &self.tools, conversation, session.as_deref(), self.cancel, self.tell);
        self.meta.input_tokens = self.meta.input_tokens.saturating_add(used.usage.input_tokens);
        self.meta.output_tokens = self.meta.output_tokens.saturating_add(used.usage.output_tokens);
        let answer = match asked {
            Asked::Answered(answer) => answer,
            Asked::Stopped(partial) => {
                self.keep_partial(&partial);
                return Ok(Some(Why::Stopped(self.cancel.said().unwrap_or(Stop::Cancelled))));
            }
            Asked::Failed(error) => return Ok(Some(Why::Failed { code: error.code(), why: error.to_string() })),
        };
        if answer.session.is_some() && answer.session != session {
            let changed = ManifestChanged { session_id: answer.session.clone(), ..ManifestChanged::default() };
            self.held.delta.events.push(Event::ManifestChanged(changed));
        }
        let (content, end) =
            turn::with_own_ids(answer, conversation, &self.held.engine.redactor, &*self.held.engine.ids);
        let message = Message { content, ..Message::text(Role::Assistant, "") };
        let asks = message.content.iter().any(|block| matches!(block, Block::ToolCall { .. }));
        let text = message.plain_text();
        self.text = (!text.is_empty()).then(|| self.held.engine.redactor.text(&text).unwrap_or(text));
        self.held.delta.messages.push(message);
        self.commit(Reason::AssistantTurnCommitted)?;
        Ok(match (asks, end) {
            (true, _) => None,
            (false, End::Refused) => {
                Some(Why::Failed { code: "model_refused", why: "the model refuses to answer".to_owned() })
            }
            (false, End::Length) => Some(Why::Failed {
                code: "model_length",
                why: "the answer ran into the most tokens it may have".to_owned(),
            }),
            (false, _) => Some(self.completed()),
        })
    }

    /// A run that owes outputs and gives none has not done what it was told.
    fn completed(&self) -> Why {
        match self.work.return_tool.is_some() && self.held.fold.manifest().outputs.is_none() {
            true => Why::Unreturned,
            false => Why::Completed,
        }
    }

    /// What a stopped model had said is kept beside its thread's messages, not as one of them.
    fn keep_partial(&mut self, partial: &[Block]) {
        let text = Message { content: partial.to_vec(), ..Message::text(Role::Assistant, "") }.plain_text();
        if !text.is_empty() {
            let fields = [("partial_cognition".to_owned(), json!({"text": text}))];
            self.held.delta.events.push(Event::ContextInjected(fields.into_iter().collect()));
        }
    }

    /// Says how the run ended; always, even when there is nothing else to say.
    fn finish(mut self, why: Why) -> Result<Ended> {
        let (code, detail, outcome, status) = self.record(why)?;
        let detail = detail.map(|text| self.held.engine.redactor.text(&text).unwrap_or(text));
        let mut meta = self.meta.clone().finished(code.clone());
        meta.status = status;
        meta.outcome = outcome;
        meta.termination_detail.clone_from(&detail);
        let elapsed = self.held.engine.clock.now().as_micros().saturating_sub(self.began.as_micros());
        let mut cost = meta.total_cost();
        (cost.turns, cost.duration_ms) = (self.turns, u64::try_from(elapsed / 1000).unwrap_or(0));
        meta.cost = Some(cost);
        let of = Of { run: Some(self.run.clone()), meta: Some(meta), turn: None };
        if let Err(error) = self.held.commit(Reason::RunFinished, of, self.tell) {
            let text = error.to_string();
            (self.tell)(Told::StateError { why: &text });
            return Err(error);
        }
        let manifest = self.held.fold.manifest();
        Ok(Ended {
            thread: manifest.thread_id.clone(),
            run: Some(self.run),
            status: manifest.status,
            text: self.text,
            code,
            detail,
            suspended: manifest.suspended.clone(),
            outputs: manifest.outputs.clone(),
            turns: self.turns,
            input_tokens: self.meta.input_tokens,
            output_tokens: self.meta.output_tokens,
        })
    }

    /// Puts into the delta what the end of a run leaves in the log; gives its code, its detail, the thread's status when the code does
    /// not tell, and where the run stands.
    fn record(&mut self, why: Why) -> Result<(String, Option<String>, Option<Status>, RunStatus)> {
        let done = RunStatus::Done;
        Ok(match why {
            Why::Completed => ("completed".to_owned(), None, None, done),
            Why::Unreturned => {
                let detail = "it ended without giving back the outputs that it owes".to_owned();
                ("outputs_missing".to_owned(), Some(detail), Some(Status::CompletedWithErrors), done)
            }
            Why::Returned(outputs) => {
                let changed = ManifestChanged { outputs: Some(outputs), ..ManifestChanged::default() };
                self.held.delta.events.push(Event::ManifestChanged(changed));
                ("completed".to_owned(), None, None, done)
            }
            Why::Suspended(suspended) => {
                let code = suspended.code.clone().unwrap_or_else(|| "suspended".to_owned());
                self.held.delta.events.push(Event::Suspended(suspended));
                (code, None, None, RunStatus::Waiting)
            }
            Why::Stopped(stop) => {
                self.held.interrupt_calls("interrupted: the run was stopped before this call was made")?;
                self.held.delta.messages.push(Message::text(Role::Assistant, "(stopped by user)"));
                let code = if stop == Stop::Killed { "killed" } else { "cancelled" };
                (code.to_owned(), None, None, done)
            }
            Why::Failed { code, why } => {
                self.held.interrupt_calls("interrupted: the run failed before this call was made")?;
                self.held.delta.messages.push(Message::text(Role::Assistant, format!("(error: {why})")));
                (code.to_owned(), Some(why), Some(Status::Error), done)
            }
        })
    }
}

/// Settles a run whose process is gone: the thread waits for somebody to take it up.
pub(crate) fn settle_lost(held: &mut Held<'_>, tell: &mut dyn FnMut(Told<'_>)) -> Result<(), Error> {
    let lost = held.fold.manifest().run_id.clone();
    let open: Vec<_> = held.fold.conversation.open().iter().map(|open| open.id.clone()).collect();
    let is_dispatched =
        |call: &CallId| held.fold.call(call).is_some_and(|known| known.intent.is_some() && known.outcome.is_none());
    let unknown: Vec<_> = open.into_iter().filter(is_dispatched).collect();
    // What it had begun must not go on behind whoever decides about it now. What can't be ended is tried again before it is asked after.
    let intents = unknown.iter().filter_map(|call| held.fold.call(call)?.intent.as_ref());
    intents.filter_map(|intent| intent.process.as_ref()).for_each(|process| _ = held.engine.processes.end(process));
    let reason = if unknown.is_empty() { SuspendReason::Error } else { SuspendReason::OutcomeUnknown };
    let suspended =
        Suspended { reason, code: Some("process_lost".to_owned()), current: None, maximum: None, calls: unknown };
    held.delta.events.push(Event::Suspended(suspended));
    // Whoever asked the dead run to stop did not mean the next one.
    held.delta.consumed = held.stops()?;
    let meta = lost.as_ref().and_then(|run| held.fold.run(run)).map(|run| RunMeta {
        status: RunStatus::Waiting,
        termination_code: Some("process_lost".to_owned()),
        ..run.meta.clone()
    });
    held.commit(Reason::RunFinished, Of { run: lost, meta, turn: None }, tell).map(|_| ())
}
