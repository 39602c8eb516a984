//! What the index finds, and what it never does.

use std::fs;

use selvedge_model::message::Block;
use selvedge_model::{AgentId, Batch, Changeset, Expect, Message, MessageId, NewThread, Part, Reason, Role, Stop};
use selvedge_store::Commit;
use selvedge_store::effects::{Effects, Embedding};
use selvedge_store::search::{Query, read_back};

use super::*;
use crate::testing::{TestStore, thread};

fn create(store: &LocalStore, name: &str, agent: &str) {
    let new = NewThread::of(AgentId::new(agent).unwrap());
    let birth = Part::new(thread(name), Expect::Absent, Changeset::creating(new));
    store.commit(Batch::of(birth)).unwrap();
}

fn commit_message(store: &LocalStore, name: &str, message: Message) {
    let changeset = Changeset { messages: vec![message], ..Changeset::empty(Reason::UserMessage) };
    store.commit(Batch::of(Part::new(thread(name), Expect::Any, changeset))).unwrap();
}

fn say(store: &LocalStore, name: &str, id: &str, text: &str) {
    commit_message(store, name, Message::text(Role::User, text).with_id(MessageId::new(id).unwrap()));
}

fn say_with_blob(store: &LocalStore, name: &str, content: &[u8]) -> Digest {
    let blob = store.put_blob(&thread(name), content).unwrap();
    let content = vec![Block::Text { text: "shortened".to_owned(), blob: Some(blob) }];
    let message = Message { content, ..Message::text(Role::User, "") };
    commit_message(store, name, message.with_id(MessageId::new("long").unwrap()));
    blob
}

fn ask(store: &LocalStore, text: &str) -> SearchHits {
    let query = Query::parse(text, &|_| None).unwrap();
    store.search(&SearchRequest { query: &query, vector: None, limit: 20 }).unwrap()
}

/// Catches up and searches; every passage is read back from the verified log.
fn find(store: &LocalStore, text: &str) -> Vec<(String, String)> {
    store.catch_up(&Cancel::default()).unwrap();
    let found = ask(store, text).hits.into_iter().filter_map(|hit| {
        let passage = read_back(store, store.trust(), &hit).ok().flatten()?;
        Some((hit.thread.to_string(), passage.text))
    });
    found.collect()
}

fn threads(store: &LocalStore, text: &str) -> Vec<String> {
    find(store, text).into_iter().map(|(thread, _)| thread).collect()
}

/// All bytes of the files of the index.
fn bytes_of_index(store: &LocalStore) -> Vec<u8> {
    let names = ["search.db", "search.db-wal"].map(|name| store.core.layout.root().join(name));
    names.iter().filter_map(|path| fs::read(path).ok()).flatten().collect()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window.eq_ignore_ascii_case(text.as_bytes()))
}

#[test]
fn words_phrases_code_scripts_and_syntax_are_found_where_they_are() {
    let test_store = TestStore::new();
    let store = test_store.open();
    for (name, text) in [
        ("rain", "The rain in Bern was not paid"),
        ("code", "let x = store.put_blob(&thread)?;"),
        ("han", "東京の天気は晴れです 🎉"),
        ("umlaut", "Grüezi, Übermut tut selten gut"),
        ("near", "a NEAR b and foo:bar"),
    ] {
        create(&store, name, "scribe");
        say(&store, name, "m", text);
    }
    for (query, wanted) in [
        ("rain bern", vec!["rain"]),
        ("\"was not paid\"", vec!["rain"]),
        ("\"paid not\"", vec![]),
        ("put_blob(", vec!["code"]),
        ("天気", vec!["han"]),
        ("気天", vec![]),
        ("🎉", vec!["han"]),
        ("ubermut", vec!["umlaut"]),
        ("Über*", vec!["umlaut"]),
        ("a NEAR b", vec!["near"]),
        ("foo:bar", vec!["near"]),
        ("rain NOT paid", vec![]),
        ("agent:scribe rain", vec!["rain"]),
        ("agent:other rain", vec![]),
        ("NOT agent:scribe rain", vec![]),
    ] {
        assert_eq!(threads(&store, query), wanted, "{query}");
    }
    assert_eq!(find(&store, "rain")[0].1, "The rain in Bern was not paid");
}

