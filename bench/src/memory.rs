//! The peak memory of a process that loads a long thread.

use std::path::Path;

use serde_json::json;

use crate::home::with_turns;
use crate::measure::Spread;
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan, child};

const EVENTS: u64 = 15_000;

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let (home, thread) = with_turns(&folder.join("store"), EVENTS / 6, plan.ids)?;
    let mut peaks = Vec::new();
    for _ in 0..3 {
        let (answer, _) = child::run(child::command("load", home.folder(), &[thread.as_str()])?)?;
        report.number("memory_events", json!(answer["events"]));
        peaks.push(answer["peak_kib"].as_f64().unwrap_or(0.0) / 1024.0);
    }
    let what = format!("peak memory, {EVENTS} events loaded and folded");
    report.figure("memory_peak_mib", &what, Unit::Mebibytes, &Spread::of(&peaks), Goal::AtMost(40.0));
    report.method(
        "memory",
        format!("VmHWM of a fresh process that loads a thread of {} turns, all messages kept", EVENTS / 6),
    );
    Ok(())
}
