//! The edge cases of the ops, one by one.

use serde_json::{Value, json};

use super::{DEPTH_MAX, Op, OpError};
use crate::error::{Classify, Kind};
use crate::path::Path;

fn op(op: Value) -> Op {
    serde_json::from_value(op).unwrap()
}

/// The state after the op, or the error's code; also checks that a failed op changes nothing.
fn after(state: Value, change: Value) -> Result<Value, &'static str> {
    let mut changed = state.clone();
    match op(change).apply(&mut changed) {
        Ok(()) => Ok(changed),
        Err(error) => {
            assert_eq!(changed, state, "a failed op changed the state");
            assert_eq!(error.kind(), Kind::Invalid);
            Err(error.code())
        }
    }
}

#[track_caller]
fn check(cases: Value) {
    for case in cases.as_array().unwrap() {
        let found = after(case[0].clone(), case[1].clone());
        match case[2].as_str().filter(|text| text.starts_with("op_")) {
            Some(code) => assert_eq!(found, Err(code), "{case}"),
            None => assert_eq!(found, Ok(case[2].clone()), "{case}"),
        }
    }
}

#[test]
fn set_creates_objects_where_a_value_is_missing_or_null() {
    check(json!([
        [{}, {"op": "set", "path": ["a", "b"], "value": 1}, {"a": {"b": 1}}],
        [null, {"op": "set", "path": ["a", "b"], "value": 1}, {"a": {"b": 1}}],
        [{"a": null}, {"op": "set", "path": ["a", "b", "c"], "value": 1}, {"a": {"b": {"c": 1}}}],
        [{"a": {"x": 1}}, {"op": "set", "path": ["a"], "value": 2}, {"a": 2}],
        [{"a": 1}, {"op": "set", "path": [], "value": [1]}, [1]],
        [[1, 2], {"op": "set", "path": [1], "value": 3}, [1, 3]],
        [[null], {"op": "set", "path": [0, "a"], "value": 3}, [{"a": 3}]],
        [{"a.b": 1}, {"op": "set", "path": ["a.b"], "value": 2}, {"a.b": 2}],
    ]));
}

#[test]
fn set_never_replaces_a_value_on_its_path() {
    check(json!([
        [{"a": 1}, {"op": "set", "path": ["a", "b"], "value": 1}, "op_type_mismatch"],
        [{"a": "x"}, {"op": "set", "path": ["a", "b"], "value": 1}, "op_type_mismatch"],
        [{"a": false}, {"op": "set", "path": ["a", "b"], "value": 1}, "op_type_mismatch"],
        [{"a": [1]}, {"op": "set", "path": ["a", "b"], "value": 1}, "op_type_mismatch"],
        [{"a": {}}, {"op": "set", "path": ["a", 0], "value": 1}, "op_type_mismatch"],
    ]));
}

#[test]
fn an_index_never_creates_or_extends_an_array() {
    check(json!([
        [[1], {"op": "set", "path": [1], "value": 2}, "op_out_of_bounds"],
        [[], {"op": "set", "path": [0, "a"], "value": 2}, "op_out_of_bounds"],
        [null, {"op": "set", "path": [0], "value": 2}, "op_type_mismatch"],
        [{}, {"op": "set", "path": ["a", "b", 0], "value": 2}, "op_type_mismatch"],
        [{"a": null}, {"op": "append", "path": ["a", 0], "value": 2}, "op_type_mismatch"],
    ]));
}

#[test]
fn delete_leaves_nothing_at_its_path() {
    check(json!([
        [{"a": 1, "b": 2}, {"op": "delete", "path": ["a"]}, {"b": 2}],
        [{"a": null}, {"op": "delete", "path": ["a"]}, {}],
        [[1, 2, 3], {"op": "delete", "path": [1]}, [1, 3]],
        [{"a": 1}, {"op": "delete", "path": []}, null],
        [{"a": 1}, {"op": "delete", "path": ["b"]}, {"a": 1}],
        [{"a": 1}, {"op": "delete", "path": ["b", "c", 0]}, {"a": 1}],
        [{"a": 1}, {"op": "delete", "path": ["a", "b"]}, {"a": 1}],
        [[1], {"op": "delete", "path": [1]}, [1]],
        [[1], {"op": "delete", "path": ["0"]}, [1]],
    ]));
}

