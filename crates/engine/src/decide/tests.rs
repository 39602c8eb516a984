//! The decision alone, against a world made up here: no store, no clock, no process.
//!
//! The world does what a step says, badly: hooks and nodes open calls of their own, calls are lost, tools don't know, people answer late or wrongly, somebody stops the run, and the
//! process dies after any commit and before any. What must hold all the same is asserted where it could break.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use selvedge_log::Head;
use selvedge_model::answer::{Answer, Drafts, Prompt};
use selvedge_model::blocking::BoxFuture;
use selvedge_model::event::{
    CallOpened, CallOrigin, Decision, EffectClass, ManifestChanged, ResumeMode, SuspendReason, ThreadCreated,
    ToolIntent, ToolOutcome, TurnUsage,
};
use selvedge_model::limits::{Cost, Limits};
use selvedge_model::message::Block;
use selvedge_model::run::RunRecorded;
use selvedge_model::tool::{Call, Reconciled, Risk, Started};
use selvedge_model::{
    AgentId, Cancel, Digest, Event, LogId, Message, Model, ModelError, NewThread, Role, RunMeta, RunStatus, Thread,
    ThreadId, Tool, ToolError, ToolSpec,
};
use serde_json::json;

use super::calls::Plan;
use super::*;
use crate::assignment::{Asking, Permission};
use crate::conversation::Conversation;
use crate::decide::asking::{Again, again};

/// Nobody asks it here.
struct Nobody;

impl Model for Nobody {
    fn answer<'a>(
        &'a self,
        _: &'a Prompt<'a>,
        _: &'a mut Drafts<'a>,
        _: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(std::future::ready(Err(ModelError::Transient { why: "nobody asks it".to_owned() })))
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// A tool that only has a name and a class.
struct Named(ToolSpec);

impl Tool for Named {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        Err(ToolError::NotStarted { tool: call.name.clone(), why: "nobody starts it".to_owned() })
    }

    fn reconcile(&self, _: &Call, _: &Cancel) -> Reconciled {
        Reconciled::Unknown
    }
}

const TOKENS_MAX: u64 = 60;
const SECONDS_MAX: u64 = 4;
const TURNS_MAX: u64 = 6;

fn rules() -> Assignment {
    let mut rules = Assignment::new(AgentId::new("agent").unwrap(), Arc::new(Nobody), "none");
    let classes = [
        ("look", EffectClass::Pure),
        ("set", EffectClass::Idempotent),
        ("pay", EffectClass::AtMostOnce),
        ("wire", EffectClass::AtMostOnce),
        ("never", EffectClass::AtMostOnce),
    ];
    rules.tools = classes
        .into_iter()
        .map(|(name, class)| {
            let (hash, capability) = (Digest([7; 32]), format!("tool.{name}"));
            let (description, input_schema) = (String::new(), json!({}));
            let name = name.to_owned();
            Arc::new(Named(ToolSpec { name, description, input_schema, class, capability, risk: Risk::Safe, hash }))
                as Arc<dyn Tool>
        })
        .collect();
    rules.gate = Arc::new(|spec, _| match spec.name.as_str() {
        "wire" => Permission::Ask(Asking::default()),
        "never" => Permission::Denied("the rules say so".to_owned()),
        _ => Permission::Allowed,
    });
    let (tokens, duration_seconds) = (Some(TOKENS_MAX), Some(SECONDS_MAX));
    rules.limits = Limits { turns: Some(TURNS_MAX), tokens, duration_seconds, ..Limits::default() };
    rules
}

/// Where chance comes from; when it runs out, everything goes well.
struct Chance(std::vec::IntoIter<u8>);

impl Chance {
    fn below(&mut self, most: u8) -> u8 {
        self.0.next().unwrap_or(0) % most
    }

    fn once_in(&mut self, many: u8) -> bool {
        self.below(many) == many - 1
    }
}

struct World {
    rules: Assignment,
    chance: Chance,
    fold: Fold,
    /// Everything that was committed, to be folded again.
    log: Vec<Vec<Event>>,
    live: Live,
    runs: u64,
    calls: u64,
    steps: u64,
    /// How often each call that may run at most once has really happened.
    happened: HashMap<CallId, u32>,
}

