//! A test harness: a store, a model that answers from a list, tools that record their calls.

use std::io::BufRead;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use selvedge_engine::engine::Prepare;
use selvedge_engine::snapshot::Keeper;
use selvedge_engine::{Engine, Input, NoticeKind, Options, Outcome, Redactor, RunConfig, RunEvent};
use selvedge_log::{Head, Line, Signer, Trust};
use selvedge_model::account::{Account, AccountId, Posting, Reservation};
use selvedge_model::answer::{Answer, Drafts, End, Usage};
use selvedge_model::blocking::BoxFuture;
use selvedge_model::event::{EffectClass, Process};
use selvedge_model::message::Block;
use selvedge_model::scope::Scopes;
use selvedge_model::tool::{Dispatch, Processes, Reconciled, Risk, Started, ToolKind};
use selvedge_model::{
    AgentId, Batch, Call, CallId, Cancel, CommitKey, Digest, Draft, Message, Model, ModelError, NewThread, Output,
    OwnerId, Posted, Prompt, Reason, Request, RequestId, Role, Stop, ThreadId, Timestamp, Tool, ToolError, ToolSpec,
};
use selvedge_store::conformance::support::{ScriptedClock, SeededIds};
use selvedge_store::memory::MemoryStore;
use selvedge_store::{
    Acquire, Commit, Committed, Delivery, Error, Inbox, Lease, Leases, Ledger, Logs, PostedNotice, QueuedRequest,
    Result, Store, Tombstone,
};
use serde_json::{Value, json};

/// A store that fails as configured.
pub(crate) struct FaultyStore {
    pub(crate) inner: MemoryStore,
    pub(crate) refuse: Mutex<Option<Reason>>,
    /// Called right before the next commit is refused.
    pub(crate) before_refusal: Mutex<Option<Meanwhile>>,
    /// Called right before the next commit that continues a thread in a successor.
    pub(crate) before_handoff: Mutex<Option<Meanwhile>>,
    /// Called right before the next commit that stops an account.
    pub(crate) before_stop: Mutex<Option<Meanwhile>>,
    /// Called right after the next commit that creates a successor, before the successor runs.
    pub(crate) before_successor: Mutex<Option<Meanwhile>>,
    /// Called right after each commit, which is durable by then and not published yet. It may commit itself; if it panics, the process dies
    /// there.
    pub(crate) after_commit: Mutex<Option<AfterCommit>>,
    /// Called right before lines of a log are read next.
    pub(crate) before_read: Mutex<Option<Meanwhile>>,
    /// Called right before each lease is acquired.
    pub(crate) before_lease: Mutex<Option<Each>>,
    /// Called right after the holder of a thread was read next.
    pub(crate) after_holder: Mutex<Option<Meanwhile>>,
    /// An account that it returns without its parent.
    pub(crate) orphan: Mutex<Option<AccountId>>,
    /// Whether its process is dead: it releases no lease.
    pub(crate) is_dead: AtomicBool,
    /// Requests whose seal is not valid.
    pub(crate) unsealed: Mutex<Vec<RequestId>>,
    /// Whether its logs can't be read.
    pub(crate) is_unreadable: AtomicBool,
    /// Whether its commits succeed and their results are lost.
    pub(crate) are_answers_lost: AtomicBool,
}

/// What another process does to a thread at a certain moment.
pub(crate) type Meanwhile = Box<dyn FnOnce(&ThreadId) + Send>;
/// The same, each time.
pub(crate) type Each = Box<dyn FnMut(&ThreadId) + Send>;
/// What is done after a commit.
pub(crate) type AfterCommit = Arc<dyn Fn(&Batch) + Send + Sync>;

impl FaultyStore {
    pub(crate) fn refuse(&self, reason: Option<Reason>) {
        *self.refuse.lock().unwrap() = reason;
    }
}

