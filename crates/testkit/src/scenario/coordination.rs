//! Runs that wait for approvals, are handed off, and start children; each payment is still made once.

use std::sync::Arc;

use selvedge_engine::run_config::NeededApproval;
use selvedge_engine::spawn::{Children, NewChild, Spawning};
use selvedge_engine::{Choice, Engine, Input, Options, Permission, Redactor, RunConfig};
use selvedge_model::account::AccountStatus;
use selvedge_model::answer::{Drafts, End};
use selvedge_model::blocking::BoxFuture;
use selvedge_model::event::EffectClass;
use selvedge_model::message::Block;
use selvedge_model::scope::Scopes;
use selvedge_model::tool::{Started, ToolKind};
use selvedge_model::{
    AgentId, Answer, Call, CallId, Cancel, Manifest, Message, MessageId, Model, ModelError, NewThread, Prompt, Role,
    Status, ThreadId,
};
use selvedge_store::Registry;
use selvedge_store_local::LocalStore;
use serde_json::json;

use super::appends::one;
use super::recording_store::{RecordingStore, recording};
use super::runs::{NoProcesses, Pay, Payer, Plain, USAGE, books_hold, paid_at_most_once, paid_once, priced};
use crate::LabResult;
use crate::check::{CheckResult, Kind, breach, or};
use crate::fact::{Fact, FactRecorder};
use crate::home::Home;

/// How often a thread is resumed at most until it has ended.
const RESUMES_MAX: usize = 12;

/// Every payment is approved before it is made.
pub(super) fn approve(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    drive(home, recorder, |home| {
        let mut work = payer(home, Arc::new(Payer));
        work.gate = Arc::new(|_, _| Permission::Ask(NeededApproval::default()));
        work
    })
}

/// The thread is handed off between the payments.
pub(super) fn hand_over(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    drive(home, recorder, |home| {
        let mut work = payer(home, Arc::new(Before { tool: "hand_over", after: 1 }));
        work.tools.push(Arc::new(Plain::new("hand_over", EffectClass::Pure).of_kind(ToolKind::Handoff)));
        work
    })
}

/// A child makes the payments; its parent funds it and waits for it.
pub(super) fn spawn(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    drive(home, recorder, |home| parent(home, Waiting::Waits))
}

/// A detached child makes the payments: its parent has ended when the child settles.
pub(super) fn detach(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    drive(home, recorder, |home| parent(home, Waiting::GoesOn))
}

/// Whether a parent waits for its child.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Waits,
    GoesOn,
}

/// An agent that pays through a child. Every call of both has a cost.
fn parent(home: &Home, waiting: Waiting) -> RunConfig {
    let mut work = priced(payer(home, Arc::new(Before { tool: "spawn", after: 0 })));
    let children = Arc::new(PayingChildren { home: home.clone(), waiting });
    work.tools = vec![Arc::new(Plain::new("spawn", EffectClass::AtMostOnce).of_kind(ToolKind::Child))];
    work.spawning = Some(Spawning { children, at_once: 2, check_parent: Arc::new(|_| Ok(())) });
    work
}

fn payer(home: &Home, model: Arc<dyn Model>) -> RunConfig {
    // The name is valid.
    let agent = AgentId::new("scribe").unwrap_or_else(|error| panic!("{error}"));
    let mut work = RunConfig::new(agent, model, "payer");
    work.tools = vec![Arc::new(Pay::into(&home.root().join("paid")))];
    work
}

/// Resumes the thread, or the end of its chain, until it has ended.
fn drive(home: &Home, recorder: &mut FactRecorder, work: fn(&Home) -> RunConfig) -> LabResult {
    let store = Arc::new(recorder.attempt(|| home.open())?);
    let tries = if recorder.retries { 2 } else { 1 };
    let mut ended = Err("nothing was tried".into());
    for _ in 0..tries {
        let work = Arc::new(work(home));
        ended = recording(&store, recorder, |watched| resume(home, &store, watched, &work));
        if ended.is_ok() {
            break;
        }
    }
    if let Ok(store) = Arc::try_unwrap(store) {
        recorder.close(store)?;
    }
    ended
}

