//! Many that wait for one thread: all of them get a version of their own, and none waits forever.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::Instant;

use selvedge_model::{Batch, Changeset, Expect, Message, Part, Reason, Role};
use selvedge_store::{Commit, Logs};
use selvedge_store_local::Access;

use crate::Outcome;
use crate::home::with_turns;
use crate::machine::own_memory_kib;
use crate::report::{Goal, Report, Unit};
use crate::under_load::{Size, report_figure};

pub(crate) fn measure(folder: &Path, size: Size, report: &mut Report) -> Outcome<()> {
    let (home, thread) = with_turns(&folder.join("store"), 1, false)?;
    let store = home.open(Access::ReadWrite)?;
    let before = store.head(&thread)?.version;
    let memory = own_memory_kib("VmRSS");
    let write = |index: usize| -> Outcome<(u64, f64)> {
        let message = Message::text(Role::User, format!("writer {index}"));
        let changeset = Changeset { messages: vec![message], ..Changeset::empty(Reason::UserMessage) };
        let start = Instant::now();
        let committed = store.commit(Batch::of(Part::new(thread.clone(), Expect::Any, changeset)))?;
        let version = committed.version_of(&thread).ok_or("a commit has no version")?;
        Ok((version, start.elapsed().as_secs_f64() * 1e3))
    };
    let start = Instant::now();
    let found = thread::scope(|scope| {
        let write = &write;
        let running: Vec<_> = (0..size.writers).map(|index| scope.spawn(move || write(index))).collect();
        let ended = running.into_iter().map(|writer| writer.join().map_err(|_| "a writer panicked")?);
        ended.collect::<Outcome<Vec<_>>>()
    })?;
    let took = start.elapsed().as_secs_f64();
    let grown = own_memory_kib("VmRSS").saturating_sub(memory) as f64 / 1024.0;
    let versions: BTreeSet<u64> = found.iter().map(|(version, _)| *version).collect();
    let expected: BTreeSet<u64> = (before + 1..=before + size.writers as u64).collect();
    if versions != expected || store.head(&thread)?.version != before + size.writers as u64 {
        return Err("the versions of the writers are not distinct and complete".into());
    }
    store.close()?;
    let longest = found.iter().map(|(_, took)| *took).fold(0.0, f64::max);
    let writers = size.writers;
    report_figure(
        report,
        &format!("{writers} writers of one thread, commits"),
        Unit::PerSecond,
        writers as f64 / took,
        Goal::None,
    );
    report_figure(report, "  the one who waited longest", Unit::Millis, longest, Goal::None);
    report_figure(report, "  memory that is left behind", Unit::Mebibytes, grown, Goal::AtMost(64.0));
    report.method(
        "writers",
        format!("{writers} OS threads, one commit each to one thread, any version; every version is held exactly once"),
    );
    Ok(())
}