impl Commit for FaultyStore {
    fn commit(&self, batch: Batch) -> Result<Committed> {
        use selvedge_model::Event::{ThreadHandoff, ThreadResumed};
        let hands_off = |event: &selvedge_model::Event| matches!(event, ThreadHandoff(_) | ThreadResumed(_));
        if let Some(part) = batch.parts.iter().find(|part| part.changeset.events.iter().any(hands_off))
            && let Some(meanwhile) = self.before_handoff.lock().unwrap().take()
        {
            meanwhile(&part.thread);
        }
        let stops = |posting: &Posting| matches!(posting, Posting::Stop { .. });
        if let Some(part) = batch.parts.iter().find(|part| part.postings.iter().any(stops)) {
            // Unlocked before the call: it may stop accounts itself.
            let meanwhile = self.before_stop.lock().unwrap().take();
            if let Some(meanwhile) = meanwhile {
                meanwhile(&part.thread);
            }
        }
        let refused = *self.refuse.lock().unwrap();
        if batch.parts.iter().any(|part| Some(part.changeset.reason) == refused) {
            if let Some(part) = batch.parts.first()
                && let Some(meanwhile) = self.before_refusal.lock().unwrap().take()
            {
                meanwhile(&part.thread);
            }
            return Err(Error::Database { why: "made to fail".to_owned(), retryable: false });
        }
        let is_successor = |part: &&selvedge_model::Part| {
            part.changeset.created.as_ref().is_some_and(|created| created.continuation_of.is_some())
        };
        let successor = batch.parts.iter().find(is_successor).map(|part| part.thread.clone());
        // Unlocked before the call: it may commit itself.
        let after = self.after_commit.lock().unwrap().clone().map(|after| (after, batch.clone()));
        let committed = self.inner.commit(batch)?;
        if let Some(successor) = successor {
            let meanwhile = self.before_successor.lock().unwrap().take();
            if let Some(meanwhile) = meanwhile {
                meanwhile(&successor);
            }
        }
        if let Some((after, batch)) = after {
            after(&batch);
        }
        if self.are_answers_lost.load(Ordering::SeqCst) {
            return Err(Error::OutcomeUnknown { why: "the answer was lost".to_owned() });
        }
        Ok(committed)
    }
    fn outcome(&self, key: &CommitKey) -> Result<Option<Committed>> {
        self.inner.outcome(key)
    }
    fn put_blob(&self, thread: &ThreadId, bytes: &[u8]) -> Result<Digest> {
        self.inner.put_blob(thread, bytes)
    }
    fn delete(&self, thread: &ThreadId) -> Result<Tombstone> {
        self.inner.delete(thread)
    }
}

impl Logs for FaultyStore {
    fn head(&self, thread: &ThreadId) -> Result<Head> {
        self.inner.head(thread)
    }
    fn read(&self, thread: &ThreadId, from: u64, limit: usize) -> Result<Vec<Line>> {
        let meanwhile = self.before_read.lock().unwrap().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile(thread);
        }
        self.inner.read(thread, from, limit)
    }
    fn transcript(&self, thread: &ThreadId) -> Result<(Head, Box<dyn BufRead + Send>)> {
        if self.is_unreadable.load(Ordering::SeqCst) {
            return Err(Error::Database { why: "the disk is gone".to_owned(), retryable: true });
        }
        self.inner.transcript(thread)
    }
    fn blob(&self, thread: &ThreadId, blob: &Digest) -> Result<Vec<u8>> {
        self.inner.blob(thread, blob)
    }
}

impl Leases for FaultyStore {
    fn acquire(&self, thread: &ThreadId, how: Acquire) -> Result<Lease> {
        if let Some(meanwhile) = &mut *self.before_lease.lock().unwrap() {
            meanwhile(thread);
        }
        self.inner.acquire(thread, how)
    }
    fn renew(&self, lease: &Lease) -> Result<()> {
        self.inner.renew(lease)
    }
    fn owner(&self) -> &OwnerId {
        self.inner.owner()
    }
    fn beat(&self, at: Timestamp) -> Result<()> {
        self.inner.beat(at)
    }
    fn last_beat(&self, owner: &OwnerId) -> Result<Option<Timestamp>> {
        self.inner.last_beat(owner)
    }
    fn release(&self, lease: &Lease) -> Result<()> {
        self.inner.release(lease)
    }
    fn abandon(&self, lease: &Lease) -> Result<()> {
        if self.is_dead.load(Ordering::SeqCst) { Ok(()) } else { self.inner.abandon(lease) }
    }
    fn holder(&self, thread: &ThreadId) -> Result<Option<OwnerId>> {
        let holder = self.inner.holder(thread)?;
        // Unlocked before the call: it may ask itself.
        let meanwhile = self.after_holder.lock().unwrap().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile(thread);
        }
        Ok(holder)
    }
    fn expired(&self) -> Result<Vec<Lease>> {
        self.inner.expired()
    }
}