fn head(version: u64) -> Head {
    let log_id = LogId::new("0".repeat(32)).unwrap();
    Head {
        log_id,
        segment: 0,
        version,
        lines: version * 10,
        bytes: version * 1000,
        hash: Digest([0; 32]),
        epoch: 1,
        signer: Digest([1; 32]),
    }
}

fn live(number: u64) -> Live {
    Live::new(RunId::new(format!("run{number}")).unwrap(), Timestamp::from_micros(0), 100)
}

fn born() -> Fold {
    let thread = ThreadId::new("thread").unwrap();
    let created = NewThread::of(AgentId::new("agent").unwrap());
    let log_id = head(0).log_id;
    let created = Event::ThreadCreated(Box::new(ThreadCreated { format: 1, log_id, segment: 0, thread: created }));
    let thread = Thread::begin(&thread, &created, Timestamp::from_micros(0)).unwrap();
    Fold::of(thread, Conversation::default(), head(0))
}

/// The process dies here.
struct Died;

impl World {
    fn new(bytes: Vec<u8>) -> Self {
        Self {
            rules: rules(),
            chance: Chance(bytes.into_iter()),
            fold: born(),
            log: Vec::new(),
            live: live(0),
            runs: 0,
            calls: 0,
            steps: 0,
            happened: HashMap::new(),
        }
    }

    /// Commits; the process may die before and after.
    fn commit(&mut self, events: Vec<Event>) -> Result<(), Died> {
        if self.chance.once_in(19) {
            return Err(Died);
        }
        self.record(events);
        match self.chance.once_in(19) {
            true => Err(Died),
            false => Ok(()),
        }
    }

    fn record(&mut self, events: Vec<Event>) {
        let version = self.fold.head.version + 1;
        self.fold.take(&events, head(version), None, Timestamp::from_micros(0)).unwrap();
        self.log.push(events);
    }

    /// What is known, as a snapshot keeps it.
    fn restored(&self) -> Fold {
        let mut thread: Thread = serde_json::from_value(json!(self.fold.thread())).unwrap();
        let mut conversation = Conversation::default();
        for message in self.fold.conversation.messages() {
            thread.recall(message);
            conversation.push((**message).clone());
        }
        Fold::of(thread, conversation, self.fold.head.clone())
    }

    /// Everything that was committed, folded anew.
    fn refolded(&self) -> Fold {
        let mut fold = born();
        for (index, events) in self.log.iter().enumerate() {
            fold.take(events, head(index as u64 + 1), None, Timestamp::from_micros(0)).unwrap();
        }
        fold
    }

    fn run_meta(&self, status: RunStatus) -> Event {
        let mut meta = RunMeta::started(AgentId::new("agent").unwrap(), "user");
        meta.status = status;
        let recorded = |meta| RunRecorded { run_id: self.live.run.clone(), parent_run_id: None, meta };
        match status {
            RunStatus::Running => Event::RunStarted(recorded(meta)),
            status => {
                meta.cost = Some(Cost { duration_ms: self.live.running_ms, ..Cost::default() });
                Event::RunFinished(recorded(RunMeta { status, ..meta.finished("over".to_owned()) }))
            }
        }
    }

    /// Runs the thread until it has nothing to do any more; whoever is asked answers in between, and what died is taken up again.
    fn live_on(mut self) -> Self {
        let mut message = Some(Message::text(Role::User, "do it"));
        loop {
            self.runs += 1;
            self.live = live(self.runs);
            let mut begin = vec![self.run_meta(RunStatus::Running)];
            begin.extend(message.take().map(Event::Message));
            self.record(begin);
            let why = match self.run() {
                Ok(why) => why,
                Err(Died) => {
                    let lost = Suspended::because(SuspendReason::Error, "process_lost");
                    self.record(vec![Event::Suspended(lost), self.run_meta(RunStatus::Waiting)]);
                    continue;
                }
            };
            match why {
                Why::Suspended(suspended) => {
                    self.record(vec![Event::Suspended(suspended.clone()), self.run_meta(RunStatus::Waiting)]);
                    self.answer(&suspended);
                }
                // A stop answers every call that is open, and ends the run.
                Why::Stopped(_) => return self,
                why => {
                    assert!(self.fold.conversation.open().is_empty(), "{why:?} with an open call");
                    self.assert_opened_calls_are_apart();
                    return self;
                }
            }
        }
    }

