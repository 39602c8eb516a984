//! Whole turns from an empty store: the cost of a commit, the bytes on disk, the peak memory.

use std::path::Path;
use std::time::Instant;

use selvedge_store_local::Access;
use selvedge_store_local::layout::Layout;
use serde_json::{Value, json};

use crate::home::{Home, TEXT_BYTES, Writer};
use crate::measure::Spread;
use crate::peers::{Kind, Peers, bytes_of};
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan, child};

const MINUTE_S: f64 = 60.0;

/// The measurements of one subject.
struct TurnTimes {
    each_us: Vec<f64>,
    bytes: u64,
    peak_mib: f64,
}

pub(crate) fn measure(peers: &Peers, folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let sizes: &[u64] = if plan.quick { &[100] } else { &[100, 1_000] };
    for turns in sizes {
        let ours = ours(&folder.join(format!("ours-{turns}")), *turns)?;
        add_figures(report, "ours", "ours", *turns, &ours);
        let sum: f64 = ours.each_us.iter().sum();
        for kind in peers.kinds() {
            let found = theirs(peers, kind, *turns)?;
            add_figures(report, kind.name(), kind.title(), *turns, &found);
            // A peer that was stopped is compared over the commits that it had made.
            let same: f64 = ours.each_us.iter().take(found.each_us.len()).sum();
            let ratio =
                found.each_us.iter().sum::<f64>() / if found.each_us.len() < ours.each_us.len() { same } else { sum };
            let what = format!("  {} ÷ ours, all {} commits", kind.title(), found.each_us.len());
            let key = format!("turns_{turns}_{}_ratio", kind.name());
            report.figure(&key, &what, Unit::Times, &Spread::of(&[ratio]), Goal::None);
        }
    }
    report.method(
        "turns",
        format!(
            "a fresh process each, an empty store, {sizes:?} turns of three messages of {TEXT_BYTES} bytes with a commit after each; a peer \
             stops when it passes a minute; bytes after closing, of PostgreSQL what `pg_database_size` grew, its write-ahead log aside; \
             memory is the client's peak, without PostgreSQL's server"
        ),
    );
    Ok(())
}

/// The work of our process.
pub(crate) fn write(folder: &Path, turns: u64) -> Outcome<Value> {
    let store = Home::make(folder)?.open(Access::ReadWrite)?;
    let mut writer = Writer::create(&store, "scribe-0123456789ab", false)?;
    let mut each = Vec::new();
    for _ in 0..turns * 3 {
        let batch = writer.of_turn()?;
        let start = Instant::now();
        writer.commit(batch)?;
        each.push(start.elapsed().as_secs_f64() * 1e6);
    }
    store.close()?;
    Ok(json!({"each_us": each}))
}

fn ours(folder: &Path, turns: u64) -> Outcome<TurnTimes> {
    let (answer, _) = child::run(child::command("turns", folder, &[&turns.to_string()])?)?;
    Ok(TurnTimes {
        each_us: answer["each_us"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect(),
        bytes: bytes_of(Layout::of(folder).root())?,
        peak_mib: answer["peak_kib"].as_f64().unwrap_or(0.0) / 1024.0,
    })
}

fn theirs(peers: &Peers, kind: Kind, turns: u64) -> Outcome<TurnTimes> {
    let storage = peers.storage(kind, &format!("turns-{turns}"))?;
    let mut peer = peers.start(&storage)?;
    let size = json!({"do": "size"});
    let before = if kind == Kind::Postgres { peer.ask(&size)?["bytes"].as_u64().unwrap_or(0) } else { 0 };
    let lap = peer.commits(&json!({"do": "commits", "thread": "turns", "count": turns * 3, "seconds": MINUTE_S}))?;
    let after = if kind == Kind::Postgres { peer.ask(&size)?["bytes"].as_u64().unwrap_or(0) } else { 0 };
    let peak_mib = peer.peak_mib()?;
    peer.end()?;
    let bytes = match &storage.folder {
        Some(folder) => bytes_of(folder)?,
        None => after.saturating_sub(before),
    };
    if let Some(folder) = &storage.folder {
        std::fs::remove_dir_all(folder)?;
    }
    Ok(TurnTimes { each_us: lap.each, bytes, peak_mib })
}

fn add_figures(report: &mut Report, name: &str, title: &str, turns: u64, found: &TurnTimes) {
    let done = found.each_us.len();
    let stopped = if (done as u64) < turns * 3 { format!(", stopped after {done} commits") } else { String::new() };
    let what = format!("{title}, {turns} turns{stopped}: a commit");
    let key = |figure: &str| format!("turns_{turns}_{name}_{figure}");
    report.figure(&key("us"), &what, Unit::Micros, &Spread::of(&found.each_us), Goal::None);
    let last = &found.each_us[done - (done / 10).max(1).min(done)..];
    report.figure(&key("last_us"), "  the last tenth of them", Unit::Micros, &Spread::of(last), Goal::None);
    let payload = done as f64 * TEXT_BYTES as f64;
    let bytes = Spread::of(&[found.bytes as f64 / payload]);
    report.figure(&key("bytes"), "  bytes on disk ÷ text", Unit::Times, &bytes, Goal::None);
    report.figure(&key("peak_mib"), "  peak memory", Unit::Mebibytes, &Spread::of(&[found.peak_mib]), Goal::None);
}