impl Ledger for FaultyStore {
    fn reservations(&self, account: &AccountId) -> Result<Vec<Reservation>> {
        self.inner.reservations(account)
    }
    fn account(&self, id: &AccountId) -> Result<Option<Account>> {
        let is_orphan = self.orphan.lock().unwrap().as_ref() == Some(id);
        let found = self.inner.account(id)?;
        Ok(found.map(|account| if is_orphan { Account { parent: None, ..account } } else { account }))
    }
    fn tree(&self, id: &AccountId) -> Result<Vec<Account>> {
        let orphan = self.orphan.lock().unwrap().clone();
        let mut found = self.inner.tree(id)?;
        found.retain(|account| account.id == *id || Some(&account.id) != orphan.as_ref());
        for account in &mut found {
            if Some(&account.id) == orphan.as_ref() {
                account.parent = None;
            }
        }
        Ok(found)
    }
}

/// Random numbers from a seed.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        let mut chance = Self(seed);
        // Close seeds diverge at the first step.
        chance.below(1);
        chance
    }

    /// The seed of a test, printed so that it can be set again by `SELVEDGE_TEST_SEED`.
    #[expect(clippy::print_stdout, reason = "a test that fails shows what it printed")]
    pub(crate) fn seed() -> u64 {
        let said = std::env::var("SELVEDGE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let seed = said.unwrap_or(now.subsec_nanos().into());
        println!("SELVEDGE_TEST_SEED={seed}");
        seed
    }

    /// A number below this one.
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % most
    }
}

/// A model that answers from a list, by the number of answers in the conversation: the same in every process.
pub(crate) struct ListedModel(pub(crate) Vec<Reply>);