    /// Does what is decided until the run ends.
    fn run(&mut self) -> Result<Why, Died> {
        loop {
            self.steps += 1;
            assert!(self.steps < 2_000, "it does not end");
            if self.chance.once_in(61) {
                self.live.stop = Some(Stop::Cancelled);
            }
            self.live.running_ms += u64::from(self.chance.below(8)) * 100;
            let step = decide(&self.fold, &self.live, &self.rules);
            for fold in [self.refolded(), self.restored()] {
                let again = decide(&fold, &self.live, &self.rules);
                assert_eq!(format!("{step:?}"), format!("{again:?}"), "what is on record decides, not how it was read");
            }
            self.live.inbox = Inbox::Unread;
            match step {
                Step::Hear => self.hear()?,
                Step::Probe(probes) => self.probe(probes),
                Step::Calls(planned) => self.make(planned)?,
                Step::Ask => self.ask()?,
                Step::HandOver { .. } => {
                    assert!(self.live.hands_over, "the context is not full");
                    // A successor goes on; here it is over.
                    return Ok(Why::Completed);
                }
                Step::End(why) => return Ok(why),
            }
        }
    }

    /// Somebody may have allowed something meanwhile.
    fn hear(&mut self) -> Result<(), Died> {
        self.live.inbox = Inbox::Heard;
        let open = self.fold.conversation.open().to_vec();
        let asked = open.iter().filter_map(|open| self.fold.call(&open.id)?.ask.clone()).next();
        if let Some(ask) = asked.filter(|_| self.chance.once_in(3)) {
            let decision = decision(&ask.call_id, Decision::APPROVE, Some(ask.action_hash));
            self.commit(vec![Event::Decision(decision)])?;
            self.live.traces.clear();
        }
        Ok(())
    }

    /// A tool never says what is not so; it may not know.
    fn probe(&mut self, probes: Vec<Probe>) {
        assert!(!probes.is_empty());
        for probe in probes {
            let id = probe.ready.call.id;
            let has_happened = self.happened.contains_key(&id);
            let trace = match (self.chance.once_in(3), has_happened) {
                (true, _) => Trace::Unknown,
                (false, true) => Trace::Done(Output { content: json!("done"), ..Output::default() }),
                (false, false) => Trace::NotDone,
            };
            self.live.traces.insert(id, trace);
        }
    }

    fn make(&mut self, planned: Vec<Planned>) -> Result<(), Died> {
        assert!(!planned.is_empty());
        let mut first = Vec::new();
        for Planned { plan, .. } in &planned {
            match plan {
                Plan::Word(ask) if !calls::is_on_record(&self.fold, ask) => first.push(Event::Asked(ask.clone())),
                Plan::Make(ready) => {
                    let spec = ready.tool.spec();
                    assert!(self.live.stop.is_none(), "nothing is begun behind a stop");
                    assert_ne!(spec.name, "never", "what a rule refuses is not made");
                    let known = self.fold.call(&ready.call.id);
                    if spec.name == "wire" {
                        assert!(
                            known.is_some_and(|known| !known.decisions.is_empty()),
                            "what must be allowed was allowed"
                        );
                    }
                    if spec.class == EffectClass::AtMostOnce {
                        let is_dispatched = known.is_some_and(|known| known.intent.is_some());
                        let is_undone = self.live.traces.get(&ready.call.id) == Some(&Trace::NotDone)
                            || known.is_some_and(|known| known.decisions.iter().any(|said| said.action == "not_done"));
                        assert!(!is_dispatched || is_undone, "what may have run does not run again");
                        first.push(Event::ToolIntent(ToolIntent {
                            call_id: ready.call.id.clone(),
                            tool: spec.name.clone(),
                            class: spec.class,
                            key: ready.call.key.clone(),
                            tool_hash: Some(spec.hash),
                            process: None,
                        }));
                    }
                }
                _ => {}
            }
        }
        if !first.is_empty() {
            self.commit(first)?;
        }
        let mut results = Vec::new();
        for Planned { open, plan } in planned {
            let output = match plan {
                Plan::Answer(output, _) => output,
                Plan::Make(ready) => match self.dispatch(&ready)? {
                    Some(output) => output,
                    None => continue,
                },
                Plan::Probe(_) => panic!("a probe among what is made"),
                Plan::Word(_) | Plan::Unknown | Plan::Limited(_) => continue,
            };
            if open.is_of_message() {
                let (call_id, content, is_error) = (open.id.clone(), output.content, output.is_error);
                let block = Block::ToolResult { call_id, content, is_error, blob: None };
                results.push(Event::Message(Message { content: vec![block], ..Message::text(Role::Tool, "") }));
            }
            let outcome = ToolOutcome { call_id: open.id, result: None, error: None, failure: None, blob: None };
            results.push(Event::ToolOutcome(outcome));
        }
        match results.is_empty() {
            true => Ok(()),
            false => self.commit(results),
        }
    }

