//! One run: it begins, does what `decide` says until that is to end, and ends.
//!
//! ```text
//! begin    UserMessage              what arrived, and the run's own clean-up
//! calls    ToolResultsCommitted     what an earlier life left open
//! turns    AssistantTurnCommitted · (ToolIntentCommitted) · ToolResultsCommitted
//! finish   RunFinished              always, even when there is nothing to say
//! ```

use std::time::Duration;

use selvedge_model::answer::Answer;
use selvedge_model::event::{Fields, HandoffReason, ManifestChanged, SuspendReason, Suspended, TurnUsage};
use selvedge_model::limits::{self, Cost};
use selvedge_model::message::{Block, Marker};
use selvedge_model::run::{Failure, FailureClass};
use selvedge_model::{
    CallId, Cancel, Classify, Event, Message, Money, Reason, Role, RunId, RunMeta, RunStatus, Status, Stop, Timestamp,
    ToolSpec, Verdict,
};
use serde_json::{Value, json};

use crate::assignment::Assignment;
use crate::beat;
use crate::continuation::Successor;
use crate::decide::ending::{Failed, Trouble, Why};
use crate::decide::{Inbox, Live, Step, context, decide};
use crate::error::{Error, Result};
use crate::held::{Held, More, Of};
use crate::ledger::{Bid, OUTPUT_TOKENS, Refused, Spent};
use crate::outcome::Outcome;
use crate::start::Start;
use crate::stops::{self, Met};
use crate::told::Told;
use crate::turn::{self, Asked, Asking, Used};
use crate::watcher::Watch;

/// A run that goes on.
pub(crate) struct Running<'r, 'e> {
    pub(crate) held: &'r mut Held<'e>,
    pub(crate) work: &'r Assignment,
    pub(crate) run: RunId,
    pub(crate) cancel: &'r Cancel,
    pub(crate) tell: &'r mut dyn FnMut(Told<'_>),
    watch: &'r Watch<'r>,
    /// What the model is told of its tools.
    tools: Vec<ToolSpec>,
    meta: RunMeta,
    began: Timestamp,
    /// What the turns of this run used.
    used: Cost,
    /// What is known of it and not on record.
    pub(crate) live: Live,
}

/// How a run hears what happens beside it.
#[derive(Clone, Copy)]
pub(crate) struct Heard<'r> {
    /// Whether it is to stop.
    pub(crate) cancel: &'r Cancel,
    /// Whether somebody decided something, and how much time is left.
    pub(crate) watch: &'r Watch<'r>,
}

/// How a run is over.
enum Over {
    Ended(Why),
    /// Another thread goes on.
    Continued(Box<Successor>, HandoffReason),
}