#[derive(Clone)]
pub(crate) enum Reply {
    Says(&'static str),
    Calls(Vec<(&'static str, &'static str, Value)>),
    Fails(ModelError),
    Waits,
    /// The same, and its run is cancelled once it has begun.
    Stops(Cancel),
}

/// A model that blocks while it answers, as tests may: the runtime continues with other tasks meanwhile.
pub(crate) trait Blocking: Send + Sync {
    fn answer(
        &self,
        prompt: &Prompt<'_>,
        draft: &mut dyn FnMut(Draft),
        cancel: &Cancel,
    ) -> std::result::Result<Answer, ModelError>;

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// Implements `Model` for a blocking model.
macro_rules! as_model {
    ($blocking:ty) => {
        impl selvedge_model::Model for $blocking {
            fn answer<'a>(
                &'a self,
                prompt: &'a selvedge_model::Prompt<'a>,
                draft: &'a mut selvedge_model::answer::Drafts<'a>,
                cancel: &'a selvedge_model::Cancel,
            ) -> selvedge_model::blocking::BoxFuture<
                'a,
                std::result::Result<selvedge_model::Answer, selvedge_model::ModelError>,
            > {
                let answer = move || $crate::support::Blocking::answer(self, prompt, &mut |piece| draft(piece), cancel);
                Box::pin(async move { tokio::task::block_in_place(answer) })
            }

            fn context_tokens_max(&self, model: &str) -> Option<u64> {
                $crate::support::Blocking::context_tokens_max(self, model)
            }
        }
    };
}
pub(crate) use as_model;

as_model!(ListedModel);

impl Blocking for ListedModel {
    fn answer(
        &self,
        prompt: &Prompt<'_>,
        draft: &mut dyn FnMut(Draft),
        cancel: &Cancel,
    ) -> std::result::Result<Answer, ModelError> {
        let is_answer = |message: &&Arc<selvedge_model::Message>| message.role == Role::Assistant;
        let turn = prompt.messages.iter().filter(is_answer).count();
        let usage = Usage { input_tokens: 10, output_tokens: 5, ..Usage::default() };
        let reply = self.0.get(turn).cloned().unwrap_or(Reply::Says("that is all"));
        let (content, end) = match reply {
            Reply::Says(text) => {
                draft(Draft::Text { text: text.to_owned() });
                (vec![Block::text(text)], End::Finished)
            }
            Reply::Calls(calls) => {
                let block = |(id, name, arguments): (&str, &str, Value)| {
                    Block::tool_call(CallId::new(id).unwrap(), name, arguments)
                };
                (calls.into_iter().map(block).collect(), End::ToolCalls)
            }
            Reply::Fails(error) => return Err(error),
            Reply::Waits | Reply::Stops(_) => {
                draft(Draft::Text { text: "let me think".to_owned() });
                if let Reply::Stops(cancel) = reply {
                    cancel.say(Stop::Cancelled);
                }
                cancel.wait(Duration::from_secs(20));
                let partial = vec![Block::text("let me think")];
                return Err(ModelError::Stopped { partial, usage: None });
            }
        };
        Ok(Answer::new(content, end).using(usage))
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// A model that records the messages of every prompt before another model answers it.
pub(crate) struct RecordingModel {
    model: Arc<dyn Model>,
    pub(crate) prompts: Mutex<Vec<Vec<Arc<Message>>>>,
    pub(crate) systems: Mutex<Vec<String>>,
}

impl RecordingModel {
    /// Puts one in front of the model of a run configuration.
    pub(crate) fn before(work: &mut RunConfig) -> Arc<Self> {
        let remembering =
            Arc::new(Self { model: work.model.clone(), prompts: Mutex::default(), systems: Mutex::default() });
        work.model = remembering.clone();
        remembering
    }
}

impl Model for RecordingModel {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        draft: &'a mut Drafts<'a>,
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, std::result::Result<Answer, ModelError>> {
        self.prompts.lock().unwrap().push(prompt.messages.to_vec());
        self.systems.lock().unwrap().push(prompt.system.to_owned());
        self.model.answer(prompt, draft, cancel)
    }

    fn context_tokens_max(&self, model: &str) -> Option<u64> {
        self.model.context_tokens_max(model)
    }
}

/// The panic message of a process that dies at a moment which a test chose.
pub(crate) const DEATH: &str = "the process dies here";

/// Asserts that this dies at the moment that the test chose, and of nothing else.
#[track_caller]
pub(crate) fn assert_dies<T>(run: impl FnOnce() -> T) {
    let Err(died) = catch_unwind(AssertUnwindSafe(run)) else { panic!("it lives on") };
    let said = died.downcast_ref::<&str>().copied();
    assert_eq!(said.or_else(|| died.downcast_ref::<String>().map(String::as_str)), Some(DEATH));
}

/// Lets the process die, as far as that is possible in a test: also in the middle of a tool, whose panic is caught. The panic payload panics
/// once more when it is dropped.
pub(crate) fn die() -> ! {
    struct Death;

    impl Drop for Death {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "the process dies here");
        }
    }

    std::panic::panic_any(Death)
}

/// A tool that counts its calls and gives a configured result.
pub(crate) struct CountingTool {
    spec: ToolSpec,
    pub(crate) ran: Arc<AtomicUsize>,
    pub(crate) seen: Arc<Mutex<Vec<Call>>>,
    pub(crate) answer: Output,
    pub(crate) known: Reconciled,
    /// Called in the middle of a call.
    pub(crate) meanwhile: Arc<dyn Fn(&Call) + Send + Sync>,
    pub(crate) kind: ToolKind,
}

impl CountingTool {
    pub(crate) fn new(name: &str, class: EffectClass) -> Self {
        let spec = ToolSpec {
            name: name.to_owned(),
            description: String::new(),
            input_schema: json!({}),
            class,
            capability: format!("tool.{name}"),
            risk: Risk::Safe,
            hash: Digest([7; 32]),
        };
        Self {
            spec,
            ran: Arc::default(),
            seen: Arc::default(),
            answer: Output::text("done"),
            known: Reconciled::Unknown,
            meanwhile: Arc::new(|_| {}),
            kind: ToolKind::Work,
        }
    }

