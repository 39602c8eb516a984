//! A run of an agent that pays twice, with a tool that may pay only once.
//!
//! The outside world is a file in the home, with a line for every payment. It survives crashes like a careful bank: each payment writes a
//! new file beside the old one, syncs it, renames it, and syncs the folder.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_engine::hooks::{Hook, HookCall, Hooks};
use selvedge_engine::ledger::audit;
use selvedge_engine::snapshot::{Keeper, Schema, newest};
use selvedge_engine::{Engine, Input, Options, Outcome, Redactor, RunConfig};
use selvedge_items::config::state_persistence::{Coalesce, StatePersistence};
use selvedge_items::hook::{Placed, Source};
use selvedge_model::account::AccountStatus;
use selvedge_model::answer::{Drafts, End, Usage};
use selvedge_model::blocking::BoxFuture;
use selvedge_model::event::{EffectClass, Process};
use selvedge_model::message::Block;
use selvedge_model::scope::Scopes;
use selvedge_model::tool::{Dispatch, Processes, Reconciled, Risk, Started, ToolKind};
use selvedge_model::{
    Answer, Batch, Call, CallId, Cancel, Digest, Message, MessageId, Model, ModelError, Money, Output, Price, Prompt,
    Role, Status, Tool, ToolError, ToolSpec,
};
use selvedge_store::conformance::support::{birth, new_thread};
use selvedge_store::{Logs, Registry, Snapshots};
use selvedge_store_local::LocalStore;
use serde_json::json;

use super::appends::one;
use super::recording_store::{RecordingStore, recording};
use crate::LabResult;
use crate::check::{Breach, CheckResult, Kind, breach, or};
use crate::fact::{Fact, FactRecorder};
use crate::home::Home;

pub(super) const AMOUNTS: [&str; 2] = ["5", "7"];

/// What the agent may spend.
const SPEND_DOLLARS_MAX: i64 = 1;

/// What each answer uses.
pub(super) const USAGE: Usage =
    Usage { input_tokens: 10, output_tokens: 5, cache_read_tokens: 0, cache_write_tokens: 0, estimated: false };

/// A thread that has not run yet, and no payments.
pub(super) fn unpaid(home: &Home) -> LabResult {
    let store = home.open()?;
    FactRecorder::default().commit(&store, "first", Batch::of(birth(&one(), new_thread())))?;
    fs::write(home.root().join("paid"), "")?;
    Ok(store.close()?)
}

/// Runs the agent, or resumes its thread.
pub(super) fn run(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    run_as(home, recorder, Arc::new(Payer), Price::default(), |_| Ok(None), |_| {})
}

/// The same with a model that is not free: every call is reserved and settled, and the account is closed with the thread.
pub(super) fn run_priced(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    run_as(home, recorder, Arc::new(Payer), price(), |_| Ok(None), |_| {})
}

/// The same with another model.
pub(super) fn run_model(home: &Home, recorder: &mut FactRecorder, model: Arc<dyn Model>) -> LabResult {
    run_as(home, recorder, model, price(), |_| Ok(None), |_| {})
}

/// The same payments, made by hooks: one before the first turn, one when the run is complete. The model asks for none.
pub(super) fn run_hooks(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    run_as(
        home,
        recorder,
        Arc::new(Says),
        Price::default(),
        |_| Ok(None),
        |work| {
            work.hooks = Arc::new(paying_hooks());
        },
    )
}

/// Hooks that pay each amount at an event of its own.
fn paying_hooks() -> Hooks {
    let hook = |(event, amount): (&str, &str)| {
        let action = json!({"primary": "execute", "item_type": "tool", "item_id": "pay", "params": {"amount": amount}});
        let written = json!({"id": event, "event": event, "required": true, "action": action});
        let hook = serde_json::from_value(written).ok()?;
        let placed = Placed { hook, source: Source::Project, layer: Source::Project };
        let tool = "pay".to_owned();
        let call =
            HookCall { tool, arguments: json!({"amount": amount}), source: "tool pay".to_owned(), is_knowledge: false };
        Some(Hook { placed, calls: vec![call] })
    };
    let events = ["thread_started", "after_complete"].into_iter().zip(AMOUNTS);
    Hooks::new(events.filter_map(hook).collect())
}

/// A model that asks for nothing.
struct Says;

impl Model for Says {
    fn answer<'a>(
        &'a self,
        _: &'a Prompt<'a>,
        _: &'a mut Drafts<'a>,
        _: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async { Ok(Answer::new(vec![Block::text("as you wish")], End::Finished).using(USAGE)) })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// The token prices of a model that is not free.
pub(super) fn price() -> Price {
    Price { input: dollars(1), output: dollars(2), ..Price::default() }
}