#[test]
fn an_index_that_is_lost_damaged_or_foreign_is_built_anew_and_equal() {
    let test_store = TestStore::new();
    let store = test_store.open();
    for name in ["one", "two"] {
        create(&store, name, "scribe");
        say(&store, name, "m", "early words");
    }
    store.catch_up(&Cancel::default()).unwrap();
    // Step by step, and stopped in between: the next call continues.
    say(&store, "one", "n", "late words");
    let cancel = Cancel::default();
    cancel.say(Stop::Cancelled);
    assert_eq!(store.catch_up(&cancel).unwrap(), IndexProgress { commits: 0, behind: 1, rebuilt: false });
    assert_eq!(store.catch_up(&Cancel::default()).unwrap().commits, 1);
    assert_eq!(store.catch_up(&Cancel::default()).unwrap(), IndexProgress::default());
    let stepwise = Search::dump(&store).unwrap();
    assert!(stepwise.contains("late words") && stepwise.contains("early words"), "{stepwise}");
    let path = store.core.layout.search();
    let spoil: [&dyn Fn(); 4] = [
        &|| remove_files(&store.core.layout, &*store.core.disk).unwrap(),
        &|| {
            remove_files(&store.core.layout, &*store.core.disk).unwrap();
            fs::write(&path, "no database at all, but long enough to be read as one").unwrap();
        },
        &|| Connection::open(&path).unwrap().execute_batch("UPDATE meta SET value = 'x' WHERE name = 'store'").unwrap(),
        &|| Connection::open(&path).unwrap().execute_batch("DROP TABLE documents").unwrap(),
    ];
    for (number, spoil) in spoil.iter().enumerate() {
        spoil();
        say(&store, "two", &format!("s{number}"), "and more");
        store.catch_up(&Cancel::default()).unwrap();
        assert_eq!(threads(&store, "late"), ["one"], "{number}");
        assert_eq!(threads(&store, "more"), ["two"], "{number}");
    }
    let after = Search::dump(&store).unwrap();
    remove_files(&store.core.layout, &*store.core.disk).unwrap();
    store.catch_up(&Cancel::default()).unwrap();
    assert_eq!(Search::dump(&store).unwrap(), after);
}

/// Every search failed until the file was removed by hand: catching up had nothing to do, and read nothing that was damaged.
#[test]
fn an_index_that_only_a_search_finds_damaged_is_built_anew() {
    let test_store = TestStore::new();
    let store = test_store.open();
    create(&store, "one", "scribe");
    say(&store, "one", "m", "early words");
    store.catch_up(&Cancel::default()).unwrap();
    let path = store.core.layout.search();
    let spoil = Connection::open(&path).unwrap();
    spoil.execute_batch("UPDATE words_data SET block = x'ff00ff00ff00ff' WHERE id > 1").unwrap();
    drop(spoil);
    let query = Query::parse("early", &|_| None).unwrap();
    let ask_once = || store.search_once(&SearchRequest { query: &query, vector: None, limit: 20 });
    assert!(ask_once().is_err_and(|error| is_damage(&error)));
    assert_eq!(store.catch_up(&Cancel::default()).unwrap(), IndexProgress::default(), "it notices nothing");
    assert_eq!(ask(&store, "early").hits.len(), 1);
    assert!(ask_once().is_ok(), "and it stays mended");
}

/// A row that another program wrote into the index was shown as if a thread had said it.
#[test]
fn a_planted_row_is_never_a_result() {
    let test_store = TestStore::new();
    let store = test_store.open();
    create(&store, "one", "scribe");
    say(&store, "one", "m", "honest words");
    store.catch_up(&Cancel::default()).unwrap();
    let path = store.core.layout.search();
    let planted = Connection::open(&path).unwrap();
    let sql = "INSERT INTO documents (thread, kind, version, line, blob, offset, digest, at, text) \
               SELECT thread, kind, version, line, blob, offset, digest, at, 'planted lie' FROM documents; \
               INSERT INTO words (rowid, text) SELECT id, text FROM documents WHERE text = 'planted lie';";
    planted.execute_batch(sql).unwrap();
    drop(planted);
    assert_eq!(ask(&store, "planted").hits.len(), 1, "the index itself is deceived");
    assert_eq!(find(&store, "planted"), []);
    // And the index heals.
    store.index_again(&thread("one")).unwrap();
    assert_eq!(threads(&store, "honest"), ["one"]);
    // A hit of a log that was changed afterwards is refused.
    let hit = ask(&store, "honest").hits.remove(0);
    let log = store.core.layout.transcript(&thread("one"));
    // Closed, so that no redo mends the file.
    store.close().unwrap();
    let text = fs::read_to_string(&log).unwrap();
    fs::write(&log, text.replace("honest", "h0nest")).unwrap();
    let store = test_store.open();
    assert!(read_back(&store, store.trust(), &hit).is_err());
}