    /// The same, of this kind.
    pub(crate) fn of_kind(self, kind: ToolKind) -> Self {
        Self { kind, ..self }
    }

    /// Changes its definition but not its name.
    pub(crate) fn redefine(&mut self) {
        self.spec.hash = Digest([8; 32]);
    }
}

struct Ready {
    ran: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<Call>>>,
    call: Call,
    answer: Output,
    meanwhile: Arc<dyn Fn(&Call) + Send + Sync>,
}

impl Started for Ready {
    fn process(&self) -> Option<Process> {
        Some(Process { pid: 4_000_000, start_time: 1, boot_id: None })
    }

    fn dispatch(self: Box<Self>, _: &Cancel) -> Dispatch {
        Dispatch::blocking(move || {
            self.ran.fetch_add(1, Ordering::SeqCst);
            self.seen.lock().unwrap().push(self.call.clone());
            (self.meanwhile)(&self.call);
            Ok(self.answer.clone())
        })
    }
}

impl Tool for CountingTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn kind(&self) -> ToolKind {
        self.kind
    }

    fn start(&self, call: &Call) -> std::result::Result<Box<dyn Started>, ToolError> {
        Ok(Box::new(Ready {
            ran: self.ran.clone(),
            seen: self.seen.clone(),
            call: call.clone(),
            answer: self.answer.clone(),
            meanwhile: self.meanwhile.clone(),
        }))
    }

    fn reconcile(&self, _: &Call, _: &Cancel) -> Reconciled {
        self.known.clone()
    }
}

/// Records the processes that it was to end. All are alive, until they are declared dead.
#[derive(Default)]
pub(crate) struct NoProcesses(pub(crate) Mutex<Vec<Process>>, pub(crate) AtomicBool);

impl Processes for NoProcesses {
    fn end(&self, process: &Process) -> std::result::Result<bool, ToolError> {
        self.0.lock().unwrap().push(process.clone());
        Ok(false)
    }

    fn may_live(&self, _: &Process) -> bool {
        !self.1.load(Ordering::SeqCst)
    }
}

/// A store and an engine over it.
pub(crate) struct Harness {
    pub(crate) store: Arc<FaultyStore>,
    pub(crate) engine: Engine,
    pub(crate) processes: Arc<NoProcesses>,
    pub(crate) trust: Trust,
    /// The engine's clock.
    pub(crate) clock: ScriptedClock,
    ids: SeededIds,
    scopes: Scopes,
    redactor: Redactor,
}

impl Harness {
    pub(crate) fn new() -> Self {
        Self::with(Redactor::default(), Scopes::builtin())
    }

    pub(crate) fn with(redactor: Redactor, scopes: Scopes) -> Self {
        let ids = SeededIds::new(1);
        let signer = Signer::generate(&ids);
        let trust = Trust::of(&[signer.public()]);
        let memory = MemoryStore::new(signer, Box::new(clock()), Box::new(ids.clone()));
        Self::on(memory, trust, ids, redactor, scopes)
    }

    fn on(memory: MemoryStore, trust: Trust, ids: SeededIds, redactor: Redactor, scopes: Scopes) -> Self {
        let store = Arc::new(FaultyStore {
            inner: memory,
            refuse: Mutex::new(None),
            before_refusal: Mutex::default(),
            before_handoff: Mutex::default(),
            before_stop: Mutex::default(),
            before_successor: Mutex::default(),
            after_commit: Mutex::default(),
            before_read: Mutex::default(),
            before_lease: Mutex::default(),
            after_holder: Mutex::default(),
            orphan: Mutex::default(),
            is_dead: AtomicBool::default(),
            unsealed: Mutex::default(),
            is_unreadable: AtomicBool::default(),
            are_answers_lost: AtomicBool::default(),
        });
        let processes = Arc::new(NoProcesses::default());
        let clock = clock();
        let engine = Engine::new(Options {
            store: store.clone() as Arc<dyn Store>,
            trust: trust.clone(),
            clock: Arc::new(clock.clone()),
            ids: Arc::new(ids.clone()),
            processes: processes.clone(),
            scopes: scopes.clone(),
            redactor: redactor.clone(),
            snapshots: None,
            prepare: None,
        });
        Self { store, engine, processes, trust, clock, ids, scopes, redactor }
    }

