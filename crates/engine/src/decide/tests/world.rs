//! A simulated world that performs the decided steps, badly: see the tests.

use std::collections::HashMap;

use selvedge_log::Head;
use selvedge_model::account::{Account, AccountStatus, Posting, PostingError, Reservation, ReservationState, post};
use selvedge_model::answer::{Answer, End, Usage};
use selvedge_model::event::{
    CallOpened, CallOrigin, Decision, DecisionAction, EffectClass, GraphBirth, ManifestChanged, ResumeMode,
    SuspendReason, ThreadCreated, ThreadKind,
};
use selvedge_model::id::ReservationId;
use selvedge_model::limits::{Cost, Limits};
use selvedge_model::message::Block;
use selvedge_model::run::{Failure, FailureClass, RunRecorded};
use selvedge_model::tool::Output;
use selvedge_model::{
    AgentId, CallId, Changeset, Digest, DirectiveId, Event, Input, LogId, ModelError, Money, NewThread, Posted,
    Request, RequestId, RunId, RunStatus, Stop, Thread, ThreadId, Timestamp,
};
use serde_json::json;

use crate::conversation::Conversation;
use crate::decide::calls::CallPlan;
use crate::decide::ending::Failed;
use crate::decide::requests::Pending;
use crate::decide::tests::rules::{SPEND_MAX, dollars, rules};
use crate::decide::*;
use crate::spawn::Refused;
use crate::start::{Beginning, Start};

/// The source of chance; when it runs out, everything succeeds.
struct Chance(std::vec::IntoIter<u8>);

impl Chance {
    fn below(&mut self, most: u8) -> u8 {
        self.0.next().unwrap_or(0) % most
    }

    fn once_in(&mut self, many: u8) -> bool {
        self.below(many) == many - 1
    }
}

pub(super) struct World {
    pub(super) rules: Rules,
    chance: Chance,
    pub(super) fold: Fold,
    /// Everything that was committed, to fold it again.
    log: Vec<Vec<Event>>,
    pub(super) live: Live,
    pub(super) account: Account,
    reservations: HashMap<ReservationId, Reservation>,
    runs: u64,
    calls: u64,
    requests: u64,
    steps: u64,
    /// The calls that came back in this run.
    back: Vec<CallId>,
    /// How often each call that may run at most once was really executed.
    pub(super) happened: HashMap<CallId, u32>,
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
    let meta = RunMeta::started(AgentId::new("agent").unwrap(), "user");
    Live::new(RunId::new(format!("run{number}")).unwrap(), meta, Timestamp::from_micros(0))
}

fn born(rules: &Rules) -> Fold {
    let thread = ThreadId::new("thread").unwrap();
    let graph = rules.graph.as_ref().map(|graph| GraphBirth {
        id: DirectiveId::new(&graph.id).unwrap(),
        definition: graph.digest,
        position: None,
        single: false,
    });
    let kind = if graph.is_some() { ThreadKind::Graph } else { ThreadKind::Agent };
    let created = NewThread { kind, graph, ..NewThread::of(AgentId::new("agent").unwrap()) };
    let log_id = head(0).log_id;
    let created = Event::ThreadCreated(Box::new(ThreadCreated { format: 1, log_id, segment: 0, thread: created }));
    let thread = Thread::begin(&thread, &created, Timestamp::from_micros(0)).unwrap();
    Fold::of(thread, Conversation::default(), head(0))
}

/// Why a commit is refused.
const FULL: &str = "full";

/// The process dies here.
pub(super) struct Died;

