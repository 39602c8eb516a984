//! One run: it begins, performs what `decide` says until its end is on record, and is over.
//!
//! ```text
//! begin    UserMessage              the input, and the cleanup of run state
//! calls    ToolResultsCommitted     calls that an earlier process left open
//! turns    AssistantTurnCommitted · (ToolIntentCommitted) · ToolResultsCommitted
//! finish   RunFinished              always, even if nothing else is recorded
//! ```
//!
//! `drive` performs the steps and passes their outcomes to `Live`; it is the only place that waits. Before anything reaches `decide`, it is
//! redacted, and a text that is too large for a line is stored as a blob. The driver adds to a commit what a decision can't know: ids, new
//! threads, and postings to other accounts. A replay performs the same steps from the record.

use std::borrow::Cow;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use selvedge_model::account::Posting;
use selvedge_model::answer::{Answer, Attempt, Blobs, Session};
use selvedge_model::blocking::BoxFuture;
use selvedge_model::event::{HandoffReason, InjectedPlace};
use selvedge_model::message::Block;
use selvedge_model::run::{Failure, FailureClass, PromptPart};
use selvedge_model::{
    CallId, Cancel, Classify, Digest, Draft, Event, Message, ModelError, Prompt, Reason, Role, RunMeta, ThreadId,
    Timestamp, Verdict,
};
use selvedge_store::Error as StoreError;
use tokio::time::timeout;

use crate::answer_size::{PARTIAL_BYTES_MAX, bounded};
use crate::calls::{InFlight, PreparedCall};
use crate::decide::ending::Failed;
use crate::decide::hooks::HookMemory;
use crate::decide::{Commit, Inbox, Live, Look, Outcome, Rules, Step, Turn, With, decide};
use crate::derived_ids::with_own_ids;
use crate::draft_mask::DraftMask;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::{NoticeKind, RunEvent};
use crate::grace::{TimeLimit, within_grace};
use crate::graph;
use crate::held::{HeldThread, OtherThreads, RunContext};
use crate::outcome;
use crate::run_config::RunConfig;
use crate::start::{Beginning, Start};
use crate::stop_policy;
use crate::tasks::{catch_panic, panic_message};
use crate::watcher::Watch;

/// How often an attempt is recomputed when other runs spend from the same account at the same moment.
const OVERTAKEN_MAX: u32 = 64;

/// An active run.
pub(crate) struct Running {
    pub(crate) held: Box<HeldThread>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) live: Live,
    pub(crate) cancel: Cancel,
    pub(crate) watch: Watch,
    time_limit: Option<TimeLimit>,
    began: Timestamp,
    mask: DraftMask,
    /// Calls that are ready behind their gates.
    pub(crate) prepared_calls: HashMap<CallId, PreparedCall>,
    /// The children that are committed with the intents.
    pub(crate) births: NewChildren,
    /// Calls that are in flight.
    pub(crate) in_flight: InFlight,
    /// How often other runs spent from the account since the last attempt.
    overtaken: u32,
    /// Why nothing can be committed any more but the end.
    error: Option<Error>,
    /// How it ended, once it has.
    ended: Option<Result<outcome::Outcome>>,
}

/// How a run is notified of what happens elsewhere.
pub(crate) struct RunControl {
    /// Whether it is to stop.
    pub(crate) cancel: Cancel,
    /// Whether a request arrived.
    pub(crate) watch: Watch,
}

/// Children that are ready to be created.
#[derive(Default)]
pub(crate) struct NewChildren {
    pub(crate) more: OtherThreads,
    /// The money for them.
    pub(crate) postings: Vec<Posting>,
}

/// The result of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Performed {
    Committed,
    /// Other runs spent from the same account at the same moment.
    Overtaken,
    /// The account does not hold what a request raises.
    Short,
}

/// A run that did not begin: its thread, unchanged, and the error.
type NotBegun = Box<(Box<HeldThread>, Error)>;