/// Runs a thread that is held, from its input to its end.
pub(crate) fn run(
    held: &mut Held<'_>,
    start: Start,
    work: &Assignment,
    heard: Heard<'_>,
    tell: &mut dyn FnMut(Told<'_>),
) -> Result<Outcome> {
    let engine = held.engine;
    held.check_price(work)?;
    held.hooks.clone_from(&work.hooks);
    held.hooks.iter_mut().for_each(|hook| engine.redactor.value(hook));
    let run = held.next_run()?;
    let mut meta = RunMeta::started(work.agent_id.clone(), held.origin(&start.input)).under_lease();
    meta.source_mailbox_entry_id = start.request.as_ref().map(|asked| asked.id.to_string());
    meta.config = work.config;
    meta.system = Some(work.system_digest());
    let tools: Vec<ToolSpec> = work.offered().cloned().collect();
    let began = engine.clock.now();
    let live = Live::new(run.clone(), began, base_size(work, &tools));
    let mut running = Running {
        work,
        run,
        cancel: heard.cancel,
        watch: heard.watch,
        tell,
        tools,
        meta,
        began,
        used: Cost::default(),
        live,
        held,
    };
    let suspended = running.held.fold.manifest().suspended.as_ref();
    if suspended.and_then(|suspended| suspended.code.as_deref()).is_some_and(stops::is_stop) {
        running.live.judged = running.held.fold.conversation.messages().len();
    }
    running.begin(start)?;
    let over = match running.work() {
        Ok(over) => over,
        Err(error) => {
            let why = error.to_string();
            (running.tell)(Told::StateError { why: &why });
            let code = error.code();
            let failure = Failure { class: FailureClass::Engine, why: why.clone() };
            match running.finish(Over::Ended(Why::Failed(Failed { code, why, failure }))) {
                // The first failure says what happened; that the end could not be recorded either adds nothing.
                Err(_) => return Err(error),
                Ok(ended) => return Ok(ended),
            }
        }
    };
    running.finish(over)
}

impl Running<'_, '_> {
    /// Commits the delta as a part of this run.
    pub(crate) fn commit(&mut self, reason: Reason) -> Result<()> {
        let of = self.of();
        self.held.commit(reason, of, self.tell).map(|_| ())
    }

    pub(crate) fn of(&self) -> Of {
        Of { run: Some(self.run.clone()), meta: None, turn: (self.live.turns > 0).then_some(self.live.turns) }
    }

    /// Takes the input in, cleans up after earlier runs, and says that this one began.
    fn begin(&mut self, Start { input, request }: Start) -> Result<()> {
        if let Some(raise) = &input.raise {
            let changed = self.held.raised(raise, self.work)?;
            self.held.delta.events.push(Event::ManifestChanged(changed));
        }
        self.held.fund(self.work, input.raise.as_ref())?;
        let held = &mut *self.held;
        let is_known = |message: &Message| message.id.as_ref().is_some_and(|id| held.fold.conversation.knows(id));
        let messages: Vec<Message> = input.messages.into_iter().filter(|message| !is_known(message)).collect();
        if messages.iter().any(|message| message.role == Role::User) {
            self.cancel_awaited()?;
        }
        let held = &mut *self.held;
        let state = input.state.as_ref().unwrap_or(held.fold.state());
        let cleanup = held.engine.scopes.run_cleanup(state);
        held.delta.messages.extend(messages);
        held.delta.patches.extend(cleanup);
        held.delta.state = input.state;
        if let Some(asked) = request {
            asked.answer(&mut held.delta, Verdict::Applied, None);
        }
        let of = Of { run: Some(self.run.clone()), meta: Some(self.meta.clone()), turn: None };
        held.commit(Reason::UserMessage, of, self.tell).map_err(Error::unfunded)?;
        self.set_time();
        Ok(())
    }

    /// Tells whoever watches how much running time is left.
    fn set_time(&self) {
        let before = self.held.fold.meter().ended.duration_ms.saturating_add(self.running_ms());
        let most = self.held.limits(self.work).duration_seconds.map(|seconds| seconds.saturating_mul(1000));
        self.watch.set_time(most.map(|most| Duration::from_millis(most.saturating_sub(before))));
    }

    /// How long this run has been running.
    fn running_ms(&self) -> u64 {
        let elapsed = self.held.engine.clock.now().as_micros().saturating_sub(self.began.as_micros());
        u64::try_from(elapsed / 1000).unwrap_or(0)
    }

    /// Everything between beginning and end: whatever is decided, until that is to end.
    fn work(&mut self) -> Result<Over> {
        loop {
            self.look();
            let step = decide(&self.held.fold, &self.live, self.work);
            // Every step takes time, and requests may come meanwhile.
            self.live.inbox = Inbox::Unread;
            match step {
                Step::Hear => self.hear()?,
                Step::Probe(probes) => self.probe(probes),
                Step::Calls(planned) => self.make(planned)?,
                Step::Ask => self.ask()?,
                Step::HandOver { reason, room } => {
                    let successor = self.held.successor(self.work, room, self.running_ms())?;
                    return Ok(Over::Continued(Box::new(successor), reason));
                }
                Step::End(why) => return Ok(Over::Ended(why)),
            }
        }
    }

    /// Looks at the time, at the stop, and at whether a request came.
    fn look(&mut self) {
        self.live.now = self.held.engine.clock.now();
        self.live.running_ms = self.running_ms();
        self.live.stop = self.cancel.said();
        if self.watch.was_noted() {
            self.live.inbox = Inbox::Noted;
        }
    }

    /// Takes in what others decided and raised.
    fn hear(&mut self) -> Result<()> {
        let of = self.of();
        self.live.inbox = Inbox::Heard;
        if self.held.drain(Some(self.work), of, self.tell)? {
            // What was found out and refused before is looked at again.
            self.live.traces.clear();
            self.set_time();
        }
        Ok(())
    }

    /// Asks the model and commits what it answered.
    fn ask(&mut self) -> Result<()> {
        self.live.turns += 1;
        let (asked_at, size) = (self.held.engine.clock.now(), context::prompt_size(&self.held.fold, &self.live));
        let session = self.held.fold.manifest().session_id.clone();
        let asking = Asking {
            work: self.work,
            tools: &self.tools,
            session: session.as_deref(),
            cancel: self.cancel,
            bid: self.bid(size),
            of: self.of(),
        };
        let (asked, used) = turn::ask(self.held, &asking, self.tell)?;
        if used.attempts == 0 {
            self.live.turns -= 1;
        } else {
            let used = self.estimated(used, &asked, size);
            self.count(&used, asked_at, size);
        }
        let trouble = match asked {
            Asked::Answered(answer) => return self.answered(answer, session.as_deref()),
            Asked::Stopped(partial) => {
                self.keep_partial(&partial);
                Trouble::Stopped
            }
            Asked::Failed(error) => Trouble::Failed(Failed::of_model(&error)),
            Asked::Exhausted(error) => Trouble::Exhausted(Failed::of_model(&error)),
            Asked::Refused(refused) => Trouble::Refused(refused),
        };
        self.live.trouble = Some(trouble);
        Ok(())
    }

    /// Commits an answer.
    fn answered(&mut self, answer: Answer, session: Option<&str>) -> Result<()> {
        if answer.session.is_some() && answer.session.as_deref() != session {
            let changed = ManifestChanged { session_id: answer.session.clone(), ..ManifestChanged::default() };
            self.held.delta.events.push(Event::ManifestChanged(changed));
        }
        let (content, end) = turn::with_own_ids(answer, self.held);
        let message = Message { content, ..Message::text(Role::Assistant, "") };
        let has_calls = message.content.iter().any(|block| matches!(block, Block::ToolCall { .. }));
        let text = message.plain_text();
        self.live.text = (!text.is_empty()).then(|| self.held.engine.redactor.text(&text).unwrap_or(text));
        let asks = self.asks(&message);
        self.held.delta.events.extend(asks);
        self.held.delta.messages.push(message);
        self.commit(Reason::AssistantTurnCommitted)?;
        self.live.answered = (!has_calls).then_some(end);
        Ok(())
    }

    /// What the next call may cost at most; nothing for a model that costs nothing.
    fn bid(&self, size: usize) -> Option<Bid> {
        let price = self.work.price.filter(|price| !price.is_free())?;
        let output_tokens = self.work.output_tokens_max.unwrap_or(OUTPUT_TOKENS);
        Some(Bid { price, input_tokens: self.held.fold.gauge().tokens_at_most(size), output_tokens })
    }

    /// What the next turn may cost at most.
    pub(crate) fn next_turn_cost(&self) -> Money {
        let bid = self.bid(context::prompt_size(&self.held.fold, &self.live));
        bid.map_or(Money::ZERO, |bid| bid.price.bound(bid.input_tokens, bid.output_tokens))
    }

    /// What a turn used, with the tokens of an answer estimated that its provider did not count, where tokens count.
    fn estimated(&self, mut used: Used, asked: &Asked, size: usize) -> Used {
        let counts = self.work.is_paid() || self.held.limits(self.work).tokens.is_some();
        used.is_uncounted &= counts;
        if let (true, Asked::Answered(answer)) = (used.is_uncounted, asked)
            && answer.usage.is_none()
        {
            let said = serde_json::to_string(&answer.content).map_or(0, |text| text.len());
            used.usage.input_tokens = used.usage.input_tokens.saturating_add(self.held.fold.gauge().tokens(size));
            used.usage.output_tokens =
                used.usage.output_tokens.saturating_add(self.held.fold.gauge().tokens_of_text(said));
        }
        used
    }

    /// Records what a turn used, so that no restart forgets it.
    fn count(&mut self, used: &Used, asked_at: Timestamp, prompt_bytes: usize) {
        let usage = &used.usage;
        let took = self.held.engine.clock.now().as_micros().saturating_sub(asked_at.as_micros()) / 1000;
        let cost = Cost {
            turns: 1,
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            spend: used.spend,
            spend_unknown: used.spend_unknown,
            duration_ms: u64::try_from(took).unwrap_or(0),
            ..Cost::default()
        };
        self.used.add(&cost);
        self.held.delta.events.push(Event::Usage(TurnUsage {
            model: self.work.model_name.clone(),
            cost,
            cache_read_tokens: usage.cache_read_tokens,
            cache_write_tokens: usage.cache_write_tokens,
            prompt_bytes: prompt_bytes as u64,
            prompt_tokens: used.last_input_tokens,
            estimated: used.is_uncounted,
        }));
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
    fn finish(mut self, mut over: Over) -> Result<Outcome> {
        let mut more = match &mut over {
            // The thread that goes on looks at the children when it begins.
            Over::Continued(successor, _) => std::mem::take(&mut successor.more),
            Over::Ended(_) => {
                self.held.engine.settle_children(self.held);
                More::default()
            }
        };
        let (code, detail, outcome, status) = self.record(over)?;
        let detail = detail.map(|text| self.held.engine.redactor.text(&text).unwrap_or(text));
        let mut meta = self.meta.clone().finished(code.clone());
        meta.status = status;
        meta.outcome = outcome;
        meta.termination_detail.clone_from(&detail);
        let cost = Cost { turns: self.live.turns, duration_ms: self.running_ms(), ..self.used.clone() };
        (meta.input_tokens, meta.output_tokens) = (cost.input_tokens, cost.output_tokens);
        meta.cost = Some(cost.clone());
        more.posted.extend(self.held.settles(meta.thread_status()));
        let step = u32::try_from(self.live.turns).ok().filter(|turn| *turn > 0);
        self.held.delta.messages.iter_mut().for_each(|message| message.step = message.step.or(step));
        let of = Of { run: Some(self.run.clone()), meta: Some(meta), turn: None };
        if let Err(error) = self.held.commit_with(Reason::RunFinished, of, more, self.tell) {
            let text = error.to_string();
            (self.tell)(Told::StateError { why: &text });
            return Err(error);
        }
        Ok(self.held.outcome(&self.run, self.live.text))
    }

    /// Puts into the delta what the end of a run leaves in the log; gives its code, its detail, the thread's status when the code does
    /// not tell, and where the run stands.
    fn record(&mut self, over: Over) -> Result<(String, Option<String>, Option<Status>, RunStatus)> {
        // A call whose answer could not be recorded may have been charged for.
        let settled = self.held.settle(Spent::Unknown)?;
        self.used.spend = self.used.spend.saturating_add(settled.amount);
        self.used.spend_unknown = self.used.spend_unknown.saturating_add(settled.unknown());
        let done = RunStatus::Done;
        let why = match over {
            Over::Ended(why) => why,
            Over::Continued(successor, reason) => {
                if reason == HandoffReason::ContextFull {
                    let used = self.held.fold.gauge().tokens(context::prompt_size(&self.held.fold, &self.live));
                    self.held.delta.events.push(Event::ContextLimitReached(limit_reached(used, self.work)));
                }
                let handoff = successor.handoff(self.held, Some(reason));
                let detail = format!("thread `{}` goes on", handoff.new_thread_id);
                self.held.delta.events.push(Event::ThreadHandoff(handoff));
                return Ok(("continued".to_owned(), Some(detail), Some(Status::Continued), done));
            }
        };
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
            Why::Reached(Met { code, detail, is_trouble: false }) => (code.to_owned(), Some(detail), None, done),
            Why::Reached(Met { code, detail, .. }) => {
                self.held.delta.events.push(Event::Suspended(Suspended::because(SuspendReason::Error, code)));
                (code.to_owned(), Some(detail), None, RunStatus::Waiting)
            }
            Why::Refused(Refused { suspended, detail }) => {
                self.held.delta.events.push(Event::Suspended(suspended));
                (limits::SPEND_EXCEEDED.to_owned(), Some(detail), None, RunStatus::Waiting)
            }
            Why::Suspended(suspended) => {
                let code = suspended.code.clone().unwrap_or_else(|| "suspended".to_owned());
                self.held.delta.events.push(Event::Suspended(suspended));
                (code, None, None, RunStatus::Waiting)
            }
            Why::Stopped(stop) => {
                self.held.interrupt_calls("interrupted: the run was stopped before this call was made")?;
                self.held.delta.messages.push(Message::marker(Marker::Stopped, "(stopped by user)"));
                self.held.answer_stops(Verdict::Applied)?;
                let code = if stop == Stop::Killed { "killed" } else { "cancelled" };
                (code.to_owned(), None, None, done)
            }
            Why::Exhausted(Failed { code, why, failure }) => {
                self.held.delta.events.push(Event::Suspended(Suspended::because(SuspendReason::Error, code)));
                self.meta.failure = Some(self.shown(failure));
                (code.to_owned(), Some(why), None, RunStatus::Waiting)
            }
            Why::Failed(Failed { code, why, failure }) => {
                self.held.interrupt_calls("interrupted: the run failed before this call was made")?;
                self.held.delta.messages.push(Message::marker(Marker::Failed, format!("(error: {why})")));
                self.meta.failure = Some(self.shown(failure));
                (code.to_owned(), Some(why), Some(Status::Error), done)
            }
        })
    }

    /// A failure without what must not be shown.
    fn shown(&self, failure: Failure) -> Failure {
        let why = self.held.engine.redactor.text(&failure.why).unwrap_or(failure.why);
        Failure { why, ..failure }
    }
}