fn resume(home: &Home, store: &Arc<LocalStore>, watched: &Arc<RecordingStore>, work: &Arc<RunConfig>) -> LabResult {
    let engine = Engine::new(Options {
        store: watched.clone(),
        trust: home.trust()?,
        clock: Arc::new(home.clock().clone()),
        ids: Arc::new(home.ids().clone()),
        processes: Arc::new(NoProcesses),
        scopes: Scopes::builtin(),
        redactor: Redactor::default(),
        snapshots: None,
        prepare: None,
    });
    engine.recover()?;
    let mut on_event = |event| watched.receive(event);
    for _ in 0..RESUMES_MAX {
        let end = end(store)?;
        let task = Message::text(Role::User, "pay what is due").with_id(MessageId::new("task")?);
        let thread = &end.thread_id;
        let cancel = Cancel::new();
        match end.status {
            Status::Completed => break,
            Status::Created if *thread == one() => {
                engine.send(thread, Input::messages(vec![task]), work.clone(), &cancel, &mut on_event)?;
            }
            Status::Suspended | Status::Created => {
                for ask in &end.asks {
                    engine.decide(thread, &ask.call_id, Choice::Approve(None), "ann", work)?;
                }
                engine.resume(thread, Input::nothing(), work.clone(), &cancel, &mut on_event)?;
            }
            _ => _ = engine.send(thread, Input::text("go on"), work.clone(), &cancel, &mut on_event)?,
        }
    }
    // What the child's own process would do.
    if let Some(Spawning { children, .. }) = &work.spawning {
        for child in store.children(&one())?.into_iter().filter(|child| !child.manifest.status.is_terminal()) {
            let work = children.run_config(&child.manifest)?;
            let child = &child.manifest.thread_id;
            engine.resume(child, Input::nothing(), &work, &Cancel::new(), &mut on_event)?;
        }
    }
    match end(store)?.status {
        Status::Completed => Ok(()),
        other => Err(format!("the run ended as {other}").into()),
    }
}

fn end(store: &LocalStore) -> LabResult<Manifest> {
    let chain = store.chain(&one())?;
    Ok(chain.into_iter().next_back().ok_or("there is no thread")?.manifest)
}

/// Nothing is paid twice, and the chain has an end.
pub(super) fn whole(home: &Home, store: &LocalStore, facts: &[Fact]) -> CheckResult {
    let chain = store.chain(&one()).map_err(or(Kind::Broken, "the chain can't be read"))?;
    let last = chain.last().ok_or_else(|| breach(Kind::Lost, "the thread does not exist".to_owned()))?;
    if last.manifest.status == Status::Continued {
        return Err(breach(Kind::Lost, format!("`{}` is continued by no thread", last.manifest.thread_id)));
    }
    paid_once(home, store, facts)
}

/// The accounts of parent and child follow from the logs alone, and once both have ended nothing is reserved any more. A child that
/// failed, or could not be started, leaves its payments unpaid.
pub(super) fn raised(home: &Home, store: &LocalStore, facts: &[Fact]) -> CheckResult {
    let tree = books_hold(home, store)?;
    let children = store.children(&one()).map_err(or(Kind::Broken, "the children can't be read"))?;
    let parent = store.get(&one()).map_err(or(Kind::Lost, "the parent is gone"))?;
    let all = || children.iter().chain([&parent]).map(|thread| thread.manifest.status);
    if all().all(Status::is_terminal)
        && let Some(held) = tree.accounts.iter().find(|branch| branch.account.status != AccountStatus::Closed)
    {
        return Err(breach(Kind::Lost, format!("all threads have ended, but {:?} is open", held.account)));
    }
    if !children.is_empty() && all().all(|status| status == Status::Completed) {
        whole(home, store, facts)
    } else {
        paid_at_most_once(home)
    }
}

/// A model that calls one tool once, after some payments, and otherwise makes the due payments.
struct Before {
    tool: &'static str,
    after: usize,
}

impl Model for Before {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        draft: &'a mut Drafts<'a>,
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            let blocks = || prompt.messages.iter().flat_map(|message| &message.content);
            let called = blocks().any(|block| matches!(block, Block::ToolCall { name, .. } if name == self.tool));
            let answered = blocks().filter(|block| matches!(block, Block::ToolResult { .. })).count();
            if called && self.after == 0 {
                let content = vec![Block::text("it is done")];
                return Ok(Answer::new(content, End::Finished).using(USAGE));
            }
            if called || answered < self.after {
                return Payer.answer(prompt, draft, cancel).await;
            }
            let id = CallId::new(format!("{}_1", self.tool))
                .map_err(|error| ModelError::Permanent { why: error.to_string() })?;
            let block = Block::tool_call(id, self.tool.to_owned(), json!({}));
            Ok(Answer::new(vec![block], End::ToolCalls).using(USAGE))
        })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// Starts children that make the due payments.
struct PayingChildren {
    home: Home,
    waiting: Waiting,
}

impl Children for PayingChildren {
    fn new_child(&self, _: &Call, parent: &Manifest) -> Result<NewChild, String> {
        let thread = NewThread::of(parent.agent_id.clone());
        let messages = vec![Message::text(Role::User, "pay what is due")];
        Ok(NewChild { thread, messages, detached: self.waiting == Waiting::GoesOn })
    }

    fn run_config(&self, _: &Manifest) -> Result<RunConfig, String> {
        Ok(priced(payer(&self.home, Arc::new(Payer))))
    }

    fn launch(&self, _: &ThreadId) -> Result<Box<dyn Started>, String> {
        // The scenario itself runs it when its parent has ended.
        Plain::new("child", EffectClass::AtMostOnce).started().map_err(|error| error.to_string())
    }
}
