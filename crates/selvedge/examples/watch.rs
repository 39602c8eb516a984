//! Watching two threads that run side by side: one subscriber gets the drafts and the commits of both, in order for each thread, and holds
//! up neither of them.
//!
//! `cargo run --example watch`. Offline, in a temporary folder.
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use selvedge::log::{Signer, Trust};
use selvedge::model::scope::Scopes;
use selvedge::model::{AgentId, Cancel, Draft, NewThread, ThreadId};
use selvedge::providers::{Script, Scripted};
use selvedge::store_local::disk::RealDisk;
use selvedge::store_local::system::{SystemClock, SystemIds};
use selvedge::store_local::{Access, LocalStore, Options};
use selvedge::tools::ProcessGroups;
use selvedge::{Assignment, Engine, EngineOptions, Input, Redactor, RunEvent, Subscription, Watched};

const POEMS: [(&str, &str); 2] = [
    ("a river", "turns: [{say: [Slow water, {text: ' finds', delay_ms: 20}, {text: ' the sea.', delay_ms: 20}]}]"),
    ("a mountain", "turns: [{say: [Old, {text: ' stone', delay_ms: 20}, {text: ' holds the sky.', delay_ms: 20}]}]"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let engine = engine(folder.path())?;
    let agent = AgentId::new("poet")?;

    let mut titles = BTreeMap::new();
    let mut runs = Vec::new();
    for (title, script) in POEMS {
        let thread = engine.create(NewThread::of(agent.clone()), Vec::new())?;
        let model = Scripted::new(Script::parse(script)?);
        titles.insert(thread.clone(), title);
        runs.push((thread, Assignment::new(agent.clone(), Arc::new(model), "scripted")));
    }

    // From here on. `Watched::Thread` follows one thread through its handoffs.
    let subscription = engine.subscribe(Watched::All);
    std::thread::scope(|scope| {
        for (thread, work) in &runs {
            let engine = &engine;
            let input = Input::text(format!("A poem about {}, please.", titles[thread]));
            scope.spawn(move || engine.send(thread, input, work, &Cancel::new(), &mut |_| {}));
        }
        watch(subscription, &titles);
    });
    Ok(())
}

/// Prints what happens until every thread's run has ended.
fn watch(mut subscription: Subscription, titles: &BTreeMap<ThreadId, &str>) {
    let mut running = titles.len();
    while running > 0 {
        let Some(event) = subscription.recv(Duration::from_secs(10)) else { return };
        let title = event.thread().and_then(|thread| titles.get(thread)).copied().unwrap_or("?");
        match event {
            RunEvent::Draft { draft: Draft::Text { text }, .. } => println!("[{title}] draft {text:?}"),
            RunEvent::Committed { version, reason, .. } => println!("[{title}] version {version}: {}", reason.as_str()),
            RunEvent::Ended { status, .. } => {
                println!("[{title}] ended: {status}");
                running -= 1;
            }
            // A subscriber that was too slow reads these lines from the store.
            RunEvent::Missed { drafts, first_lines, .. } => {
                println!("missed {drafts} drafts, lines from {first_lines:?}")
            }
            _ => {}
        }
    }
}

fn engine(project: &Path) -> Result<Engine, Box<dyn Error>> {
    LocalStore::init(project, Arc::new(RealDisk))?;
    let signer = Signer::generate(&SystemIds);
    let trust = Trust::of(&[signer.public()]);
    let store = LocalStore::open(Options {
        project: project.to_owned(),
        access: Access::ReadWrite,
        signer: Some(signer),
        trust: trust.clone(),
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        disk: Arc::new(RealDisk),
    })?;
    Ok(Engine::new(EngineOptions {
        store: Arc::new(store),
        trust,
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        processes: Arc::new(ProcessGroups),
        scopes: Scopes::builtin(),
        redactor: Redactor::default(),
        snapshots: None,
        prepare: None,
    }))
}
