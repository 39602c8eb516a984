//! The effect of each op on a state, and its inverse.
//!
//! Everything that can fail happens before the first change, so an op that fails leaves the state unchanged. A replaced value is not
//! copied but moved into the inverse ops; a patch keeps those until it has been applied as a whole.

use std::mem;

use serde_json::{Map, Number, Value};

use super::{DEPTH_MAX, Op, OpError};
use crate::path::{Path, Segment};

impl Op {
    /// Changes `state`, or fails and leaves it unchanged.
    pub fn apply(&self, state: &mut Value) -> Result<(), OpError> {
        self.apply_undoable(state).map(drop)
    }

    /// Changes `state` and returns the inverse ops, to be undone in reverse order.
    pub(crate) fn apply_undoable(&self, state: &mut Value) -> Result<Vec<Self>, OpError> {
        if self.is_too_deep() {
            return Err(OpError::TooDeep { op: self.name(), path: self.path().clone() });
        }
        self.change(state)
    }

    /// Undoes a change: `self` is one of the ops that [`Op::apply_undoable`] returned for it. The restored value was
    /// there before, at any depth, so its depth is not checked again.
    pub(crate) fn undo(&self, state: &mut Value) {
        if let Err(error) = self.change(state) {
            unreachable!("a change that was just made can be undone: {error}");
        }
    }

    fn is_too_deep(&self) -> bool {
        let around = self.path().segments().len();
        let fits = |value: &Value, around: usize| {
            DEPTH_MAX.checked_sub(around).is_some_and(|levels| nests_within(value, levels))
        };
        let all_fit = match self {
            Self::Set { value, .. } => fits(value, around),
            Self::Append { value, .. } | Self::Insert { value, .. } => fits(value, around + 1),
            Self::MergeObject { value, .. } => {
                around < DEPTH_MAX && value.values().all(|value| fits(value, around + 1))
            }
            Self::Delete { .. } | Self::Increment { .. } | Self::Decrement { .. } | Self::Remove { .. } => {
                around <= DEPTH_MAX
            }
        };
        !all_fit
    }

    fn change(&self, state: &mut Value) -> Result<Vec<Self>, OpError> {
        match self {
            Self::Set { path, value } => {
                let (target, created) = self.reach_or_create(state)?;
                let old = mem::replace(target, value.clone());
                Ok(vec![created.unwrap_or_else(|| Self::Set { path: path.clone(), value: old })])
            }
            Self::Delete { path } => Ok(delete(path, state).into_iter().collect()),
            Self::Append { path, value } => {
                let (target, created) = self.reach_or_create(state)?;
                match target {
                    Value::Null => {
                        *target = Value::Array(vec![value.clone()]);
                        Ok(vec![created.unwrap_or_else(|| Self::Set { path: path.clone(), value: Value::Null })])
                    }
                    Value::Array(items) => {
                        items.push(value.clone());
                        Ok(vec![Self::Delete { path: path.clone().index(items.len() - 1) }])
                    }
                    other => Err(self.mismatch(path.clone(), "an array", other)),
                }
            }
            Self::MergeObject { path, value } => {
                let (target, created) = self.reach_or_create(state)?;
                match target {
                    Value::Null => {
                        *target = Value::Object(value.clone());
                        Ok(vec![created.unwrap_or_else(|| Self::Set { path: path.clone(), value: Value::Null })])
                    }
                    Value::Object(entries) => Ok(merge(path, entries, value)),
                    other => Err(self.mismatch(path.clone(), "an object", other)),
                }
            }
            Self::Increment { path, amount } | Self::Decrement { path, amount } => {
                match self.reach(state, "a number")? {
                    Value::Number(number) => {
                        let total = self.total(number, amount)?;
                        let old = mem::replace(number, total);
                        Ok(vec![Self::Set { path: path.clone(), value: Value::Number(old) }])
                    }
                    other => Err(self.mismatch(path.clone(), "a number", other)),
                }
            }
            Self::Insert { path, index, value } => {
                let items = self.reach_array(state)?;
                if *index > items.len() {
                    return Err(self.out_of_bounds(path.clone(), *index, items.len()));
                }
                items.insert(*index, value.clone());
                Ok(vec![Self::Delete { path: path.clone().index(*index) }])
            }
            Self::Remove { path, value } => {
                let items = self.reach_array(state)?;
                let Some(index) = items.iter().position(|item| same(item, value)) else {
                    return Ok(Vec::new());
                };
                Ok(vec![Self::Insert { path: path.clone(), index, value: items.remove(index) }])
            }
        }
    }