fn dollars(dollars: i64) -> Money {
    Money::from_nanos(dollars * 1_000_000_000).unwrap_or_default()
}

/// The same agent, with a model that is not free and a spending limit.
pub(super) fn priced(mut work: RunConfig) -> RunConfig {
    work.price = Some(price());
    work.limits.spend = Some(dollars(SPEND_DOLLARS_MAX));
    work
}

/// The same, with a snapshot at every step: complete and incremental ones alternate, archived at the end.
pub(super) fn run_saving(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    run_as(
        home,
        recorder,
        Arc::new(Payer),
        Price::default(),
        |store| {
            let mut config = StatePersistence::builtin();
            config.checkpoint.performance.coalesce = Coalesce::Always;
            config.checkpoint.performance.incremental = true;
            config.retention.max_checkpoints = 2;
            Ok(Some(Keeper::new(store.clone(), config)?))
        },
        |_| {},
    )
}

fn run_as(
    home: &Home,
    recorder: &mut FactRecorder,
    model: Arc<dyn Model>,
    price: Price,
    keeping: Keeping,
    change: fn(&mut RunConfig),
) -> LabResult {
    let store = Arc::new(recorder.attempt(|| home.open())?);
    let tries = if recorder.retries { 2 } else { 1 };
    let mut ended = Err("nothing was tried".into());
    for _ in 0..tries {
        ended =
            recording(&store, recorder, |watched| resume(home, &store, watched, model.clone(), price, keeping, change));
        if ended.is_ok() {
            break;
        }
    }
    if let Ok(store) = Arc::try_unwrap(store) {
        recorder.close(store)?;
    }
    ended
}

/// Creates what saves the snapshots of an engine, if it saves any.
type Keeping = fn(&Arc<LocalStore>) -> LabResult<Option<Keeper>>;

fn resume(
    home: &Home,
    store: &Arc<LocalStore>,
    watched: &Arc<RecordingStore>,
    model: Arc<dyn Model>,
    price: Price,
    keeping: Keeping,
    change: fn(&mut RunConfig),
) -> LabResult {
    let engine = Engine::new(Options {
        store: watched.clone(),
        trust: home.trust()?,
        clock: Arc::new(home.clock().clone()),
        ids: Arc::new(home.ids().clone()),
        processes: Arc::new(NoProcesses),
        scopes: Scopes::builtin(),
        redactor: Redactor::default(),
        snapshots: keeping(store)?,
        prepare: None,
    });
    engine.recover()?;
    let manifest = store.get(&one())?.manifest;
    let mut work = RunConfig::new(manifest.agent_id, model, "payer");
    work.tools = vec![Arc::new(Pay::into(&home.root().join("paid")))];
    work.price = Some(price);
    work.limits.spend = Some(dollars(SPEND_DOLLARS_MAX));
    change(&mut work);
    let mut on_event = |event| watched.receive(event);
    let task = Message::text(Role::User, "pay what is due").with_id(MessageId::new("task")?);
    let outcome: Outcome = match manifest.status {
        Status::Created => engine.send(&one(), Input::messages(vec![task]), &work, &Cancel::new(), &mut on_event)?,
        Status::Suspended => engine.resume(&one(), Input::nothing(), &work, &Cancel::new(), &mut on_event)?,
        Status::Completed => return Ok(()),
        _ => engine.send(&one(), Input::text("go on"), &work, &Cancel::new(), &mut on_event)?,
    };
    if !outcome.is_completed() {
        return Err(format!("the run ended as {}: {:?}", outcome.status, outcome.why).into());
    }
    Ok(())
}

/// Nothing is paid twice, and once the run has ended everything is paid.
pub(super) fn paid_once(home: &Home, store: &LocalStore, _: &[Fact]) -> CheckResult {
    let paid = paid(&home.root().join("paid")).map_err(or(Kind::Broken, "the payments can't be read"))?;
    let status = store.get(&one()).map_err(or(Kind::Broken, "the thread can't be found"))?.manifest.status;
    for amount in AMOUNTS {
        let times = paid.iter().filter(|line| line.split(' ').nth(1) == Some(amount)).count();
        if times > 1 {
            return Err(breach(Kind::Blended, format!("{amount} was paid {times} times: {paid:?}")));
        }
        if times == 0 && status == Status::Completed {
            return Err(breach(Kind::Lost, format!("the run has ended, but {amount} was never paid: {paid:?}")));
        }
    }
    Ok(())
}

