//! What is done after runs: usage records, titles, embeddings and the search index.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use selvedge_engine::{Engine, Options, Redactor};
use selvedge_model::event::{ManifestChanged, TurnUsage};
use selvedge_model::scope::Scopes;
use selvedge_model::{Batch, Cancel, Event, ThreadId};
use selvedge_store::conformance::support::{birth, finishes, id, new_thread, part, says, starts, with_event};
use selvedge_store::effects::{Effects, Embedding};
use selvedge_store::search::{Search, read_unverified};
use selvedge_store::{Commit, Error, Feed, Logs, Registry};
use selvedge_store_local::LocalStore;

use super::appends::{long, one, two, two_threads};
use super::runs::NoProcesses;
use crate::LabResult;
use crate::check::{Breach, CheckResult, Kind, breach, or};
use crate::fact::{Fact, FactRecorder};
use crate::home::Home;

/// The name of the embedder.
const EMBEDDER: &str = "lab";
/// The title that a person gave, and the one that the system makes.
const TITLES: [&str; 2] = ["Mine", "Three words here"];
/// What is recorded when the effects were done.
const DONE: &str = "effects";

fn three() -> ThreadId {
    id("three-0123456789ab")
}

/// Three threads, two of them with a run that is not recorded yet.
pub(super) fn unrecorded(home: &Home) -> LabResult {
    two_threads(home)?;
    let store = home.open()?;
    let mut recorder = FactRecorder::default();
    recorder.commit(&store, "third", Batch::of(birth(&three(), new_thread())))?;
    recorder.commit(&store, "third-1", Batch::of(part(&three(), says(&long("a heron ")))))?;
    for thread in [one(), three()] {
        let key = |what: &str| format!("{}-{what}", thread.as_str());
        recorder.commit(&store, &key("begins"), Batch::of(part(&thread, starts("r1"))))?;
        recorder.commit(&store, &key("ends"), Batch::of(part(&thread, finishes("r1", "natural"))))?;
    }
    Ok(store.close()?)
}

pub(super) fn effects(home: &Home, recorder: &mut FactRecorder) -> LabResult {
    let store = Arc::new(recorder.attempt(|| home.open())?);
    let named = ManifestChanged { title: Some(TITLES[0].to_owned()), ..ManifestChanged::default() };
    recorder.commit(&*store, "named", Batch::of(part(&one(), with_event(Event::ManifestChanged(named)))))?;
    recorder.commit(&*store, "two-begins", Batch::of(part(&two(), starts("r2"))))?;
    recorder.commit(&*store, "two-ends", Batch::of(part(&two(), finishes("r2", "error"))))?;
    recorder.attempt(|| store.record_usage(&Cancel::new()))?;
    recorder.attempt(|| store.catch_up(&Cancel::new()))?;
    recorder.attempt(|| embed(&store))?;
    recorder.attempt(|| titles(home, &store))?;
    recorder.attempt(|| store.record_usage(&Cancel::new()))?;
    let is_deleted = recorder.attempt(|| store.tombstone(&three()))?.is_some();
    if !is_deleted {
        recorder.attempt(|| match store.delete(&three()) {
            Err(Error::Deleted(_)) => Ok(()),
            other => other.map(|_| ()),
        })?;
    }
    recorder.record(Fact::Deleted { thread: three() })?;
    recorder.record(Fact::Own { what: DONE.to_owned() })?;
    match Arc::into_inner(store) {
        Some(store) => recorder.close(store),
        None => Err("the store is still in use".into()),
    }
}

/// Vectors of all passages: in the files first, then in the index.
fn embed(store: &LocalStore) -> LabResult {
    let pending = store.pending_vectors(EMBEDDER, 2, 100)?;
    for passage in pending {
        // The text must be there, or the index is wrong about a thread that is being deleted.
        if read_unverified(store, &passage.hit).is_some() {
            let agent = store.get(&passage.hit.thread)?.manifest.agent_id;
            store.put_embeddings(&agent, &[Embedding::new(&passage.hit, EMBEDDER, &[0.6, 0.8])])?;
        }
        store.put_vectors(EMBEDDER, &[(passage, vec![0.6, 0.8])])?;
    }
    Ok(())
}

