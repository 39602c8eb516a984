//! Two processes that write to one thread: which messages are lost without an error.

use std::path::Path;

use selvedge_model::{Batch, Changeset, Expect, Message, Part, Reason, Role, ThreadId};
use selvedge_store::{Commit, Error, Logs, load};
use selvedge_store_local::Access;
use serde_json::{Value, json};

use crate::home::{Home, with_turns};
use crate::measure::Spread;
use crate::peers::process::Peer;
use crate::peers::{Kind, Peers};
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan, child};

const WRITERS: usize = 2;

pub(crate) fn measure(peers: &Peers, folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let count = if plan.quick { 50 } else { 300 };
    let (lost, conflicts) = ours(&folder.join("store"), count)?;
    add_figures(report, "ours", "ours", lost, &format!("{conflicts} conflicts said, tried again"));
    for kind in peers.kinds() {
        let (lost, errors) = theirs(peers, kind, count)?;
        add_figures(report, kind.name(), kind.title(), lost, &format!("{errors} errors said"));
    }
    report.method(
        "two writers",
        format!(
            "two processes on one thread, each {count} times: read the newest state, add one message, write. Ours with the version it read, \
             again after a conflict; `add_items` needs no reading. Lost: acknowledged without an error, and not in the newest state afterwards"
        ),
    );
    Ok(())
}

/// The work of our process: appends messages after the version it read last; returns the number of conflicts.
pub(crate) fn write(folder: &Path, thread: &str, count: usize) -> Outcome<Value> {
    let store = Home::at(folder)?.open(Access::ReadWrite)?;
    let thread = ThreadId::new(thread)?;
    let mut conflicts = 0;
    for index in 0..count {
        loop {
            let version = store.head(&thread)?.version;
            let message = Message::text(Role::User, format!("{index} of {}", std::process::id()));
            let changeset = Changeset { messages: vec![message], ..Changeset::empty(Reason::UserMessage) };
            match store.commit(Batch::of(Part::new(thread.clone(), Expect::Exact(version), changeset))) {
                Ok(_) => break,
                Err(Error::Conflict { .. }) => conflicts += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }
    store.close()?;
    Ok(json!({"conflicts": conflicts}))
}

fn ours(folder: &Path, count: usize) -> Outcome<(f64, u64)> {
    let (home, thread) = with_turns(folder, 1, false)?;
    let writers =
        (0..WRITERS).map(|_| Ok(child::command("race", folder, &[thread.as_str(), &count.to_string()])?.spawn()?));
    let writers = writers.collect::<Outcome<Vec<_>>>()?;
    let mut conflicts = 0;
    for writer in writers {
        let output = writer.wait_with_output()?;
        let answer: Value = serde_json::from_slice(&output.stdout)?;
        conflicts += answer["conflicts"].as_u64().unwrap_or(0);
    }
    let store = home.open(Access::ReadOnly)?;
    let loaded = load::load(&store, &thread, store.trust(), None)?;
    let kept = loaded.thread.messages.len() as f64 - 3.0;
    Ok((1.0 - kept / (WRITERS * count) as f64, conflicts))
}

fn theirs(peers: &Peers, kind: Kind, count: usize) -> Outcome<(f64, u64)> {
    let storage = peers.storage(kind, "race")?;
    // Started one after the other, because a saver's set-up does not support two at once; both are warm before they race.
    let mut writers = vec![peers.start(&storage)?];
    writers[0].ask(&json!({"do": "fill", "thread": "t", "messages": 1}))?;
    while writers.len() < WRITERS {
        writers.push(peers.start(&storage)?);
    }
    for writer in &mut writers {
        writer.ask(&json!({"do": "load", "thread": "t"}))?;
    }
    for writer in &mut writers {
        writer.send(&json!({"do": "race", "thread": "t", "count": count}))?;
    }
    let errors = writers.iter_mut().map(|writer| Ok(writer.receive()?["errors"].as_u64().unwrap_or(0)));
    let errors: u64 = errors.collect::<Outcome<Vec<_>>>()?.into_iter().sum();
    let kept = writers[0].ask(&json!({"do": "load", "thread": "t"}))?["messages"].as_f64().unwrap_or(0.0) - 1.0;
    writers.into_iter().try_for_each(Peer::end)?;
    let acknowledged = (WRITERS * count) as f64 - errors as f64;
    Ok((1.0 - kept / acknowledged.max(1.0), errors))
}

fn add_figures(report: &mut Report, name: &str, title: &str, lost: f64, said: &str) {
    let what = format!("{title}, two processes: lost without a word ({said})");
    report.figure(&format!("race_{name}_lost"), &what, Unit::Share, &Spread::of(&[lost]), Goal::None);
}
