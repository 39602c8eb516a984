//! Keeping house: what is renamed, deleted, erased, rotated, mended, brought in, rebuilt and copied.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::time::Duration;

use selvedge_log::keychain::{self, KeyChain};
use selvedge_model::event::ManifestChanged;
use selvedge_model::{Batch, Clock, CommitKey, Event};
use selvedge_store::conformance::support::{part, says, tells};
use selvedge_store::{Commit, Error, Registry, nova};
use selvedge_store_local::{LocalStore, Repair};
use serde_json::Value;

use super::appending::{long, one, two, two_threads};
use crate::Tried;
use crate::check::{Held, Kind, breach, or};
use crate::fact::{Fact, Teller};
use crate::home::Home;

pub(super) fn delete(home: &Home, teller: &mut Teller) -> Tried {
    let store = teller.attempt(|| home.open())?;
    let blob_is_there = store.tombstone(&one())?.is_some();
    if !blob_is_there {
        let deleted = teller.attempt(|| match store.delete(&one()) {
            // The first try may have deleted it and not been able to say so.
            Err(Error::Deleted(_)) => Ok(()),
            other => other.map(|_| ()),
        });
        deleted?;
    }
    teller.tell(Fact::Deleted { thread: one() })?;
    teller.commit(&store, "after", Batch::of(part(&two(), says("alone"))))?;
    teller.close(store)
}

pub(super) fn rename(home: &Home, teller: &mut Teller) -> Tried {
    let store = teller.attempt(|| home.open())?;
    for (key, title) in [("title-1", "A first title"), ("title-2", "A better title")] {
        let changed = ManifestChanged { title: Some(title.to_owned()), ..ManifestChanged::default() };
        teller.commit(&store, key, Batch::of(part(&one(), tells(Event::ManifestChanged(changed)))))?;
    }
    teller.close(store)
}

/// After opening, `thread.json` shows what the registry shows.
pub(super) fn title_shown(home: &Home, store: &LocalStore, _: &[Fact]) -> Held {
    let path = home.threads().join(one().folder()).join("thread.json");
    let bytes = fs::read(&path).map_err(or(Kind::Broken, "thread.json can't be read"))?;
    let shown: Value = serde_json::from_slice(&bytes).map_err(or(Kind::Broken, "thread.json is no JSON"))?;
    let known = store.get(&one()).map_err(or(Kind::Lost, "the thread"))?.manifest.title;
    match shown["title"].as_str() == known.as_deref() {
        true => Ok(()),
        false => Err(breach(Kind::Broken, format!("thread.json shows {}, the registry {known:?}", shown["title"]))),
    }
}

/// A blob that is stored, named by a commit, and erased.
pub(super) fn blob(home: &Home, teller: &mut Teller) -> Tried {
    let store = teller.attempt(|| home.open())?;
    let content = long("a picture of a thousand words ");
    let named = store.outcome(&CommitKey::new("shown")?)?.is_some();
    if !named {
        let blob = teller.attempt(|| store.put_blob(&one(), content.as_bytes()))?;
        teller.tell(Fact::Blob { thread: one(), blob })?;
    }
    teller.commit(&store, "shown", Batch::of(part(&one(), says("see the blob"))))?;
    for blob in teller.attempt(|| store.blobs(&one()))? {
        teller.attempt(|| match store.erase(&one(), &blob, "asked for") {
            Err(Error::Erased { .. }) => Ok(0),
            other => other,
        })?;
        teller.tell(Fact::Erased { thread: one(), blob })?;
    }
    teller.close(store)
}

/// A new key takes over, and the next commits are its own.
pub(super) fn rotate(home: &Home, teller: &mut Teller) -> Tried {
    let chain = KeyChain::load(&home.keys().chain(), &home.trust()?)?;
    let first_time = chain.predecessors(&home.signer()?.fingerprint()).is_empty();
    if first_time || home.keys().next().exists() {
        let rotated = teller.attempt(|| keychain::rotate(&home.keys(), home.ids(), home.clock().now()))?;
        teller.tell(Fact::Signs { fingerprint: rotated.to })?;
    }
    let store = teller.attempt(|| home.open())?;
    teller.commit(&store, "by-the-new", Batch::of(part(&one(), says("new hands"))))?;
    teller.close(store)
}

const FOREIGN: &[u8] = b"{\"seq\":99,\"foreign\"";

