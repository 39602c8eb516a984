//! Ops that are applied together.
//!
//! Defines how a patch is written, and applies it as a whole or not at all; [`crate::op`] defines the effect of one op.
//!
//! - A patch with a failing op leaves the state unchanged, also when it is applied in place. In place nothing is copied for that: each op
//!   keeps what it replaced, and a failure restores it, last op first.
//! - Two forms are read, the flat one and the one with the ops inside `patch`; the flat one is written:
//!
//! ```text
//! {"ops":[…],"id":…,"timestamp":"…Z","source":…,"description":…}
//! {"patch":{"ops":[…]},"id":…,"timestamp":1794710938000,"source":…,"description":…}
//! ```

use std::fmt;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::error::{Classify, Kind};
use crate::op::{Op, OpError};
use crate::time::Timestamp;

/// Ops that are applied together, and their author.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Wire")]
pub struct Patch {
    /// The changes, in order.
    pub ops: Vec<Op>,
    /// Its author's id for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// When it was made, as its author claims.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Timestamp>,
    /// What made it, such as `tool:search` or `prepare_run:scope_cleanup`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// A description of its purpose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// The op of a patch that can't be applied; the patch is not applied either.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("op {index} of the patch fails: {error}")]
pub struct PatchError {
    /// The op's index, counted from zero.
    pub index: usize,
    /// Why it can't be applied.
    pub error: OpError,
}

impl Classify for PatchError {
    fn kind(&self) -> Kind {
        self.error.kind()
    }

    fn code(&self) -> &'static str {
        self.error.code()
    }
}

impl Patch {
    /// A patch of these ops without an author.
    pub fn new(ops: Vec<Op>) -> Self {
        Self { ops, ..Self::default() }
    }

    /// The same patch, made by `source`.
    #[must_use]
    pub fn from_source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// A copy of `state` with all ops applied in order.
    pub fn apply(&self, state: &Value) -> Result<Value, PatchError> {
        let mut copy = state.clone();
        for (index, op) in self.ops.iter().enumerate() {
            op.apply(&mut copy).map_err(|error| PatchError { index, error })?;
        }
        Ok(copy)
    }

    /// Applies all ops to `state` in order, or fails and leaves it unchanged.
    pub fn apply_to(&self, state: &mut Value) -> Result<(), PatchError> {
        let mut undo = Vec::new();
        for (index, op) in self.ops.iter().enumerate() {
            match op.apply_undoable(state) {
                Ok(inverse) => undo.extend(inverse),
                Err(error) => {
                    for op in undo.into_iter().rev() {
                        Op::undo(&op, state);
                    }
                    return Err(PatchError { index, error });
                }
            }
        }
        Ok(())
    }
}

/// The union of both forms.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    ops: Option<Vec<Op>>,
    patch: Option<Inner>,
    id: Option<String>,
    timestamp: Option<TextOrMillis>,
    source: Option<String>,
    description: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Inner {
    ops: Vec<Op>,
}

impl TryFrom<Wire> for Patch {
    type Error = &'static str;

    fn try_from(wire: Wire) -> Result<Self, Self::Error> {
        let Wire { ops, patch, id, timestamp, source, description } = wire;
        let ops = match (ops, patch) {
            (Some(ops), None) | (None, Some(Inner { ops })) => ops,
            (Some(_), Some(_)) => return Err("a patch has its ops in `ops` or inside `patch`, not in both"),
            (None, None) => return Err("a patch needs `ops`"),
        };
        Ok(Self { ops, id, timestamp: timestamp.map(|TextOrMillis(time)| time), source, description })
    }
}

/// A time, written as text or as milliseconds since 1970.
struct TextOrMillis(Timestamp);

