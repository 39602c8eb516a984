//! The state of a thread: a snapshot, then its patches, each applied once and in order.

use selvedge_model::fold::FoldError;
use selvedge_model::op::Op;
use selvedge_model::path::Path;
use selvedge_model::{Batch, Changeset, Event, Patch};
use serde_json::{Value, json};

use super::Harness;
use super::support::*;
use crate::contract::{Commit, Registry};
use crate::error::Error;

/// A snapshot is the state before the patches of its changeset: they are applied to it, once.
pub fn a_snapshot_comes_before_its_patches<H: Harness>(harness: &H) {
    let store = harness.open();
    let trust = harness.trust();
    let thread = create(&store, "based");
    append(&store, &thread, patches([set("list", json!(["old"])), set("gone", json!(true))]));
    let replaced = Changeset { snapshot: Some(json!({"list": ["base"]})), ..patches([push("list", json!("patch"))]) };
    append(&store, &thread, replaced);
    assert_eq!(loaded(&store, &trust, &thread).state, json!({"list": ["base", "patch"]}));
    append(&store, &thread, patches([push("list", json!("next"))]));
    assert_eq!(loaded(&store, &trust, &thread).state, json!({"list": ["base", "patch", "next"]}));
    let kinds: Vec<_> = verified(&store, &trust, &thread)[2].lines.iter().map(|line| line.event.place()).collect();
    assert!(kinds.is_sorted(), "the snapshot comes before the patches: {kinds:?}");
}

/// Patches are applied in order, within a changeset and over several, by any handle.
pub fn patches_apply_in_order<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "ordered");
    let three = Changeset {
        patches: (0..3)
            .map(|number| Patch::new(vec![push("list", json!(number)), set("last", json!(number))]))
            .collect(),
        ..empty()
    };
    append(&store, &thread, three);
    for number in 3..7 {
        let handle = if number % 2 == 0 { &store } else { &other };
        append(handle, &thread, patches([push("list", json!(number)), set("last", json!(number))]));
    }
    let state = loaded(&store, &harness.trust(), &thread).state;
    assert_eq!(state, json!({"list": [0, 1, 2, 3, 4, 5, 6], "last": 6}));
}

/// Every operation is applied.
pub fn every_op_is_applied<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "ops");
    let at = |key: &str| Path::keys([key]);
    let entries = serde_json::from_value(json!({"x": 1, "y": {"z": null}})).unwrap();
    let ops = [
        (set("a", json!({"b": [1, 2]})), json!({"a": {"b": [1, 2]}})),
        (Op::Insert { path: Path::keys(["a", "b"]), index: 1, value: json!("in") }, json!({"a": {"b": [1, "in", 2]}})),
        (Op::Remove { path: Path::keys(["a", "b"]), value: json!(1) }, json!({"a": {"b": ["in", 2]}})),
        (Op::Increment { path: Path::keys(["a", "b"]).index(1), amount: 5.into() }, json!({"a": {"b": ["in", 7]}})),
        (Op::Decrement { path: Path::keys(["a", "b"]).index(1), amount: 9.into() }, json!({"a": {"b": ["in", -2]}})),
        (push("list", json!([])), json!({"a": {"b": ["in", -2]}, "list": [[]]})),
        (Op::Delete { path: at("a") }, json!({"list": [[]]})),
        (Op::Delete { path: at("nothing") }, json!({"list": [[]]})),
        (Op::MergeObject { path: at("o"), value: entries }, json!({"list": [[]], "o": {"x": 1, "y": {"z": null}}})),
        (Op::Set { path: Path::root(), value: json!({"all": "new"}) }, json!({"all": "new"})),
    ];
    for (op, expected) in ops {
        append(&store, &thread, patches([op.clone()]));
        assert_eq!(loaded(&store, &harness.trust(), &thread).state, expected, "after {op:?}");
    }
}