    /// The options of another engine of the same process.
    pub(crate) fn options(&self) -> Options {
        Options {
            store: self.store.clone() as Arc<dyn Store>,
            trust: self.trust.clone(),
            clock: Arc::new(self.clock.clone()),
            ids: Arc::new(self.ids.clone()),
            processes: self.processes.clone(),
            scopes: self.scopes.clone(),
            redactor: self.redactor.clone(),
            snapshots: None,
            prepare: None,
        }
    }

    /// Replaces the engine by one that calls this before the first run of every thread.
    pub(crate) fn prepare(&mut self, prepare: Prepare) {
        self.engine = Engine::new(Options { prepare: Some(prepare), ..self.options() });
    }

    /// Replaces the engine by one that saves snapshots.
    pub(crate) fn keep(&mut self, snapshots: Keeper) {
        self.engine = Engine::new(Options { snapshots: Some(snapshots), ..self.options() });
    }

    /// Another process on the same threads.
    pub(crate) fn another(&self) -> Self {
        let memory = self.store.inner.another();
        Self::on(memory, self.trust.clone(), self.ids.clone(), Redactor::default(), Scopes::builtin())
    }

    pub(crate) fn thread(&self) -> ThreadId {
        self.engine.create(NewThread::of(AgentId::new("scribe").unwrap()), Vec::new()).unwrap()
    }

    /// Calls this right after each commit, see [`FaultyStore::after_commit`].
    pub(crate) fn after_commit(&self, then: impl Fn(&Batch) + Send + Sync + 'static) {
        *self.store.after_commit.lock().unwrap() = Some(Arc::new(then));
    }

    /// Calls this once, right after the next commit that has this reason.
    pub(crate) fn once_after(&self, reason: Reason, then: impl FnOnce(&ThreadId) + Send + 'static) {
        let then = Mutex::new(Some(then));
        self.after_commit(move |batch| {
            let own = &batch.parts[0];
            if own.changeset.reason == reason {
                let then = then.lock().unwrap().take();
                if let Some(then) = then {
                    then(&own.thread);
                }
            }
        });
    }

    /// The same harness, which calls this when the next successor is about to begin, and its predecessor was released.
    pub(crate) fn before_successor_begins(mut self, meanwhile: Meanwhile) -> Self {
        let meanwhile = Mutex::new(Some(meanwhile));
        self.prepare(Arc::new(move |manifest, _| {
            if manifest.continuation_of.is_some() {
                let meanwhile = meanwhile.lock().unwrap().take();
                if let Some(meanwhile) = meanwhile {
                    meanwhile(&manifest.thread_id);
                }
            }
            Ok(())
        }));
        self
    }

    /// The same harness, whose process dies between two threads of a chain: the first was handed off, and the second has not begun.
    pub(crate) fn dying_between_threads(self) -> Self {
        self.before_successor_begins(Box::new(|_| panic!("{DEATH}")))
    }

    /// Runs this, whose process dies right after the next commit that has this reason.
    #[track_caller]
    pub(crate) fn dies_after<T>(&self, reason: Reason, run: impl FnOnce() -> T) {
        self.once_after(reason, |_| panic!("{DEATH}"));
        assert_dies(run);
    }

    pub(crate) fn send(
        &self,
        thread: &ThreadId,
        input: Input,
        work: &RunConfig,
    ) -> (selvedge_engine::Result<Outcome>, Vec<String>) {
        let mut heard = Vec::new();
        let ended = self.engine.send(thread, input, work, &Cancel::new(), &mut |told| heard.extend(heard_as(&told)));
        (ended, heard)
    }

