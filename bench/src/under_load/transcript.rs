//! One thread of many bytes: it verifies in a few megabytes of memory, and loads in not much more than its size.

use std::path::Path;

use selvedge_model::ThreadId;
use selvedge_store_local::Access;
use serde_json::{Value, json};

use crate::home::{Home, Writer};
use crate::report::{Goal, Report, Unit};
use crate::under_load::{Size, report_figure};
use crate::{Outcome, child};

/// The length of one message.
const MESSAGE_MIB: u64 = 1;
/// Several lines of the longest kind, and the program.
const VERIFY_MIB_MAX: f64 = 96.0;

pub(crate) fn measure(folder: &Path, size: Size, report: &mut Report) -> Outcome<()> {
    let home = Home::make(&folder.join("store"))?;
    let store = home.open(Access::ReadWrite)?;
    let mut writer = Writer::create(&store, "scribe-0123456789ab", false)?;
    for _ in 0..size.transcript_mib / MESSAGE_MIB {
        let batch = writer.message_of(MESSAGE_MIB as usize * 1024 * 1024)?;
        writer.commit(batch)?;
    }
    let thread = writer.thread().to_string();
    store.close()?;
    let mib = size.transcript_mib as f64;
    for (role, most) in [("verify", VERIFY_MIB_MAX), ("load", mib * 2.0 + VERIFY_MIB_MAX)] {
        let (answer, took) = child::run(child::command(role, home.folder(), &[&thread])?)?;
        let peak = answer["peak_kib"].as_f64().unwrap_or(f64::MAX) / 1024.0;
        let what = format!("{role} a transcript of {mib} MiB");
        report_figure(report, &what, Unit::Millis, took.as_secs_f64() * 1e3, Goal::None);
        report_figure(
            report,
            &format!("  {role}: MiB in a second"),
            Unit::PerSecond,
            mib / took.as_secs_f64(),
            Goal::None,
        );
        report_figure(report, &format!("  {role}: peak memory"), Unit::Mebibytes, peak, Goal::AtMost(most));
    }
    report.method(
        "transcript",
        format!("messages of {MESSAGE_MIB} MiB, a commit each; a fresh process each; loading keeps every message"),
    );
    Ok(())
}

/// The work of the fresh process that verifies.
pub(crate) fn verify(folder: &Path, thread: &str) -> Outcome<Value> {
    let store = Home::at(folder)?.open(Access::ReadOnly)?;
    let verdict = store.verify(&ThreadId::new(thread)?, &mut |_| {})?;
    match verdict.judgement.finding {
        selvedge_log::recovery::Finding::Sound => Ok(json!({})),
        other => Err(format!("a sound log has the finding {other:?}").into()),
    }
}
