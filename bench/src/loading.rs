//! A fresh process loads a thread: one pass over its log, every hash and the last signature verified, folded.

use std::path::Path;
use std::time::Instant;

use selvedge_model::ThreadId;
use selvedge_store::load;
use selvedge_store_local::Access;
use serde_json::{Value, json};

use crate::home::{Home, with_turns};
use crate::measure::Spread;
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan, child};

const TURNS: u64 = 1_000;

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let (home, thread) = with_turns(&folder.join("store"), TURNS, plan.ids)?;
    let mut whole = Vec::new();
    let mut answers = Vec::new();
    for _ in 0..plan.starts {
        let (answer, took) = child::run(child::command("load", home.folder(), &[thread.as_str()])?)?;
        whole.push(took.as_secs_f64() * 1e3);
        answers.push(answer);
    }
    let inside = |key: &str| Spread::over(&answers, |answer| answer[key].as_f64().unwrap_or(0.0));
    let what = format!("fresh process loads {} messages, checked", TURNS * 3);
    report.figure("loading_process_ms", &what, Unit::Millis, &Spread::of(&whole), Goal::AtMost(40.0));
    report.figure("loading_open_ms", "  opening the store, of that", Unit::Millis, &inside("open_ms"), Goal::None);
    report.figure("loading_load_ms", "  loading, of that", Unit::Millis, &inside("load_ms"), Goal::None);
    let nothing = Spread::of(&child::nothing(plan.starts)?);
    report.figure("loading_nothing_ms", "  a process that does nothing", Unit::Millis, &nothing, Goal::None);
    report.method(
        "loading",
        format!("{TURNS} turns, closed store, warm page cache; start to exit of a process, seen from outside"),
    );
    Ok(())
}

/// The work of the fresh process.
pub(crate) fn load(folder: &Path, thread: &str) -> Outcome<Value> {
    let start = Instant::now();
    let store = Home::at(folder)?.open(Access::ReadOnly)?;
    let open = start.elapsed();
    let thread = ThreadId::new(thread)?;
    let loaded = load::load(&store, &thread, store.trust(), None)?;
    let both = start.elapsed();
    Ok(json!({
        "open_ms": open.as_secs_f64() * 1e3, "load_ms": (both - open).as_secs_f64() * 1e3,
        "messages": loaded.thread.messages.len(), "events": loaded.head.lines,
    }))
}