#[test]
fn deleted_threads_and_erased_blobs_leave_the_index_and_its_bytes() {
    let test_store = TestStore::new();
    let store = test_store.open();
    create(&store, "kept", "scribe");
    say(&store, "kept", "m", "kept words");
    create(&store, "gone", "scribe");
    say(&store, "gone", "m", "zyxwvutdeleted secret");
    let blob = say_with_blob(&store, "kept", b"qponmlkerased content");
    assert_eq!(threads(&store, "zyxwvutdeleted"), ["gone"]);
    assert_eq!(threads(&store, "qponmlkerased"), ["kept"]);
    let bytes = bytes_of_index(&store);
    assert!(contains(&bytes, "zyxwvut") && contains(&bytes, "qponmlk"));
    store.delete(&thread("gone")).unwrap();
    store.erase(&thread("kept"), &blob, "asked").unwrap();
    let bytes = bytes_of_index(&store);
    assert!(!contains(&bytes, "zyxwvut"), "a deleted thread is in the bytes of the index");
    assert!(!contains(&bytes, "qponmlk"), "an erased blob is in the bytes of the index");
    for query in ["zyxwvutdeleted", "qponmlkerased"] {
        assert_eq!(threads(&store, query), [""; 0], "{query}");
    }
    // Nor do they come back when the index is built anew.
    remove_files(&store.core.layout, &*store.core.disk).unwrap();
    for query in ["zyxwvutdeleted", "qponmlkerased"] {
        assert_eq!(threads(&store, query), [""; 0], "{query}");
    }
    assert_eq!(threads(&store, "kept"), ["kept"]);
    assert!(!contains(&bytes_of_index(&store), "zyxwvut"));
}

#[test]
fn blobs_are_found_and_what_is_not_indexed_is_said() {
    let test_store = TestStore::new();
    let store = test_store.open();
    create(&store, "one", "scribe");
    let blob = say_with_blob(&store, "one", b"the needle of a long result");
    create(&store, "two", "scribe");
    say_with_blob(&store, "two", b"\xff\xfe\x00");
    assert_eq!(find(&store, "needle"), [("one".to_owned(), "the needle of a long result".to_owned())]);
    let found = ask(&store, "needle");
    assert_eq!((found.hits[0].kind, found.hits[0].blob), (PassageKind::Blob, Some(blob)));
    assert_eq!(found.unsearched, NotSearched { blobs_not_text: 1, ..NotSearched::default() });
}

#[test]
fn a_store_that_is_only_read_says_how_far_its_index_is_behind() {
    let test_store = TestStore::new();
    let store = test_store.open();
    create(&store, "one", "scribe");
    store.catch_up(&Cancel::default()).unwrap();
    say(&store, "one", "m", "new words");
    let options = crate::Options {
        project: test_store.folder.path().to_owned(),
        access: crate::Access::ReadOnly,
        signer: None,
        trust: store.trust().clone(),
        clock: std::sync::Arc::new(crate::system::SystemClock),
        ids: std::sync::Arc::new(crate::system::SystemIds),
        disk: std::sync::Arc::new(crate::disk::RealDisk),
    };
    let reader = LocalStore::open(options).unwrap();
    assert_eq!(reader.catch_up(&Cancel::default()).unwrap(), IndexProgress { behind: 1, ..IndexProgress::default() });
    assert_eq!(ask(&reader, "new").hits, []);
}

#[test]
fn vectors_rank_with_words_and_those_of_another_embedder_are_removed() {
    let test_store = TestStore::new();
    let store = test_store.open();
    for name in ["one", "two"] {
        create(&store, name, "scribe");
        say(&store, name, "m", &format!("common {name}"));
    }
    store.catch_up(&Cancel::default()).unwrap();
    let pending = store.pending_vectors("e1", 2, 10).unwrap();
    assert_eq!(pending.len(), 2);
    let vectors: Vec<_> = pending
        .into_iter()
        .map(|pending| {
            let vector = if pending.hit.thread.as_str() == "one" { vec![1.0, 0.0] } else { vec![0.0, 1.0] };
            (pending, vector)
        })
        .collect();
    store.put_vectors("e1", &vectors).unwrap();
    assert_eq!(store.pending_vectors("e1", 2, 10).unwrap(), []);
    let query = Query::parse("common", &|_| None).unwrap();
    for (vector, first) in [([1.0, 0.0], "one"), ([0.0, 1.0], "two")] {
        let found = store.search(&SearchRequest { query: &query, vector: Some(("e1", &vector)), limit: 5 }).unwrap();
        assert_eq!(found.hits[0].thread.as_str(), first);
    }
    say(&store, "two", "n", "late");
    store.catch_up(&Cancel::default()).unwrap();
    let lacking = |name: &str, filter: &str| {
        let query = Query::parse(&format!("common {filter}"), &|_| None).unwrap();
        store
            .search(&SearchRequest { query: &query, vector: Some((name, &[1.0, 0.0])), limit: 5 })
            .unwrap()
            .without_vectors
    };
    assert_eq!((lacking("e1", ""), lacking("e2", ""), lacking("e1", "agent:other")), (1, 3, 0));
    store.delete(&thread("two")).unwrap();
    // Words that no passage has, and a vector that is close to one.
    let other = Query::parse("absent", &|_| None).unwrap();
    let by = |name| {
        store.search(&SearchRequest { query: &other, vector: Some((name, &[1.0, 0.0])), limit: 5 }).unwrap().hits.len()
    };
    assert_eq!((by("e1"), by("e2")), (1, 0));
    assert_eq!(store.pending_vectors("e2", 3, 10).unwrap().len(), 1);
    // A late answer of the earlier embedder is dropped.
    store.put_vectors("e1", &vectors).unwrap();
    assert_eq!(store.pending_vectors("e2", 3, 10).unwrap().len(), 1);
}

