//! Leftovers of runs and tool calls are deleted in time, based on the folded state.

use selvedge_model::event::ToolOutcome;
use selvedge_model::op::Op;
use selvedge_model::path::Path;
use selvedge_model::scope::{Scope, Scopes, TOOL_CALL_KEY, call_cleanup};
use selvedge_model::{CallId, Changeset, Event, Reason, ThreadId};
use serde_json::{Value, json};

use super::Harness;
use super::support::*;
use crate::contract::Store;

fn declared() -> Scopes {
    let mut scopes = Scopes::builtin();
    scopes.declare(Path::keys(["scratch"]), Scope::ToolCall).unwrap();
    scopes.declare(Path::keys(["draft"]), Scope::Run).unwrap();
    scopes
}

fn write(store: &impl Store, thread: &ThreadId, keys: &[&str], value: Value, call: Option<&CallId>) {
    let path = declared().route(&Path::keys(keys.iter().copied()), call);
    append(store, thread, patches([Op::Set { path, value }]));
}

/// A killed run left values in patches only; the next run's preparation finds and deletes them.
pub fn leftovers_of_a_killed_run_are_cleaned<H: Harness>(harness: &H) {
    let killed = harness.open();
    let trust = harness.trust();
    let thread = create(&killed, "killed");
    append(&killed, &thread, Changeset { snapshot: Some(json!({"notes": ["kept"]})), ..starts("run-1") });
    write(&killed, &thread, &["__run"], json!({"id": "run-1", "status": "running"}), None);
    write(&killed, &thread, &["__kernel", "stop_policy_runtime"], json!({"total_input_tokens": 5}), None);
    write(&killed, &thread, &["__kernel", "other"], json!("kept"), None);
    write(&killed, &thread, &["draft"], json!("half a sentence"), None);
    drop(killed);

    let store = harness.open();
    append(&store, &thread, finishes("run-1", "killed"));
    let cleanup = declared().run_cleanup(&loaded(&store, &trust, &thread).state).expect("there is something to clean");
    let prepared = Changeset { patches: vec![cleanup], ..starts("run-2") };
    append(&store, &thread, prepared);
    let state = loaded(&store, &trust, &thread).state;
    assert_eq!(state, json!({"notes": ["kept"], "__kernel": {"other": "kept"}}), "thread-scoped values stay");
    assert_eq!(declared().run_cleanup(&state), None, "nothing is left to clean");
}

/// Values of a tool call are deleted in the same commit as its result: before it all exist, after it none.
pub fn values_of_a_call_are_deleted_with_its_result<H: Harness>(harness: &H) {
    let store = harness.open();
    let trust = harness.trust();
    let thread = create(&store, "called");
    let one: CallId = id("call-1");
    let two: CallId = id("call-2");
    write(&store, &thread, &["scratch", "n"], json!(1), Some(&one));
    write(&store, &thread, &["scratch", "n"], json!(2), Some(&two));
    let before = loaded(&store, &trust, &thread);
    let cleanup = call_cleanup(&before.state, &one).expect("the call has values");
    let outcome =
        ToolOutcome { call_id: one.clone(), result: Some(json!("done")), error: None, failure: None, blob: None };
    let result = Changeset {
        patches: vec![cleanup],
        events: vec![Event::ToolOutcome(outcome)],
        ..Changeset::empty(Reason::ToolResultsCommitted)
    };
    append(&store, &thread, result);
    let after = loaded(&store, &trust, &thread);
    assert_eq!(before.calls.get(&one), None, "before the commit there is no result");
    assert!(after.calls[&one].outcome.is_some(), "after it there is one");
    assert_eq!(after.state[TOOL_CALL_KEY], json!({"call-2": {"scratch": {"n": 2}}}), "the other call keeps its values");
    assert_eq!(call_cleanup(&after.state, &one), None);
}

/// A call id with a dot is one key, and deleting it affects no other.
pub fn a_call_id_with_a_dot_is_one_key<H: Harness>(harness: &H) {
    let store = harness.open();
    let trust = harness.trust();
    let thread = create(&store, "dotted");
    let calls: Vec<CallId> = ["call", "call.1", "call.1.2", "call/1", "call 1"].into_iter().map(id).collect();
    for call in &calls {
        write(&store, &thread, &["scratch"], json!(call.as_str()), Some(call));
    }
    let state = loaded(&store, &trust, &thread).state;
    assert_eq!(state[TOOL_CALL_KEY].as_object().map(serde_json::Map::len), Some(calls.len()), "each call is one key");
    let dotted = &calls[1];
    append(&store, &thread, Changeset { patches: vec![call_cleanup(&state, dotted).unwrap()], ..empty() });
    let state = loaded(&store, &trust, &thread).state;
    for call in &calls {
        let kept = state[TOOL_CALL_KEY].get(call.as_str());
        let expected = json!({"scratch": call.as_str()});
        assert_eq!(kept, (call != dotted).then_some(&expected), "`{call}`");
    }
}

/// Cleanup before a run is based on the current state, not on a replaced snapshot.
pub fn cleanup_uses_the_newest_state<H: Harness>(harness: &H) {
    let store = harness.open();
    let trust = harness.trust();
    let thread = create(&store, "newest");
    append(&store, &thread, Changeset { snapshot: Some(json!({"draft": 1, "notes": 1})), ..empty() });
    append(&store, &thread, patches([Op::Delete { path: Path::keys(["draft"]) }]));
    assert_eq!(declared().run_cleanup(&loaded(&store, &trust, &thread).state), None, "it was deleted by a patch");
    append(&store, &thread, patches([set("draft", Value::Null)]));
    let cleanup = declared().run_cleanup(&loaded(&store, &trust, &thread).state).expect("a null is a value, too");
    append(&store, &thread, Changeset { patches: vec![cleanup], ..empty() });
    assert_eq!(loaded(&store, &trust, &thread).state, json!({"notes": 1}));
}
