//! Queries about chains: their links, trees, searches and transcripts.

use std::sync::Arc;
use std::sync::mpsc::channel;

use selvedge_engine::Input;
use selvedge_engine::chain::{get_chain, get_tree};
use selvedge_engine::outcome::get_status;
use selvedge_engine::search::{MATCHES_MAX, Query, SNIPPET_CHARS_MAX, SearchType, chain_search};
use selvedge_engine::thread_state::ThreadState;
use selvedge_engine::transcript::read_transcript;
use selvedge_model::event::{EffectClass, Predecessor};
use selvedge_model::limits::Cost;
use selvedge_model::message::Block;
use selvedge_model::{
    CallId, Changeset, Classify, Event, Kind, Message, NewThread, Reason, Role, RunMeta, Status, ThreadId, Tool,
};
use selvedge_store::conformance::support::{
    append, batch, birth, create, create_as, finishes, id, new_thread, part_at, records, says, with_event,
};
use selvedge_store::memory::MemoryStore;
use selvedge_store::search::NotSearched;
use selvedge_store::{Commit, Filter, Logs, Registry};
use serde_json::json;

use crate::support::{CountingTool, Harness, Reply, agent};
use crate::waiting::{handoff, memory, trust};

/// Ends a thread and continues it in a successor.
fn goes_on(store: &MemoryStore, from: &ThreadId, to: &str, settling: Event) -> ThreadId {
    let to = id(to);
    let head = store.head(from).unwrap();
    let manifest = store.get(from).unwrap().manifest;
    let new = NewThread {
        continuation_of: Some(Predecessor { thread_id: from.clone(), version: head.version, hash: head.hash }),
        chain_root_id: Some(manifest.chain_root_id),
        parent_id: manifest.parent_id,
        ..new_thread()
    };
    store.commit(batch([part_at(from, head.version, with_event(settling)), birth(&to, new)])).unwrap();
    to
}

/// The end of a run that cost this many turns.
fn used(run: &str, turns: u64) -> Changeset {
    let cost = Some(Cost { turns, ..Cost::default() });
    let meta = RunMeta { cost, ..RunMeta::started(id("scribe"), "user").finished("natural") };
    Changeset { reason: Reason::RunFinished, ..records(run, meta) }
}

/// A chain of three, with something said in each.
fn chain(store: &MemoryStore) -> [ThreadId; 3] {
    let a = create(store, "a");
    append(store, &a, says("The first ERROR was a timeout; the second error was another Error."));
    append(store, &a, used("r1", 2));
    let b = goes_on(store, &a, "b", Event::ThreadHandoff(handoff(&id("b"))));
    append(store, &b, says("nothing to see, \"quoted\\path\" aside"));
    append(store, &b, used("r2", 3));
    let c = goes_on(store, &b, "c", Event::ThreadResumed(handoff(&id("c"))));
    let call = Block::tool_call(
        CallId::new("c1").unwrap(),
        "fetch",
        json!({"url": "http://example.test/error", "tries": 4711}),
    );
    let asks = Message { content: vec![call], ..Message::text(Role::Assistant, "") };
    append(store, &c, Changeset { messages: vec![asks], ..Changeset::empty(Reason::Lifecycle) });
    [a, b, c]
}

fn text(query: &str) -> Query {
    Query { query: query.to_owned(), search_type: SearchType::Text, is_exact: false, max_results: 50 }
}

fn regex(query: &str) -> Query {
    Query { search_type: SearchType::Regex, ..text(query) }
}

#[test]
fn a_chain_shows_how_each_thread_was_continued() {
    let store = memory();
    let threads = chain(&store);
    for thread in &threads {
        let chain = get_chain(&store, thread).unwrap();
        assert_eq!((chain.success, chain.chain_length), (true, 3));
        let ids: Vec<_> = chain.chain.iter().map(|link| link.outcome.thread_id.clone()).collect();
        assert_eq!(ids, threads, "from `{thread}`, root first");
        let how: Vec<_> =
            chain.chain.iter().map(|link| link.continued.as_ref().map(|how| (how.how, how.trailing_turns))).collect();
        assert_eq!(how, [Some(("handoff", 2)), Some(("resume", 2)), None]);
        let statuses: Vec<_> = chain.chain.iter().map(|link| link.outcome.status).collect();
        assert_eq!(
            statuses,
            [ThreadState::Is(Status::Continued), ThreadState::Is(Status::Continued), ThreadState::Is(Status::Created)]
        );
    }
    store.delete(&threads[1]).unwrap();
    let chain = get_chain(&store, &threads[0]).unwrap();
    let statuses: Vec<_> = chain.chain.iter().map(|link| link.outcome.status).collect();
    assert_eq!(
        statuses,
        [ThreadState::Is(Status::Continued), ThreadState::Deleted, ThreadState::Is(Status::Created)],
        "a walk passes through it"
    );
    let shown = serde_json::to_value(&chain).unwrap();
    assert_eq!(shown["chain"][0]["continued"]["details"]["kept"], 3);
    assert_eq!(shown["chain_length"], 3);
    assert_eq!(get_chain(&store, &id("missing")).unwrap_err().kind(), Kind::Absent);
}