/// How many bytes of a prompt the system prompt and the tools take.
fn base_size(work: &Assignment, tools: &[ToolSpec]) -> usize {
    let tool = |spec: &ToolSpec| spec.name.len() + spec.description.len() + spec.input_schema.to_string().len();
    work.system.len() + tools.iter().map(tool).sum::<usize>()
}

/// How full the context is.
fn limit_reached(tokens_used: u64, work: &Assignment) -> Fields {
    let window = context::window(work);
    let usage_ratio = tokens_used as f64 / window.max(1) as f64;
    match json!({"tokens_used": tokens_used, "tokens_limit": window, "usage_ratio": usage_ratio}) {
        Value::Object(fields) => fields,
        _ => Fields::new(),
    }
}

/// Settles a run whose process is gone: the thread waits for somebody to take it up. What became of a call that started a child nobody
/// need say: the child tells, and lives on without its parent.
pub(crate) fn settle_lost(held: &mut Held<'_>, tell: &mut dyn FnMut(Told<'_>)) -> Result<(), Error> {
    let lost = held.fold.manifest().run_id.clone();
    let open: Vec<_> = held.fold.conversation.open().iter().map(|open| open.id.clone()).collect();
    let is_unknown = |call: &CallId| {
        let known = held.fold.call(call);
        known.is_some_and(|known| known.intent.is_some() && known.outcome.is_none() && known.child.is_none())
    };
    let unknown: Vec<_> = open.into_iter().filter(is_unknown).collect();
    // What it had begun must not go on behind whoever decides about it now. What can't be ended is tried again before it is asked after.
    let known = unknown.iter().filter_map(|call| held.fold.call(call));
    let intents = known.filter_map(|known| known.intent.as_ref());
    intents.filter_map(|intent| intent.process.as_ref()).for_each(|process| _ = held.engine.processes.end(process));
    let reason = if unknown.is_empty() { SuspendReason::Error } else { SuspendReason::OutcomeUnknown };
    let suspended = Suspended { calls: unknown, ..Suspended::because(reason, "process_lost") };
    held.delta.events.push(Event::Suspended(suspended));
    let charged = held.settle_lost_calls(lost.as_ref())?;
    // A stop of the dead run does not mean the next one.
    held.answer_stops(Verdict::Unchanged)?;
    let used = &held.fold.meter().active;
    let beat = match held.taken_from() {
        Some(owner) => held.engine.store.last_beat(owner)?,
        None => None,
    };
    let meta = lost.as_ref().and_then(|run| held.fold.run(run)).map(|run| {
        let ran = run.updated_at.as_micros().saturating_sub(run.created_at.as_micros()) / 1000;
        let ran_on = beat::ran_on_ms(beat, run.updated_at, held.engine.clock.now());
        let duration_ms = u64::try_from(ran).unwrap_or(0).saturating_add(ran_on);
        let mut cost = Cost { duration_ms, ..used.clone() };
        cost.add(&Cost { spend: charged, spend_unknown: charged, ..Cost::default() });
        RunMeta {
            status: RunStatus::Waiting,
            termination_code: Some("process_lost".to_owned()),
            cost: Some(cost),
            ..run.meta.clone()
        }
    });
    held.commit(Reason::RunFinished, Of { run: lost, meta, turn: None }, tell).map(|_| ())
}
