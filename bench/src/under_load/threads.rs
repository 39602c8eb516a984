//! Many threads in one store: what grows with their number, and what must not.

use std::path::Path;

use selvedge_store::{Filter, Registry};
use selvedge_store_local::Access;
use selvedge_store_local::doctor::{Depth, Severity, examine};

use crate::Outcome;
use crate::home::{Home, Writer};
use crate::report::{Goal, Report, Unit};
use crate::under_load::{Size, millis, report_figure};

/// How long things took, in milliseconds.
struct Times {
    open_read: f64,
    open_write: f64,
    list: f64,
    find: f64,
    find_nothing: f64,
    resolve: f64,
    doctor: f64,
}

pub(crate) fn measure(folder: &Path, size: Size, report: &mut Report) -> Outcome<()> {
    let few = size.threads / 100;
    let many = size.threads;
    let early = times(&folder.join("few"), few)?;
    let late = times(&folder.join("many"), many)?;
    let mut compared = |what: &str, figure: fn(&Times) -> f64, goal: Goal| {
        report_figure(report, &format!("{what}, {many} threads"), Unit::Millis, figure(&late), Goal::None);
        let what = format!("  {what}: time at {many} ÷ at {few} threads");
        report_figure(report, &what, Unit::Times, figure(&late) / figure(&early), goal);
    };
    // A hundred times more threads: an operation that reads each of them would take about a hundred times as long.
    compared("open to read", |times| times.open_read, Goal::AtMost(5.0));
    // Opening scans the table once for manifests that a crash left stale: about a microsecond for each thread.
    compared("open to write", |times| times.open_write, Goal::AtMost(30.0));
    compared("list the newest 50", |times| times.list, Goal::AtMost(10.0));
    compared("one by the beginning of its id", |times| times.resolve, Goal::AtMost(10.0));
    compared("find the newest with a word in the title", |times| times.find, Goal::None);
    compared("find nothing", |times| times.find_nothing, Goal::None);
    compared("doctor", |times| times.doctor, Goal::None);
    let each = late.doctor / many as f64 * 1e3;
    report_figure(report, "doctor, for each thread", Unit::Micros, each, Goal::None);
    report.method(
        "threads",
        format!("{many} threads of one message each; medians of a few; doctor looks at the ends of logs"),
    );
    Ok(())
}

fn times(folder: &Path, threads: usize) -> Outcome<Times> {
    let home = Home::make(folder)?;
    let store = home.open(Access::ReadWrite)?;
    for index in 0..threads {
        let mut writer = Writer::create(&store, &format!("scribe-{index:012x}"), false)?;
        let batch = writer.message()?;
        writer.commit(batch)?;
        writer.release()?;
    }
    store.close()?;
    let open = |access: Access| millis(5, || Ok(home.open(access)?.close()?));
    let open_read = open(Access::ReadOnly)?;
    let open_write = open(Access::ReadWrite)?;
    let store = home.open(Access::ReadOnly)?;
    let list = |filter: &Filter| millis(9, || Ok(store.list(filter, None, 50)?));
    let text = |text: &str| Filter { text: Some(text.to_owned()), ..Filter::default() };
    let last = format!("scribe-{:012x}", threads - 1);
    let found = store.list(&text("scribe"), None, 50)?;
    if found.items.len() != threads.min(50) || store.resolve(&last)?.as_str() != last {
        return Err("an existing thread was not found".into());
    }
    let times = Times {
        open_read,
        open_write,
        list: list(&Filter::default())?,
        find: list(&text("scribe"))?,
        find_nothing: list(&text("nowhere"))?,
        resolve: millis(9, || Ok(store.resolve(&last)?))?,
        doctor: millis(1, || looked_at(&home, threads))?,
    };
    store.close()?;
    Ok(times)
}

fn looked_at(home: &Home, threads: usize) -> Outcome<()> {
    let report = examine(home.options(Access::ReadOnly)?, Depth::Ends, &mut |_, _| {});
    let worst = report.findings.iter().find(|finding| finding.severity > Severity::Note);
    match worst {
        Some(finding) => Err(format!("the doctor has a finding in {threads} sound threads: {finding:?}").into()),
        None => Ok(()),
    }
}