/// A process died after it wrote vectors to the file of an agent and before they were in the index.
#[test]
fn what_is_in_the_files_is_not_embedded_again() {
    let test_store = TestStore::new();
    let store = test_store.open();
    for name in ["one", "two", "three"] {
        create(&store, name, "scribe");
        say(&store, name, "m", &format!("words of {name}"));
    }
    store.catch_up(&Cancel::default()).unwrap();
    let agent = AgentId::new("scribe").unwrap();
    let files = |pending: &[UnembeddedPassage]| {
        let all: Vec<_> = pending.iter().map(|one| Embedding::new(&one.hit, "e1", &[0.6, 0.8])).collect();
        store.put_embeddings(&agent, &all).unwrap();
    };
    let both = |pending: Vec<UnembeddedPassage>| {
        files(&pending);
        let all: Vec<_> = pending.into_iter().map(|one| (one, vec![0.6, 0.8])).collect();
        store.put_vectors("e1", &all).unwrap();
    };
    let pending = |limit| store.pending_vectors("e1", 2, limit).unwrap();
    let lines = || fs::read_to_string(store.core.layout.embeddings(&agent)).unwrap().lines().count();
    both(pending(1));
    files(&pending(1));
    say(&store, "one", "n", "later words");
    store.catch_up(&Cancel::default()).unwrap();
    assert_eq!(pending(10).len(), 2, "of four, one is in both and one in the file");
    both(pending(1));
    assert_eq!((pending(10).len(), lines()), (1, 3));
    // A thread that is indexed again takes its vectors from the file.
    store.index_again(&thread("three")).unwrap();
    assert_eq!(pending(10).len(), 1);
    // A passage that was indexed again in between: its line is found.
    let last = pending(10);
    store.index_again(&last[0].hit.thread).unwrap();
    both(last);
    assert_eq!((pending(10), lines()), (vec![], 4));
    // Nothing changed: no file is read.
    let path = store.core.layout.embeddings(&agent);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, "x".repeat(text.len() - 1) + "\n").unwrap();
    assert_eq!(pending(10), []);
}

/// With ten thousand documents, a query by words may only look at those that match.
#[test]
fn a_query_by_words_scans_no_table() {
    let test_store = TestStore::new();
    let store = test_store.open();
    create(&store, "one", "scribe");
    say(&store, "one", "m", "first");
    store.catch_up(&Cancel::default()).unwrap();
    let connection = Connection::open(store.core.layout.search()).unwrap();
    let sql = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) \
               INSERT INTO documents (thread, kind, version, line, blob, offset, digest, at, text) \
               SELECT 1, 0, 1, 1, NULL, 0, 0, i, 'filler ' || i FROM n; \
               INSERT INTO words (rowid, text) SELECT id, text FROM documents WHERE id > 1;";
    connection.execute_batch(sql).unwrap();
    let query = Query::parse("agent:scribe status:created first", &|_| None).unwrap();
    let conditions = Conditions::of(&query.filters);
    for table in ["words", "trigrams"] {
        let explain = format!("EXPLAIN QUERY PLAN {}", conditions.sql(table));
        let mut statement = connection.prepare(&explain).unwrap();
        let mut found = statement.raw_query();
        let mut plan = Vec::new();
        while let Some(row) = found.next().unwrap() {
            plan.push(row.get::<_, String>(3).unwrap());
        }
        let scans = |step: &&String| step.starts_with("SCAN") && !step.contains("VIRTUAL TABLE INDEX 0:M");
        assert_eq!(plan.iter().find(scans), None, "{plan:?}");
        assert!(plan[0].contains("VIRTUAL TABLE INDEX 0:M"), "{plan:?}");
    }
    assert_eq!(ask(&store, "first").hits.len(), 1);
}
