//! A run of an agent that pays twice, with a tool that may pay only once.
//!
//! The world is a file in the home, a line for every payment. It survives cuts as a careful bank would: each payment makes a new file
//! beside the old one, synced, then renamed, then its folder synced.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_engine::{Assignment, Ended, Engine, Input, Options, Redactor, Told};
use selvedge_model::answer::{End, Usage};
use selvedge_model::event::{EffectClass, Process};
use selvedge_model::message::Block;
use selvedge_model::scope::Scopes;
use selvedge_model::tool::{Processes, Reconciled, Risk, Started};
use selvedge_model::{
    Answer, Batch, Call, CallId, Cancel, Digest, Draft, Message, MessageId, Model, ModelError, Output, Prompt, Role,
    Status, Tool, ToolError, ToolSpec,
};
use selvedge_store::Registry;
use selvedge_store::conformance::support::{birth, new_thread};
use selvedge_store_local::LocalStore;
use serde_json::json;

use super::appending::one;
use crate::Tried;
use crate::check::{Held, Kind, breach, or};
use crate::fact::{Fact, Teller};
use crate::home::Home;

const AMOUNTS: [&str; 2] = ["5", "7"];

/// A thread that has not run yet, and a world in which nothing is paid.
pub(super) fn unpaid(home: &Home) -> Tried {
    let store = home.open()?;
    Teller::default().commit(&store, "first", Batch::of(birth(&one(), new_thread())))?;
    fs::write(home.root().join("paid"), "")?;
    Ok(store.close()?)
}

/// Runs the agent, or takes its thread up where it was left.
pub(super) fn run(home: &Home, teller: &mut Teller) -> Tried {
    let store = Arc::new(teller.attempt(|| home.open())?);
    let tries = if teller.stubborn { 2 } else { 1 };
    let mut ended = Err("nothing was tried".into());
    for _ in 0..tries {
        ended = take_up(home, &store, teller);
        if ended.is_ok() {
            break;
        }
    }
    if let Ok(store) = Arc::try_unwrap(store) {
        teller.close(store)?;
    }
    ended
}

fn take_up(home: &Home, store: &Arc<LocalStore>, teller: &mut Teller) -> Tried {
    let engine = Engine::new(Options {
        store: store.clone(),
        trust: home.trust()?,
        clock: Arc::new(home.clock().clone()),
        ids: Arc::new(home.ids().clone()),
        processes: Arc::new(NoProcesses),
        scopes: Scopes::builtin(),
        redactor: Redactor::default(),
    });
    engine.recover()?;
    let manifest = store.get(&one())?.manifest;
    let mut work = Assignment::new(manifest.agent_id, Arc::new(Payer), "payer");
    work.tools = vec![Arc::new(Pay::into(&home.root().join("paid")))];
    let mut told = Ok(());
    let mut tell = |one: Told<'_>| {
        if let Told::Committed { thread, version, .. } = one {
            let fact = Fact::Reached { thread: thread.clone(), version };
            told = std::mem::replace(&mut told, Ok(())).and_then(|()| teller.tell(fact));
        }
    };
    let task = Message::text(Role::User, "pay what is due").with_id(MessageId::new("task")?);
    let Ended { status, detail, .. } = match manifest.status {
        Status::Created => engine.send(&one(), Input::messages(vec![task]), &work, &Cancel::new(), &mut tell)?,
        Status::Suspended => engine.resume(&one(), Input::nothing(), &work, &Cancel::new(), &mut tell)?,
        Status::Completed => return Ok(()),
        _ => engine.send(&one(), Input::text("go on"), &work, &Cancel::new(), &mut tell)?,
    };
    told?;
    match status {
        Status::Completed => Ok(()),
        other => Err(format!("the run ended as {other}: {detail:?}").into()),
    }
}

/// Nothing is paid twice, and once the run is over everything is paid.
pub(super) fn paid_once(home: &Home, store: &LocalStore, _: &[Fact]) -> Held {
    let paid = paid(&home.root().join("paid")).map_err(or(Kind::Broken, "the world can't be read"))?;
    let status = store.get(&one()).map_err(or(Kind::Broken, "the thread can't be found"))?.manifest.status;
    for amount in AMOUNTS {
        let times = paid.iter().filter(|line| line.split(' ').nth(1) == Some(amount)).count();
        if times > 1 {
            return Err(breach(Kind::Blended, format!("{amount} was paid {times} times: {paid:?}")));
        }
        if times == 0 && status == Status::Completed {
            return Err(breach(Kind::Lost, format!("the run is over and {amount} was never paid: {paid:?}")));
        }
    }
    Ok(())
}

fn paid(file: &Path) -> io::Result<Vec<String>> {
    Ok(fs::read_to_string(file)?.lines().map(str::to_owned).collect())
}

/// A model that asks for each payment until it is told that it was made.
struct Payer;

impl Model for Payer {
    fn answer(&self, prompt: &Prompt<'_>, _: &mut dyn FnMut(Draft), _: &Cancel) -> Result<Answer, ModelError> {
        let blocks = || prompt.messages.iter().flat_map(|message| &message.content);
        let is_paid = |amount: &&str| {
            let text = format!("paid {amount}");
            blocks().any(|block| matches!(block, Block::ToolResult { content, .. } if *content == json!(text)))
        };
        let asked = blocks().filter(|block| matches!(block, Block::ToolCall { .. })).count();
        let due = AMOUNTS.iter().find(|amount| !is_paid(amount));
        let id = CallId::new(format!("call_{asked}")).map_err(|error| ModelError::Permanent { why: error.to_string() });
        let (block, end) = match due {
            Some(amount) => {
                let arguments = json!({ "amount": amount });
                (Block::ToolCall { id: id?, name: "pay".to_owned(), arguments }, End::ToolCalls)
            }
            None => (Block::Text { text: "all is paid".to_owned() }, End::Finished),
        };
        Ok(Answer { content: vec![block], end, usage: Usage::default(), session: None })
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

/// A tool that pays, at most once for each call.
struct Pay {
    spec: ToolSpec,
    world: PathBuf,
}

impl Pay {
    fn into(world: &Path) -> Self {
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
            // It is seen; that it stays is another matter.
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

    /// Pays blindly: who is asked twice pays twice.
    fn pay(&self) -> io::Result<()> {
        let mut all = paid(&self.world)?;
        all.push(self.line());
        // A failure that passes is the bank's own affair.
        keep(&self.world, &all).or_else(|_| keep(&self.world, &all))
    }
}

impl Started for Payment {
    fn process(&self) -> Option<Process> {
        None
    }

    fn dispatch(self: Box<Self>, _: &Cancel) -> Result<Output, ToolError> {
        match self.pay() {
            Ok(()) => Ok(self.receipt()),
            Err(error) => Err(ToolError::Lost { tool: "pay".to_owned(), why: error.to_string() }),
        }
    }
}

/// Makes this all that is paid; durable on return.
fn keep(world: &Path, lines: &[String]) -> io::Result<()> {
    let fresh = world.with_extension("new");
    fs::write(&fresh, lines.iter().map(|line| format!("{line}\n")).collect::<String>())?;
    File::open(&fresh)?.sync_all()?;
    fs::rename(&fresh, world)?;
    File::open(world.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// The tool works in this process, so nobody is left behind.
struct NoProcesses;

impl Processes for NoProcesses {
    fn end(&self, _: &Process) -> Result<bool, ToolError> {
        Ok(false)
    }
}