    /// The value at the op's path, which must exist.
    fn reach<'a>(&self, state: &'a mut Value, expected: &'static str) -> Result<&'a mut Value, OpError> {
        let mut here = state;
        for (depth, segment) in self.path().segments().iter().enumerate() {
            here = match (here, segment) {
                (Value::Object(entries), Segment::Key(key)) => entries.get_mut(key).ok_or_else(|| {
                    let expected = expected_at(self.path(), depth + 1).unwrap_or(expected);
                    OpError::Missing { op: self.name(), path: self.path().first(depth + 1), expected }
                })?,
                (Value::Array(items), Segment::Index(index)) => self.element(items, depth, *index)?,
                (other, _) => return Err(self.in_the_way(depth, Some(other))),
            };
        }
        Ok(here)
    }

    /// An element of the array at the first `depth` segments.
    fn element<'a>(&self, items: &'a mut [Value], depth: usize, index: usize) -> Result<&'a mut Value, OpError> {
        let length = items.len();
        items.get_mut(index).ok_or_else(|| self.out_of_bounds(self.path().first(depth), index, length))
    }

    fn reach_array<'a>(&self, state: &'a mut Value) -> Result<&'a mut Vec<Value>, OpError> {
        match self.reach(state, "an array")? {
            Value::Array(items) => Ok(items),
            other => Err(self.mismatch(self.path().clone(), "an array", other)),
        }
    }

    /// The value at the op's path, and, if it had to be created as null, the op that undoes the creation.
    fn reach_or_create<'a>(&self, state: &'a mut Value) -> Result<(&'a mut Value, Option<Self>), OpError> {
        let created = self.plan_creation(state)?;
        let mut here = state;
        for (depth, segment) in self.path().segments().iter().enumerate() {
            if here.is_null() {
                *here = Value::Object(Map::new());
            }
            here = match (here, segment) {
                (Value::Object(entries), Segment::Key(key)) => entries.entry(key.clone()).or_insert(Value::Null),
                (Value::Array(items), Segment::Index(index)) => self.element(items, depth, *index)?,
                (other, _) => return Err(self.in_the_way(depth, Some(other))),
            };
        }
        Ok((here, created))
    }

    /// Checks that the op's path can be created; returns the op that undoes the creation, if anything is created.
    fn plan_creation(&self, state: &Value) -> Result<Option<Self>, OpError> {
        let path = self.path();
        let mut here = Some(state);
        let mut created = None;
        for (depth, segment) in path.segments().iter().enumerate() {
            here = match (here, segment) {
                (None, Segment::Key(_)) => None,
                (Some(Value::Null), Segment::Key(_)) => {
                    created = Some(Self::Set { path: path.first(depth), value: Value::Null });
                    None
                }
                (Some(Value::Object(entries)), Segment::Key(key)) => {
                    let found = entries.get(key);
                    if found.is_none() {
                        created = Some(Self::Delete { path: path.first(depth + 1) });
                    }
                    found
                }
                (Some(Value::Array(items)), Segment::Index(index)) => match items.get(*index) {
                    None => return Err(self.out_of_bounds(path.first(depth), *index, items.len())),
                    found => found,
                },
                (other, _) => return Err(self.in_the_way(depth, other)),
            };
        }
        Ok(created)
    }

    fn total(&self, number: &Number, amount: &Number) -> Result<Number, OpError> {
        let negative = matches!(self, Self::Decrement { .. });
        let op = self.name();
        let path = self.path();
        if let (Some(number), Some(amount)) = (number.as_i128(), amount.as_i128()) {
            let total = if negative { number - amount } else { number + amount };
            return Number::from_i128(total).ok_or_else(|| OpError::Overflow { op, path: path.clone() });
        }
        let amount = amount.as_f64().map(|amount| if negative { -amount } else { amount });
        let total = number.as_f64().zip(amount).map(|(number, amount)| number + amount);
        total.and_then(Number::from_f64).ok_or_else(|| OpError::NotFinite { op, path: path.clone() })
    }

    fn mismatch(&self, path: Path, expected: &'static str, found: &Value) -> OpError {
        OpError::TypeMismatch { op: self.name(), path, expected, found: name_of(Some(found)) }
    }

    /// The error for a value at the first `depth` segments that the next segment can't enter.
    fn in_the_way(&self, depth: usize, found: Option<&Value>) -> OpError {
        let expected = expected_at(self.path(), depth).unwrap_or("a value");
        OpError::TypeMismatch { op: self.name(), path: self.path().first(depth), expected, found: name_of(found) }
    }

    fn out_of_bounds(&self, path: Path, index: usize, length: usize) -> OpError {
        OpError::OutOfBounds { op: self.name(), path, index, length }
    }
}

