//! The same work again and again: neither memory nor descriptors grow.
//!
//! Stored data grows (tombstones, a log), so the store is replaced from time to time, as a long-lived program opens and closes projects;
//! the memory of the process between two stores is compared.

use std::fs;
use std::path::Path;
use std::time::Instant;

use selvedge_model::ThreadId;
use selvedge_store::{Commit, Feed, Filter, Registry, load};
use selvedge_store_local::{Access, LocalStore};

use crate::Outcome;
use crate::home::{Home, Writer};
use crate::machine::own_memory_kib;
use crate::measure::Spread;
use crate::report::{Goal, Report, Unit};
use crate::under_load::{Size, report_figure};

/// How much more memory the last quarter may have than the second: the variation of the allocator.
const GROWTH_MAX: f64 = 1.10;
const SLACK_MIB: f64 = 6.0;

struct Sample {
    memory_mib: f64,
    descriptors: f64,
}

pub(crate) fn measure(folder: &Path, size: Size, report: &mut Report) -> Outcome<()> {
    let start = Instant::now();
    let mut samples = Vec::new();
    let mut commits = 0;
    while start.elapsed() < size.soak || samples.len() < 8 {
        let place = folder.join(format!("store-{}", samples.len()));
        let home = Home::make(&place)?;
        let until = start.elapsed() + size.soak / 40;
        let mut rounds = 0;
        while rounds < 3 || start.elapsed() < until {
            // Each round opens and closes, works, and releases everything.
            let store = home.open(Access::ReadWrite)?;
            commits += round(&store, rounds)?;
            store.close()?;
            rounds += 1;
        }
        fs::remove_dir_all(&place)?;
        samples.push(Sample { memory_mib: own_memory_kib("VmRSS") as f64 / 1024.0, descriptors: descriptors()? });
    }
    report_growth(report, &samples);
    report_figure(
        report,
        "commits meanwhile",
        Unit::PerSecond,
        f64::from(commits) / start.elapsed().as_secs_f64(),
        Goal::None,
    );
    report.method(
        "soak",
        format!(
            "{:.1} minutes, {} stores one after the other: create, append, list, find, load, verify, follow, delete, close, open; memory and \
             descriptors after each store; the last quarter against the second, of descriptors the most against the least of these",
            start.elapsed().as_secs_f64() / 60.0,
            samples.len()
        ),
    );
    Ok(())
}

/// A little of everything; returns the number of commits.
fn round(store: &LocalStore, round: u64) -> Outcome<u32> {
    let mut commits = 0;
    let mut made: Vec<ThreadId> = Vec::new();
    for index in 0..4 {
        let mut writer = Writer::create(store, &format!("soak-{:012x}", round * 4 + index), true)?;
        writer.write_turns(4)?;
        writer.release()?;
        made.push(writer.thread().clone());
        commits += 13;
    }
    store.list(&Filter::default(), None, 50)?;
    store.list(&Filter { text: Some("soak".to_owned()), ..Filter::default() }, None, 50)?;
    store.after(store.position()?.saturating_sub(10), 10)?;
    for thread in &made {
        load::load(store, thread, store.trust(), None)?;
        store.verify(thread, &mut |_| {})?;
    }
    for thread in made.iter().take(3) {
        store.delete(thread)?;
    }
    Ok(commits)
}

fn report_growth(report: &mut Report, samples: &[Sample]) {
    let quarter = samples.len() / 4;
    let second = &samples[quarter..quarter * 2];
    let last = &samples[samples.len() - quarter..];
    let median = |samples: &[Sample]| Spread::over(samples, |sample| sample.memory_mib).median;
    let before = median(second);
    let after = median(last);
    report_figure(report, "memory, second quarter", Unit::Mebibytes, before, Goal::None);
    report_figure(
        report,
        "memory, last quarter",
        Unit::Mebibytes,
        after,
        Goal::AtMost(before * GROWTH_MAX + SLACK_MIB),
    );
    let ends = Spread::over(second.iter().chain(last).collect::<Vec<_>>().as_slice(), |sample| sample.descriptors);
    report_figure(report, "descriptors: most ÷ least", Unit::Times, ends.max / ends.min, Goal::AtMost(1.0));
}

fn descriptors() -> Outcome<f64> {
    Ok(fs::read_dir("/proc/self/fd")?.count() as f64)
}