#[test]
fn append_creates_its_array() {
    check(json!([
        [{"a": [1]}, {"op": "append", "path": ["a"], "value": 2}, {"a": [1, 2]}],
        [{"a": null}, {"op": "append", "path": ["a"], "value": 2}, {"a": [2]}],
        [{}, {"op": "append", "path": ["a", "b"], "value": [2]}, {"a": {"b": [[2]]}}],
        [null, {"op": "append", "path": [], "value": 2}, [2]],
        [{"a": "x"}, {"op": "append", "path": ["a"], "value": 2}, "op_type_mismatch"],
        [{"a": {}}, {"op": "append", "path": ["a"], "value": 2}, "op_type_mismatch"],
    ]));
}

#[test]
fn merge_object_is_shallow_and_creates_its_object() {
    check(json!([
        [{"a": 1, "b": {"x": 1}}, {"op": "merge_object", "path": [], "value": {"b": {"y": 2}}}, {"a": 1, "b": {"y": 2}}],
        [{"a": 1}, {"op": "merge_object", "path": [], "value": {"a": null}}, {"a": null}],
        [{}, {"op": "merge_object", "path": ["a"], "value": {}}, {"a": {}}],
        [{"a": null}, {"op": "merge_object", "path": ["a"], "value": {"b": 1}}, {"a": {"b": 1}}],
        [{"a": []}, {"op": "merge_object", "path": ["a"], "value": {"b": 1}}, "op_type_mismatch"],
    ]));
}

#[test]
fn only_existing_numbers_change() {
    check(json!([
        [{"n": 1}, {"op": "increment", "path": ["n"], "amount": 2}, {"n": 3}],
        [{"n": 1}, {"op": "decrement", "path": ["n"], "amount": 2}, {"n": -1}],
        [{"n": 1}, {"op": "increment", "path": ["n"], "amount": -2}, {"n": -1}],
        [{"n": 1}, {"op": "increment", "path": ["n"], "amount": 0.5}, {"n": 1.5}],
        [{"n": 1.5}, {"op": "decrement", "path": ["n"], "amount": 1}, {"n": 0.5}],
        [[4], {"op": "increment", "path": [0], "amount": 1}, [5]],
        [{}, {"op": "increment", "path": ["n"], "amount": 1}, "op_missing"],
        [{}, {"op": "increment", "path": ["n", "m"], "amount": 1}, "op_missing"],
        [{"n": null}, {"op": "increment", "path": ["n"], "amount": 1}, "op_type_mismatch"],
        [{"n": "1"}, {"op": "increment", "path": ["n"], "amount": 1}, "op_type_mismatch"],
        [[1], {"op": "increment", "path": [1], "amount": 1}, "op_out_of_bounds"],
    ]));
}

#[test]
fn integers_are_exact_to_sixty_four_bits_and_then_refused() {
    check(json!([
        [u64::MAX - 1, {"op": "increment", "path": [], "amount": 1}, u64::MAX],
        [u64::MAX, {"op": "increment", "path": [], "amount": 1}, "op_overflow"],
        [i64::MAX, {"op": "increment", "path": [], "amount": 1}, 1u64 << 63],
        [i64::MIN + 1, {"op": "decrement", "path": [], "amount": 1}, i64::MIN],
        [i64::MIN, {"op": "decrement", "path": [], "amount": 1}, "op_overflow"],
        [0, {"op": "decrement", "path": [], "amount": u64::MAX}, "op_overflow"],
        [u64::MAX, {"op": "decrement", "path": [], "amount": u64::MAX}, 0],
        [f64::MAX, {"op": "increment", "path": [], "amount": f64::MAX}, "op_not_finite"],
    ]));
}

#[test]
fn insert_accepts_indexes_up_to_the_end_of_an_existing_array() {
    check(json!([
        [[1, 3], {"op": "insert", "path": [], "index": 1, "value": 2}, [1, 2, 3]],
        [[1], {"op": "insert", "path": [], "index": 1, "value": 2}, [1, 2]],
        [[1], {"op": "insert", "path": [], "index": 2, "value": 2}, "op_out_of_bounds"],
        [{}, {"op": "insert", "path": ["a"], "index": 0, "value": 2}, "op_missing"],
        [{"a": null}, {"op": "insert", "path": ["a"], "index": 0, "value": 2}, "op_type_mismatch"],
    ]));
}