/// Runs a held thread, from its input to its end.
pub(crate) async fn drive(
    held: Box<HeldThread>,
    start: Start,
    work: Arc<RunConfig>,
    control: RunControl,
) -> (Box<HeldThread>, Result<outcome::Outcome>) {
    let mut running = match Running::begin(held, start, work, control) {
        Ok(running) => running,
        Err(unbegun) => {
            let (held, error) = *unbegun;
            return (held, Err(error));
        }
    };
    loop {
        match running.next() {
            Step::Commit(commit) => running.commit(*commit),
            Step::Look(look) => running.look_up(look),
            Step::Prepare(planned) => running.prepare(planned),
            Step::Dispatch => running.dispatch(),
            Step::Ask(turn) => running.ask(*turn).await,
            Step::Probe(probes) => running.probe(probes).await,
            Step::Wait(Some(pause)) => running.rest(pause).await,
            Step::Wait(None) => running.wait().await,
            Step::Pause(pause) => running.pause(pause).await,
            Step::Done => return running.over(),
        }
    }
}

impl Running {
    /// Begins a run: commits its input, the cleanup after earlier runs, and that it began.
    pub(crate) fn begin(
        mut held: Box<HeldThread>,
        start: Start,
        work: Arc<RunConfig>,
        control: RunControl,
    ) -> std::result::Result<Box<Self>, NotBegun> {
        let raised = start.input.raise.as_ref();
        let ready = graph::check(&held.fold, &work);
        let ready = ready.and_then(|()| held.check_price(&work)).and_then(|()| held.next_run()).and_then(|run| {
            let raised = raised.map(|raise| held.raised(raise, &work)).transpose()?;
            Ok((run, raised))
        });
        let (run, raised) = match ready {
            Ok(ready) => ready,
            Err(error) => return Err(Box::new((held, error))),
        };
        let engine = held.engine.clone();
        held.hooks = work.hooks.shown();
        for hook in &mut held.hooks {
            engine.redactor.value(hook);
        }
        let mut meta = RunMeta::started(work.agent_id.clone(), held.origin(&start.input)).under_lease();
        meta.source_mailbox_entry_id = start.request.as_ref().map(|asked| asked.id.to_string());
        meta.config = work.config;
        meta.system = Some(work.system_digest());
        // The first message is made once, with the thread.
        let manifest = held.fold.manifest();
        let is_first = manifest.cost.turns == 0 && manifest.result.is_none() && manifest.continuation_of.is_none();
        let is_brought = |part: &&PromptPart| is_first || part.position == InjectedPlace::System;
        meta.prompt = work.prompt.iter().filter(is_brought).cloned().collect();
        let began = engine.clock.now();
        let mut live = Live::new(run, meta, began);
        let suspended = held.fold.manifest().suspended.as_ref();
        live.hooks = HookMemory::new(suspended, !start.input.messages.is_empty());
        live.start = Some(Beginning { start, raised });
        if suspended.and_then(|suspended| suspended.code.as_deref()).is_some_and(stop_policy::is_stop) {
            live.judged = held.fold.conversation.messages().len();
        }
        let RunControl { cancel, watch } = control;
        let mut running = Box::new(Self {
            held,
            rules: Arc::new(Rules::new(work, engine.scopes.clone())),
            live,
            cancel,
            watch,
            time_limit: None,
            began,
            mask: DraftMask::default(),
            prepared_calls: HashMap::new(),
            births: NewChildren::default(),
            in_flight: InFlight::new(),
            overtaken: 0,
            error: None,
            ended: None,
        });
        if let Step::Commit(first) = decide(&running.held.fold, &running.live, &running.rules) {
            if let Err(error) = running.try_commit(&first) {
                return Err(Box::new((running.held, error.unfunded())));
            }
            running.live.committed(*first);
            running.set_time();
        }
        Ok(running)
    }

    /// What it does next.
    pub(crate) fn next(&mut self) -> Step {
        self.live.now = self.held.engine.clock.now();
        self.live.running_ms = self.running_ms();
        self.live.stop = self.cancel.said();
        if self.watch.was_noted() {
            self.live.inbox = Inbox::Notified;
        }
        let step = decide(&self.held.fold, &self.live, &self.rules);
        self.live.stepped();
        step
    }

