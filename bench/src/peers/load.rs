//! A fresh process loads the newest state: ours verified, the peers' unverified.

use std::path::Path;
use std::time::Instant;

use serde_json::json;

use crate::home::with_turns;
use crate::measure::Spread;
use crate::peers::{Kind, PeerStorage, Peers};
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan, child};

/// The times of a fresh process, in milliseconds.
#[derive(Clone, Copy, Default)]
struct Start {
    whole: f64,
    load: f64,
    peak_mib: f64,
}

pub(crate) fn measure(peers: &Peers, folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let starts = if plan.quick { 3 } else { 9 };
    let kinds = peers.kinds();
    // A turn is three messages, and six events with their checkpoints.
    for (name, messages) in [("loading", 3_000_u64), ("startup", 150)] {
        let (home, thread) = with_turns(&folder.join(name), messages / 3, plan.ids)?;
        let storages = kinds.iter().map(|kind| filled(peers, *kind, name, messages)).collect::<Outcome<Vec<_>>>()?;
        let role = if name == "loading" { "load" } else { "show" };
        let mut found = Vec::new();
        for _ in 0..starts {
            let (answer, took) = child::run(child::command(role, home.folder(), &[thread.as_str()])?)?;
            let load = answer["load_ms"].as_f64().or(answer["show_ms"].as_f64()).unwrap_or(0.0);
            let peak_mib = answer["peak_kib"].as_f64().unwrap_or(0.0) / 1024.0;
            let ours = Start { whole: took.as_secs_f64() * 1e3, load, peak_mib };
            found.push((ours, storages.iter().map(|storage| fresh(peers, storage)).collect::<Outcome<Vec<_>>>()?));
        }
        add_figures(report, name, messages, &kinds, &found);
    }
    report.method(
        "a fresh process",
        format!(
            "{starts} starts of each in turns, warm page cache; whole: from starting a process to its end, for Python with its imports; load \
             alone: the call that reads, by the process's own clock. Ours checks every hash and the last signature (at 150 messages it only shows); peers check nothing"
        ),
    );
    Ok(())
}

fn filled(peers: &Peers, kind: Kind, name: &str, messages: u64) -> Outcome<PeerStorage> {
    let storage = peers.storage(kind, name)?;
    let mut peer = peers.start(&storage)?;
    peer.ask(&json!({"do": "fill", "thread": "t", "messages": messages}))?;
    peer.end()?;
    Ok(storage)
}

fn fresh(peers: &Peers, storage: &PeerStorage) -> Outcome<Start> {
    let start = Instant::now();
    let mut peer = peers.start(storage)?;
    let load = peer.ask(&json!({"do": "load", "thread": "t"}))?["load_ms"].as_f64().unwrap_or(0.0);
    let peak_mib = peer.peak_mib()?;
    peer.end()?;
    Ok(Start { whole: start.elapsed().as_secs_f64() * 1e3, load, peak_mib })
}

/// A figure of one round: ours, and the peers'.
type Figure<'a> = &'a dyn Fn(&(Start, Vec<Start>)) -> f64;

fn add_figures(report: &mut Report, name: &str, messages: u64, kinds: &[Kind], found: &[(Start, Vec<Start>)]) {
    let mut row = |key: &str, what: &str, unit: Unit, figure: Figure<'_>| {
        report.figure(&format!("peer_{name}_{key}"), what, unit, &Spread::over(found, figure), Goal::None);
    };
    row("ours_ms", &format!("ours, {messages} messages, whole process"), Unit::Millis, &|(ours, _)| ours.whole);
    row("ours_load_ms", "  load alone", Unit::Millis, &|(ours, _)| ours.load);
    row("ours_peak_mib", "  peak memory", Unit::Mebibytes, &|(ours, _)| ours.peak_mib);
    for (index, kind) in kinds.iter().enumerate() {
        let key = |figure: &str| format!("{}_{figure}", kind.name());
        let what = format!("{}, {messages} messages, whole process", kind.reading());
        row(&key("ms"), &what, Unit::Millis, &|(_, theirs)| theirs[index].whole);
        row(&key("load_ms"), "  load alone", Unit::Millis, &|(_, theirs)| theirs[index].load);
        row(&key("peak_mib"), "  peak memory", Unit::Mebibytes, &|(_, theirs)| theirs[index].peak_mib);
        row(&key("ratio"), "  its whole process ÷ ours", Unit::Times, &|(ours, theirs)| {
            theirs[index].whole / ours.whole
        });
    }
    let fastest = |theirs: &[Start]| theirs.iter().map(|start| start.load).fold(f64::MAX, f64::min);
    let ratio = Spread::over(found, |(ours, theirs)| ours.whole / fastest(theirs));
    let what = "our whole process ÷ the fastest peer's load alone";
    let goal = if name == "loading" { Goal::AtMost(1.0) } else { Goal::None };
    report.figure(&format!("peer_{name}_ratio"), what, Unit::Times, &ratio, goal);
}
