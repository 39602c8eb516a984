//! One run: it begins, does what `decide` says until that is to end, and ends.
//!
//! ```text
//! begin    UserMessage              what arrived, and the run's own clean-up
//! calls    ToolResultsCommitted     what an earlier life left open
//! turns    AssistantTurnCommitted · (ToolIntentCommitted) · ToolResultsCommitted
//! finish   RunFinished              always, even when there is nothing to say
//! ```
//!
//! A run goes on in two kinds of pieces. `advance` blocks for moments: it takes in what came, decides, commits, and gives what the run
//! waits for next ([`Wait`]). `drive` lets it wait without a thread, and lets it advance again with what came. A replay drives the same
//! run by what is on record.

use std::sync::Arc;
use std::time::Duration;

use selvedge_model::answer::{Answer, Attempt, Blobs};
use selvedge_model::blocking::BoxFuture;
use selvedge_model::event::{Fields, HandoffReason, ManifestChanged, SuspendReason, Suspended, TurnUsage};
use selvedge_model::limits::{self, Cost};
use selvedge_model::message::{Block, Marker};
use selvedge_model::run::{Failure, FailureClass};
use selvedge_model::{
    Cancel, Classify, Digest, Draft, Event, Message, ModelError, Money, Prompt, Reason, Role, RunId, RunMeta,
    RunStatus, Status, Stop, ThreadId, Timestamp, ToolSpec, Verdict,
};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::assignment::Assignment;
use crate::beat;
use crate::calls::{Flight, Flying, Prepared};
use crate::continuation::Successor;
use crate::conversation::OpenCall;
use crate::decide::asking::{self, Again};
use crate::decide::calls::Probe;
use crate::decide::ending::{Failed, Trouble, Why};
use crate::decide::{Inbox, Live, Step, context, decide};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::{NoticeKind, RunEvent};
use crate::held::{Held, More, Of};
use crate::ledger::{Allowed, Bid, OUTPUT_TOKENS, Refused, Spent};
use crate::mask::Mask;
use crate::outcome::Outcome;
use crate::start::Start;
use crate::stops::{self, Met};
use crate::turn::{Turn, with_own_ids};
use crate::watcher::Watch;
use crate::within::within_grace;

/// A run that goes on.
pub(crate) struct Running {
    pub(crate) held: Box<Held>,
    pub(crate) work: Arc<Assignment>,
    pub(crate) run: RunId,
    pub(crate) cancel: Cancel,
    watch: Watch,
    /// What the model is told of its tools.
    tools: Vec<ToolSpec>,
    meta: RunMeta,
    began: Timestamp,
    /// What the turns of this run used.
    used: Cost,
    /// What is known of it and not on record.
    pub(crate) live: Live,
    /// The turn whose answer is being asked for.
    turn: Option<Turn>,
    mask: Mask,
    /// Calls that are being made ready, on their way, or back and not on record.
    pub(crate) flights: Vec<Flight>,
    /// Those that are on their way.
    pub(crate) flying: Flying,
    /// What came of making calls ready.
    pub(crate) prepared: Option<Result<Prepared>>,
    /// Why what came back could not be committed, while other calls are on their way.
    failed: Option<Error>,
}

/// How a run hears what happens beside it.
pub(crate) struct Heard {
    /// Whether it is to stop.
    pub(crate) cancel: Cancel,
    /// Whether a request came, and how much time is left.
    pub(crate) watch: Watch,
}

/// What a run waits for.
pub(crate) enum Wait {
    /// The model's answer.
    Model,
    /// The model is asked again after this long.
    Retry(Duration),
    /// Calls that are to be made ready; that blocks, and nothing happens.
    Ready,
    /// What its calls come to.
    Calls,
    /// What became of calls that an earlier life dispatched.
    Probes(Vec<Probe>),
    /// Nothing: it is over.
    Over(Box<Result<Outcome>>),
}

/// How a run is over.
enum Over {
    Ended(Why),
    /// Another thread goes on.
    Continued(Box<Successor>, HandoffReason),
}

/// A run that did not begin: its thread, as it was, and why.
type Unbegun = Box<(Box<Held>, Error)>;