    /// The outcome of the run, and its thread.
    pub(crate) fn over(self: Box<Self>) -> (Box<HeldThread>, Result<outcome::Outcome>) {
        let ended = self.ended.unwrap_or_else(|| Ok(self.held.outcome(&self.live.run, self.live.text.clone())));
        (self.held, ended)
    }

    /// Sets how much running time is left. A replay's time is that of its record.
    fn set_time(&mut self) {
        if !self.watch.is_watched() {
            return;
        }
        let before = self.held.fold.meter().ended.duration_ms.saturating_add(self.running_ms());
        let most = self.held.limits(&self.rules).duration_seconds.map(|seconds| seconds.saturating_mul(1000));
        let left = most.map(|most| Duration::from_millis(most.saturating_sub(before)));
        self.time_limit = left.map(|left| TimeLimit::new(left, &self.cancel));
    }

    /// For how long this run has been running.
    fn running_ms(&self) -> u64 {
        let elapsed = self.held.engine.clock.now().as_micros().saturating_sub(self.began.as_micros());
        u64::try_from(elapsed / 1000).unwrap_or(0)
    }

    /// Performs a commit.
    pub(crate) fn commit(&mut self, commit: Commit) {
        let error = match self.try_commit(&commit) {
            Ok(Performed::Committed) => {
                self.overtaken = 0;
                let is_request = commit.reason == Reason::Lifecycle;
                self.live.committed(commit);
                if is_request {
                    self.set_time();
                }
                return;
            }
            Ok(Performed::Short) => return,
            // The account is read again.
            Ok(Performed::Overtaken) if self.overtaken < OVERTAKEN_MAX => {
                self.overtaken += 1;
                self.live.account = None;
                return;
            }
            Ok(Performed::Overtaken) => StoreError::AccountBusy(self.held.account_id()).into(),
            Err(error) => error,
        };
        let is_end = match commit.with {
            With::End { .. } => true,
            // Without a successor, the thread itself can still end.
            With::Handoff { .. } => matches!(error, Error::Commit { .. }),
            _ => false,
        };
        if !is_end {
            return self.fail(error);
        }
        self.held.notice(NoticeKind::StateError, &error.to_string());
        // The first failure is the cause; that the end could not be recorded either adds nothing.
        self.ended = Some(Err(self.error.take().unwrap_or(error)));
        self.live.is_over = true;
    }

    /// Nothing can be committed any more but the end of the run.
    pub(crate) fn fail(&mut self, error: Error) {
        // Calls that were not dispatched never will be, and no child is created.
        self.prepared_calls.clear();
        self.births = NewChildren::default();
        if self.error.is_none() {
            let why = error.to_string();
            self.held.notice(NoticeKind::StateError, &why);
            let failure = Failure { class: FailureClass::Engine, why: why.clone() };
            self.live.take(Outcome::Refused(Failed { code: error.code(), why, failure }));
            self.error = Some(error);
        }
    }

    /// Performs a commit, with what only the driver can know; on an error nothing of it is committed.
    fn try_commit(&mut self, commit: &Commit) -> Result<Performed> {
        let before = self.held.delta.clone();
        let done = self.perform(commit);
        if !matches!(done, Ok(Performed::Committed)) {
            // The delta is decided again, or recorded with the end.
            self.held.delta = before;
        }
        done
    }

