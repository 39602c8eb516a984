//! A fresh process appends one message: how often it syncs, and how long it lives.
//!
//! Syncs are counted by a library that is loaded into the process (`shim/syncs.c`), so those of SQLite count too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use selvedge_model::{Batch, Changeset, Expect, Message, MessageId, Part, Reason, Role, ThreadId};
use selvedge_store::Commit;
use selvedge_store_local::Access;
use serde_json::{Value, json};

use crate::home::{Home, TEXT_BYTES, with_turns};
use crate::measure::Spread;
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan, child};

const TURNS: u64 = 50;
/// What a sync takes where the goal is meant, in milliseconds.
const SYNC_MS: f64 = 0.2;
const SHIM: &str = include_str!("../shim/syncs.c");

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let (home, thread) = with_turns(&folder.join("store"), TURNS, true)?;
    let shim = match compile(folder) {
        Ok(shim) => Some(shim),
        Err(why) => {
            report.skip("the syncs of an append", &why.to_string());
            None
        }
    };
    let mut whole = Vec::new();
    let mut inside = Vec::new();
    let mut syncs = Vec::new();
    for round in 0..plan.starts {
        let mut command = child::command("append", home.folder(), &[thread.as_str(), &round.to_string()])?;
        let counted = folder.join(format!("syncs-{round}"));
        if let Some(shim) = &shim {
            command.env("LD_PRELOAD", shim).env("SELVEDGE_BENCH_SYNCS", &counted);
        }
        let (answer, took) = child::run(command)?;
        whole.push(took.as_secs_f64() * 1e3);
        inside.push(answer["append_ms"].as_f64().unwrap_or(0.0));
        if shim.is_some() {
            syncs.push(fs::read_to_string(&counted)?.trim().parse::<f64>()?);
        }
    }
    tell(report, &whole, &inside, &syncs);
    Ok(())
}

fn tell(report: &mut Report, whole: &[f64], inside: &[f64], syncs: &[f64]) {
    let sync_ms = report.section_sync() / 1e3;
    let what = "fresh process opens the store, appends one message, closes it";
    report.figure("append_process_raw_ms", what, Unit::Millis, &Spread::of(whole), Goal::None);
    report.figure("append_inside_ms", "  without the process itself", Unit::Millis, &Spread::of(inside), Goal::None);
    if !syncs.is_empty() {
        report.figure("append_syncs", "  syncs", Unit::Count, &Spread::of(syncs), Goal::AtMost(3.0));
        let dearer = (sync_ms - SYNC_MS).max(0.0);
        let even: Vec<f64> = whole.iter().zip(syncs).map(|(whole, syncs)| (whole - syncs * dearer).max(0.0)).collect();
        let what = "  the whole process, if each sync took 0.2 ms";
        report.figure("append_process_ms", what, Unit::Millis, &Spread::of(&even), Goal::AtMost(10.0));
    }
    report.method(
        "append",
        format!(
            "1 KiB message with an id, to a thread of {TURNS} turns, start to exit, seen from outside; every fsync and fdatasync of the \
             process is counted; where a bare sync takes longer than 0.2 ms, the difference is taken off once per sync"
        ),
    );
}

/// What the fresh process does.
pub(crate) fn append(folder: &Path, thread: &str, name: &str) -> Outcome<Value> {
    let start = Instant::now();
    let store = Home::at(folder)?.open(Access::ReadWrite)?;
    let message = Message::text(Role::User, "x".repeat(TEXT_BYTES)).with_id(MessageId::new(format!("append-{name}"))?);
    let changeset = Changeset { messages: vec![message], ..Changeset::empty(Reason::UserMessage) };
    store.commit(Batch::of(Part::new(ThreadId::new(thread)?, Expect::Any, changeset)))?;
    // As every command closes it.
    store.close_briefly()?;
    Ok(json!({"append_ms": start.elapsed().as_secs_f64() * 1e3}))
}

/// The library that counts syncs.
fn compile(folder: &Path) -> Outcome<PathBuf> {
    let source = folder.join("syncs.c");
    let library = folder.join("syncs.so");
    fs::write(&source, SHIM)?;
    let made =
        Command::new("cc").args(["-O1", "-fPIC", "-shared", "-o"]).arg(&library).arg(&source).arg("-ldl").output();
    match made {
        Ok(made) if made.status.success() => Ok(library),
        Ok(made) => Err(format!("`cc` failed: {}", String::from_utf8_lossy(&made.stderr)).into()),
        Err(error) => Err(format!("there is no C compiler: {error}").into()),
    }
}
