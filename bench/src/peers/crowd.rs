//! Eight and 64 at once, each with a thread of its own, in one process.

use std::path::Path;

use selvedge_store_local::Access;
use serde_json::json;

use crate::crowd::committed;
use crate::home::{Home, Writer};
use crate::measure::Spread;
use crate::peers::process::Peer;
use crate::peers::{Kind, Peers};
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan};

const CROWDS: [usize; 2] = [8, 64];
const COMMITS: usize = 60;

pub(crate) fn measure(peers: &Peers, folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let rounds = if plan.quick { 1 } else { 5 };
    for threads in CROWDS {
        let home = Home::make(&folder.join(format!("store-{threads}")))?;
        let store = home.open(Access::ReadWrite)?;
        let writers = (0..threads).map(|index| Writer::create(&store, &format!("scribe-{index:012x}"), plan.ids));
        let mut writers = writers.collect::<Outcome<Vec<_>>>()?;
        committed(&mut writers, COMMITS)?;
        let kinds = peers.kinds();
        let start = |kind: &Kind| peers.start(&peers.storage(*kind, &format!("crowd-{threads}"))?);
        let mut running = kinds.iter().map(start).collect::<Outcome<Vec<_>>>()?;
        let ask = json!({"do": "crowd", "threads": threads, "commits": COMMITS});
        // Measuring starts after every peer has imported what it needs and has had a warm-up round.
        running.iter_mut().try_for_each(|peer| peer.ask(&ask).map(|_| ()))?;
        let mut found = Vec::new();
        for _ in 0..rounds {
            let ours = committed(&mut writers, COMMITS)?.per_second;
            let pace = |peer: &mut Peer| {
                peer.ask(&ask)?["per_second"].as_f64().ok_or("a peer did not report its throughput".into())
            };
            found.push((ours, running.iter_mut().map(pace).collect::<Outcome<Vec<_>>>()?));
        }
        store.close()?;
        add_figures(report, threads, &kinds, &found);
    }
    report.method(
        "many at once",
        format!(
            "{rounds} rounds in turns, behind one that does not count; {COMMITS} commits of one message each per thread and round, peers each round on new, so short, \
             threads; LangGraph's savers by OS threads over one saver (PostgreSQL: a pool of 16 connections), the Agents SDK by tasks of one event loop"
        ),
    );
    Ok(())
}

fn add_figures(report: &mut Report, threads: usize, kinds: &[Kind], found: &[(f64, Vec<f64>)]) {
    let ours = Spread::over(found, |(ours, _)| *ours);
    let what = format!("our commits, {threads} threads");
    report.figure(&format!("peer_crowd_{threads}_ours"), &what, Unit::PerSecond, &ours, Goal::None);
    for (index, kind) in kinds.iter().enumerate() {
        let name = kind.name();
        let title = kind.title();
        let theirs = Spread::over(found, |(_, theirs)| theirs[index]);
        let key = format!("peer_crowd_{threads}_{name}");
        report.figure(&key, &format!("{title}, {threads} at once"), Unit::PerSecond, &theirs, Goal::None);
        let ratio = Spread::over(found, |(ours, theirs)| ours / theirs[index].max(f64::MIN_POSITIVE));
        let goal = match (threads, kind) {
            (64, Kind::Sqlite) => Goal::AtLeast(8.0),
            (64, Kind::Session) => Goal::AtLeast(10.0),
            _ => Goal::None,
        };
        report.figure(&format!("{key}_ratio"), &format!("  ours ÷ {title}"), Unit::Times, &ratio, goal);
    }
}