/// No call of a hook pays twice; and once a run has ended that was not preceded by a failed one, everything is paid. After a failed run the
/// scenario sends a message: that is a new run, which completes once more, and in which the thread does not start again.
pub(super) fn paid_once_by_each_call(home: &Home, store: &LocalStore, facts: &[Fact]) -> CheckResult {
    let paid = paid(&home.root().join("paid")).map_err(or(Kind::Broken, "the payments can't be read"))?;
    let mut calls: Vec<&str> = paid.iter().filter_map(|line| line.split(' ').next()).collect();
    calls.sort_unstable();
    if let Some(twice) = calls.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(breach(Kind::Blended, format!("the call {} paid twice: {paid:?}", twice[0])));
    }
    let runs = store.runs(&one()).map_err(or(Kind::Broken, "the runs can't be read"))?;
    if runs.iter().any(|run| run.meta.outcome == Some(Status::Error)) {
        return Ok(());
    }
    paid_once(home, store, facts)
}

/// Nothing is paid twice.
pub(super) fn paid_at_most_once(home: &Home) -> CheckResult {
    let paid = paid(&home.root().join("paid")).map_err(or(Kind::Broken, "the payments can't be read"))?;
    for amount in AMOUNTS {
        let times = paid.iter().filter(|line| line.split(' ').nth(1) == Some(amount)).count();
        if times > 1 {
            return Err(breach(Kind::Blended, format!("{amount} was paid {times} times: {paid:?}")));
        }
    }
    Ok(())
}

/// The same, and the newest snapshot is complete, signed, and not newer than the log; older ones may be lost, but never torn.
pub(super) fn saved(home: &Home, store: &LocalStore, facts: &[Fact]) -> CheckResult {
    let schema = Schema::new(&StatePersistence::builtin().state).map_err(or(Kind::Broken, "the schema is invalid"))?;
    let kept = store.list_snapshots(&one(), "archive").map_err(or(Kind::Broken, "the snapshots can't be listed"))?;
    for one_kept in &kept {
        store.read_snapshot(&one(), one_kept, "archive").map_err(or(Kind::Blended, "a snapshot does not verify"))?;
    }
    let found = newest(store, &schema, "archive", &one()).map_err(or(Kind::Broken, "the snapshots can't be read"))?;
    let head = store.head(&one()).map_err(or(Kind::Broken, "the thread has no end"))?;
    if let Some((kept, _)) = found.good.filter(|(kept, _)| kept.version > head.version) {
        return Err(breach(
            Kind::Lost,
            format!("a snapshot is of version {}, the log of {}", kept.version, head.version),
        ));
    }
    paid_once(home, store, facts)
}

/// Nothing is paid twice; the accounts follow from the logs alone; an ended thread holds nothing, and has spent at least what it used.
pub(super) fn conserved(home: &Home, store: &LocalStore, facts: &[Fact]) -> CheckResult {
    let tree = books_hold(home, store)?;
    let manifest = store.get(&one()).map_err(or(Kind::Broken, "the thread can't be found"))?.manifest;
    if let (Some(branch), true) = (tree.accounts.first(), manifest.status == Status::Completed) {
        let account = &branch.account;
        if account.status != AccountStatus::Closed || account.open > 0 || account.spent() < manifest.cost.spend {
            return Err(breach(Kind::Lost, format!("{:?} were used, but the account is {account:?}", manifest.cost)));
        }
    }
    paid_once(home, store, facts)
}

/// Checks that the accounts in the database follow from the logs alone.
pub(super) fn books_hold(home: &Home, store: &LocalStore) -> Result<audit::AccountTree, Breach> {
    let trust = home.trust().map_err(|error| breach(Kind::Broken, format!("no trust: {error}")))?;
    let tree = audit::tree(store, &one()).map_err(or(Kind::Broken, "the accounts can't be read"))?;
    let found = audit::audit(store, &trust, &tree).map_err(or(Kind::Broken, "the logs can't be read"))?.found;
    if !found.is_empty() {
        return Err(breach(Kind::Blended, format!("the ledger does not agree with the logs: {found:?}")));
    }
    Ok(tree)
}

fn paid(file: &Path) -> io::Result<Vec<String>> {
    Ok(fs::read_to_string(file)?.lines().map(str::to_owned).collect())
}

/// A model that requests each payment until it gets its receipt.
pub(super) struct Payer;

