//! Following a thread while somebody else runs it: from any process, without missing a commit.
//!
//! `cargo run --example follow`. Offline, in a temporary folder.
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use selvedge::log::{Signer, Trust};
use selvedge::model::scope::Scopes;
use selvedge::model::{AgentId, Cancel, Event, NewThread, Status, ThreadId};
use selvedge::providers::Scripted;
use selvedge::store::{Feed, Logs, Registry};
use selvedge::store_local::disk::RealDisk;
use selvedge::store_local::system::{SystemClock, SystemIds};
use selvedge::store_local::{Access, LocalStore, Options};
use selvedge::tools::ProcessGroups;
use selvedge::{Assignment, Engine, EngineOptions, Input, Redactor};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    LocalStore::init(folder.path(), Arc::new(RealDisk))?;
    let key = Signer::generate(&SystemIds).to_pem().to_string();
    let engine = engine(folder.path(), &key)?;
    let agent = AgentId::new("scribe")?;
    let thread = engine.create(NewThread::of(agent.clone()), Vec::new())?;
    std::thread::scope(|scope| {
        // The follower opens the store by itself, as another process would.
        let follower = scope.spawn(|| follow(&open(folder.path(), &key, Access::ReadOnly)?, &thread));
        let work = Assignment::new(agent, Arc::new(Scripted::offline()), "scripted");
        engine.send(&thread, Input::text("hello"), &work, &Cancel::new(), &mut |_| {})?;
        follower.join().map_err(|_| "the follower panicked")?
    })
}

/// Shows what is committed to a thread until its run is over.
fn follow(store: &LocalStore, thread: &ThreadId) -> Outcome<()> {
    let mut next_line = 0;
    loop {
        // Where the feed stands is asked before the log is read: what is committed in between ends the wait at once.
        let position = store.position()?;
        for line in store.read(thread, next_line, 1_000)? {
            next_line = line.seq + 1;
            if let Event::Message(message) = &line.event {
                println!("{}: {}", format!("{:?}", message.role).to_lowercase(), message.plain_text());
            }
        }
        let status = store.get(thread)?.manifest.status;
        if !matches!(status, Status::Created | Status::Running) && store.position()? == position {
            println!("{thread} is {status}");
            return Ok(());
        }
        // A hint may be late or for nothing; either way the log is read again.
        store.wait(position, Duration::from_millis(200))?;
    }
}

fn open(project: &Path, key: &str, access: Access) -> Outcome<LocalStore> {
    let signer = Signer::from_pem(key)?;
    Ok(LocalStore::open(Options {
        project: project.to_owned(),
        access,
        trust: Trust::of(&[signer.public()]),
        signer: Some(signer),
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        disk: Arc::new(RealDisk),
    })?)
}

fn engine(project: &Path, key: &str) -> Outcome<Engine> {
    Ok(Engine::new(EngineOptions {
        store: Arc::new(open(project, key, Access::ReadWrite)?),
        trust: Trust::of(&[Signer::from_pem(key)?.public()]),
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        processes: Arc::new(ProcessGroups),
        scopes: Scopes::builtin(),
        redactor: Redactor::default(),
        snapshots: None,
        prepare: None,
    }))
}