impl<'de> Deserialize<'de> for TextOrMillis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TimeVisitor;

        impl Visitor<'_> for TimeVisitor {
            type Value = TextOrMillis;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time as RFC 3339 text or as milliseconds since 1970")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<TextOrMillis, E> {
                text.parse().map(TextOrMillis).map_err(E::custom)
            }

            fn visit_u64<E: serde::de::Error>(self, millis: u64) -> Result<TextOrMillis, E> {
                let micros = i64::try_from(millis).ok().and_then(|millis| millis.checked_mul(1_000));
                // A `Timestamp` clamps a value that has no date; here that is an error.
                let time = micros.map(Timestamp::from_micros).filter(|time| Some(time.as_micros()) == micros);
                time.map(TextOrMillis).ok_or_else(|| E::custom("the time is too far in the future"))
            }
        }

        deserializer.deserialize_any(TimeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Number, json};

    use super::*;
    use crate::path::{Path, Segment};

    fn patch(patch: Value) -> Patch {
        serde_json::from_value(patch).unwrap()
    }

    #[test]
    fn both_forms_are_read_and_the_flat_one_is_written() {
        let ops = json!([{"op": "set", "path": ["a"], "value": 1}]);
        let flat = json!({
            "ops": ops, "id": "p1", "timestamp": "2026-11-15T02:48:58.123000Z", "source": "tool:x", "description": "d"
        });
        let tracked = json!({
            "patch": {"ops": ops}, "id": "p1", "timestamp": 1_794_710_938_123u64, "source": "tool:x", "description": "d"
        });
        assert_eq!(patch(flat.clone()), patch(tracked));
        assert_eq!(serde_json::to_value(patch(flat.clone())).unwrap(), flat);
        assert_eq!(serde_json::to_value(patch(json!({"patch": {"ops": []}, "id": null}))).unwrap(), json!({"ops": []}));
    }

    #[test]
    fn an_invalid_patch_is_refused() {
        for bad in [
            r#"{}"#,
            r#"{"ops":[],"patch":{"ops":[]}}"#,
            r#"{"ops":[],"more":1}"#,
            r#"{"patch":{}}"#,
            r#"{"ops":[],"timestamp":-1}"#,
            r#"{"ops":[],"timestamp":1.5}"#,
            r#"{"ops":[],"timestamp":18446744073709551615}"#,
            r#"{"ops":[],"timestamp":9000000000000000}"#,
            r#"{"ops":[],"timestamp":"yesterday"}"#,
            r#"{"ops":[],"ops":[]}"#,
        ] {
            assert!(serde_json::from_str::<Patch>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_failed_patch_names_its_op_and_changes_nothing() {
        let state = json!({"a": null, "list": [1, 2, 3], "keep": {"x": 1, "y": 2}});
        let failing = patch(json!({"ops": [
            {"op": "set", "path": ["a", "b", "c"], "value": 1},
            {"op": "set", "path": ["new", "b"], "value": 1},
            {"op": "append", "path": ["list"], "value": 4},
            {"op": "delete", "path": ["list", 0]},
            {"op": "remove", "path": ["list"], "value": 3},
            {"op": "insert", "path": ["list"], "index": 1, "value": 9},
            {"op": "increment", "path": ["keep", "x"], "amount": 0.5},
            {"op": "merge_object", "path": ["keep"], "value": {"y": 3, "z": 4}},
            {"op": "delete", "path": ["keep"]},
            {"op": "delete", "path": []},
            {"op": "increment", "path": ["keep", "x"], "amount": 1},
        ]}));
        let error = failing.apply(&state).unwrap_err();
        assert_eq!((error.index, error.code()), (10, "op_type_mismatch"));
        let mut in_place = state.clone();
        assert_eq!(failing.apply_to(&mut in_place), Err(error));
        assert_eq!(in_place, state);
    }

    #[test]
    fn a_failed_patch_restores_a_value_that_is_too_deep_to_write() {
        let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
        let state = json!({"deep": deep});
        let failing =
            patch(json!({"ops": [{"op": "delete", "path": ["deep"]}, {"op": "remove", "path": [], "value": 1}]}));
        let mut in_place = state.clone();
        assert!(failing.apply_to(&mut in_place).is_err());
        assert_eq!(in_place, state);
    }

    fn number() -> impl Strategy<Value = Number> {
        prop_oneof![
            (-3i64..4).prop_map(Number::from),
            Just(Number::from(u64::MAX)),
            Just(Number::from(i64::MIN)),
            prop_oneof![Just(0.5), Just(1.0), Just(f64::MAX)].prop_map(|float| Number::from_f64(float).unwrap()),
        ]
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            2 => Just(Value::Null),
            1 => any::<bool>().prop_map(Value::Bool),
            3 => number().prop_map(Value::Number),
            1 => Just(json!("text")),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let items = prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array);
            let entries = object(inner).prop_map(Value::Object);
            prop_oneof![items, entries]
        })
    }

    fn object(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
        prop::collection::btree_map("[abc]", inner, 0..4).prop_map(|entries| entries.into_iter().collect())
    }

    fn path() -> impl Strategy<Value = Path> {
        let segment = prop_oneof![3 => "[abc]".prop_map(Segment::Key), 1 => (0usize..4).prop_map(Segment::Index)];
        prop::collection::vec(segment, 0..4).prop_map(|segments| segments.into_iter().collect())
    }

    fn op() -> impl Strategy<Value = Op> {
        let at_value = (path(), value(), 0usize..4, 0..5).prop_map(|(path, value, index, which)| match which {
            0 => Op::Set { path, value },
            1 => Op::Append { path, value },
            2 => Op::Insert { path, index, value },
            3 => Op::Remove { path, value },
            _ => Op::Delete { path },
        });
        let merge = (path(), object(value())).prop_map(|(path, value)| Op::MergeObject { path, value });
        let count = (path(), number(), any::<bool>()).prop_map(|(path, amount, up)| {
            if up { Op::Increment { path, amount } } else { Op::Decrement { path, amount } }
        });
        prop_oneof![5 => at_value, 1 => merge, 1 => count]
    }

    /// Ops that mostly apply: an op is kept if it applies after those before it; the last one is always kept.
    fn mostly_applicable(state: &Value, candidates: Vec<Op>) -> Patch {
        let mut folded = state.clone();
        let last = candidates.len();
        let keep = |(index, op): &(usize, Op)| op.apply(&mut folded).is_ok() || index + 1 == last;
        Patch::new(candidates.into_iter().enumerate().filter(keep).map(|(_, op)| op).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn a_patch_applies_as_a_whole_or_not_at_all(state in value(), ops in prop::collection::vec(op(), 0..8)) {
            check_in_place_equals_copy(&state, &Patch::new(ops))?;
        }

        #[test]
        fn a_long_patch_applies_as_a_whole_or_not_at_all(state in value(), ops in prop::collection::vec(op(), 1..40)) {
            check_in_place_equals_copy(&state, &mostly_applicable(&state, ops))?;
        }

        #[test]
        fn every_change_can_be_undone(state in value(), ops in prop::collection::vec(op(), 1..40)) {
            let mut changed = state.clone();
            let undo: Vec<_> = ops.iter().filter_map(|op| op.apply_undoable(&mut changed).ok()).flatten().collect();
            for op in undo.into_iter().rev() {
                op.undo(&mut changed);
            }
            prop_assert_eq!(changed, state);
        }

        #[test]
        fn a_patch_is_read_back_as_written(ops in prop::collection::vec(op(), 0..4), source in "[a-z:_]{0,9}") {
            let patch = Patch::new(ops).from_source(source);
            let text = serde_json::to_string(&patch).unwrap();
            prop_assert_eq!(serde_json::from_str::<Patch>(&text).unwrap(), patch);
        }
    }

    fn check_in_place_equals_copy(state: &Value, patch: &Patch) -> Result<(), TestCaseError> {
        let mut in_place = state.clone();
        match (patch.apply(state), patch.apply_to(&mut in_place)) {
            (Ok(copy), Ok(())) => prop_assert_eq!(copy, in_place),
            (Err(of_copy), Err(of_place)) => {
                prop_assert_eq!(of_copy, of_place);
                prop_assert_eq!(&in_place, state);
            }
            (of_copy, of_place) => prop_assert!(false, "{:?} but {:?}", of_copy, of_place),
        }
        Ok(())
    }
}
