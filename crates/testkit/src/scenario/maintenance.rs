//! Maintenance: rename, delete, erase, rotate, repair, import, rebuild and back up.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::time::Duration;

use selvedge_legacy::nova;
use selvedge_log::keychain::{self, KeyChain};
use selvedge_model::event::ManifestChanged;
use selvedge_model::{Batch, Clock, CommitKey, Event};
use selvedge_store::conformance::support::{part, says, with_event};
use selvedge_store::{Commit, Error, Registry};
use selvedge_store_local::{LocalStore, Repair};
use serde_json::Value;

use super::appends::{long, one, two, two_threads};
use crate::LabResult;
use crate::check::{CheckResult, Kind, breach, or};
use crate::fact::{Fact, FactRecorder};
use crate::home::Home;

pub(super) fn delete(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    let store = recorder.attempt(|| home.open())?;
    let is_deleted = recorder.attempt(|| store.tombstone(&one()))?.is_some();
    if !is_deleted {
        let deleted = recorder.attempt(|| match store.delete(&one()) {
            // The first attempt may have deleted it and then failed.
            Err(Error::Deleted(_)) => Ok(()),
            other => other.map(|_| ()),
        });
        deleted?;
    }
    recorder.record(Fact::Deleted { thread: one() })?;
    recorder.commit(&store, "after", Batch::of(part(&two(), says("alone"))))?;
    recorder.close(store)
}

pub(super) fn rename(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    let store = recorder.attempt(|| home.open())?;
    for (key, title) in [("title-1", "A first title"), ("title-2", "A better title")] {
        let changed = ManifestChanged { title: Some(title.to_owned()), ..ManifestChanged::default() };
        recorder.commit(&store, key, Batch::of(part(&one(), with_event(Event::ManifestChanged(changed)))))?;
    }
    recorder.close(store)
}

/// After opening, `thread.json` shows what the registry shows.
pub(super) fn title_shown(home: &Home, store: &LocalStore, _: &[Fact]) -> CheckResult {
    let path = home.threads().join(one().folder()).join("thread.json");
    let bytes = fs::read(&path).map_err(or(Kind::Broken, "thread.json can't be read"))?;
    let shown: Value = serde_json::from_slice(&bytes).map_err(or(Kind::Broken, "thread.json is not JSON"))?;
    let known = store.get(&one()).map_err(or(Kind::Lost, "the thread"))?.manifest.title;
    if shown["title"].as_str() != known.as_deref() {
        let why = format!("thread.json shows {}, the registry {known:?}", shown["title"]);
        return Err(breach(Kind::Broken, why));
    }
    Ok(())
}

/// A blob that is stored, named by a commit, and erased.
pub(super) fn blob(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    let store = recorder.attempt(|| home.open())?;
    let content = long("a picture of a thousand words ");
    let key = CommitKey::new("shown")?;
    let named = recorder.attempt(|| store.outcome(&key))?.is_some();
    if !named {
        let blob = recorder.attempt(|| store.put_blob(&one(), content.as_bytes()))?;
        recorder.record(Fact::Blob { thread: one(), blob })?;
    }
    recorder.commit(&store, "shown", Batch::of(part(&one(), says("see the blob"))))?;
    for blob in recorder.attempt(|| store.blobs(&one()))? {
        recorder.attempt(|| match store.erase(&one(), &blob, "asked for") {
            Err(Error::Erased { .. }) => Ok(0),
            other => other,
        })?;
        recorder.record(Fact::Erased { thread: one(), blob })?;
    }
    recorder.close(store)
}

/// A new key takes over, and signs the next commits.
pub(super) fn rotate(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    let first_time = recorder.attempt(|| -> LabResult<bool> {
        let chain = KeyChain::load(&home.keys().chain(), &home.trust()?)?;
        Ok(chain.predecessors(&home.signer()?.fingerprint()).is_empty())
    })?;
    if first_time || home.keys().next().exists() {
        let rotated = recorder.attempt(|| keychain::rotate(&home.keys(), home.ids(), home.clock().now()))?;
        recorder.record(Fact::Signs { fingerprint: rotated.to })?;
    }
    let store = recorder.attempt(|| home.open())?;
    recorder.commit(&store, "by-the-new", Batch::of(part(&one(), says("new hands"))))?;
    recorder.close(store)
}

const FOREIGN: &[u8] = b"{\"seq\":99,\"foreign\"";

/// Unsigned bytes after one log, and a modified manifest beside the other.
pub(super) fn damaged(home: &Home) -> LabResult {
    two_threads(home)?;
    let log = home.threads().join(one().folder()).join("transcript.jsonl");
    OpenOptions::new().append(true).open(log)?.write_all(FOREIGN)?;
    let manifest = home.threads().join(two().folder()).join("thread.json");
    let text = fs::read_to_string(&manifest)?;
    Ok(fs::write(&manifest, text.replace("scribe", "tailor"))?)
}

