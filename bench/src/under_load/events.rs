//! One thread of many events: appending costs the same as at its beginning, and its end is read without the rest.

use std::path::Path;
use std::time::Instant;

use selvedge_log::recovery::Finding;
use selvedge_store::{Logs, load};
use selvedge_store_local::Access;

use crate::Outcome;
use crate::home::{Home, Writer};
use crate::measure::{lap, settle, timed};
use crate::report::{Goal, Report, Unit};
use crate::under_load::{Size, millis, report_figure};

/// Events of one commit: messages and a checkpoint.
const TOGETHER: u64 = 10;
/// How many commits are timed at either end.
const WINDOW: usize = 100;

pub(crate) fn measure(folder: &Path, size: Size, report: &mut Report) -> Outcome<()> {
    let home = Home::make(&folder.join("store"))?;
    let store = home.open(Access::ReadWrite)?;
    let mut writer = Writer::create(&store, "scribe-0123456789ab", false)?;
    let append = |writer: &mut Writer<'_>| {
        lap(WINDOW, || {
            let batch = writer.message()?;
            timed(|| writer.commit(batch))
        })
    };
    append(&mut writer)?;
    let early = append(&mut writer)?.median();
    let thread = writer.thread().clone();
    let tail = |lines: u64| millis(9, || Ok(store.read(&thread, lines.saturating_sub(20), 20)?));
    let early_tail = tail(store.head(&thread)?.lines)?;
    let start = Instant::now();
    while store.head(&thread)?.lines < size.events {
        let batch = writer.messages(TOGETHER as usize - 1)?;
        writer.commit(batch)?;
    }
    let filled = start.elapsed().as_secs_f64();
    settle();
    let late = append(&mut writer)?.median();
    let lines = store.head(&thread)?.lines;
    let late_tail = tail(lines)?;
    let events = size.events;
    report_figure(
        report,
        &format!("commits of {TOGETHER} events, up to {events}"),
        Unit::PerSecond,
        events as f64 / TOGETHER as f64 / filled,
        Goal::None,
    );
    report_figure(
        report,
        &format!("append: time after {events} events ÷ at the beginning"),
        Unit::Times,
        late / early,
        Goal::AtMost(2.0),
    );
    report_figure(report, "the last 20 events", Unit::Millis, late_tail, Goal::None);
    report_figure(
        report,
        "  the last 20 events: time at the end ÷ at the beginning",
        Unit::Times,
        late_tail / early_tail,
        Goal::AtMost(10.0),
    );
    let loading = millis(3, || {
        let loaded = load::load(&store, &thread, store.trust(), None)?;
        if loaded.head.lines == lines { Ok(()) } else { Err("not every event was loaded".into()) }
    })?;
    report_figure(report, "load, checked", Unit::Millis, loading, Goal::None);
    let verifying = millis(1, || match store.verify(&thread, &mut |_| {})?.judgement.finding {
        Finding::Sound => Ok(()),
        other => Err(format!("a sound log has the finding {other:?}").into()),
    })?;
    report_figure(report, "verify, every signature", Unit::Millis, verifying, Goal::None);
    report_figure(report, "  verify ÷ load", Unit::Times, verifying / loading, Goal::None);
    store.close()?;
    let opening = millis(5, || Ok(home.open(Access::ReadWrite)?.close()?))?;
    report_figure(report, "open to write and close", Unit::Millis, opening, Goal::None);
    report.method("events", format!("{events} events; {WINDOW} single appends timed at either end, medians"));
    Ok(())
}
