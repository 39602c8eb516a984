//! A changeset as `selvedge append` reads it.
//!
//! It is refused or committed as a whole; a committed one loads, and the log has the same changeset.

use selvedge_log::strict;
use selvedge_model::{AgentId, Batch, Changeset, Expect, NewThread, Part};
use selvedge_store::memory::MemoryStore;
use selvedge_store::{Commit, Logs, load};

use crate::golden::{self, ConstantClock, SeededIds, THREAD, TRUST};

/// Reads a changeset and commits it to a fresh thread.
pub fn run(bytes: &[u8]) {
    let Ok(changeset) = strict::parse_as::<Changeset>(bytes) else { return };
    let checked = changeset.check();
    let store = MemoryStore::new(golden::signer(), Box::new(ConstantClock), Box::new(SeededIds::from(1)));
    let agent = AgentId::new("scribe").expect("the id is well formed");
    let create = Part::new(THREAD.clone(), Expect::Absent, Changeset::creating(NewThread::of(agent)));
    store.commit(Batch::of(create)).expect("a fresh thread can be created");
    let batch = Batch::of(Part::new(THREAD.clone(), Expect::Exact(0), changeset));
    let committed = store.commit(batch);
    let version = match &committed {
        Ok(_) => 1,
        Err(_) => 0,
    };
    assert!(checked.is_ok() || committed.is_err(), "an invalid changeset was committed");
    let loaded = load::load(&store, &THREAD, &TRUST, None).expect("a committed thread can be loaded");
    assert_eq!(loaded.thread.version, Some(version));
    if version == 1 {
        check_round_trip(&store);
    }
}

/// The lines of the log give a changeset, and that one gives the same lines.
fn check_round_trip(store: &MemoryStore) {
    let lines = store.read(&THREAD, 0, usize::MAX).expect("a committed thread can be read");
    let created = 2;
    let events: Vec<_> = lines.into_iter().skip(created).map(|line| line.event).collect();
    let again = Changeset::from_events(events.clone()).expect("its lines make a changeset").into_events();
    assert_eq!(again, events[..events.len() - 1], "its lines give another changeset");
}

/// A few changesets with everything that one can have.
pub fn seeds() -> Vec<Vec<u8>> {
    [
        r#"{"reason":"UserMessage","messages":[{"id":"m1","role":"user","content":"hello"}]}"#,
        r#"{"run_id":"r1","parent_run_id":"r0","reason":"AssistantTurnCommitted","turn":1,"messages":[{"role":"assistant","content":[{"type":"thinking","text":"a","signature":"s"},{"type":"text","text":"b"},{"type":"tool_call","id":"c1","name":"n","arguments":{"x":1.5}}],"visibility":"internal","step":2}]}"#,
        r#"{"reason":"ToolResultsCommitted","messages":[{"role":"tool","content":[{"type":"tool_result","call_id":"c1","content":[{"type":"text","text":"x"}],"is_error":true}]}]}"#,
        r#"{"reason":"RunFinished","run_id":"r1","run_meta":{"agent_id":"scribe","origin":"user","status":"done","termination_code":"stop","input_tokens":1,"output_tokens":2,"outcome":"completed","cost":{"turns":1,"spend":0.25}}}"#,
        r#"{"reason":"UserMessage","run_id":"r1","run_meta":{"agent_id":"scribe","origin":"user","status":"running"},"patches":[{"ops":[{"op":"set","path":["a","b"],"value":[1,2]},{"op":"append","path":["a","b"],"value":3},{"op":"increment","path":["a","b",0],"amount":5},{"op":"insert","path":["a","b"],"index":1,"value":null},{"op":"remove","path":["a","b"],"value":2},{"op":"merge_object","path":[],"value":{"c":{}}},{"op":"delete","path":["c"]},{"op":"decrement","path":["a","b",0],"amount":0.5}]}],"actions":[{"kind":"x"}]}"#,
        r#"{"reason":"Lifecycle","snapshot":{"deep":[[[[{"a":[]}]]]],"n":-0.0,"big":9007199254740993}}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