/// The system makes a title for each of two threads; one has a name that a person gave.
fn titles(home: &Home, store: &Arc<LocalStore>) -> LabResult {
    let engine = Engine::new(Options {
        store: store.clone(),
        trust: home.trust()?,
        clock: Arc::new(home.clock().clone()),
        ids: Arc::new(home.ids().clone()),
        processes: Arc::new(NoProcesses),
        scopes: Scopes::builtin(),
        redactor: Redactor::default(),
        snapshots: None,
        prepare: None,
    });
    for thread in [one(), two()] {
        let usage: TurnUsage =
            serde_json::from_value(serde_json::json!({"model": "lab", "turns": 1, "input_tokens": 9}))?;
        engine.title_untitled(&thread, None, Some(TITLES[1]), usage)?;
    }
    Ok(())
}

/// How many ends of runs and calls for titles a log has.
fn recorded(store: &LocalStore, thread: &ThreadId) -> Result<usize, Breach> {
    let lines = store.read(thread, 0, usize::MAX).map_err(or(Kind::Broken, "the log can't be read"))?;
    let is_used = |event: &Event| match event {
        Event::RunFinished(_) => true,
        Event::ManifestChanged(changed) => changed.title_usage.is_some(),
        _ => false,
    };
    Ok(lines.iter().filter(|line| is_used(&line.event)).count())
}

/// No record is doubled; once the effects were done none is missing, the index equals one that is built anew, and nothing of a deleted thread
/// is left. The person's title is there.
pub(super) fn whole(home: &Home, store: &LocalStore, facts: &[Fact]) -> CheckResult {
    let mut keys = BTreeSet::new();
    let mut doubled = None;
    let read = store.each_usage(&mut |record| {
        if !keys.insert(record.key()) {
            doubled = Some(record.key());
        }
    });
    read.map_err(or(Kind::Broken, "the usage can't be read"))?;
    if let Some(key) = doubled {
        return Err(breach(Kind::Blended, format!("the record {key:?} is there twice")));
    }
    let title = |thread: &ThreadId| store.get(thread).map(|found| found.manifest.title);
    let first = title(&one()).map_err(or(Kind::Lost, "the thread"))?;
    if first.as_deref().is_some_and(|title| title != TITLES[0]) {
        return Err(breach(Kind::Lost, format!("the person's title is {first:?}")));
    }
    if !facts.iter().any(|fact| matches!(fact, Fact::Own { what } if what == DONE)) {
        return Ok(());
    }
    let named = title(&two()).map_err(or(Kind::Lost, "the thread"))?;
    if (first.as_deref(), named.as_deref()) != (Some(TITLES[0]), Some(TITLES[1])) {
        return Err(breach(Kind::Lost, format!("titles: {first:?}, {named:?}")));
    }
    // As many as the logs have of runs and of calls for titles, and the run of the deleted thread.
    let of = |thread: ThreadId| keys.iter().filter(|(known, _)| *known == thread).count();
    let wanted = (recorded(store, &one())?, recorded(store, &two())?, 1);
    if (of(one()), of(two()), of(three())) != wanted || wanted.0 < 2 || wanted.1 < 2 {
        return Err(breach(Kind::Lost, format!("usage records: {keys:?}, wanted {wanted:?}")));
    }
    let position = store.position().map_err(or(Kind::Broken, "the feed"))?;
    let caught = store.catch_up(&Cancel::new()).map_err(or(Kind::Broken, "the index"))?;
    let stepwise = Search::dump(store).map_err(or(Kind::Broken, "the index"))?;
    for ending in ["db", "db-wal", "db-shm"] {
        _ = fs::remove_file(home.threads().join(format!("search.{ending}")));
    }
    store.catch_up(&Cancel::new()).map_err(or(Kind::Broken, "the index"))?;
    let anew = Search::dump(store).map_err(or(Kind::Broken, "the index"))?;
    if stepwise != anew {
        let why = format!("after {caught:?} at {position} the index differs from one built anew:\n{stepwise}\n{anew}");
        return Err(breach(Kind::Blended, why));
    }
    let path = home.project().join(".ai/agents/scribe/embeddings.jsonl");
    let text = fs::read_to_string(&path).map_err(or(Kind::Lost, "the embeddings"))?;
    let lines: BTreeSet<&str> = text.lines().collect();
    if lines.len() != text.lines().count() || lines.is_empty() {
        return Err(breach(Kind::Blended, "an embedding is there twice, or none is".to_owned()));
    }
    if text.contains(three().as_str()) || anew.contains(three().as_str()) {
        return Err(breach(Kind::Lost, "a deleted thread is in the index or in the embeddings".to_owned()));
    }
    Ok(())
}
