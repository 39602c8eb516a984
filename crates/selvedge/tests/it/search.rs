//! A thousand threads in three languages, with code, blobs and deletions: what is found is where the result says.

use std::collections::BTreeSet;
use std::sync::Arc;

use selvedge::engine::thread_search::{ThreadQuery, search_threads};
use selvedge::log::Signer;
use selvedge::model::message::Block;
use selvedge::model::{AgentId, Batch, Cancel, Changeset, Expect, NewThread, Part};
use selvedge::store::search::{PassageKind, Query, Search};
use selvedge::store::{Commit, Logs};
use selvedge::store_local::disk::RealDisk;
use selvedge::store_local::system::{SystemClock, SystemIds};
use selvedge::store_local::{Access, LocalStore, Options};
use selvedge::{Message, Reason, Role, ThreadId, log::Trust};

const THREADS: usize = 1000;

fn open(project: &std::path::Path) -> LocalStore {
    LocalStore::init(project, Arc::new(RealDisk)).unwrap();
    let signer = Signer::generate(&SystemIds);
    let trust = Trust::of(&[signer.public()]);
    LocalStore::open(Options {
        project: project.to_owned(),
        access: Access::ReadWrite,
        signer: Some(signer),
        trust,
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        disk: Arc::new(RealDisk),
    })
    .unwrap()
}

fn thread(number: usize) -> ThreadId {
    ThreadId::new(format!("many-{number:012x}")).unwrap()
}

/// What a thread says: a language by its number, and a word that only it has.
fn text(number: usize) -> String {
    match number % 4 {
        0 => format!("The heron number w{number}x stood in the rain and waited for fish."),
        1 => format!("Der Reiher Nummer w{number}x stand über dem Fluß im Regen."),
        2 => format!("東京の天気は雨です。番号はw{number}xです。"),
        _ => format!("let w{number}x = store.put_blob(&thread, b\"fn main() {{}}\")?; // {number}"),
    }
}

fn birth(number: usize) -> Part {
    let agent = AgentId::new(["scribe", "clerk"][number % 2]).unwrap();
    Part::new(thread(number), Expect::Absent, Changeset::creating(NewThread::of(agent)))
}

fn says(number: usize, content: Vec<Block>) -> Part {
    let message = Message { content, ..Message::text(Role::User, "") };
    let changeset = Changeset { messages: vec![message], ..Changeset::empty(Reason::UserMessage) };
    Part::new(thread(number), Expect::Any, changeset)
}

fn batch(parts: impl IntoIterator<Item = Part>) -> Batch {
    Batch { parts: parts.into_iter().collect(), ..Batch::of(birth(0)) }
}

#[test]
fn every_result_of_a_thousand_threads_opens_where_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let numbers: Vec<usize> = (0..THREADS).collect();
    for chunk in numbers.chunks(25) {
        store.commit(batch(chunk.iter().map(|number| birth(*number)))).unwrap();
        store.commit(batch(chunk.iter().map(|number| says(*number, vec![Block::text(text(*number))])))).unwrap();
    }
    // Every tenth has a blob with a word of its own, far behind its beginning.
    for number in (0..THREADS).step_by(10) {
        let long = format!("{} b{number}y {}", "filler ".repeat(3000), "more ".repeat(1000));
        let blob = store.put_blob(&thread(number), long.as_bytes()).unwrap();
        let block = Block::Text { text: "shortened".to_owned(), blob: Some(blob) };
        store.commit(batch([says(number, vec![block])])).unwrap();
    }
    let find = |text: &str, only: Option<&str>, limit: usize| {
        let query = Query::parse(text, &|_| None).unwrap();
        let only = only.map(|agent| AgentId::new(agent).unwrap());
        let asked = ThreadQuery { query, vector: None, only, limit };
        search_threads(&store, &store, store.trust(), &asked, &Cancel::new()).unwrap()
    };
    // Deleted before it was ever indexed, and after.
    store.delete(&thread(7)).unwrap();
    assert_eq!(find("heron", None, 1).results.len(), 1);
    store.delete(&thread(8)).unwrap();
    let deleted = [7, 8];
    for number in (0..THREADS).step_by(13).chain(deleted) {
        let found = find(&format!("w{number}x"), None, 5).results;
        let threads: Vec<_> = found.iter().map(|found| found.thread_id.clone()).collect();
        let wanted = if deleted.contains(&number) { vec![] } else { vec![thread(number)] };
        assert_eq!(threads, wanted, "{number}");
        for one in &found {
            assert_eq!(one.passage.as_deref(), Some(text(number).as_str()));
            let line = store.read(&one.thread_id, one.line_no, 1).unwrap().remove(0);
            assert_eq!((line.seq, one.unverified.as_ref()), (one.line_no, None));
        }
    }
    for number in (0..THREADS).step_by(70) {
        let found = find(&format!("b{number}y"), None, 5).results;
        assert_eq!((found.len(), found[0].kind), (1, PassageKind::Blob));
        let bytes = store.blob(&found[0].thread_id, &found[0].blob.unwrap()).unwrap();
        let passage = found[0].passage.as_deref().unwrap();
        assert!(passage.contains(&format!("b{number}y")));
        assert_eq!(&bytes[usize::try_from(found[0].offset).unwrap()..][..passage.len()], passage.as_bytes());
    }
    // Languages, code, and what only looks like syntax.
    for (query, language) in [
        ("heron fish", 0),
        ("uber fluß", 1),
        ("天気", 2),
        ("put_blob(&thread", 3),
        ("\"stood in the rain\" NOT Reiher", 0),
        ("fn main() {}", 3),
    ] {
        let found = find(query, None, 1000).results;
        let of: BTreeSet<usize> =
            found.iter().map(|found| usize::from_str_radix(&found.thread_id.as_str()[5..], 16).unwrap() % 4).collect();
        assert_eq!(of.into_iter().collect::<Vec<_>>(), [language], "{query}");
        assert!(found.len() >= 240, "{query}: {}", found.len());
    }
    for text in ["a NEAR b", "\"", "foo:bar", "🎉", "*", "(((", "AND", "{x} -y ^z", "w8x\0"] {
        let query = Query::parse(text, &|_| None);
        assert!(query.is_err() || find(text, None, 5).success, "{text}");
    }
    // An agent sees its own, whatever it asks.
    for query in ["heron OR Reiher OR 番号 OR store", "agent:clerk heron OR Reiher", "NOT agent:scribe heron OR Reiher"]
    {
        let found = find(query, Some("clerk"), 1000).results;
        assert!(found.iter().all(|found| found.agent_id.as_str() == "clerk"), "{query}");
    }
    assert_eq!(find("heron", Some("clerk"), 10).results, [], "herons are the scribe's");
    // Stepwise, and built anew.
    let stepwise = Search::dump(&store).unwrap();
    for ending in ["db", "db-wal", "db-shm"] {
        _ = std::fs::remove_file(folder.path().join(format!(".ai/agent/threads/search.{ending}")));
    }
    find("heron", None, 1);
    assert_eq!(Search::dump(&store).unwrap(), stepwise);
}
