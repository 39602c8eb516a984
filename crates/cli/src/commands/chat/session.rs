//! A conversation: its thread, and what is done with it.

use std::sync::Arc;

use selvedge::needs::limit_of;
use selvedge::project::{Conversation, first_title};
use selvedge::{Input, Outcome, RunConfig};
use selvedge_engine::EventHandler;
use selvedge_model::event::SuspendReason;
use selvedge_model::limits::Limits;
use selvedge_model::{AgentId, Cancel, Message, Role, Status, ThreadId};

use super::active;
use super::approval::{self, AskResult};
use super::command::{Command, HELP};
use super::interrupts::Interrupts;
use super::lines::Lines;
use crate::context::Context;
use crate::error::{Failure, Result};
use crate::hints;
use crate::output::{DIM, paint};
use crate::running::{Running, tell_outcome, used};
use crate::screen::Screen;
use crate::text::clean;

/// What became of a line.
pub(crate) enum Turn {
    /// It was dealt with; the error is what the command would end with if this were the last line.
    Ended(Result<()>),
    /// The person leaves.
    Left,
}

/// A conversation with an agent.
pub(crate) struct Session<'a> {
    running: &'a Running,
    context: &'a Context<'a>,
    interrupts: &'a Interrupts,
    agent: AgentId,
    /// Absent until the first message is sent.
    thread: Option<ThreadId>,
    model: Option<String>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        running: &'a Running,
        context: &'a Context<'a>,
        interrupts: &'a Interrupts,
        agent: AgentId,
        thread: Option<ThreadId>,
        model: Option<String>,
    ) -> Self {
        Self { running, context, interrupts, agent, thread, model }
    }

    pub(crate) fn agent(&self) -> &AgentId {
        &self.agent
    }

    pub(crate) fn thread(&self) -> Option<&ThreadId> {
        self.thread.as_ref()
    }

    /// The model that answers; nothing if none is named.
    pub(crate) fn model(&self) -> Result<Option<String>> {
        match (&self.model, &self.thread) {
            (Some(model), _) => Ok(Some(model.clone())),
            (None, Some(thread)) => Ok(self.running.store.get(thread)?.manifest.model),
            (None, None) => Ok(self.conversation()?.thread.model),
        }
    }

    /// How the thread stands.
    pub(crate) fn status(&self) -> Result<Option<Status>> {
        let thread = self.thread.as_ref();
        Ok(thread.map(|thread| self.running.store.get(thread)).transpose()?.map(|found| found.manifest.status))
    }

    /// Refuses an agent or a model that there is not, and a model without a price under a spending limit, before anything is typed.
    pub(crate) fn check(&self) -> Result<()> {
        let (work, limits) = match &self.thread {
            Some(thread) => {
                let work = self.running.run_config_with(thread, self.model.as_deref())?;
                (work, self.running.store.get(thread)?.manifest.limits)
            }
            None => {
                let Conversation { thread, run_config, notices } = self.conversation()?;
                for notice in &notices {
                    self.context.output.say(clean(notice));
                }
                (run_config, thread.limits)
            }
        };
        work.check_price(limits.as_ref().unwrap_or(&work.limits)).map_err(|error| Failure::of(&error))
    }

    fn conversation(&self) -> Result<Conversation> {
        Ok(self.running.orchestrator.conversation(self.agent.clone(), self.model.clone(), Limits::default())?)
    }

    /// Deals with what the thread waited for when the chat began.
    pub(crate) fn take_up(&mut self, lines: &mut Lines) -> Result<Turn> {
        let Some(thread) = self.thread.clone() else { return Ok(Turn::Ended(Ok(()))) };
        if self.status()? != Some(Status::Suspended) {
            return Ok(Turn::Ended(Ok(())));
        }
        let outcome = selvedge::engine::outcome::get_status(&*self.running.store, self.running.engine.trust(), &thread);
        self.settle(outcome?, lines)
    }

    /// Sends a message, and deals with what its answer needs.
    pub(crate) fn say(&mut self, text: String, lines: &mut Lines) -> Result<Turn> {
        let said = match &self.thread {
            Some(thread) => {
                let thread = thread.clone();
                self.run(&thread, |running, work, cancel, tell| {
                    running.engine.send(&thread, Input::text(text), work.clone(), cancel, tell)
                })
            }
            None => self.begin(text),
        };
        self.ended(said, lines)
    }

    /// Does what a command says.
    pub(crate) fn obey(&mut self, command: Command, lines: &mut Lines) -> Result<Turn> {
        let raise = match command {
            Command::Help => {
                self.context.output.tell(HELP);
                return Ok(Turn::Ended(Ok(())));
            }
            Command::Thread => {
                let id = self.thread.as_ref().map_or("no thread yet: the first message creates it", ThreadId::as_str);
                self.context.output.tell(id);
                return Ok(Turn::Ended(Ok(())));
            }
            Command::New => {
                self.thread = None;
                self.context.output.tell("The next message begins another conversation.");
                return Ok(Turn::Ended(Ok(())));
            }
            Command::Quit => return Ok(Turn::Left),
            Command::Resume => None,
            Command::Raise(limits) => Some(limits),
        };
        let Some(thread) = self.thread.clone() else {
            let failure = Failure::usage("there is nothing to resume: the conversation has not begun");
            return self.ended(Err(failure), lines);
        };
        // What must be decided first is asked first; if nothing is pending, the thread continues.
        let waits = self.running.store.get(&thread)?.manifest;
        if waits.status.is_terminal() && waits.status != Status::Continued {
            let failure = match raise {
                None => Failure::usage("there is nothing to resume: your next message continues the conversation"),
                Some(_) => Failure::usage("the conversation has reached no limit, so there is none to raise"),
            };
            return self.ended(Err(failure), lines);
        }
        if raise.is_none() && !waits.asks.is_empty() && waits.status == Status::Suspended {
            return self.take_up(lines);
        }
        let input = raise.map_or_else(Input::nothing, |raise| Input::nothing().raising(raise));
        let resumed = self.run(&thread, |running, work, cancel, tell| {
            running.engine.resume(&thread, input, work.clone(), cancel, tell)
        });
        self.ended(resumed, lines)
    }

    /// Creates the thread with its first message, and runs it.
    fn begin(&mut self, text: String) -> Result<Outcome> {
        let Conversation { mut thread, run_config, .. } = self.conversation()?;
        thread.title = Some(first_title(&text));
        let engine = &self.running.engine;
        let thread =
            engine.create(thread, vec![Message::text(Role::User, text)]).map_err(|error| Failure::of(&error))?;
        self.remember(&thread);
        self.context.output.tell(paint(DIM, format_args!("thread {thread}")));
        self.show(&Arc::new(run_config), |running, work, cancel, tell| {
            running.engine.resume(&thread, Input::nothing(), work.clone(), cancel, tell)
        })
    }

    fn remember(&mut self, thread: &ThreadId) {
        active::remember(&*self.running.store, &self.agent, thread);
        self.thread = Some(thread.clone());
    }

    fn run(
        &self,
        thread: &ThreadId,
        run: impl FnOnce(&Running, &Arc<RunConfig>, &Cancel, &mut EventHandler<'_>) -> selvedge_engine::Result<Outcome>,
    ) -> Result<Outcome> {
        let work = Arc::new(self.running.run_config_with(thread, self.model.as_deref())?);
        self.show(&work, run)
    }

    fn show(
        &self,
        work: &Arc<RunConfig>,
        run: impl FnOnce(&Running, &Arc<RunConfig>, &Cancel, &mut EventHandler<'_>) -> selvedge_engine::Result<Outcome>,
    ) -> Result<Outcome> {
        let screen = Screen::new(self.context, &*self.running.store).without_waits();
        let cancel = self.interrupts.begin();
        let ended = self.running.perform(self.context, screen, |tell| run(self.running, work, &cancel, tell));
        self.interrupts.end();
        ended
    }

    /// Deals with the end of a run. A failure is shown to a person, and ends a pipe.
    fn ended(&mut self, ended: Result<Outcome>, lines: &mut Lines) -> Result<Turn> {
        match ended {
            Ok(outcome) => self.settle(outcome, lines),
            Err(failure) if lines.is_terminal() => {
                self.context.output.error(&failure);
                Ok(Turn::Ended(Err(failure)))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Deals with how a run ended: asks about calls that need an approval and continues, or says what to type.
    fn settle(&mut self, mut outcome: Outcome, lines: &mut Lines) -> Result<Turn> {
        loop {
            let thread = outcome.thread_id.clone();
            self.remember(&thread);
            if self.context.output.is_json() {
                tell_outcome(self.context, &outcome)?;
            }
            if !approval::is_pending(&outcome) {
                break;
            }
            let work = self.running.run_config_with(&thread, self.model.as_deref())?;
            let asked =
                approval::ask(self.running, self.context, self.interrupts, lines, &thread, &outcome.asks, &work)?;
            match asked {
                AskResult::Decided => {}
                AskResult::Left => return Ok(Turn::Left),
                AskResult::Undecided if lines.is_terminal() => return Ok(Turn::Ended(Ok(()))),
                // The lines that follow were not meant for a thread that waits.
                AskResult::Undecided => return hints::ended(&*self.running.store, &outcome).map(|()| Turn::Left),
            }
            drop(work);
            let resumed = self.run(&thread, |running, work, cancel, tell| {
                running.engine.resume(&thread, Input::nothing(), work.clone(), cancel, tell)
            });
            outcome = match resumed {
                Ok(outcome) => outcome,
                failed => return self.ended(failed, lines),
            };
        }
        let ended = hints::ended(&*self.running.store, &outcome);
        if lines.is_terminal() {
            self.explain(&outcome, &ended);
        }
        Ok(Turn::Ended(ended))
    }

    /// Says to a person what a run used, and what to type if the thread waits.
    fn explain(&self, outcome: &Outcome, ended: &Result<()>) {
        let output = self.context.output;
        let cost = outcome.run_cost.clone().unwrap_or_default();
        let Err(failure) = ended else {
            return output.tell(paint(DIM, used(&cost)));
        };
        if outcome.status.status() == Some(Status::Cancelled) {
            return output.tell("The answer was stopped. The thread continues with your next message.");
        }
        let suspended = outcome.suspended.as_ref();
        let type_this = match suspended.map(|why| why.reason) {
            Some(SuspendReason::Limit) => {
                let limit = suspended.and_then(limit_of).unwrap_or("turns");
                // Money and depth are counted for the whole execution, the others from the last message on.
                let is_counted_anew = !matches!(limit, "spend" | "depth");
                let message = if is_counted_anew { "; so does a message, which starts the count again" } else { "" };
                Some(format!("`/raise {limit}=…` raises it and continues{message}"))
            }
            Some(SuspendReason::Budget)
                if suspended.and_then(|why| hints::money(&*self.running.store, &outcome.thread_id, why)).is_none() =>
            {
                Some("`/raise spend=…` raises it and continues".to_owned())
            }
            Some(SuspendReason::Error) if is_retried(outcome) => Some("`/resume` tries again".to_owned()),
            Some(SuspendReason::OutcomeUnknown) => {
                failure.hint.as_ref().map(|hint| format!("{hint}; in another terminal, then `/resume` here"))
            }
            None if is_of_model(outcome) => {
                Some("your next message tries again; `selvedge model check --probe` checks keys and hosts".to_owned())
            }
            None => Some("your next message continues the conversation".to_owned()),
            _ => failure.hint.clone(),
        };
        output.tell(clean(&failure.message));
        if let Some(type_this) = type_this {
            output.tell(clean(&type_this));
        }
    }
}

/// Whether the run ended because its model could not be used.
fn is_of_model(outcome: &Outcome) -> bool {
    outcome.code.as_deref().is_some_and(|code| code.starts_with("model_"))
}

/// Whether the same again may succeed, without any change.
fn is_retried(outcome: &Outcome) -> bool {
    !matches!(outcome.code.as_deref(), Some("context_too_small" | "chain_too_deep"))
}