/// Bytes that nobody signed behind one log, and a manifest that was edited beside the other.
pub(super) fn damaged(home: &Home) -> Tried {
    two_threads(home)?;
    let log = home.threads().join(one().folder()).join("transcript.jsonl");
    OpenOptions::new().append(true).open(log)?.write_all(FOREIGN)?;
    let manifest = home.threads().join(two().folder()).join("thread.json");
    let text = fs::read_to_string(&manifest)?;
    Ok(fs::write(&manifest, text.replace("scribe", "tailor"))?)
}

pub(super) fn repair(home: &Home, teller: &mut Teller) -> Tried {
    let store = teller.attempt(|| home.open())?;
    for thread in [one(), two()] {
        let repaired = teller.attempt(|| store.repair(&thread, Repair::default()))?;
        teller.tell(Fact::Reached { thread, version: repaired.version })?;
    }
    teller.commit(&store, "mended", Batch::of(part(&one(), says("go on"))))?;
    teller.close(store)
}

/// What was cut off a log lies beside it, whole, as soon as it is not in the log any more.
pub(super) fn quarantined(home: &Home, _: &LocalStore, _: &[Fact]) -> Held {
    let folder = home.threads().join(one().folder());
    let entries = fs::read_dir(&folder).map_err(or(Kind::Broken, "the folder can't be read"))?;
    let aside =
        entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("transcript.quarantine"));
    match aside.filter_map(|entry| fs::read(entry.path()).ok()).any(|bytes| bytes == FOREIGN) {
        true => Ok(()),
        false => Err(breach(Kind::Lost, "what was cut off the log is nowhere")),
    }
}

/// Nothing is left of the folder of a thread that is deleted.
pub(super) fn buried(home: &Home, store: &LocalStore, _: &[Fact]) -> Held {
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
pub(super) fn with_file(home: &Home) -> Tried {
    two_threads(home)?;
    let mut text = r#"{"id":"4f6a0c1d2e3b","agentId":"gardener","title":"Pears"}"#.to_owned() + "\n";
    for number in 0..40 {
        let role = if number % 2 == 0 { "user" } else { "assistant" };
        text += &format!("{{\"type\":\"message\",\"role\":\"{role}\",\"text\":\"{number}\"}}\n");
    }
    Ok(fs::write(home.root().join("older.jsonl"), text)?)
}

pub(super) fn import(home: &Home, teller: &mut Teller) -> Tried {
    let store = teller.attempt(|| home.open())?;
    let (source, trust) = (Older(home.root().join("older.jsonl")), home.trust()?);
    let report = teller.attempt(|| nova::import(&store, &trust, &source).map_err(crate::Trouble::from))?;
    let thread = report.thread_id;
    let version = store.get(&thread)?.version;
    teller.tell(Fact::Reached { thread, version })?;
    teller.close(store)
}

pub(super) fn reindex(home: &Home, teller: &mut Teller) -> Tried {
    let rebuilt = teller.attempt(|| patiently(|| Ok(LocalStore::reindex(&home.rebuild()?, &mut |_, _| {})?)))?;
    if !rebuilt.left_out.is_empty() || rebuilt.threads != 2 || rebuilt.requests != 1 {
        return Err(format!("not everything was rebuilt: {rebuilt:?}").into());
    }
    teller.tell(Fact::Own { what: "rebuilt".to_owned() })?;
    let store = teller.attempt(|| home.open())?;
    teller.commit(&store, "rebuilt", Batch::of(part(&one(), says("go on"))))?;
    teller.close(store)
}

/// Tries for a moment: a process that is just being started by another thread of ours has a copy of every open file until it
/// has become another program, locks included.
fn patiently<T>(mut work: impl FnMut() -> Tried<T>) -> Tried<T> {
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

/// A backup while there is redo; one that was cut short is made anew elsewhere.
pub(super) fn backup(home: &Home, teller: &mut Teller) -> Tried {
    let store = teller.attempt(|| home.open())?;
    let mut number = 0;
    let name = loop {
        let name = format!("backup-{number}");
        if !home.root().join(&name).exists() {
            break name;
        }
        number += 1;
    };
    let target = home.root().join(&name);
    let made = teller.attempt(|| {
        if target.exists() {
            fs::remove_dir_all(&target)?;
        }
        store.backup(&target, &mut |_, _| {}).map_err(crate::Trouble::from)
    })?;
    if made.threads.len() != 2 {
        return Err(format!("not everything was copied: {made:?}").into());
    }
    teller.tell(Fact::BackedUp { folder: name })?;
    teller.close(store)
}
