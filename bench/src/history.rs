//! Whether a commit late in a thread costs the same as an early one.

use std::path::Path;

use selvedge_store_local::Access;

use crate::home::{Home, Writer};
use crate::measure::{Lap, Spread, in_turns, settle, timed, whole_lap};
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan};

/// The number of turns of a window: 300 commits.
const WINDOW_TURNS: u64 = 100;
const EARLY_TURN: u64 = 100;

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let long = Home::make(&folder.join("long"))?;
    let short = Home::make(&folder.join("short"))?;
    let long = long.open(Access::ReadWrite)?;
    let short = short.open(Access::ReadWrite)?;
    // The windows are around the late turn, half of them on either side.
    let first = plan.late_turn.saturating_sub(WINDOW_TURNS * plan.rounds as u64 / 2);
    let mut old = Writer::create(&long, "scribe-00000000000b", plan.ids)?;
    old.write_turns(first)?;
    settle();
    let mut young = 0;
    let mut early = || {
        young += 1;
        let mut writer = Writer::create(&short, &format!("scribe-{young:012x}"), plan.ids)?;
        writer.write_turns(EARLY_TURN - WINDOW_TURNS / 2)?;
        settle();
        window(&mut writer)
    };
    early()?;
    let rounds = in_turns(plan.rounds, early, |_| window(&mut old))?;
    long.close()?;
    short.close()?;
    add_figures(report, plan, &rounds);
    Ok(())
}

fn window(writer: &mut Writer<'_>) -> Outcome<Lap> {
    whole_lap(WINDOW_TURNS as usize * 3, || {
        let batch = writer.of_turn()?;
        timed(|| writer.commit(batch))
    })
}

fn add_figures(report: &mut Report, plan: Plan, rounds: &[(Lap, Lap)]) {
    let turn = plan.late_turn;
    let what = format!("commit at turn {turn} ÷ at turn {EARLY_TURN}, median time");
    let median = Spread::over(rounds, |(early, late)| late.median() / early.median());
    report.figure("history_ratio", &what, Unit::Times, &median, Goal::AtMost(1.1));
    let mean = Spread::over(rounds, |(early, late)| late.mean() / early.mean());
    report.figure("history_mean_ratio", "  same, mean time", Unit::Times, &mean, Goal::None);
    let cpu = Spread::over(rounds, |(early, late)| late.cpu_mean() / early.cpu_mean());
    report.figure("history_cpu_ratio", "  same, processor time", Unit::Times, &cpu, Goal::AtMost(1.1));
    let late = Spread::over(rounds, |(_, late)| late.cpu_mean());
    report.figure("history_late_cpu_us", "  processor time of a late commit", Unit::Cpu, &late, Goal::None);
    report.method(
        "history",
        format!(
            "two stores; windows of {WINDOW_TURNS} turns (three 1 KiB commits each) around turn {EARLY_TURN} of fresh threads and \
             around turn {turn} of one thread, in turns, ratio per round"
        ),
    );
}