/// Runs a thread that is held, from its input to its end.
pub(crate) async fn drive(
    held: Box<Held>,
    start: Start,
    work: Arc<Assignment>,
    heard: Heard,
) -> (Box<Held>, Result<Outcome>) {
    let engine = held.engine.clone();
    let begin = move || {
        let mut running = Running::begin(held, start, work, heard)?;
        let wait = running.advance_ready();
        Ok::<_, Unbegun>((running, wait))
    };
    let (mut running, mut wait) = match engine.tasks.block(begin).await {
        Ok(begun) => begun,
        Err(unbegun) => {
            let (held, error) = *unbegun;
            return (held, Err(error));
        }
    };
    loop {
        match wait {
            Wait::Model => running.listen().await,
            Wait::Retry(pause) => _ = timeout(pause, running.cancel.stopped()).await,
            Wait::Ready => {}
            Wait::Calls => running.fly().await,
            Wait::Probes(probes) => running.probe(probes).await,
            Wait::Over(outcome) => return (running.held, *outcome),
        }
        let advance = move || {
            let wait = running.advance_ready();
            (running, wait)
        };
        (running, wait) = engine.tasks.block(advance).await;
    }
}

impl Running {
    /// Begins a run: takes the input in, cleans up after earlier runs, and says that this one began.
    pub(crate) fn begin(
        mut held: Box<Held>,
        start: Start,
        work: Arc<Assignment>,
        heard: Heard,
    ) -> std::result::Result<Box<Self>, Unbegun> {
        let run = match held.check_price(&work).and_then(|()| held.next_run()) {
            Ok(run) => run,
            Err(error) => return Err(Box::new((held, error))),
        };
        let engine = held.engine.clone();
        held.hooks.clone_from(&work.hooks);
        held.hooks.iter_mut().for_each(|hook| engine.redactor.value(hook));
        let mut meta = RunMeta::started(work.agent_id.clone(), held.origin(&start.input)).under_lease();
        meta.source_mailbox_entry_id = start.request.as_ref().map(|asked| asked.id.to_string());
        meta.config = work.config;
        meta.system = Some(work.system_digest());
        let tools: Vec<ToolSpec> = work.offered().cloned().collect();
        let began = engine.clock.now();
        let mut live = Live::new(run.clone(), began, base_size(&work, &tools));
        let suspended = held.fold.manifest().suspended.as_ref();
        if suspended.and_then(|suspended| suspended.code.as_deref()).is_some_and(stops::is_stop) {
            live.judged = held.fold.conversation.messages().len();
        }
        let Heard { cancel, watch } = heard;
        let mut running = Box::new(Self {
            held,
            work,
            run,
            cancel,
            watch,
            tools,
            meta,
            began,
            used: Cost::default(),
            live,
            turn: None,
            mask: Mask::default(),
            flights: Vec::new(),
            flying: Flying::new(),
            prepared: None,
            failed: None,
        });
        match running.take_in(start) {
            Ok(()) => Ok(running),
            Err(error) => Err(Box::new((running.held, error))),
        }
    }

    /// Goes on until it waits for something that does not block; calls are made ready behind their gates.
    fn advance_ready(&mut self) -> Wait {
        loop {
            match self.advance() {
                Wait::Ready => self.prepared = Some(self.prepare()),
                wait => return wait,
            }
        }
    }

    /// Goes on until it waits for something.
    pub(crate) fn advance(&mut self) -> Wait {
        let over = match self.go_on() {
            Ok(Ok(wait)) => return wait,
            Ok(Err(over)) => self.finish(over),
            Err(error) => {
                let why = error.to_string();
                self.held.notice(NoticeKind::StateError, &why);
                let code = error.code();
                let failure = Failure { class: FailureClass::Engine, why: why.clone() };
                // The first failure says what happened; that the end could not be recorded either adds nothing.
                self.finish(Over::Ended(Why::Failed(Failed { code, why, failure }))).map_err(|_| error)
            }
        };
        Wait::Over(Box::new(over))
    }

    /// Commits the delta as a part of this run.
    pub(crate) fn commit(&mut self, reason: Reason) -> Result<()> {
        let of = self.of();
        self.held.commit(reason, of).map(|_| ())
    }

    pub(crate) fn of(&self) -> Of {
        Of { run: Some(self.run.clone()), meta: None, turn: (self.live.turns > 0).then_some(self.live.turns) }
    }