    /// A call happens, or not, and its answer comes, or not.
    fn dispatch(&mut self, ready: &calls::Ready) -> Result<Option<Output>, Died> {
        let is_once = ready.tool.spec().class == EffectClass::AtMostOnce;
        if self.chance.once_in(29) {
            return Err(Died);
        }
        let fate = self.chance.below(6);
        if is_once && fate != 5 {
            let times = self.happened.entry(ready.call.id.clone()).or_default();
            *times += 1;
            assert_eq!(*times, 1, "a payment is made once");
        }
        if is_once && fate >= 4 {
            self.live.traces.insert(ready.call.id.clone(), Trace::Unknown);
            return Ok(None);
        }
        Ok(Some(Output { content: json!("done"), ..Output::default() }))
    }

    fn ask(&mut self) -> Result<(), Died> {
        let (used, most) = (self.used(), ending::limits(&self.fold, &self.rules));
        assert!(used.turns < most.turns.unwrap(), "turn {used:?} of at most {most:?}");
        assert!(used.input_tokens + used.output_tokens < most.tokens.unwrap(), "tokens {used:?} of at most {most:?}");
        assert!(used.duration_ms < most.duration_seconds.unwrap() * 1000, "time {used:?} of at most {most:?}");
        assert!(self.fold.conversation.open().is_empty(), "the model is asked with an open call");
        self.live.turns += 1;
        let calls = self.chance.below(4);
        let mut content = vec![Block::text("so")];
        for _ in 0..calls {
            let (id, name) = self.next_call();
            content.push(Block::tool_call(id, name, json!({"n": self.calls})));
        }
        let opened = self.opened();
        let usage = TurnUsage {
            model: "none".to_owned(),
            cost: Cost { turns: 1, output_tokens: u64::from(self.chance.below(30)), ..Cost::default() },
            cache_read_tokens: 0,
            cache_write_tokens: 0,
            prompt_bytes: 0,
            prompt_tokens: 0,
            estimated: false,
            answered_by: None,
            provider_id: None,
            charged: None,
        };
        let answer = Message { content, ..Message::text(Role::Assistant, "") };
        let mut events = vec![Event::Message(answer), Event::Usage(usage)];
        events.extend(opened);
        self.commit(events)?;
        self.live.answered = (calls == 0).then_some(End::Finished);
        self.live.hands_over |= calls > 0 && self.chance.once_in(17);
        Ok(())
    }

    /// What counts against its limits.
    fn used(&self) -> Cost {
        self.fold.meter().used(self.live.running_ms).cost
    }

    fn next_call(&mut self) -> (CallId, &'static str) {
        self.calls += 1;
        let name = ["look", "set", "pay", "wire", "never", "gone"][usize::from(self.chance.below(6))];
        (CallId::new(format!("c.{}", self.calls)).unwrap(), name)
    }

    /// Calls that hooks and nodes open with an answer.
    fn opened(&mut self) -> Vec<Event> {
        let mut opened = Vec::new();
        for _ in 0..self.chance.below(3) {
            let (hook, graph, node) = ("h".to_owned(), "g".to_owned(), "n".to_owned());
            let origin = match self.chance.below(3) {
                0 => CallOrigin::Hook { hook, required: false },
                1 => CallOrigin::Hook { hook, required: true },
                _ => CallOrigin::Node { graph, node },
            };
            let (call_id, tool) = self.next_call();
            let (tool, arguments) = (tool.to_owned(), json!({"n": self.calls}));
            opened.push(Event::CallOpened(CallOpened { call_id, origin, tool, arguments }));
        }
        opened
    }