/// A patch that does not apply refuses its whole changeset, and leaves no trace.
pub fn a_patch_that_does_not_apply_refuses_its_changeset<H: Harness>(harness: &H) {
    let store = harness.open();
    let other = harness.open();
    let thread = create(&store, "refusing");
    append(&store, &thread, patches([set("n", json!(1)), set("text", json!("t"))]));
    let bad_ops = [
        count("missing"),
        count("text"),
        push("n", json!(1)),
        Op::Insert { path: Path::keys(["n"]), index: 0, value: json!(1) },
        Op::Set { path: Path::keys(["text", "inner"]), value: json!(1) },
        Op::Increment { path: Path::keys(["n"]), amount: u64::MAX.into() },
    ];
    leaves_no_trace(&store, &[&thread], || {
        for op in bad_ops {
            let good = Patch::new(vec![count("n"), set("new", json!(1))]);
            let bad = Patch::new(vec![count("n"), op.clone()]);
            let changeset = Changeset { patches: vec![good, bad], ..says_as("m1", "never") };
            let answer = store.commit(Batch::of(part(&thread, changeset)));
            assert_refused!(answer, Error::Fold { source: FoldError::Patch(_), .. }, "{op:?}");
        }
    });
    append(&store, &thread, patches([count("n")]));
    append(&other, &thread, patches([count("n")]));
    let found = loaded(&store, &harness.trust(), &thread);
    assert_eq!((found.state, found.messages.len()), (json!({"n": 3, "text": "t"}), 0), "no refused patch left a trace");
}

/// A patch is applied to the result of its changeset's snapshot and earlier patches.
pub fn a_patch_is_applied_to_the_state_before_it<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "judged");
    append(&store, &thread, patches([set("n", json!("text"))]));
    let on_new_base = Changeset { snapshot: Some(json!({"n": 1})), ..patches([count("n")]) };
    append(&store, &thread, on_new_base);
    leaves_no_trace(&store, &[&thread], || {
        let on_lost_base = Changeset { snapshot: Some(json!({})), ..patches([count("n")]) };
        let answer = store.commit(Batch::of(part(&thread, on_lost_base)));
        assert_refused!(answer, Error::Fold { .. }, "a patch of a value that the snapshot removed");
    });
    let one_after_the_other =
        Changeset { patches: vec![Patch::new(vec![set("m", json!(1))]), Patch::new(vec![count("m")])], ..empty() };
    append(&store, &thread, one_after_the_other);
    assert_eq!(loaded(&store, &harness.trust(), &thread).state, json!({"n": 2, "m": 2}));
}

/// Recorded state actions are kept for audit and change nothing.
pub fn state_actions_are_recorded_and_never_replayed<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "intended");
    let action = serde_json::from_value(json!({"base_path": "n", "scope": "thread", "payload": {"set": 9}})).unwrap();
    append(&store, &thread, Changeset { state_actions: vec![action], ..patches([set("n", json!(1))]) });
    assert_eq!(loaded(&store, &harness.trust(), &thread).state, json!({"n": 1}));
    let is_action = |line: &selvedge_log::Line| matches!(line.event, Event::StateAction(_));
    assert_eq!(lines_of(&store, &thread).into_iter().filter(is_action).count(), 1, "the log has it");
}

/// A state may be any value, including null and a list.
pub fn a_state_may_be_any_value<H: Harness>(harness: &H) {
    let store = harness.open();
    let thread = create(&store, "any");
    assert_eq!(loaded(&store, &harness.trust(), &thread).state, json!({}), "a new thread has an empty state");
    for state in [Value::Null, json!([1, [2]]), json!("text"), json!(0.5), json!(false), json!({"": {"": 1}})] {
        append(&store, &thread, Changeset { snapshot: Some(state.clone()), ..empty() });
        append(&store, &thread, says("between"));
        assert_eq!(loaded(&store, &harness.trust(), &thread).state, state);
    }
    append(&store, &thread, Changeset { snapshot: Some(Value::Null), ..patches([set("a", json!(1))]) });
    assert_eq!(loaded(&store, &harness.trust(), &thread).state, json!({"a": 1}), "a null becomes an object");
}

/// A handle with a cached state does not continue from it when another handle has changed it.
pub fn a_handle_never_continues_from_an_old_state<H: Harness>(harness: &H) {
    let stores = [harness.open(), harness.open(), harness.open()];
    let thread = create(&stores[0], "cached");
    append(&stores[0], &thread, patches([set("n", json!(0))]));
    for _ in 0..4 {
        for store in &stores {
            append(store, &thread, patches([count("n")]));
        }
    }
    append(&stores[1], &thread, patches([set("n", json!("text"))]));
    for store in &stores {
        let answer = store.commit(Batch::of(part(&thread, patches([count("n")]))));
        assert_refused!(answer, Error::Fold { .. }, "counting a value that another handle made a text");
    }
    append(&stores[2], &thread, patches([set("n", json!(100))]));
    for store in &stores {
        append(store, &thread, patches([count("n")]));
    }
    assert_eq!(loaded(&stores[0], &harness.trust(), &thread).state, json!({"n": 103}));
    assert_eq!(stores[0].get(&thread).unwrap().version, 18);
}
