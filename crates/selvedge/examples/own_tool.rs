//! A program that brings a tool of its own: what the model asks for is done in this process, and every step is signed and durable
//! before it is shown.
//!
//! `cargo run --example own_tool`. Offline, in a temporary folder.
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use selvedge::log::{Signer, Trust};
use selvedge::model::event::EffectClass;
use selvedge::model::scope::Scopes;
use selvedge::model::tool::{Function, Risk};
use selvedge::model::{AgentId, Cancel, Digest, NewThread, Output, ToolSpec};
use selvedge::providers::{Script, Scripted};
use selvedge::store_local::disk::RealDisk;
use selvedge::store_local::system::{SystemClock, SystemIds};
use selvedge::store_local::{Access, LocalStore, Options};
use selvedge::tools::ProcessGroups;
use selvedge::{Assignment, Engine, EngineOptions, Input, Redactor, RunEvent};
use serde_json::json;

/// A lamp that a model may switch on. Switching it on twice does no harm, so after a crash the call is simply made again. A tool that may run at
/// most once, and can find out whether it did, implements `Tool` itself.
fn lamp(is_on: Arc<AtomicBool>) -> Function {
    let spec = ToolSpec {
        name: "lights_on".to_owned(),
        description: "Switches the lights on.".to_owned(),
        input_schema: json!({"type": "object", "properties": {}}),
        class: EffectClass::Idempotent,
        capability: "tool.lights".to_owned(),
        risk: Risk::Safe,
        // Of whatever defines the tool, so that a changed one is noticed.
        hash: Digest([0; 32]),
    };
    Function::new(spec, move |_, _| {
        is_on.store(true, Ordering::SeqCst);
        Ok(Output::text("the lights are on"))
    })
}

const SCRIPT: &str = "turns: [{say: One moment., calls: [{tool: lights_on}]}, {say: 'I did it: {result}.'}]";

fn main() -> Result<(), Box<dyn Error>> {
    // A store, and a key that signs for it. A real program keeps both.
    let folder = tempfile::tempdir()?;
    LocalStore::init(folder.path(), Arc::new(RealDisk))?;
    let signer = Signer::generate(&SystemIds);
    let trust = Trust::of(&[signer.public()]);
    let store = LocalStore::open(Options {
        project: folder.path().to_owned(),
        access: Access::ReadWrite,
        signer: Some(signer),
        trust: trust.clone(),
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        disk: Arc::new(RealDisk),
    })?;
    let engine = Engine::new(EngineOptions {
        store: Arc::new(store),
        trust,
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        processes: Arc::new(ProcessGroups),
        scopes: Scopes::builtin(),
        redactor: Redactor::default(),
        snapshots: None,
        prepare: None,
    });

    // An agent with a scripted model and one tool.
    let agent = AgentId::new("butler")?;
    let model = Scripted::new(Script::parse(SCRIPT)?);
    let mut work = Assignment::new(agent.clone(), Arc::new(model), "scripted");
    let is_on = Arc::new(AtomicBool::default());
    work.tools = vec![Arc::new(lamp(is_on.clone()))];

    let thread = engine.create(NewThread::of(agent), Vec::new())?;
    let input = Input::text("It is dark in here.");
    let ended = engine.send(&thread, input, &work, &Cancel::new(), &mut |event| {
        // Nothing is told as committed before it is.
        if let RunEvent::Committed { version, reason, .. } = event {
            println!("version {version}: {}", reason.as_str());
        }
    })?;
    println!("{}", ended.result.unwrap_or_default());
    println!("the lamp is {}", if is_on.load(Ordering::SeqCst) { "on" } else { "off" });
    println!("{thread} is {}", ended.status);
    Ok(())
}