#[test]
fn remove_removes_the_first_equal_element() {
    check(json!([
        [[1, 2, 1], {"op": "remove", "path": [], "value": 1}, [2, 1]],
        [[1, 2], {"op": "remove", "path": [], "value": 3}, [1, 2]],
        [["1", 1.0], {"op": "remove", "path": [], "value": 1}, ["1"]],
        [[{"a": [1, 2.0]}], {"op": "remove", "path": [], "value": {"a": [1.0, 2]}}, []],
        [[9007199254740993u64], {"op": "remove", "path": [], "value": 9007199254740992.0}, [9007199254740993u64]],
        [[0.5, 1e300], {"op": "remove", "path": [], "value": 1e300}, [0.5]],
        [{}, {"op": "remove", "path": ["a"], "value": 1}, "op_missing"],
        [{"a": {}}, {"op": "remove", "path": ["a"], "value": 1}, "op_type_mismatch"],
    ]));
}

#[test]
fn no_op_nests_a_state_deeper_than_the_maximum() {
    let nested = |levels| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    let long = |count| vec!["k"; count];
    for (change, fits) in [
        (json!({"op": "set", "path": [], "value": nested(DEPTH_MAX)}), true),
        (json!({"op": "set", "path": [], "value": nested(DEPTH_MAX + 1)}), false),
        (json!({"op": "set", "path": long(DEPTH_MAX - 4), "value": nested(4)}), true),
        (json!({"op": "set", "path": long(DEPTH_MAX - 4), "value": nested(5)}), false),
        (json!({"op": "set", "path": long(DEPTH_MAX), "value": 1}), true),
        (json!({"op": "append", "path": long(DEPTH_MAX - 1), "value": 1}), true),
        (json!({"op": "append", "path": long(DEPTH_MAX), "value": 1}), false),
        (json!({"op": "merge_object", "path": long(DEPTH_MAX - 2), "value": {"a": [1]}}), true),
        (json!({"op": "merge_object", "path": long(DEPTH_MAX - 2), "value": {"a": [[1]]}}), false),
        (json!({"op": "merge_object", "path": long(DEPTH_MAX), "value": {}}), false),
    ] {
        assert_eq!(after(json!({}), change.clone()).map(drop), fits.then_some(()).ok_or("op_too_deep"), "{change}");
    }
    let too_long = Op::Delete { path: Path::keys(long(DEPTH_MAX + 1)) };
    assert!(matches!(too_long.apply(&mut json!({})), Err(OpError::TooDeep { .. })));
}

#[test]
fn an_error_names_op_path_and_cause() {
    let error = op(json!({"op": "set", "path": ["a", 0, "b"], "value": 1})).apply(&mut json!({"a": ["x"]}));
    assert_eq!(error.unwrap_err().to_string(), "`set` needs an object at `/a/0` but found a string");
    let error = op(json!({"op": "increment", "path": ["a", "b"], "amount": 1})).apply(&mut json!({}));
    assert_eq!(error.unwrap_err().to_string(), "`increment` needs an object at `/a` but nothing is there");
}

#[test]
fn an_op_is_read_as_written_and_other_forms_are_refused() {
    let written = json!({"op": "merge_object", "path": ["a", 0], "value": {"b": 1}});
    assert_eq!(serde_json::to_value(op(written.clone())).unwrap(), written);
    let refused = |text: &str| serde_json::from_str::<Op>(text).unwrap_err().to_string();
    let unknown = refused(r#"{"op":"lattice_merge","path":[],"value":1}"#);
    for name in ["set", "delete", "append", "merge_object", "increment", "decrement", "insert", "remove"] {
        assert!(unknown.contains(&format!("`{name}`")), "{unknown}");
    }
    assert!(refused(r#"{"op":"set","path":[]}"#).contains("missing field `value`"));
    assert!(refused(r#"{"op":"delete","path":[],"value":1}"#).contains("unknown field `value`"));
    assert!(refused(r#"{"op":"set","path":"a.b","value":1}"#).contains("expected a path"));
    assert!(refused(r#"{"op":"merge_object","path":[],"value":[]}"#).contains("invalid type"));
    assert!(refused(r#"{"op":"insert","path":[],"index":-1,"value":1}"#).contains("-1"));
}