    /// Every call that was opened by itself has an outcome of its own, and no message says anything of it.
    fn assert_opened_calls_are_apart(&self) {
        let blocks = || self.fold.conversation.messages().iter().flat_map(|message| &message.content);
        for (id, known) in self.fold.thread().calls.iter().filter(|(_, known)| known.origin.is_some()) {
            assert!(known.outcome.is_some(), "{id} has no outcome");
            let is_of_it = |block: &Block| match block {
                Block::ToolCall { id: call, .. } | Block::ToolResult { call_id: call, .. } => call == id,
                _ => false,
            };
            assert!(!blocks().any(is_of_it), "{id} is in a message");
        }
    }

    /// Somebody sees that the thread waits, and does something about it.
    fn answer(&mut self, suspended: &Suspended) {
        for id in &suspended.calls {
            let known = self.fold.call(id);
            let ask = known.filter(|known| known.intent.is_none()).and_then(|known| known.ask.clone());
            let suspends = known.and_then(|known| known.origin.as_ref()).is_none_or(CallOrigin::suspends);
            assert!(ask.is_some() || suspends, "nobody is asked what became of a hook's call");
            let said = match ask {
                Some(ask) if self.chance.once_in(3) => decision(id, Decision::DENY, Some(ask.action_hash)),
                Some(ask) => decision(id, Decision::APPROVE, Some(ask.action_hash)),
                None => match (self.chance.once_in(3), self.happened.contains_key(id)) {
                    (true, _) => decision(id, "unknown", None),
                    (false, true) => decision(id, "done", None),
                    (false, false) => decision(id, "not_done", None),
                },
            };
            self.record(vec![Event::Decision(said)]);
        }
        let used = self.fold.meter().used(0).cost;
        let raise = match suspended.code.as_deref() {
            Some("turns_exceeded") => Limits { turns: Some(used.turns + 2), ..Limits::default() },
            Some("tokens_exceeded") => {
                Limits { tokens: Some(used.input_tokens + used.output_tokens + 40), ..Limits::default() }
            }
            Some("duration_exceeded") => {
                Limits { duration_seconds: Some(used.duration_ms / 1000 + 3), ..Limits::default() }
            }
            _ => return,
        };
        let limits = Some(raise.over(&ending::limits(&self.fold, &self.rules)));
        self.record(vec![Event::ManifestChanged(ManifestChanged { limits, ..ManifestChanged::default() })]);
    }
}

fn decision(call: &CallId, action: &str, action_hash: Option<Digest>) -> Decision {
    Decision {
        call_id: call.clone(),
        action: action.to_owned(),
        who: "ann".to_owned(),
        action_hash,
        reason: None,
        result: None,
        resume_mode: ResumeMode::default(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    /// It ends; it ends with no call open; it keeps its limits; what may run once runs once, whatever dies and whoever answers what.
    #[test]
    fn whatever_happens_a_thread_comes_to_its_end_and_no_effect_is_repeated(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let world = World::new(bytes).live_on();
        prop_assert!(world.happened.values().all(|times| *times == 1));
    }
}

#[test]
fn a_thread_that_nothing_disturbs_needs_a_question_and_an_end() {
    let world = World::new(Vec::new()).live_on();
    assert_eq!((world.steps, world.runs), (2, 1));
}

#[test]
fn a_failed_attempt_is_repeated_while_that_may_help() {
    let rules = rules();
    let most = rules.patience.attempts_max;
    let wait = rules.patience.wait_after(1, None);
    let transient = ModelError::Transient { why: "down".to_owned() };
    assert_eq!(again(&rules, &transient, 1, false), Again::After(wait));
    assert_eq!(again(&rules, &transient, most, false), Again::Exhausted);
    let refused = ModelError::SessionRefused { why: "gone".to_owned() };
    assert_eq!(again(&rules, &refused, most, true), Again::WithoutSession);
    let permanent = ModelError::Status { status: 400, why: "bad".to_owned(), retry_after: None };
    assert_eq!(again(&rules, &permanent, 1, false), Again::Never);
}

#[test]
fn a_thread_that_is_to_stop_does_not_wait_for_a_provider() {
    let (rules, mut live) = (rules(), live(1));
    let failed = ending::Failed::of_model(&ModelError::Transient { why: "down".to_owned() });
    live.trouble = Some(Trouble::Exhausted(failed));
    assert!(matches!(decide(&born(), &live, &rules), Step::End(Why::Exhausted(_))));
    live.stop = Some(Stop::Killed);
    assert!(matches!(decide(&born(), &live, &rules), Step::End(Why::Stopped(Stop::Killed))));
}
