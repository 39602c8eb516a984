//! Conditions.

use proptest::prelude::*;
use selvedge_items::Condition;
use serde_json::{Value, json};

fn read(value: Value) -> Condition {
    serde_json::from_value(value).unwrap()
}

fn holds(path: &str, op: &str, value: Value) -> bool {
    let context = json!({
        "turns": 3, "share": 3.0, "big": 9_007_199_254_740_993u64, "name": "tea", "tags": ["a", "b"], "no": null,
        "at": { "0": "zero", "x": [10, { "y": true }] }, "text": "5",
    });
    read(json!({ "path": path, "op": op, "value": value })).holds(&context)
}

#[test]
fn every_operator_compares_correctly() {
    for (path, op, value, expected) in [
        ("turns", "eq", json!(3), true),
        ("turns", "eq", json!(3.0), true),
        ("turns", "eq", json!("3"), false),
        ("turns", "ne", json!(4), true),
        ("turns", "gt", json!(2.5), true),
        ("turns", "gte", json!(3), true),
        ("turns", "lt", json!(3), false),
        ("turns", "lte", json!(3), true),
        ("big", "gt", json!(9_007_199_254_740_992u64), true),
        ("name", "lt", json!("tee"), true),
        ("name", "in", json!(["tea", "ale"]), true),
        ("name", "in", json!("teapot"), true),
        ("turns", "in", json!([3.0]), true),
        ("tags", "contains", json!("a"), true),
        ("tags", "contains", json!("c"), false),
        ("name", "contains", json!("ea"), true),
        ("at", "contains", json!("x"), true),
        ("name", "regex", json!("^t.a$"), true),
        ("turns", "regex", json!("3"), false),
        ("name", "exists", json!(null), true),
        ("name", "exists", json!(true), true),
        ("name", "exists", json!(false), false),
        ("no", "exists", json!(null), false),
        ("nowhere.at.all", "exists", json!(false), true),
        ("nowhere", "eq", json!(null), true),
        ("at.x.1.y", "eq", json!(true), true),
        ("at.0", "eq", json!("zero"), true),
        ("at.x.9", "eq", json!(null), true),
    ] {
        assert_eq!(holds(path, op, value.clone()), expected, "{path} {op} {value}");
    }
}

#[test]
fn values_that_can_not_be_compared_make_a_condition_false() {
    for op in ["gt", "gte", "lt", "lte"] {
        for value in [json!(3), json!(null), json!([1]), json!({}), json!(true)] {
            assert!(!holds("text", op, value.clone()), "{op} {value}");
        }
    }
    assert!(!holds("nowhere", "lt", json!(5)));
}

#[test]
fn conditions_are_joined_and_an_empty_one_is_always_true() {
    let context = json!({ "a": 1 });
    let yes = json!({ "path": "a", "value": 1 });
    let no = json!({ "path": "a", "value": 2 });
    for (condition, expected) in [
        (json!({}), true),
        (json!({ "all": [yes, no] }), false),
        (json!({ "any": [no, yes] }), true),
        (json!({ "not": no }), true),
        (json!({ "all": [] }), true),
        (json!({ "any": [] }), false),
    ] {
        assert_eq!(read(condition.clone()).holds(&context), expected, "{condition}");
    }
}

#[test]
fn a_key_with_dots_is_reached_by_a_list() {
    let condition = read(json!({ "path": ["calls", "a.b"], "op": "eq", "value": 1 }));
    assert!(condition.holds(&json!({ "calls": { "a.b": 1 } })));
    assert_eq!(read(serde_json::to_value(&condition).unwrap()), condition);
}

#[test]
fn an_invalid_condition_is_refused_when_it_is_parsed() {
    for wrong in [
        json!({ "path": "a", "op": "equals" }),
        json!({ "path": "a", "op": "regex", "value": "(" }),
        json!({ "path": "a", "op": "regex", "value": 5 }),
        json!({ "path": "a", "op": "regex", "value": "(a{1000}){1000}" }),
        json!({ "path": "a", "op": "in", "value": 5 }),
        json!({ "path": "a..b", "op": "eq" }),
        json!({ "path": "", "op": "eq" }),
        json!({ "path": 5, "op": "eq" }),
        json!({ "op": "eq" }),
        json!({ "path": "a", "all": [] }),
        json!({ "path": "a", "operator": "eq" }),
    ] {
        assert!(serde_json::from_value::<Condition>(wrong.clone()).is_err(), "{wrong}");
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-c.]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-c0-2]", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn evaluating_never_fails_and_not_is_the_opposite(
        context in any_value(),
        path in "[a-c0-2](\\.[a-c0-2]){0,3}",
        op in prop_oneof![Just("eq"), Just("ne"), Just("gt"), Just("gte"), Just("lt"), Just("lte"), Just("contains")],
        value in any_value(),
    ) {
        let compared = json!({ "path": path, "op": op, "value": value });
        let holds = read(compared.clone()).holds(&context);
        prop_assert_eq!(read(json!({ "not": compared })).holds(&context), !holds);
    }
}
