//! A program that has an agent loop already, and uses the store alone: every step is a commit, and a commit that returned is signed,
//! durable and visible.
//!
//! `cargo run --example own_loop`. Offline, in a temporary folder.
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::error::Error;
use std::sync::Arc;

use selvedge::log::recovery::Finding;
use selvedge::log::{Signer, Trust};
use selvedge::model::{
    AgentId, Batch, Changeset, CommitKey, Expect, Ids, Message, NewThread, Part, Reason, Role, RunId, RunMeta, ThreadId,
};
use selvedge::store::load::load;
use selvedge::store::{Acquire, Commit, Leases};
use selvedge::store_local::disk::RealDisk;
use selvedge::store_local::system::{SystemClock, SystemIds};
use selvedge::store_local::{Access, LocalStore, Options};

fn main() -> Result<(), Box<dyn Error>> {
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

    // Version 0 creates the thread. The key makes the commit idempotent: a retry returns the first result.
    let agent = AgentId::new("poet")?;
    let thread = ThreadId::generate("poet", &SystemIds.hex12());
    let birth = Part::new(thread.clone(), Expect::Absent, Changeset::creating(NewThread::of(agent.clone())));
    let birth = Batch::of(birth).with_key(CommitKey::new("poem-of-today")?);
    let born = store.commit(birth.clone())?;
    assert_eq!(store.commit(birth)?.versions, born.versions);

    // Under a lease no other process writes; if this one dies, another takes the lease over, and this one can't commit any more.
    let lease = store.acquire(&thread, Acquire::default())?;
    let run = RunId::new(SystemIds.hex32())?;
    // So that an engine may settle the run if this process dies; without it, only its writer may end the run.
    let began = RunMeta::started(agent, "user").under_lease();
    let steps = [
        said(Reason::UserMessage, Role::User, "A line about threads, please.").of_run(&run, Some(began.clone())),
        said(Reason::AssistantTurnCommitted, Role::Assistant, "What is woven holds.").of_run(&run, None),
        Changeset::empty(Reason::RunFinished).of_run(&run, Some(began.finished("completed"))),
    ];
    for (version, step) in (0..).zip(steps) {
        // Your loop reports nothing of what it did between two commits before the second one has returned.
        store.commit(Batch::of(Part::new(thread.clone(), Expect::Exact(version), step).under(lease.epoch)))?;
    }
    store.release(&lease)?;

    // A single append needs no lease, if no process holds one.
    let more = said(Reason::UserMessage, Role::User, "Thank you.");
    let committed = store.commit(Batch::of(Part::new(thread.clone(), Expect::Exact(3), more)))?;
    println!("{thread} is at version {}", committed.versions[0].1);

    // Reading checks every hash and the last signature; verifying checks every signature.
    let loaded = load(&store, &thread, &trust, None)?;
    for message in &loaded.thread.messages {
        println!("{:?}: {}", message.role, message.plain_text());
    }
    let verdict = store.verify(&thread, &mut |_| {})?;
    println!(
        "{}",
        if verdict.judgement.finding == Finding::Sound { "unchanged since it was signed" } else { "changed" }
    );
    store.close()?;
    Ok(())
}

fn said(reason: Reason, role: Role, text: &str) -> Changeset {
    Changeset { messages: vec![Message::text(role, text)], ..Changeset::empty(reason) }
}

/// Puts a changeset into a run.
trait OfRun {
    fn of_run(self, run: &RunId, meta: Option<RunMeta>) -> Self;
}

impl OfRun for Changeset {
    fn of_run(self, run: &RunId, run_meta: Option<RunMeta>) -> Self {
        Self { run_id: Some(run.clone()), run_meta, ..self }
    }
}