/// Deletes the value at `path` and returns the op that restores it, unless there is none.
fn delete(path: &Path, state: &mut Value) -> Option<Op> {
    let Some((around, last)) = path.split_last() else {
        return Some(Op::Set { path: Path::root(), value: state.take() });
    };
    match (around.get_mut(state)?, last) {
        (Value::Object(entries), Segment::Key(key)) => {
            entries.remove(key).map(|value| Op::Set { path: path.clone(), value })
        }
        (Value::Array(items), Segment::Index(index)) if *index < items.len() => {
            Some(Op::Insert { path: around, index: *index, value: items.remove(*index) })
        }
        _ => None,
    }
}

/// Sets `new` entries in the object at `path` and returns the inverse ops.
fn merge(path: &Path, entries: &mut Map<String, Value>, new: &Map<String, Value>) -> Vec<Op> {
    let mut undo = Vec::new();
    for (key, value) in new {
        let path = path.clone().key(key.clone());
        undo.push(match entries.insert(key.clone(), value.clone()) {
            Some(value) => Op::Set { path, value },
            None => Op::Delete { path },
        });
    }
    undo
}

/// The type that the next segment needs at the first `depth` segments.
fn expected_at(path: &Path, depth: usize) -> Option<&'static str> {
    path.segments().get(depth).map(|segment| match segment {
        Segment::Key(_) => "an object",
        Segment::Index(_) => "an array",
    })
}

fn name_of(value: Option<&Value>) -> &'static str {
    match value {
        None => "nothing",
        Some(Value::Null) => "null",
        Some(Value::Bool(_)) => "a boolean",
        Some(Value::Number(_)) => "a number",
        Some(Value::String(_)) => "a string",
        Some(Value::Array(_)) => "an array",
        Some(Value::Object(_)) => "an object",
    }
}

/// Whether arrays and objects are nested at most `levels` deep; does not look deeper than that.
fn nests_within(value: &Value, levels: usize) -> bool {
    let inside = |value: &Value| nests_within(value, levels.saturating_sub(1));
    match value {
        Value::Array(items) => levels > 0 && items.iter().all(inside),
        Value::Object(entries) => levels > 0 && entries.values().all(inside),
        _ => true,
    }
}

/// Whether two values are the same JSON; numbers are compared by value.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => same_number(left, right),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| same(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left.iter().all(|(key, left)| right.get(key).is_some_and(|right| same(left, right)))
        }
        _ => left == right,
    }
}

fn same_number(left: &Number, right: &Number) -> bool {
    // An integer and a float are compared as integers: as floats, 2^53 and 2^53 + 1 would be equal.
    let as_integer = |number: &Number| {
        let whole = |float: &f64| float.fract() == 0.0 && float.abs() < 1e30;
        number.as_i128().or_else(|| number.as_f64().filter(whole).map(|float| float as i128))
    };
    match (as_integer(left), as_integer(right)) {
        (Some(left), Some(right)) => left == right,
        (None, None) => left.as_f64() == right.as_f64(),
        _ => false,
    }
}
