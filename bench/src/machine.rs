//! The machine: enough to interpret a figure, nothing that identifies its user.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use serde_json::{Value, json};

use crate::Outcome;
use crate::bare::Bare;
use crate::measure::{Spread, lap, timed};

/// About as many bytes as a commit of one message writes.
const SYNC_BYTES: usize = 1_700;
const SYNCS: usize = 200;

/// The properties of the machine.
pub(crate) struct Machine {
    cores: usize,
    memory: String,
    processor: String,
    kernel: String,
    file_system: String,
    commit: String,
    load_before: String,
    sync_before: Spread,
}

impl Machine {
    pub(crate) fn look(folder: &Path) -> Outcome<Self> {
        Ok(Self {
            cores: thread::available_parallelism()?.get(),
            memory: memory(),
            processor: field("/proc/cpuinfo", "model name"),
            kernel: first_line("/proc/sys/kernel/osrelease"),
            file_system: file_system(folder),
            commit: commit(),
            load_before: load(),
            sync_before: sync(folder)?,
        })
    }

    /// The bare sync at the beginning of the run, in microseconds.
    pub(crate) fn sync(&self) -> &Spread {
        &self.sync_before
    }

    /// Some lines for people; measures the disk once more.
    pub(crate) fn lines(&self, folder: &Path) -> Outcome<(String, Value)> {
        let after = sync(folder)?;
        let shown = |sync: &Spread| format!("{:.0} µs ({:.0}–{:.0})", sync.median, sync.quarter, sync.three_quarters);
        let load_after = load();
        // Other load on the disk and the processors makes every figure worse, and not all equally.
        let is_busy = self.load_before.parse::<f64>().is_ok_and(|load| load > self.cores as f64 / 2.0);
        let busy = if is_busy { "; BUSY WITH OTHER WORK, so read every figure with care" } else { "" };
        let text = format!(
            "machine: {} cores ({}), {} of memory, Linux {}, {}; load {} before, {load_after} after{busy}; commit {}\n\
             bare sync: append of {SYNC_BYTES} bytes + fdatasync, median (quartiles) of {SYNCS}: {} before, {} after",
            self.cores,
            self.processor,
            self.memory,
            self.kernel,
            self.file_system,
            self.load_before,
            self.commit,
            shown(&self.sync_before),
            shown(&after),
        );
        let value = json!({
            "cores": self.cores, "memory": self.memory, "processor": self.processor, "kernel": self.kernel, "file_system": self.file_system,
            "commit": self.commit, "load_before": self.load_before, "load_after": load_after,
            "bare_sync_us_before": self.sync_before.json(), "bare_sync_us_after": after.json(),
        });
        Ok((text, value))
    }
}

/// The time of a bare append and sync now, in microseconds.
pub(crate) fn sync(folder: &Path) -> Outcome<Spread> {
    let path = folder.join("sync");
    let mut bare = Bare::make(&path, vec![vec![b'x'; SYNC_BYTES]])?;
    let lap = lap(SYNCS, || timed(|| bare.append()))?;
    fs::remove_file(&path)?;
    Ok(Spread::of(&lap.each))
}

fn first_line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().lines().next().unwrap_or("unknown").trim().to_owned()
}

fn field(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.split_once(':')).map_or("unknown".to_owned(), |(_, value)| value.trim().to_owned())
}

/// The memory of the machine, in whole gibibytes.
fn memory() -> String {
    let kib: f64 = field("/proc/meminfo", "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0.0);
    format!("{:.0} GiB", kib / 1_048_576.0)
}

fn load() -> String {
    first_line("/proc/loadavg").split(' ').next().unwrap_or("unknown").to_owned()
}

/// The kind of the file system that holds `folder`.
fn file_system(folder: &Path) -> String {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let words = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let holding = words.filter(|words| words.len() > 2 && folder.starts_with(words[1]));
    holding.max_by_key(|words| words[1].len()).map_or("unknown".to_owned(), |words| words[2].to_owned())
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".to_owned() };
    match git(&["status", "--porcelain"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => commit + " with changes",
    }
}

/// A field of `/proc/self/status` in KiB, such as `VmHWM`.
pub(crate) fn own_memory_kib(name: &str) -> u64 {
    field("/proc/self/status", name).trim_end_matches(" kB").trim().parse().unwrap_or(0)
}