    /// The reason of each changeset, without the one that created the thread.
    pub(crate) fn reasons(&self, thread: &ThreadId) -> Vec<Reason> {
        let entries = selvedge_store::conformance::support::verified(&self.store.inner, &self.trust, thread);
        let reason = |entry: &selvedge_log::scan::ScannedChangeset| {
            entry.lines.iter().rev().find_map(|line| match &line.event {
                selvedge_model::Event::Checkpoint(checkpoint) => Some(checkpoint.reason),
                _ => None,
            })
        };
        entries.iter().skip(1).filter_map(reason).collect()
    }

    pub(crate) fn loaded(&self, thread: &ThreadId) -> selvedge_model::Thread {
        selvedge_store::conformance::support::loaded(&self.store.inner, &self.trust, thread)
    }

    /// The result of a call, as the model got it.
    pub(crate) fn answer_of(&self, thread: &ThreadId, call: &CallId) -> Option<Value> {
        self.loaded(thread).messages.into_iter().flat_map(|message| message.content).find_map(|block| match block {
            Block::ToolResult { call_id, content, .. } if call_id == *call => Some(content),
            _ => None,
        })
    }
}

pub(crate) fn clock() -> ScriptedClock {
    ScriptedClock::new(Timestamp::from_micros(1_800_000_000_000_000), Duration::from_millis(1))
}

pub(crate) fn agent(replies: Vec<Reply>, tools: Vec<Arc<dyn Tool>>) -> RunConfig {
    let mut work = RunConfig::new(AgentId::new("scribe").unwrap(), Arc::new(ListedModel(replies)), "listed");
    work.tools = tools;
    work.retries.wait = Duration::from_millis(1);
    work
}

fn heard_as(told: &RunEvent) -> Option<String> {
    Some(match told {
        RunEvent::Committed { reason, .. } => reason.as_str().to_owned(),
        RunEvent::Draft { draft: Draft::Void, .. } => "void".to_owned(),
        RunEvent::Draft { .. } => "draft".to_owned(),
        RunEvent::Calling { tool, .. } => format!("calling {tool}"),
        RunEvent::Retrying { .. } => "retrying".to_owned(),
        RunEvent::Notice { kind: NoticeKind::StateError, .. } => "state error".to_owned(),
        RunEvent::Notice { kind, why, .. } => format!("{}: {why}", kind.as_str()),
        RunEvent::Missed { .. } => "missed".to_owned(),
        _ => return None,
    })
}

/// The roles of a thread's messages, a letter each.
pub(crate) fn roles(thread: &selvedge_model::Thread) -> String {
    let letter = |message: &selvedge_model::Message| match message.role {
        Role::System => 's',
        Role::User => 'u',
        Role::Assistant => 'a',
        Role::Tool => 't',
    };
    thread.messages.iter().map(letter).collect()
}

selvedge_store::forward!([] FaultyStore, inner: Registry, Feed);

impl Inbox for FaultyStore {
    fn post(&self, posted: Posted) -> Result<Delivery> {
        self.inner.post(posted)
    }
    fn pending(&self, thread: &ThreadId) -> Result<Vec<QueuedRequest>> {
        let unsealed = self.unsealed.lock().unwrap();
        let mut waiting = self.inner.pending(thread)?;
        for waiting in &mut waiting {
            waiting.is_sealed = !unsealed.contains(&waiting.posted.id);
        }
        Ok(waiting)
    }
    fn answered(&self, thread: &ThreadId, id: &RequestId) -> Result<Option<(ThreadId, u64)>> {
        self.inner.answered(thread, id)
    }
    fn newest(&self) -> Result<u64> {
        self.inner.newest()
    }
    fn arrivals(&self, after: u64, limit: usize) -> Result<Vec<PostedNotice>> {
        self.inner.arrivals(after, limit)
    }
}

/// A request as it is posted.
pub(crate) fn request(thread: &ThreadId, id: &str, request: Request) -> Posted {
    let id = RequestId::new(id).unwrap();
    Posted { thread: thread.clone(), id, at: Timestamp::from_micros(1), request }
}

impl Harness {
    /// The pending requests of a thread.
    pub(crate) fn waiting(&self, thread: &ThreadId) -> Vec<Posted> {
        self.store.pending(thread).unwrap().into_iter().map(|waiting| waiting.posted).collect()
    }
}