    fn perform(&mut self, Commit { reason, delta, turn, meta, is_overcharged, with }: &Commit) -> Result<Performed> {
        let held = &mut self.held;
        held.delta.append(delta.clone());
        let mut of = RunContext { run: Some(self.live.run.clone()), meta: meta.clone(), turn: *turn };
        let mut more = OtherThreads::default();
        match with {
            With::Nothing => {}
            With::Funds { raise } => held.fund(&self.rules, raise.as_ref())?,
            With::Raise(raise) => {
                if let Some(short) = held.pay_raise(raise)? {
                    self.live.fell_short(short);
                    return Ok(Performed::Short);
                }
            }
            With::Children => {
                let births = std::mem::take(&mut self.births);
                more = births.more;
                held.delta.postings.extend(births.postings);
            }
            With::Attempt(_) => {
                let is_reserved = held.commit_attempt(&of)?;
                return Ok(if is_reserved { Performed::Committed } else { Performed::Overtaken });
            }
            With::End { is_stopped } => {
                held.engine.settle_children(held);
                if *is_stopped {
                    held.answer_stops(Verdict::Applied)?;
                }
            }
            With::Handoff { reason, room, inputs } => {
                let successor = match reason {
                    HandoffReason::SegmentFull => held.next_segment(inputs, self.live.running_ms)?,
                    _ => held.successor(&self.rules, *room, inputs, self.live.running_ms)?,
                };
                let handoff = successor.handoff(held, Some(*reason));
                let detail = format!("continued in thread `{}`", handoff.new_thread_id);
                if let Some(meta) = &mut of.meta {
                    meta.termination_detail = Some(detail);
                }
                held.delta.events.push(Event::ThreadHandoff(handoff));
                more = successor.more;
            }
        }
        if *is_overcharged {
            held.stop_tree()?;
        }
        if let Some(meta) = of.meta.as_mut().filter(|_| *reason == Reason::RunFinished) {
            let redactor = &held.engine.redactor;
            let why = meta.failure.as_mut().map(|failure| &mut failure.why);
            for text in why.into_iter().chain(&mut meta.termination_detail) {
                *text = redactor.text(text).unwrap_or_else(|| std::mem::take(text));
            }
            more.posted.extend(held.child_settled_request(meta.thread_status()));
        }
        held.commit_with(*reason, of, more).map(|_| Performed::Committed)
    }

    /// Reads what the next decision needs.
    pub(crate) fn look_up(&mut self, look: Look) {
        let looked = match look {
            Look::Inbox => self.held.requests().map(|requests| self.live.set_requests(requests)),
            Look::Account => self.held.account().map(|account| self.live.account = Some(account)),
        };
        if let Err(error) = looked {
            self.fail(error);
        }
    }

    /// Waits before the next attempt, unless the run is to stop.
    async fn rest(&mut self, pause: Duration) {
        if let Some(error) = self.live.turn.as_ref().and_then(Turn::error) {
            let why = error.to_string();
            let why = self.held.engine.redactor.text(&why).unwrap_or(why);
            let thread = self.held.thread().clone();
            let run = self.live.run.clone();
            self.held.publish(&RunEvent::Retrying { thread, run, why });
        }
        _ = timeout(pause, self.cancel.stopped()).await;
        self.live.rested();
    }

    /// Waits this long, or until a request arrives or the run is to stop.
    async fn pause(&mut self, pause: Duration) {
        let stopped = pin!(self.cancel.stopped());
        let noted = pin!(self.watch.noted());
        _ = timeout(pause, select(stopped, noted)).await;
    }

    /// Asks the model, and waits for its answer.
    pub(crate) async fn ask(&mut self, turn: Turn) {
        if turn.attempts == 1 {
            self.held.keep_before_turn();
        }
        self.live.begin(turn.clone());
        let answered = match self.listen(turn).await {
            Ok(answer) => self.own(answer),
            Err(error) => Err(error),
        };
        self.live.take(match answered {
            Ok(answer) => Outcome::Answered(Box::new(answer)),
            Err(error) => Outcome::Failed(error),
        });
    }