#[test]
fn a_tree_has_chains_children_and_their_usage() {
    let store = memory();
    let [a, _, c] = chain(&store);
    let child_of = |name: &str, parent: &ThreadId| {
        let thread = create_as(&store, name, NewThread { parent_id: Some(parent.clone()), ..new_thread() });
        append(&store, &thread, used("r", 5));
        thread
    };
    let first = child_of("first", &a);
    let second = goes_on(&store, &first, "second", Event::ThreadHandoff(handoff(&id("second"))));
    child_of("late", &c);
    child_of("grandchild", &second);
    for thread in [&a, &c] {
        let tree = get_tree(&store, thread).unwrap();
        assert_eq!((tree.outcome.thread_id.as_str(), tree.chain.len()), ("c", 3));
        let below: Vec<_> =
            tree.children.iter().map(|child| (child.outcome.thread_id.as_str(), child.chain.len())).collect();
        assert_eq!(below, [("second", 2), ("late", 1)], "a successor is no further child");
        assert_eq!(tree.children[0].children[0].outcome.thread_id.as_str(), "grandchild");
        assert_eq!(tree.children[0].outcome.cost.turns, 10);
        assert_eq!(tree.outcome.cost.turns, 2 + 3 + 5 + 5 + 5);
        assert!(!tree.truncated && !tree.is_active());
    }
}

#[test]
fn a_chain_is_searched_from_its_root_to_its_end() {
    let store = memory();
    let [a, b, c] = chain(&store);
    for thread in [&a, &b, &c] {
        let found = chain_search(&store, &trust(), thread, &text("error")).unwrap();
        assert_eq!((found.chain_length, &found.chain_threads), (3, &vec![a.clone(), b.clone(), c.clone()]));
        let places: Vec<_> = found.results.iter().map(|found| (&found.thread_id, found.line_no)).collect();
        assert_eq!(places, [(&a, 2), (&c, 2)]);
        assert_eq!(found.results[0].event_type, "message");
        assert_eq!(found.results[0].matches, ["ERROR", "error", "Error"]);
        assert!(found.results[0].snippet.starts_with("The first ERROR was"));
        assert!(!found.truncated);
    }
    let line = store.read(&a, 2, 1).unwrap().remove(0);
    assert!(matches!(line.event, Event::Message(_)), "the number is the line's own");
}

#[test]
fn texts_and_patterns_are_distinguished() {
    let store = memory();
    let [a, ..] = chain(&store);
    let count = |query: &Query| chain_search(&store, &trust(), &a, query).unwrap().results.len();
    assert_eq!(count(&text("error.*timeout")), 0, "a text is literal");
    assert_eq!(count(&regex("error.*timeout")), 1);
    assert_eq!(count(&regex("^the first")), 1);
    assert_eq!(count(&Query { is_exact: true, ..text("timeout") }), 1);
    assert_eq!(count(&Query { is_exact: true, ..text("TIMEOUT") }), 0);
    assert_eq!(count(&text("\"quoted\\path\"")), 1, "as it was written, not in its JSON form");
    assert_eq!(count(&text("/error")), 1);
    assert_eq!(count(&text("4711")), 1, "numbers are found, too");
    assert_eq!(count(&text("checkpoint")), 0, "signatures are not searched");
    assert_eq!(count(&text("event_type")), 0, "nor are the names of fields");
    for internal in ["r1", "scribe", "RunFinished", "natural", "message", "c1", "thread_handoff"] {
        assert_eq!(count(&text(internal)), 0, "`{internal}` is internal and not searched");
    }
    assert_eq!(count(&text("FETCH")), 1, "the name and the arguments of a call are searched");
    assert_eq!(
        count(&regex("x*")),
        chain_search(&store, &trust(), &a, &regex("x+")).unwrap().results.len(),
        "an empty match is none"
    );
}

#[test]
fn a_search_is_bounded() {
    let store = memory();
    let thread = create(&store, "many");
    for _ in 0..7 {
        append(&store, &thread, says(&"needle ".repeat(9)));
    }
    let found = chain_search(&store, &trust(), &thread, &Query { max_results: 5, ..text("needle") }).unwrap();
    assert_eq!((found.results.len(), found.truncated), (5, true));
    assert!(found.results.iter().all(|found| found.matches.len() == MATCHES_MAX));
    let found = chain_search(&store, &trust(), &thread, &Query { max_results: 7, ..text("needle") }).unwrap();
    assert_eq!((found.results.len(), found.truncated), (7, false), "exactly as many are not truncated");
    // A match in the middle of a long text is shown in the middle, whatever characters are around it.
    append(&store, &thread, says(&format!("{}straw{}", "ü".repeat(3_000), "é".repeat(3_000))));
    let found = chain_search(&store, &trust(), &thread, &text("straw")).unwrap();
    let snippet = &found.results[0].snippet;
    assert_eq!(snippet.chars().count(), SNIPPET_CHARS_MAX);
    assert!(snippet.starts_with('ü') && snippet.contains("straw") && snippet.ends_with('é'));
    let long = regex("ü+straw");
    let found = chain_search(&store, &trust(), &thread, &long).unwrap();
    assert!(found.results[0].snippet.chars().count() <= SNIPPET_CHARS_MAX);
    assert!(found.results[0].matches[0].chars().count() <= 200);
}