    fn take_in(&mut self, Start { input, request }: Start) -> Result<()> {
        if let Some(raise) = &input.raise {
            let changed = self.held.raised(raise, &self.work)?;
            self.held.delta.events.push(Event::ManifestChanged(changed));
        }
        self.held.fund(&self.work, input.raise.as_ref())?;
        let held = &mut self.held;
        let is_known = |message: &Message| message.id.as_ref().is_some_and(|id| held.fold.conversation.knows(id));
        let messages: Vec<Message> = input.messages.into_iter().filter(|message| !is_known(message)).collect();
        if messages.iter().any(|message| message.role == Role::User) {
            self.cancel_awaited()?;
        }
        let held = &mut self.held;
        let state = input.state.as_ref().unwrap_or(held.fold.state());
        let cleanup = held.engine.scopes.run_cleanup(state);
        held.delta.messages.extend(messages);
        held.delta.patches.extend(cleanup);
        held.delta.state = input.state;
        if let Some(asked) = request {
            asked.answer(&mut held.delta, Verdict::Applied, None);
        }
        let of = Of { run: Some(self.run.clone()), meta: Some(self.meta.clone()), turn: None };
        held.commit(Reason::UserMessage, of).map_err(Error::unfunded)?;
        self.set_time();
        Ok(())
    }

    /// Tells whoever watches how much running time is left.
    fn set_time(&self) {
        let before = self.held.fold.meter().ended.duration_ms.saturating_add(self.running_ms());
        let most = self.held.limits(&self.work).duration_seconds.map(|seconds| seconds.saturating_mul(1000));
        self.watch.set_time(most.map(|most| Duration::from_millis(most.saturating_sub(before))));
    }

    /// How long this run has been running.
    fn running_ms(&self) -> u64 {
        let elapsed = self.held.engine.clock.now().as_micros().saturating_sub(self.began.as_micros());
        u64::try_from(elapsed / 1000).unwrap_or(0)
    }