    async fn listen(&mut self, turn: Turn) -> std::result::Result<Answer, ModelError> {
        let Self { held, rules, live, cancel, mask, .. } = self;
        let thread = held.thread();
        let run = &live.run;
        let attempt = turn.attempts;
        let key = format!("{}:{run}:{}:{attempt}", held.fold.head.log_id, held.fold.head.version);
        let blobs = ThreadBlobs { engine: &held.engine, thread };
        let mut prompt = Prompt::new(&rules.model_name, held.fold.conversation.prompt());
        let system = with_context(&rules.system, held.fold.conversation.system_context());
        prompt.attempt = Some(Attempt::new(thread, run, &key));
        prompt.blobs = &blobs;
        prompt.system = &system;
        prompt.tools = &rules.tools;
        prompt.output_tokens_max = turn.output_tokens_max;
        prompt.session = turn.session.as_deref().map(|id| Session { id, covers: covered(prompt.messages) });
        let publish = |draft: Draft| {
            if held.is_watched() {
                held.publish(&RunEvent::Draft { thread: thread.clone(), run: run.clone(), attempt, draft });
            }
        };
        let redactor = &held.engine.redactor;
        let mut has_drafted = false;
        let mut said = String::new();
        let mut draft = |draft: Draft| {
            has_drafted = true;
            if let Draft::Text { text } = &draft
                && said.len() <= PARTIAL_BYTES_MAX
            {
                said.push_str(text);
            }
            mask.take(draft, redactor, &mut { publish });
        };
        // A model is third-party code: its panic is a failed attempt, not the end of the run.
        let answer = async { rules.model.answer(&prompt, &mut draft, cancel).await };
        let reply = within_grace(catch_panic(Box::pin(answer)), cancel).await;
        mask.finish(redactor, &mut { publish });
        let reply = match reply {
            Some(Ok(reply)) => reply,
            Some(Err(panic)) => Err(ModelError::Transient { why: format!("it panicked: {}", panic_message(&*panic)) }),
            // A model that does not stop in time is dropped: its text so far is known, its usage is not.
            None => {
                let partial = Some(Block::text(said)).filter(|_| has_drafted).into_iter().collect();
                Err(ModelError::Stopped { partial, usage: None })
            }
        };
        // The partial text of a stopped model is kept.
        if has_drafted && !matches!(reply, Ok(_) | Err(ModelError::Stopped { .. })) {
            publish(Draft::Void);
        }
        reply
    }

    /// An answer as it is recorded: without secrets, every call with an id that is new in the thread, and small enough for a line of the
    /// log. If what is too large can't be stored, the answer is lost, and what it cost is known.
    fn own(&self, mut answer: Answer) -> std::result::Result<Answer, ModelError> {
        let content = with_own_ids(std::mem::take(&mut answer.content), &self.held);
        let mut message = [Message { content, ..Message::text(Role::Assistant, "") }];
        self.held.engine.redactor.messages(&mut message);
        let [message] = message;
        let store = &self.held.engine.store;
        let content = bounded(message.content, &mut |text| store.put_blob(self.held.thread(), text.as_bytes()));
        match content {
            Ok(content) => {
                answer.content = content;
                Ok(answer)
            }
            Err(error) => {
                let why = format!("the answer can't be stored: {error}");
                Err(ModelError::Cut { why, partial: Vec::new(), usage: answer.usage })
            }
        }
    }
}

/// The system prompt with the context that hooks added.
fn with_context<'a>(system: &'a str, context: impl Iterator<Item = &'a str>) -> Cow<'a, str> {
    let mut whole = Cow::Borrowed(system);
    for text in context {
        let whole = whole.to_mut();
        if !whole.is_empty() {
            whole.push_str("\n\n");
        }
        whole.push_str(text);
    }
    whole
}

/// How many messages a session knows that knows the last answer.
fn covered(messages: &[Arc<Message>]) -> usize {
    let is_answer = |message: &Arc<Message>| message.role == Role::Assistant && message.marker.is_none();
    messages.iter().rposition(is_answer).map_or(0, |at| at + 1)
}

/// Reads the blobs of a thread for its model.
struct ThreadBlobs<'a> {
    engine: &'a Engine,
    thread: &'a ThreadId,
}

impl Blobs for ThreadBlobs<'_> {
    fn read<'a>(&'a self, blob: &'a Digest) -> BoxFuture<'a, std::result::Result<Vec<u8>, String>> {
        // It is polled by its run, which may block for a moment.
        Box::pin(async { self.engine.store.blob(self.thread, blob).map_err(|error| error.to_string()) })
    }
}