impl Model for Payer {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        _: &'a mut Drafts<'a>,
        _: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            let blocks = || prompt.messages.iter().flat_map(|message| &message.content);
            let is_paid = |amount: &&str| {
                let text = format!("paid {amount}");
                blocks().any(|block| matches!(block, Block::ToolResult { content, .. } if *content == json!(text)))
            };
            let asked = blocks().filter(|block| matches!(block, Block::ToolCall { .. })).count();
            let due = AMOUNTS.iter().find(|amount| !is_paid(amount));
            let id =
                CallId::new(format!("call_{asked}")).map_err(|error| ModelError::Permanent { why: error.to_string() });
            let (block, end) = match due {
                Some(amount) => {
                    let arguments = json!({ "amount": amount });
                    (Block::tool_call(id?, "pay", arguments), End::ToolCalls)
                }
                None => (Block::text("all is paid"), End::Finished),
            };
            Ok(Answer::new(vec![block], end).using(USAGE))
        })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// A tool that pays, at most once for each call.
pub(super) struct Pay {
    spec: ToolSpec,
    world: PathBuf,
}

impl Pay {
    pub(super) fn into(world: &Path) -> Self {
        let spec = ToolSpec {
            name: "pay".to_owned(),
            description: String::new(),
            input_schema: json!({}),
            class: EffectClass::AtMostOnce,
            capability: "tool.pay".to_owned(),
            risk: Risk::External,
            hash: Digest([7; 32]),
        };
        Self { spec, world: world.to_owned() }
    }

    fn payment(&self, call: &Call) -> Payment {
        let amount = call.arguments["amount"].as_str().unwrap_or_default().to_owned();
        Payment { world: self.world.clone(), key: call.key.clone(), amount }
    }
}

impl Tool for Pay {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        Ok(Box::new(self.payment(call)))
    }

    fn reconcile(&self, call: &Call, _: &Cancel) -> Reconciled {
        let payment = self.payment(call);
        match paid(&self.world) {
            Ok(paid) if !paid.contains(&payment.line()) => Reconciled::NotDone,
            // It is visible; now it is made durable.
            Ok(paid) if keep(&self.world, &paid).is_ok() => Reconciled::Done(payment.receipt()),
            _ => Reconciled::Unknown,
        }
    }
}

/// A payment that is ready to be made.
struct Payment {
    world: PathBuf,
    key: String,
    amount: String,
}

impl Payment {
    fn line(&self) -> String {
        format!("{} {}", self.key, self.amount)
    }

    fn receipt(&self) -> Output {
        Output::text(format!("paid {}", self.amount))
    }

    /// Pays without checking: a second call pays twice.
    fn pay(&self) -> io::Result<()> {
        let mut all = paid(&self.world)?;
        all.push(self.line());
        // A temporary failure is handled by the bank itself.
        keep(&self.world, &all).or_else(|_| keep(&self.world, &all))
    }
}

impl Started for Payment {
    fn process(&self) -> Option<Process> {
        None
    }

    fn dispatch(self: Box<Self>, _: &Cancel) -> Dispatch {
        Dispatch::blocking(move || match self.pay() {
            Ok(()) => Ok(self.receipt()),
            Err(error) => Err(ToolError::Lost { tool: "pay".to_owned(), why: error.to_string() }),
        })
    }
}

/// Replaces the list of payments; durable on return.
fn keep(world: &Path, lines: &[String]) -> io::Result<()> {
    let fresh = world.with_extension("new");
    fs::write(&fresh, lines.iter().map(|line| format!("{line}\n")).collect::<String>())?;
    File::open(&fresh)?.sync_all()?;
    fs::rename(&fresh, world)?;
    File::open(world.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// The tool works in this process, so no process is left running.
pub(super) struct NoProcesses;

impl Processes for NoProcesses {
    fn end(&self, _: &Process) -> Result<bool, ToolError> {
        Ok(false)
    }
}

/// A tool that only returns a result.
pub(super) struct Plain(ToolSpec, ToolKind);

impl Plain {
    pub(super) fn new(name: &str, class: EffectClass) -> Self {
        let spec = ToolSpec { name: name.to_owned(), class, ..Pay::into(Path::new("")).spec };
        Self(spec, ToolKind::Work)
    }

    /// The same, with this meaning to its run.
    pub(super) fn of_kind(self, kind: ToolKind) -> Self {
        Self(self.0, kind)
    }

    /// A prepared call of it.
    pub(super) fn started(&self) -> Result<Box<dyn Started>, ToolError> {
        Ok(Box::new(Answered))
    }
}

impl Tool for Plain {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn kind(&self) -> ToolKind {
        self.1
    }

    fn start(&self, _: &Call) -> Result<Box<dyn Started>, ToolError> {
        self.started()
    }

    fn reconcile(&self, _: &Call, _: &Cancel) -> Reconciled {
        Reconciled::Unknown
    }
}

struct Answered;

impl Started for Answered {
    fn process(&self) -> Option<Process> {
        None
    }

    fn dispatch(self: Box<Self>, _: &Cancel) -> Dispatch {
        Dispatch::Done(Ok(Output::text("yes")))
    }
}
