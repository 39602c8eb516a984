//! A fresh process opens a store and shows a short thread.

use std::path::Path;
use std::time::Instant;

use selvedge_model::ThreadId;
use selvedge_store::{Logs, Registry};
use selvedge_store_local::Access;
use serde_json::{Value, json};

use crate::home::{Home, with_turns};
use crate::measure::Spread;
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan, child};

const EVENTS: u64 = 300;

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    // A turn is three commits of a message and a checkpoint each.
    let (home, thread) = with_turns(&folder.join("store"), EVENTS / 6, plan.ids)?;
    let mut whole = Vec::new();
    let mut inside = Vec::new();
    for _ in 0..plan.starts {
        let (answer, took) = child::run(child::command("show", home.folder(), &[thread.as_str()])?)?;
        whole.push(took.as_secs_f64() * 1e3);
        inside.push(answer["show_ms"].as_f64().unwrap_or(0.0));
    }
    let what = format!("fresh process opens the store, shows {EVENTS} events");
    report.figure("startup_process_ms", &what, Unit::Millis, &Spread::of(&whole), Goal::AtMost(10.0));
    report.figure("startup_show_ms", "  without the process itself", Unit::Millis, &Spread::of(&inside), Goal::None);
    report.method(
        "startup",
        "read-only open, the registry's row, every line read; start to exit, seen from outside".to_owned(),
    );
    Ok(())
}

/// The work of the fresh process.
pub(crate) fn show(folder: &Path, thread: &str) -> Outcome<Value> {
    let start = Instant::now();
    let store = Home::at(folder)?.open(Access::ReadOnly)?;
    let thread = ThreadId::new(thread)?;
    let summary = store.get(&thread)?;
    let lines = store.read(&thread, 0, usize::MAX)?;
    let took = start.elapsed();
    Ok(json!({"show_ms": took.as_secs_f64() * 1e3, "events": lines.len(), "version": summary.version}))
}
