//! One commit of one message, compared with a peer's equivalent, on a short thread and at 3,000 messages.

use std::path::Path;

use selvedge_store_local::Access;
use serde_json::json;

use crate::bare::Bare;
use crate::home::{Home, Writer};
use crate::measure::{Lap, Spread, lap, settle, timed};
use crate::peers::process::Peer;
use crate::peers::{Kind, Peers};
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan};

const WARM_UP: usize = 1_000;
const LONG: u64 = 3_000;

struct Round {
    bare: Lap,
    short: Lap,
    long: Lap,
    /// The peers' laps, in their order: short, then long.
    peers: Vec<(Lap, Lap)>,
}

pub(crate) fn measure(peers: &Peers, folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let home = Home::make(&folder.join("store"))?;
    let store = home.open(Access::ReadWrite)?;
    let mut short = Writer::create(&store, "short-00000000000a", plan.ids)?;
    let mut long = Writer::create(&store, "long-00000000000b", plan.ids)?;
    commits(&mut short, WARM_UP)?;
    long.write_turns(LONG / 3)?;
    let mut bare = Bare::make(&folder.join("bare"), short.written()?.split_off(1))?;
    let kinds = peers.kinds();
    let mut running = Vec::new();
    for kind in &kinds {
        let mut peer = peers.start(&peers.storage(*kind, "commit")?)?;
        peer.ask(&json!({"do": "commits", "thread": "short", "count": 50}))?;
        peer.ask(&json!({"do": "fill", "thread": "long", "messages": LONG}))?;
        running.push(peer);
    }
    let mut rounds = Vec::new();
    for _ in 0..plan.rounds {
        let bare = lap(100, || timed(|| bare.append()))?;
        let short = commits(&mut short, 100)?;
        let long = commits(&mut long, 100)?;
        // Our background work is not charged to a peer.
        settle();
        let peers = kinds.iter().zip(&mut running).map(|(kind, peer)| theirs(*kind, peer)).collect::<Outcome<_>>()?;
        rounds.push(Round { bare, short, long, peers });
    }
    store.close()?;
    running.into_iter().try_for_each(Peer::end)?;
    add_figures(report, &kinds, &rounds);
    report.method(
        "one commit",
        format!(
            "{} rounds in turns: 100 bare appends, 100 commits on a thread of {WARM_UP} messages and more, 100 on one of {LONG}, 30 of each \
             peer on a short thread (50 to 400 messages), 100 `add_items` or 10 `put` at {LONG} messages, which a single call had \
             written; by each one's own clock around its own call; ratio of means per round",
            plan.rounds
        ),
    );
    Ok(())
}

fn commits(writer: &mut Writer<'_>, count: usize) -> Outcome<Lap> {
    lap(count, || {
        let batch = writer.message()?;
        timed(|| writer.commit(batch))
    })
}

fn theirs(kind: Kind, peer: &mut Peer) -> Outcome<(Lap, Lap)> {
    let short = peer.commits(&json!({"do": "commits", "thread": "short", "count": 30}))?;
    let count = if kind == Kind::Session { 100 } else { 10 };
    Ok((short, peer.commits(&json!({"do": "commits", "thread": "long", "count": count}))?))
}

fn add_figures(report: &mut Report, kinds: &[Kind], rounds: &[Round]) {
    let mut micros = |key: &str, what: &str, figure: &dyn Fn(&Round) -> f64| {
        report.figure(key, what, Unit::Micros, &Spread::over(rounds, figure), Goal::None);
    };
    micros("peer_bare_us", "bare append + fdatasync", &|round| round.bare.mean());
    micros("peer_ours_us", "our commit, short thread", &|round| round.short.mean());
    micros("peer_ours_long_us", &format!("our commit at {LONG} messages"), &|round| round.long.mean());
    for (index, kind) in kinds.iter().enumerate() {
        let name = kind.name();
        let title = kind.title();
        micros(&format!("peer_{name}_us"), &format!("{title}, short thread"), &|round| round.peers[index].0.mean());
        let what = format!("{title} at {LONG} messages");
        micros(&format!("peer_{name}_long_us"), &what, &|round| round.peers[index].1.mean());
    }
    for (index, kind) in kinds.iter().enumerate() {
        let name = kind.name();
        let title = kind.title();
        let short = Spread::over(rounds, |round| round.peers[index].0.mean() / round.short.mean());
        let goal = if *kind == Kind::Session { Goal::AtLeast(2.0) } else { Goal::None };
        let what = format!("{title} ÷ our commit, short thread");
        report.figure(&format!("peer_{name}_ratio"), &what, Unit::Times, &short, goal);
        let long = Spread::over(rounds, |round| round.peers[index].1.mean() / round.long.mean());
        let goal = if *kind == Kind::Sqlite { Goal::AtLeast(100.0) } else { Goal::None };
        let what = format!("{title} ÷ our commit, at {LONG} messages");
        report.figure(&format!("peer_{name}_long_ratio"), &what, Unit::Times, &long, goal);
    }
}