pub(super) fn repair(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    let store = recorder.attempt(|| home.open())?;
    for thread in [one(), two()] {
        let repaired = recorder.attempt(|| store.repair(&thread, Repair::default()))?;
        recorder.record(Fact::Reached { thread, version: repaired.version })?;
    }
    recorder.commit(&store, "mended", Batch::of(part(&one(), says("go on"))))?;
    recorder.close(store)
}

/// The bytes that were removed from a log are in a file beside it, as soon as they are not in the log any more.
pub(super) fn quarantined(home: &Home, _: &LocalStore, _: &[Fact]) -> CheckResult {
    let folder = home.threads().join(one().folder());
    let entries = fs::read_dir(&folder).map_err(or(Kind::Broken, "the folder can't be read"))?;
    let aside =
        entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("transcript.quarantine"));
    if !aside.filter_map(|entry| fs::read(entry.path()).ok()).any(|bytes| bytes == FOREIGN) {
        return Err(breach(Kind::Lost, "the bytes that were removed from the log are missing"));
    }
    Ok(())
}

/// The folder of a deleted thread does not exist.
pub(super) fn buried(home: &Home, store: &LocalStore, _: &[Fact]) -> CheckResult {
    let is_deleted = store.tombstone(&one()).map_err(or(Kind::Broken, "tombstones can't be read"))?.is_some();
    let stone = home.threads().join("tombstones").join(format!("{}.json", one().folder()));
    match (is_deleted, home.threads().join(one().folder()).exists(), stone.exists()) {
        (true, false, true) | (false, true, _) => Ok(()),
        other => Err(breach(Kind::Blended, format!("deleted, folder, tombstone: {other:?}"))),
    }
}

struct Older(PathBuf);

impl nova::Source for Older {
    fn name(&self) -> &str {
        "4f6a0c1d2e3b.jsonl"
    }

    fn open(&self) -> io::Result<Box<dyn BufRead + '_>> {
        Ok(Box::new(BufReader::new(fs::File::open(&self.0)?)))
    }
}

/// A file of the older form beside the project.
pub(super) fn with_file(home: &Home) -> LabResult {
    two_threads(home)?;
    let mut text = r#"{"id":"4f6a0c1d2e3b","agentId":"gardener","title":"Pears"}"#.to_owned() + "\n";
    for number in 0..40 {
        let role = if number % 2 == 0 { "user" } else { "assistant" };
        text += &format!("{{\"type\":\"message\",\"role\":\"{role}\",\"text\":\"{number}\"}}\n");
    }
    Ok(fs::write(home.root().join("4f6a0c1d2e3b.jsonl"), text)?)
}

pub(super) fn import(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    let store = recorder.attempt(|| home.open())?;
    let source = Older(home.root().join("4f6a0c1d2e3b.jsonl"));
    let trust = recorder.attempt(|| home.trust())?;
    let report = recorder.attempt(|| nova::import(&store, &trust, &source).map_err(crate::LabError::from))?;
    let thread = report.thread_id;
    let version = recorder.attempt(|| store.get(&thread))?.version;
    recorder.record(Fact::Reached { thread, version })?;
    recorder.close(store)
}

pub(super) fn reindex(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    // An unreadable log is left out and reported, and the next rebuild includes it; a lost request is lost.
    recorder.attempt(|| {
        let rebuilt = with_retries(|| Ok(LocalStore::reindex(&home.rebuild()?, &mut |_, _| {})?))?;
        if rebuilt.left_out.is_empty() && rebuilt.threads == 2 && rebuilt.requests == 1 {
            Ok(())
        } else {
            Err(crate::LabError::from(format!("not everything was rebuilt: {rebuilt:?}")))
        }
    })?;
    recorder.record(Fact::Own { what: "rebuilt".to_owned() })?;
    let store = recorder.attempt(|| home.open())?;
    recorder.commit(&store, "rebuilt", Batch::of(part(&one(), says("go on"))))?;
    recorder.close(store)
}

/// Retries for a moment: a process that is just being started by another thread of ours has a copy of every open file, including
/// its locks, until it executes its own program.
fn with_retries<T>(mut work: impl FnMut() -> LabResult<T>) -> LabResult<T> {
    for _ in 0..40 {
        match work() {
            Err(error) if error.to_string().contains("has it open to write") => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
    work()
}

/// A backup while there is redo; an incomplete one is made again under another name.
pub(super) fn backup(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    let store = recorder.attempt(|| home.open())?;
    let mut number = 0;
    let name = loop {
        let name = format!("backup-{number}");
        if !home.root().join(&name).exists() {
            break name;
        }
        number += 1;
    };
    let target = home.root().join(&name);
    // What can't be read is left out and reported; then another backup is made.
    recorder.attempt(|| {
        if target.exists() {
            fs::remove_dir_all(&target)?;
        }
        let made = store.backup(&target, &mut |_, _| {})?;
        if made.threads.len() == 2 && made.failed_checks.is_empty() {
            Ok(())
        } else {
            Err(crate::LabError::from(format!("not everything was copied: {made:?}")))
        }
    })?;
    recorder.record(Fact::BackedUp { folder: name })?;
    recorder.close(store)
}