#[test]
fn patterns_that_can_not_be_used_are_refused_with_a_reason() {
    let store = memory();
    let thread = create(&store, "t");
    for bad in ["(", "a{1000}{1000}{1000}", "(?=look)", "", &"x".repeat(2_000)] {
        let refused = chain_search(&store, &trust(), &thread, &regex(bad)).unwrap_err();
        assert_eq!((refused.code(), refused.kind()), ("invalid_pattern", Kind::Invalid), "{bad}");
        assert!(!refused.to_string().contains('\n'), "{refused}");
    }
    assert_eq!(chain_search(&store, &trust(), &thread, &text("(")).unwrap().results.len(), 0);
    assert_eq!(chain_search(&store, &trust(), &id("missing"), &text("x")).unwrap_err().kind(), Kind::Absent);
    // A pattern that takes other engines exponential time takes linear time.
    append(&store, &thread, says(&"a".repeat(30_000)));
    let began = std::time::Instant::now();
    chain_search(&store, &trust(), &thread, &regex("(a+)+$|(a|aa)+b")).unwrap();
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}

#[test]
fn a_transcript_is_readable_and_may_be_limited_to_its_end() {
    let store = memory();
    let thread = create(&store, "said");
    append(&store, &thread, says("What is in the box?"));
    let answer = Message::text(Role::Assistant, "A cat.\nAsleep.");
    append(&store, &thread, Changeset { messages: vec![answer], ..Changeset::empty(Reason::AssistantTurnCommitted) });
    append(&store, &thread, finishes("r1", "natural"));
    let whole = read_transcript(&store, &trust(), &thread, None).unwrap();
    assert_eq!(whole.content, "## user\n\nWhat is in the box?\n\n## assistant\n\nA cat.\nAsleep.\n");
    assert_eq!((whole.success, whole.truncated), (true, false));
    let last = read_transcript(&store, &trust(), &thread, Some(2)).unwrap();
    assert_eq!((last.content.as_str(), last.truncated), ("A cat.\nAsleep.\n", true));
    // The line between two messages is not the last line of the last one.
    let last = read_transcript(&store, &trust(), &thread, Some(1)).unwrap();
    assert_eq!((last.content.as_str(), last.truncated), ("Asleep.\n", true));
    assert_eq!(read_transcript(&store, &trust(), &id("missing"), None).unwrap_err().kind(), Kind::Absent);
}

#[test]
fn a_transcript_has_the_texts_of_blobs_and_says_what_is_left_out() {
    let store = memory();
    let thread = create(&store, "long");
    let says_blob = |content: &[u8]| {
        let blob = store.put_blob(&thread, content).unwrap();
        let block = Block::Text { text: "shortened".to_owned(), blob: Some(blob) };
        let message = Message { content: vec![block], ..Message::text(Role::User, "") };
        append(&store, &thread, Changeset { messages: vec![message], ..Changeset::empty(Reason::UserMessage) });
    };
    says_blob(b"the whole text of a blob");
    says_blob(b"\xff\xfe");
    let read = read_transcript(&store, &trust(), &thread, None).unwrap();
    assert_eq!(read.content, "## user\n\nthe whole text of a blob\n\n## user\n\nshortened\n");
    assert_eq!(read.not_searched, NotSearched { blobs_not_text: 1, ..NotSearched::default() });
}

/// They were 0 until the run ended.
#[test]
fn the_cost_of_a_running_thread_is_true_in_every_query() {
    let harness = Harness::new();
    let thread = harness.thread();
    let tools: Vec<Arc<dyn Tool>> = vec![Arc::new(CountingTool::new("look", EffectClass::Pure))];
    let work = agent(vec![Reply::Calls(vec![("c1", "look", json!({}))]), Reply::Says("done")], tools);
    let store = harness.store.inner.another();
    let trust = harness.trust.clone();
    let (tell, told) = channel();
    harness.once_after(Reason::ToolResultsCommitted, move |thread| {
        let listed = store.list(&Filter::default(), None, 10).unwrap().items.remove(0);
        let status = get_status(&store, &trust, thread).unwrap();
        let link = get_chain(&store, thread).unwrap().chain.remove(0).outcome;
        let tree = get_tree(&store, thread).unwrap().outcome;
        assert_eq!(listed.manifest.status, Status::Running);
        tell.send([
            ("the registry", listed.manifest.cost, Some(listed.manifest.run_cost)),
            ("status", status.cost, status.run_cost),
            ("chain", link.cost, link.run_cost),
            ("tree", tree.cost, tree.run_cost),
        ])
        .unwrap();
    });
    harness.send(&thread, Input::text("go"), &work).0.unwrap();
    for (what, cost, run_cost) in told.recv().unwrap() {
        assert_eq!((cost.turns, cost.input_tokens, cost.output_tokens), (1, 10, 5), "{what}");
        assert_eq!(run_cost.map(|cost| cost.turns), Some(1), "{what}");
    }
}
