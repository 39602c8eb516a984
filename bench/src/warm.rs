//! One thread, warm: a signed, durable commit against a bare append and sync of as many bytes.

use std::path::Path;
use std::time::Duration;

use selvedge_store_local::Access;

use crate::bare::Bare;
use crate::home::{Home, Writer};
use crate::measure::{Lap, Length, Spread, in_turns, lap};
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan};

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let length = match plan.quick {
        true => Length::AtLeast(60, Duration::from_millis(300)),
        false => Length::AtLeast(200, Duration::from_millis(1_000)),
    };
    let plain = rounds(&folder.join("plain"), plan.rounds, length, plan.ids)?;
    tell(report, "warm", "warm commit ÷ bare append + fdatasync", Goal::AtMost(1.15), &plain);
    if !plan.ids {
        let named = rounds(&folder.join("named"), plan.rounds.min(5), length, true)?;
        let ratio = Spread::over(&named, |(a, b)| a.mean() / b.mean());
        report.figure("warm_with_id_ratio", "  same, the message with an id", Unit::Times, &ratio, Goal::AtMost(1.15));
    }
    report.method(
        "warm",
        "1 KiB message per commit, lease held, exact version; bare loop of the transcript's growth per commit; rounds in turns, \
         ratio of means per round; CPU of the whole process, background sync included"
            .to_owned(),
    );
    Ok(())
}

fn rounds(folder: &Path, rounds: usize, length: Length, ids: bool) -> Outcome<Vec<(Lap, Lap)>> {
    let home = Home::make(folder)?;
    let store = home.open(Access::ReadWrite)?;
    let mut writer = Writer::create(&store, "scribe-00000000000a", ids)?;
    let mut bare = Bare::make(&folder.join("bare"))?;
    let mut growth = 0;
    let mut commits = || {
        let before = writer.transcript_bytes()?;
        // One value makes the batch and hands it in, so it is passed along instead of borrowed twice.
        let lap = laps_of(&mut writer, length)?;
        growth = (writer.transcript_bytes()? - before) as usize / lap.each.len();
        Ok((lap, growth))
    };
    // The first lap warms up: connections, statements, the database's log grown to its size.
    commits()?;
    let found = in_turns(rounds, commits, |(lap_of_commits, growth)| {
        lap(Length::Count(lap_of_commits.each.len()), || (), |()| bare.append(*growth))
    })?;
    store.close()?;
    Ok(found.into_iter().map(|((commits, _), bare)| (commits, bare)).collect())
}

fn laps_of(writer: &mut Writer<'_>, length: Length) -> Outcome<Lap> {
    let writer = std::cell::RefCell::new(writer);
    lap(length, || writer.borrow_mut().message(), |batch| writer.borrow_mut().commit(batch?))
}

fn tell(report: &mut Report, key: &str, what: &str, goal: Goal, rounds: &[(Lap, Lap)]) {
    let sync = report.sync();
    let ratio = Spread::over(rounds, |(a, b)| a.mean() / b.mean());
    report.figure(&format!("{key}_ratio"), what, Unit::Times, &ratio, goal);
    let middle = Spread::over(rounds, |(a, b)| a.median() / b.median());
    report.figure(&format!("{key}_median_ratio"), "  same, medians instead of means", Unit::Times, &middle, Goal::None);
    let commit = Spread::over(rounds, |(a, _)| a.mean());
    report.figure(&format!("{key}_commit_us"), "  a commit", Unit::Micros, &commit, Goal::None);
    let bare = Spread::over(rounds, |(_, b)| b.mean());
    report.figure(&format!("{key}_bare_us"), "  a bare append + fdatasync", Unit::Micros, &bare, Goal::None);
    let syncs = Spread::over(rounds, |(a, _)| a.mean() / sync);
    report.figure(&format!("{key}_syncs"), "  a commit ÷ this run's bare sync", Unit::Times, &syncs, Goal::None);
    let cpu = Spread::over(rounds, |(a, _)| a.cpu_mean());
    report.figure(&format!("{key}_cpu_us"), "  processor time of a commit", Unit::Micros, &cpu, Goal::None);
    let bare_cpu = Spread::over(rounds, |(_, b)| b.cpu_mean());
    report.figure(
        &format!("{key}_bare_cpu_us"),
        "  processor time of a bare append",
        Unit::Micros,
        &bare_cpu,
        Goal::None,
    );
}