    /// Takes in what came of what it waited for, and does what is decided until it waits again, or is over.
    fn go_on(&mut self) -> Result<std::result::Result<Wait, Over>> {
        if let Some(wait) = self.take_reply()? {
            return Ok(Ok(wait));
        }
        match self.prepared.take() {
            Some(prepared) => {
                if self.make(prepared?)? {
                    return Ok(Ok(Wait::Calls));
                }
            }
            None => match self.land() {
                Ok(true) => return Ok(Ok(Wait::Calls)),
                Ok(false) => {}
                // Nothing is over while a call still runs: what it does is known once it is back.
                Err(error) if self.flights.iter().any(Flight::is_open) => {
                    self.failed.get_or_insert(error);
                    return Ok(Ok(Wait::Calls));
                }
                Err(error) => return Err(self.failed.take().unwrap_or(error)),
            },
        }
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        loop {
            self.look();
            let step = decide(&self.held.fold, &self.live, &self.work);
            // Every step takes time, and requests may come meanwhile.
            self.live.inbox = Inbox::Unread;
            match step {
                Step::Hear => self.hear()?,
                Step::Probe(probes) => return Ok(Ok(Wait::Probes(probes))),
                Step::Calls(planned) => {
                    self.plan(planned);
                    return Ok(Ok(Wait::Ready));
                }
                Step::Ask => {
                    if let Some(wait) = self.ask()? {
                        return Ok(Ok(wait));
                    }
                }
                Step::HandOver { reason, room } => {
                    let successor = self.held.successor(&self.work, room, self.running_ms())?;
                    return Ok(Err(Over::Continued(Box::new(successor), reason)));
                }
                Step::End(why) => return Ok(Err(Over::Ended(why))),
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
        if self.held.drain(Some(&self.work.clone()), of)? {
            // What was found out and refused before is looked at again.
            self.live.traces.clear();
            self.set_time();
        }
        Ok(())
    }

    /// Sets aside what the next attempt to get an answer may cost; nothing if the account does not hold it.
    fn ask(&mut self) -> Result<Option<Wait>> {
        if self.turn.is_none() {
            self.live.turns += 1;
            let size = context::prompt_size(&self.held.fold, &self.live);
            let session = self.held.fold.manifest().session_id.clone();
            self.turn = Some(Turn::new(self.held.engine.clock.now(), size, self.bid(size), session));
        }
        let of = self.of();
        let Some(turn) = &mut self.turn else { return Ok(None) };
        turn.output_tokens_max = match turn.bid {
            Some(bid) => match self.held.reserve(bid, &of)? {
                Allowed::Up(tokens) => Some(tokens),
                Allowed::Refused(refused) => {
                    self.give_up(Trouble::Refused(refused));
                    return Ok(None);
                }
            },
            None => None,
        };
        if turn.attempts == 0 {
            self.held.keep_before_turn();
        }
        turn.attempts += 1;
        Ok(Some(Wait::Model))
    }

    /// Asks the model, and waits for what it says.
    pub(crate) async fn listen(&mut self) {
        let Self { held, work, run, cancel, tools, turn: Some(turn), mask, .. } = self else { return };
        let (thread, key) =
            (held.thread(), format!("{}:{run}:{}:{}", held.fold.head.log_id, held.fold.head.version, turn.attempts));
        let blobs = ThreadBlobs { engine: &held.engine, thread };
        let mut prompt = Prompt::new(&work.model_name, held.fold.conversation.messages());
        prompt.attempt = Some(Attempt::new(thread, run, &key));
        prompt.blobs = &blobs;
        prompt.system = &work.system;
        prompt.tools = tools;
        prompt.output_tokens_max = turn.output_tokens_max;
        prompt.session = turn.session.as_deref();
        let attempt = turn.attempts;
        let publish = |draft: Draft| {
            if held.is_watched() {
                held.publish(&RunEvent::Draft { thread: thread.clone(), run: run.clone(), attempt, draft });
            }
        };
        let redactor = &held.engine.redactor;
        let (mut has_drafted, mut said) = (false, String::new());
        let mut draft = |draft: Draft| {
            has_drafted = true;
            if let Draft::Text { text } = &draft {
                said.push_str(text);
            }
            mask.take(draft, redactor, &mut { publish });
        };
        let reply = within_grace(work.model.answer(&prompt, &mut draft, cancel), cancel).await;
        mask.finish(redactor, &mut { publish });
        // One that does not hear is dropped: what it said so far is known, what it used is not.
        let partial = || Some(Block::text(said)).filter(|_| has_drafted).into_iter().collect();
        let reply = reply.unwrap_or_else(|| Err(ModelError::Stopped { partial: partial(), usage: Default::default() }));
        // What a model had said when it was told to stop is kept.
        if has_drafted && !matches!(reply, Ok(_) | Err(ModelError::Stopped { .. })) {
            publish(Draft::Void);
        }
        turn.reply = Some(reply);
    }

    /// Takes in what came of asking the model; gives what it waits for, if it is asked again.
    fn take_reply(&mut self) -> Result<Option<Wait>> {
        let Some(turn) = &mut self.turn else { return Ok(None) };
        let error = match turn.reply.take() {
            // It waited to ask again.
            None => {
                if self.cancel.said().is_some() {
                    self.give_up(Trouble::Stopped);
                    return Ok(None);
                }
                return self.ask();
            }
            Some(Ok(answer)) => {
                let settled = self.held.settle(Spent::on(&answer))?;
                turn.used.answered(&answer, settled);
                let session = turn.session.take();
                self.count(Some(&answer));
                self.answered(answer, session.as_deref())?;
                return Ok(None);
            }
            Some(Err(error)) => error,
        };
        let settled = self.held.settle(Spent::by(&error))?;
        turn.used.failed(&error, settled);
        match asking::again(&self.work, &error, turn.attempts, turn.session.is_some()) {
            _ if matches!(error, ModelError::Stopped { .. }) => {
                if let ModelError::Stopped { partial, .. } = &error {
                    self.keep_partial(partial);
                }
                self.give_up(Trouble::Stopped);
            }
            Again::WithoutSession => {
                turn.session = None;
                return self.ask();
            }
            Again::After(pause) => {
                let why = error.to_string();
                let why = self.held.engine.redactor.text(&why).unwrap_or(why);
                let (thread, run) = (self.held.thread().clone(), self.run.clone());
                self.held.publish(&RunEvent::Retrying { thread, run, why });
                return Ok(Some(Wait::Retry(pause)));
            }
            Again::Exhausted => self.give_up(Trouble::Exhausted(Failed::of_model(&error))),
            Again::Never => self.give_up(Trouble::Failed(Failed::of_model(&error))),
        }
        Ok(None)
    }

    /// There is no answer.
    fn give_up(&mut self, trouble: Trouble) {
        match self.turn.as_ref().is_some_and(|turn| turn.attempts > 0) {
            true => self.count(None),
            // It was never asked.
            false => self.live.turns = self.live.turns.saturating_sub(1),
        }
        self.turn = None;
        self.live.trouble = Some(trouble);
    }

    /// Commits an answer.
    fn answered(&mut self, answer: Answer, session: Option<&str>) -> Result<()> {
        if answer.session.is_some() && answer.session.as_deref() != session {
            let changed = ManifestChanged { session_id: answer.session.clone(), ..ManifestChanged::default() };
            self.held.delta.events.push(Event::ManifestChanged(changed));
        }
        let (content, end) = with_own_ids(answer, &self.held);
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

    /// Records what a turn used, so that no restart forgets it. The tokens of an answer that its provider did not count are estimated,
    /// where tokens count.
    fn count(&mut self, answer: Option<&Answer>) {
        let Some(Turn { mut used, asked_at, prompt_bytes, .. }) = self.turn.take() else { return };
        let counts = self.work.is_paid() || self.held.limits(&self.work).tokens.is_some();
        used.is_uncounted &= counts;
        let gauge = self.held.fold.gauge();
        if let Some(answer) = answer.filter(|answer| used.is_uncounted && answer.usage.is_none()) {
            let said = serde_json::to_string(&answer.content).map_or(0, |text| text.len());
            used.usage.input_tokens = used.usage.input_tokens.saturating_add(gauge.tokens(prompt_bytes));
            used.usage.output_tokens = used.usage.output_tokens.saturating_add(gauge.tokens_of_text(said));
        }
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
            answered_by: answer.and_then(|answer| answer.model.clone()),
            provider_id: answer.and_then(|answer| answer.provider_id.clone()),
            charged: answer.and_then(|answer| answer.charged),
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
    fn finish(&mut self, mut over: Over) -> Result<Outcome> {
        let mut more = match &mut over {
            // The thread that goes on looks at the children when it begins.
            Over::Continued(successor, _) => std::mem::take(&mut successor.more),
            Over::Ended(_) => {
                self.held.engine.settle_children(&self.held);
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
        if let Err(error) = self.held.commit_with(Reason::RunFinished, of, more) {
            self.held.notice(NoticeKind::StateError, &error.to_string());
            return Err(error);
        }
        Ok(self.held.outcome(&self.run, self.live.text.take()))
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
                    self.held.delta.events.push(Event::ContextLimitReached(limit_reached(used, &self.work)));
                }
                let handoff = successor.handoff(&self.held, Some(reason));
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

/// Reads the blobs of a thread for its model.
struct ThreadBlobs<'a> {
    engine: &'a Engine,
    thread: &'a ThreadId,
}

impl Blobs for ThreadBlobs<'_> {
    fn read<'a>(&'a self, blob: &'a Digest) -> BoxFuture<'a, std::result::Result<Vec<u8>, String>> {
        let (engine, thread, blob) = (self.engine.clone(), self.thread.clone(), *blob);
        let read = move || engine.store.blob(&thread, &blob).map_err(|error| error.to_string());
        Box::pin(self.engine.tasks.block(read))
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
pub(crate) fn settle_lost(held: &mut Held) -> Result<(), Error> {
    let lost = held.fold.manifest().run_id.clone();
    let open = held.fold.conversation.open().to_vec();
    let is_unknown = |call: &OpenCall| {
        let known = held.fold.call(&call.id);
        known.is_some_and(|known| known.intent.is_some() && known.outcome.is_none() && known.child.is_none())
    };
    let mut unknown: Vec<_> = open.into_iter().filter(is_unknown).collect();
    // What it had begun must not go on behind whoever decides about it now. What can't be ended is tried again before it is asked after.
    let known = unknown.iter().filter_map(|call| held.fold.call(&call.id));
    let intents = known.filter_map(|known| known.intent.as_ref());
    intents.filter_map(|intent| intent.process.as_ref()).for_each(|process| _ = held.engine.processes.end(process));
    // A person is asked only about what the thread can't go on without.
    unknown.retain(OpenCall::suspends);
    let reason = if unknown.is_empty() { SuspendReason::Error } else { SuspendReason::OutcomeUnknown };
    let calls = unknown.into_iter().map(|call| call.id).collect();
    let suspended = Suspended { calls, ..Suspended::because(reason, "process_lost") };
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
    held.commit(Reason::RunFinished, Of { run: lost, meta, turn: None }).map(|_| ())
}
