//! One thread, warm: a signed, durable commit, compared with a bare append and sync of the same bytes.

use std::path::Path;

use selvedge_store_local::Access;

use crate::bare::Bare;
use crate::home::{Home, Writer};
use crate::measure::{Lap, Spread, in_turns, lap, paired, timed, whole_lap};
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan};

/// The number of warm-up commits: statements are prepared, and the database's log has been filled and restarted.
const WARM_UP: usize = 1_000;
/// The number of commits over which processor time is measured; they last longer than the background worker waits.
const LONG_LAP: usize = 1_500;

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let commits = if plan.quick { 60 } else { 200 };
    let rounds = plan.rounds * 3;
    let found = compare(&folder.join("plain"), rounds, commits, plan.ids)?;
    add_figures(report, &found);
    // The engine gives every message an id, so this is the figure that counts.
    let named = if plan.ids { found } else { compare(&folder.join("named"), rounds, commits, true)? };
    let ratio = Spread::over(&named.rounds, |(commits, bare)| commits.mean() / bare.mean());
    report.figure("warm_with_id_ratio", "  same, the message with an id", Unit::Times, &ratio, Goal::AtMost(1.15));
    report.method(
        "warm",
        format!(
            "1 KiB message per commit, lease held, exact version, against appends of the very bytes that earlier commits of this thread wrote; \
             {rounds} rounds of {commits} each in turns, ratio of means per round; then as many commit, append, commit, append …, ratio of \
             medians per round; processor time of the whole process, the \
             background's included, over {LONG_LAP} commits"
        ),
    );
    Ok(())
}

struct Comparison {
    /// Laps in turns.
    rounds: Vec<(Lap, Lap)>,
    /// Laps whose operations are in turns: both see the disk in the same condition.
    pairs: Vec<(Lap, Lap)>,
    long: (Lap, Lap),
}

fn compare(folder: &Path, rounds: usize, commits: usize, ids: bool) -> Outcome<Comparison> {
    let home = Home::make(folder)?;
    let store = home.open(Access::ReadWrite)?;
    let mut writer = Writer::create(&store, "scribe-00000000000a", ids)?;
    let mut commit = || {
        let batch = writer.message()?;
        timed(|| writer.commit(batch))
    };
    lap(WARM_UP, &mut commit)?;
    let mut bare = Bare::make(&folder.join("bare"), writer.written()?.split_off(1))?;
    let mut commit = || {
        let batch = writer.message()?;
        timed(|| writer.commit(batch))
    };
    let mut append = || timed(|| bare.append());
    let pairs = (0..rounds).map(|_| paired(commits, &mut commit, &mut append)).collect::<Outcome<_>>()?;
    let rounds = in_turns(rounds, || lap(commits, &mut commit), |_| lap(commits, &mut append))?;
    let long = (whole_lap(LONG_LAP, commit)?, whole_lap(LONG_LAP, append)?);
    store.close()?;
    Ok(Comparison { rounds, pairs, long })
}

fn add_figures(report: &mut Report, found: &Comparison) {
    let rounds = &found.rounds;
    let sync = report.sync();
    let ratio = Spread::over(rounds, |(commits, bare)| commits.mean() / bare.mean());
    let what = "warm commit ÷ bare append + fdatasync";
    report.figure("warm_ratio", what, Unit::Times, &ratio, Goal::AtMost(1.15));
    let paired = Spread::over(&found.pairs, |(commits, bare)| commits.median() / bare.median());
    report.figure(
        "warm_paired_ratio",
        "  same, one by one in turns, medians",
        Unit::Times,
        &paired,
        Goal::AtMost(1.15),
    );
    let more = Spread::over(&found.pairs, |(commits, bare)| commits.median() - bare.median());
    report.figure("warm_paired_more_us", "  what a commit takes longer, so paired", Unit::Micros, &more, Goal::None);
    let commit = Spread::over(rounds, |(commits, _)| commits.mean());
    report.figure("warm_commit_us", "  a commit", Unit::Micros, &commit, Goal::None);
    let bare = Spread::over(rounds, |(_, bare)| bare.mean());
    report.figure("warm_bare_us", "  a bare append + fdatasync", Unit::Micros, &bare, Goal::None);
    let syncs = Spread::over(rounds, |(commits, _)| commits.mean() / sync);
    report.figure("warm_syncs", "  a commit ÷ this run's bare sync", Unit::Times, &syncs, Goal::None);
    let (commits, bare) = &found.long;
    let cpu = Spread::of(&[commits.cpu_mean()]);
    report.figure("warm_cpu_us", "  processor time of a commit", Unit::Cpu, &cpu, Goal::None);
    let cpu = Spread::of(&[bare.cpu_mean()]);
    report.figure("warm_bare_cpu_us", "  processor time of a bare append", Unit::Cpu, &cpu, Goal::None);
}