impl World {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self::with(bytes, rules())
    }

    pub(super) fn with(bytes: Vec<u8>, rules: Rules) -> Self {
        let account = Account {
            id: ThreadId::new("thread").unwrap(),
            parent: None,
            max: Some(dollars(SPEND_MAX)),
            settled: Money::ZERO,
            settled_children: Money::ZERO,
            reserved: Money::ZERO,
            open: 0,
            status: AccountStatus::Active,
            version: 0,
            incomplete: false,
        };
        Self {
            chance: Chance(bytes.into_iter()),
            fold: born(&rules),
            rules,
            log: Vec::new(),
            live: live(0),
            account,
            reservations: HashMap::new(),
            runs: 0,
            calls: 0,
            requests: 0,
            steps: 0,
            back: Vec::new(),
            happened: HashMap::new(),
        }
    }

    /// Performs a commit; the process may die before and after, and the commit may be refused.
    pub(super) fn commit(&mut self, commit: Commit) -> Result<(), Died> {
        if self.chance.once_in(19) {
            return Err(Died);
        }
        let is_end = matches!(commit.with, With::End { .. } | With::Handoff { .. });
        if self.chance.once_in(97) && !is_end {
            self.refuse();
            return Ok(());
        }
        assert!(!commit.is_overcharged, "this provider charges what it reports");
        if self.chance.once_in(11) {
            // Another thread of the tree spends at this moment.
            let most = self.account.remaining().unwrap();
            self.account.settled_children = self.account.settled_children.saturating_add(most.share(3));
        }
        if self.post(&commit.delta.postings).is_err() {
            assert!(matches!(commit.with, With::Attempt(_)), "only a reservation can fall short");
            self.live.account = None;
            return Ok(());
        }
        let mut events = self.events(&commit);
        if commit.reason == Reason::AssistantTurnCommitted {
            events.extend(self.opened());
        }
        if commit.reason == Reason::Lifecycle {
            let [request] = &commit.delta.consumed[..] else { panic!("{commit:?}") };
            assert_eq!(*request, self.live.requests[0].posted.id, "each request gets its verdict, in order");
            assert!(events.iter().any(|event| matches!(event, Event::RequestAnswered(_))), "{events:?}");
            let decides_in_flight = |event: &Event| match event {
                Event::Decision(decision) => self.live.flight(&decision.call_id).is_some(),
                _ => false,
            };
            assert!(!events.iter().any(decides_in_flight), "a call in flight is closed by its result alone");
        }
        self.record(events);
        self.live.committed(commit);
        if self.chance.once_in(19) { Err(Died) } else { Ok(()) }
    }

    /// A commit is refused, and so are all that follow, except the end.
    pub(super) fn refuse(&mut self) {
        let failure = Failure { class: FailureClass::Engine, why: FULL.to_owned() };
        self.live.take(Outcome::Refused(Failed { code: FULL, why: FULL.to_owned(), failure }));
    }

    /// Posts all of these, or none if the account does not hold them.
    fn post(&mut self, postings: &[Posting]) -> Result<(), PostingError> {
        let mut account = self.account.clone();
        let mut reservations = self.reservations.clone();
        for posting in postings {
            let name = posting.reservation().unwrap();
            let posted = post(Some(&account), reservations.get(name), posting)?;
            account = posted.account;
            match posted.reservation {
                Some(reservation) => reservations.insert(name.clone(), reservation),
                None => reservations.remove(name),
            };
        }
        assert!(account.used() <= account.max.unwrap(), "{account:?}");
        self.account = account;
        self.reservations = reservations;
        Ok(())
    }

    /// The reservations that are not settled.
    fn open(&self) -> impl Iterator<Item = &Reservation> {
        self.reservations.values().filter(|held| held.state != ReservationState::Unknown)
    }

    fn events(&self, commit: &Commit) -> Vec<Event> {
        let Commit { reason, delta, meta, turn, .. } = commit;
        let Delta { state, messages, patches, events, .. } = delta.clone();
        let changeset = Changeset {
            run_id: Some(self.live.run.clone()),
            run_meta: meta.clone(),
            turn: *turn,
            snapshot: state,
            messages,
            patches,
            events,
            ..Changeset::empty(*reason)
        };
        changeset.into_events()
    }

    fn record(&mut self, events: Vec<Event>) {
        let version = self.fold.head.version + 1;
        self.fold.take(&events, head(version), None, Timestamp::from_micros(0)).unwrap();
        self.log.push(events);
    }

    /// The fold as restored from a snapshot.
    fn restored(&self) -> Fold {
        let mut thread: Thread = serde_json::from_value(json!(self.fold.thread())).unwrap();
        let mut conversation = Conversation::default();
        for message in self.fold.conversation.messages() {
            thread.recall(message);
            conversation.push((**message).clone());
        }
        Fold::of(thread, conversation, self.fold.head.clone())
    }

    /// Everything that was committed, folded again.
    fn refolded(&self) -> Fold {
        let mut fold = born(&self.rules);
        for (index, events) in self.log.iter().enumerate() {
            fold.take(events, head(index as u64 + 1), None, Timestamp::from_micros(0)).unwrap();
        }
        fold
    }

    /// Runs the thread until it ends; approvals are decided in between, and a run whose process died is resumed.
    pub(super) fn run_to_end(mut self) -> Self {
        let mut input = if self.rules.graph.is_some() { Input::nothing() } else { Input::text("do it") };
        loop {
            self.runs += 1;
            let now = self.live.now;
            self.live = live(self.runs);
            self.live.now = now;
            self.back.clear();
            self.live.start = Some(Beginning { start: Start::of(input.clone()), raised: None });
            let ended = self.run();
            if self.live.start.is_none() {
                input = Input::nothing();
            }
            match ended {
                Err(Died) if !self.fold.manifest().status.is_terminal() => self.settle_lost(),
                Ok(Some(suspended)) => self.answer(&suspended),
                // Its end is on record, whether its process died right after it or not.
                Err(Died) | Ok(None) => {
                    assert!(self.fold.conversation.open().is_empty(), "it ended with an open call");
                    assert_eq!(self.account.reserved, Money::ZERO, "nothing stays reserved");
                    self.assert_opened_calls_are_apart();
                    return self;
                }
            }
        }
    }

    /// What the next process does about a run whose process died.
    fn settle_lost(&mut self) {
        let lost: Vec<Posting> = self
            .open()
            .map(|held| {
                let account = self.account.id.clone();
                let reservation = held.id.clone();
                Posting::Settle { account, reservation, amount: held.amount, unknown: true }
            })
            .collect();
        self.post(&lost).unwrap();
        if self.fold.manifest().run_id.as_ref() != Some(&self.live.run) {
            return;
        }
        let cost = Some(Cost { duration_ms: self.live.running_ms, ..Cost::default() });
        let meta = RunMeta { status: RunStatus::Waiting, cost, ..self.live.meta.clone().finished("process_lost") };
        let ended = RunRecorded { run_id: self.live.run.clone(), parent_run_id: None, meta };
        let lost = Suspended::because(SuspendReason::Error, "process_lost");
        self.record(vec![Event::Suspended(lost), Event::RunFinished(ended)]);
    }

    /// Performs the decided steps until the run is over; returns why it is suspended, if it is.
    fn run(&mut self) -> Result<Option<Suspended>, Died> {
        loop {
            self.steps += 1;
            assert!(self.steps < 1_500, "it does not end");
            if self.chance.once_in(61) {
                self.live.stop = Some(Stop::Cancelled);
            }
            self.live.running_ms += u64::from(self.chance.below(8)) * 60;
            if self.chance.once_in(13) {
                self.live.inbox = Inbox::Notified;
            }
            let step = decide(&self.fold, &self.live, &self.rules);
            for fold in [self.refolded(), self.restored()] {
                let again = decide(&fold, &self.live, &self.rules);
                assert_eq!(format!("{step:?}"), format!("{again:?}"), "the record decides, not how it was read");
            }
            self.live.stepped();
            match step {
                Step::Commit(commit) => self.commit(*commit)?,
                Step::Look(Look::Inbox) => self.read_inbox(),
                Step::Look(Look::Account) => self.live.account = Some(self.account.clone()),
                Step::Prepare(planned) => self.prepare(planned),
                Step::Dispatch => self.dispatch(),
                Step::Ask(turn) => self.ask(*turn),
                Step::Probe(probes) => self.probe(probes),
                Step::Wait(Some(_)) => self.live.rested(),
                Step::Pause(pause) => {
                    let micros = self.live.now.as_micros() + i64::try_from(pause.as_micros()).unwrap();
                    self.live.now = Timestamp::from_micros(micros);
                }
                Step::Wait(None) => self.land()?,
                Step::Done => {
                    let is_on_record = |call: &CallId| {
                        self.log.iter().flatten().any(|event| match event {
                            Event::ToolOutcome(outcome) => outcome.call_id == *call && outcome.result.is_some(),
                            _ => false,
                        })
                    };
                    assert!(self.back.iter().all(is_on_record), "every result is on record, whatever failed");
                    return Ok(self.fold.manifest().suspended.clone());
                }
            }
        }
    }

    /// An approver may have decided meanwhile, or a sender may have posted a request that is refused.
    fn read_inbox(&mut self) {
        let open = self.fold.conversation.open().to_vec();
        let asked = open.iter().filter_map(|open| self.fold.call(&open.id)?.ask.clone()).next();
        let mut requests = Vec::new();
        if let Some(ask) = asked.filter(|_| self.chance.once_in(3)) {
            requests.push(Request::Decide(decision(&ask.call_id, DecisionAction::Approve, Some(ask.action_hash))));
            // The first one counts.
            requests.push(Request::Decide(decision(&ask.call_id, DecisionAction::Deny, Some(ask.action_hash))));
        }
        let in_flight =
            self.live.flights.iter().find(|flight| flight.is_in_flight()).map(|flight| flight.open.id.clone());
        if let Some(call) = in_flight.filter(|_| self.chance.once_in(3)) {
            requests.push(Request::Settle(decision(&call, DecisionAction::Unknown, None)));
        }
        if self.chance.once_in(7) {
            requests.push(Request::Raise { limits: Limits { turns: Some(1), ..Limits::default() } });
        }
        let pending = requests.into_iter().map(|request| {
            self.requests += 1;
            let id = RequestId::new(format!("r{}", self.requests)).unwrap();
            let thread = self.account.id.clone();
            let at = self.live.now;
            Pending::new(Posted { thread, id, at, request }, None)
        });
        self.live.set_requests(pending.collect());
    }

    /// A tool never reports a false outcome; it may not know it.
    fn probe(&mut self, probes: Vec<Probe>) {
        assert!(!probes.is_empty());
        for probe in probes {
            let id = probe.ready.call.id;
            let has_happened = self.happened.contains_key(&id);
            let trace = match (self.chance.once_in(3), has_happened) {
                (true, _) => CallFinding::Unknown,
                (false, true) => CallFinding::Done(Output { content: json!("done"), ..Output::default() }),
                (false, false) => CallFinding::NotDone,
            };
            self.live.take(Outcome::Found(id, trace));
        }
    }

    /// Prepares calls; nothing is executed yet.
    fn prepare(&mut self, planned: Vec<PlannedCall>) {
        assert!(!planned.is_empty());
        for PlannedCall { plan, .. } in &planned {
            assert!(!matches!(plan, CallPlan::Probe(_)), "a probe among the calls to make");
            let CallPlan::Make(ready) = plan else { continue };
            let spec = ready.tool.spec();
            assert!(self.live.stop.is_none(), "no call is begun after a stop");
            assert_ne!(spec.name, "never", "a denied call is not made");
            let known = self.fold.call(&ready.call.id);
            if spec.name == "wire" {
                assert!(known.is_some_and(|known| !known.decisions.is_empty()), "a call that needs approval has it");
            }
            if spec.class == EffectClass::AtMostOnce {
                let is_dispatched = known.is_some_and(|known| known.intent.is_some());
                let is_undone = self.live.findings.get(&ready.call.id) == Some(&CallFinding::NotDone)
                    || known
                        .is_some_and(|known| known.decisions.iter().any(|said| said.action == DecisionAction::NotDone));
                assert!(!is_dispatched || is_undone, "a call that may have run does not run again");
            }
        }
        self.live.plan(planned, &self.fold);
        let ready: Vec<CallId> = self
            .live
            .flights
            .iter()
            .filter(|flight| flight.is_planned())
            .filter_map(|flight| Some(flight.ready.as_ref()?.call.id.clone()))
            .collect();
        for call in ready {
            let outcome = match self.chance.below(23) {
                21 => {
                    let limited = Suspended::because(SuspendReason::Limit, "spawns_exceeded");
                    Outcome::NotReady(call, Refused::Waits(Box::new(limited)))
                }
                22 => Outcome::NotReady(call, Refused::told("not today")),
                _ => Outcome::Ready(call, Prepared::default()),
            };
            self.live.take(outcome);
        }
    }

    fn dispatch(&mut self) {
        for flight in self.live.flights.iter().filter(|flight| flight.is_ready()) {
            let has_intent = self.fold.call(&flight.open.id).is_some_and(|known| known.intent.is_some());
            assert!(has_intent || !flight.is_once(), "its intent is on record first");
        }
        self.live.dispatched();
    }

    /// One of the calls in flight is executed, or not, and its result comes, or not.
    fn land(&mut self) -> Result<(), Died> {
        let away: Vec<_> = self.live.flights.iter().filter(|flight| flight.is_in_flight()).cloned().collect();
        let flight = &away[usize::from(self.chance.below(u8::try_from(away.len()).unwrap()))];
        let call = flight.open.id.clone();
        let is_once = flight.is_once();
        if self.chance.once_in(29) {
            return Err(Died);
        }
        let fate = self.chance.below(6);
        if is_once && fate != 5 {
            let times = self.happened.entry(call.clone()).or_default();
            *times += 1;
            assert_eq!(*times, 1, "a payment is made once");
        }
        let outcome = if is_once && fate >= 4 {
            Outcome::Lost(call)
        } else {
            self.back.push(call.clone());
            let output = Output { content: json!("done"), ..Output::default() };
            Outcome::Ended { call, output, blob: None, failure: None }
        };
        self.live.take(outcome);
        Ok(())
    }

    pub(super) fn ask(&mut self, turn: Turn) {
        let used = self.used();
        let most = ending::limits(&self.fold, &self.rules);
        assert!(used.turns < most.turns.unwrap(), "turn {used:?} of at most {most:?}");
        assert!(used.input_tokens + used.output_tokens < most.tokens.unwrap(), "tokens {used:?} of at most {most:?}");
        assert!(self.fold.conversation.open().is_empty(), "the model is asked with an open call");
        assert_eq!(self.open().count(), 1, "this attempt is paid for, and nothing else");
        assert!(turn.attempts <= self.rules.retries.attempts_max, "there are too many attempts");
        if turn.attempts == 1 {
            let time = most.duration_seconds.unwrap() * 1000;
            assert!(used.duration_ms < time + 600, "time {used:?} of at most {most:?}");
        }
        self.live.begin(turn);
        let outcome = match self.chance.below(16) {
            10 => Outcome::Failed(ModelError::Transient { why: "down".to_owned() }),
            11 => Outcome::Failed(ModelError::RateLimited { why: "slow down".to_owned(), retry_after: None }),
            12 => Outcome::Failed(ModelError::Cut { why: "cut".to_owned(), partial: Vec::new(), usage: None }),
            13 => {
                let usage = Some(Usage { input_tokens: 1, ..Usage::default() });
                Outcome::Failed(ModelError::Cut { why: "cut".to_owned(), partial: vec![Block::text("so f")], usage })
            }
            14 if self.chance.once_in(3) => Outcome::Failed(ModelError::ContextTooLong { why: "long".to_owned() }),
            15 if self.chance.once_in(5) => Outcome::Failed(ModelError::Permanent { why: "no".to_owned() }),
            _ => Outcome::Answered(Box::new(self.answers())),
        };
        self.live.take(outcome);
    }

    pub(super) fn answers(&mut self) -> Answer {
        let calls = self.chance.below(4);
        let mut content = vec![Block::text("so")];
        for _ in 0..calls {
            let (id, name) = self.next_call();
            let is_malformed = self.chance.once_in(12);
            let arguments = if is_malformed { json!("{\"n\": ") } else { json!({"n": self.calls}) };
            content.push(Block::tool_call(id, name, arguments));
        }
        let usage = Usage { output_tokens: u64::from(self.chance.below(30)), ..Usage::default() };
        Answer::new(content, if calls == 0 { End::Finished } else { End::ToolCalls }).using(usage)
    }

    /// What counts against its limits.
    fn used(&self) -> Cost {
        self.fold.meter().used(self.live.running_ms).cost
    }

    fn next_call(&mut self) -> (CallId, &'static str) {
        self.calls += 1;
        let names = ["look", "set", "pay", "wire", "never", "gone", "hand"];
        let name = match names[usize::from(self.chance.below(7))] {
            // Seldom, or no thread would get to any other end.
            "hand" if !self.chance.once_in(3) => "look",
            name => name,
        };
        (CallId::new(format!("c.{}", self.calls)).unwrap(), name)
    }

    /// Calls that hooks and nodes open with an answer.
    fn opened(&mut self) -> Vec<Event> {
        let mut opened = Vec::new();
        for _ in 0..self.chance.below(3) {
            let hook = "h".to_owned();
            let graph = "g".to_owned();
            let node = "n".to_owned();
            let origin = match self.chance.below(3) {
                0 => CallOrigin::Hook { hook, required: false },
                1 => CallOrigin::Hook { hook, required: true },
                _ => CallOrigin::Node { graph, node },
            };
            let (call_id, tool) = self.next_call();
            let tool = tool.to_owned();
            let arguments = json!({"n": self.calls});
            opened.push(Event::CallOpened(CallOpened { call_id, origin, tool, arguments }));
        }
        opened
    }

    /// Every call that was opened by an event has an outcome of its own, and is in no message.
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

    /// A person sees that the thread is suspended, and resolves it.
    fn answer(&mut self, suspended: &Suspended) {
        for id in &suspended.calls {
            let known = self.fold.call(id);
            let ask = known.filter(|known| known.intent.is_none()).and_then(|known| known.ask.clone());
            let suspends = known.and_then(|known| known.origin.as_ref()).is_none_or(CallOrigin::suspends);
            assert!(ask.is_some() || suspends, "the outcome of a hook's call needs no decision");
            let said = match ask {
                Some(ask) if self.chance.once_in(3) => decision(id, DecisionAction::Deny, Some(ask.action_hash)),
                Some(ask) => decision(id, DecisionAction::Approve, Some(ask.action_hash)),
                None => match (self.chance.once_in(3), self.happened.contains_key(id)) {
                    (true, _) => decision(id, DecisionAction::Unknown, None),
                    (false, true) => decision(id, DecisionAction::Done, None),
                    (false, false) => decision(id, DecisionAction::NotDone, None),
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
            Some("spend_exceeded") => {
                let max = self.account.used().saturating_add(dollars(SPEND_MAX));
                self.account.max = Some(max);
                Limits { spend: Some(max), ..Limits::default() }
            }
            _ => return,
        };
        let limits = Some(raise.over(&ending::limits(&self.fold, &self.rules)));
        self.record(vec![Event::ManifestChanged(ManifestChanged { limits, ..ManifestChanged::default() })]);
    }
}

fn decision(call: &CallId, action: DecisionAction, action_hash: Option<Digest>) -> Decision {
    Decision {
        call_id: call.clone(),
        action,
        who: "ann".to_owned(),
        action_hash,
        reason: None,
        result: None,
        resume_mode: ResumeMode::default(),
    }
}
