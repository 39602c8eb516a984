//! One change of a thread's state.
//!
//! Owns the ops, how they are written and, in `apply`, what they mean; several of them as one belong to
//! [`crate::patch`].
//!
//! - An op that fails leaves the state as it was.
//! - What is in the way is an error and is never replaced: only what is missing or null is created, and only as an
//!   object, or as the array that `append` needs. An index never creates or extends an array.
//! - `delete` promises that nothing stands at its path afterwards, so it has nothing to do when the path leads nowhere.
//! - Integers stay exact over the ranges of `i64` and `u64`; a result outside them is an error, and so is a float that
//!   is not finite.
//! - No op nests a state deeper than [`DEPTH_MAX`].

use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

use crate::error::{Classify, Kind};
use crate::path::Path;

mod apply;
#[cfg(test)]
mod tests;

/// How many arrays and objects may stand around a value of a state.
pub const DEPTH_MAX: usize = 60;

/// One change of a state, at one path. Written as an object tagged by `op`; unknown ops and unknown fields are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// Puts a value there, whatever was there before, and creates the objects around it.
    Set {
        /// Where.
        path: Path,
        /// The new value.
        value: Value,
    },
    /// Takes a value away; an element leaves its array, the root becomes null.
    Delete {
        /// Where.
        path: Path,
    },
    /// Adds an element at the end of an array, which is created where it is missing or null.
    Append {
        /// Where the array is.
        path: Path,
        /// The element.
        value: Value,
    },
    /// Sets each entry in an object, which is created where it is missing or null. The entries are not merged further.
    MergeObject {
        /// Where the object is.
        path: Path,
        /// The entries.
        value: Map<String, Value>,
    },
    /// Adds to a number that exists.
    Increment {
        /// Where the number is.
        path: Path,
        /// How much is added.
        amount: Number,
    },
    /// Subtracts from a number that exists.
    Decrement {
        /// Where the number is.
        path: Path,
        /// How much is subtracted.
        amount: Number,
    },
    /// Puts an element into an array that exists, before the one at `index` or at the end.
    Insert {
        /// Where the array is.
        path: Path,
        /// The element's place afterwards.
        index: usize,
        /// The element.
        value: Value,
    },
    /// Takes the first element that is equal out of an array that exists; without one there is nothing to do.
    Remove {
        /// Where the array is.
        path: Path,
        /// What the element is equal to; numbers are compared by value, so `1` and `1.0` are equal.
        value: Value,
    },
}

/// Why an op can't be applied to this state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// Something of another type is there or in the way.
    #[error("`{op}` needs {expected} at `{path}` but found {found}")]
    TypeMismatch {
        /// The op's name.
        op: &'static str,
        /// Where the value is that doesn't fit.
        path: Path,
        /// What should be there.
        expected: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// An index leads beyond the end of its array.
    #[error("`{op}` can't reach index {index} of the array at `{path}`, which has {length} elements")]
    OutOfBounds {
        /// The op's name.
        op: &'static str,
        /// Where the array is.
        path: Path,
        /// The index.
        index: usize,
        /// How many elements the array has.
        length: usize,
    },
    /// Nothing is there, and this op doesn't create it.
    #[error("`{op}` needs {expected} at `{path}` but nothing is there")]
    Missing {
        /// The op's name.
        op: &'static str,
        /// Where nothing is.
        path: Path,
        /// What should be there.
        expected: &'static str,
    },
    /// The result is an integer that neither `i64` nor `u64` holds.
    #[error("`{op}` makes the integer at `{path}` larger than 64 bits")]
    Overflow {
        /// The op's name.
        op: &'static str,
        /// Where the number is.
        path: Path,
    },
    /// The result is not a finite number.
    #[error("`{op}` makes the number at `{path}` infinite")]
    NotFinite {
        /// The op's name.
        op: &'static str,
        /// Where the number is.
        path: Path,
    },
    /// The state would be nested too deeply.
    #[error("`{op}` at `{path}` would nest the state deeper than {DEPTH_MAX} levels")]
    TooDeep {
        /// The op's name.
        op: &'static str,
        /// Where the op writes.
        path: Path,
    },
}

impl Classify for OpError {
    fn kind(&self) -> Kind {
        Kind::Invalid
    }

    fn code(&self) -> &'static str {
        match self {
            Self::TypeMismatch { .. } => "op_type_mismatch",
            Self::OutOfBounds { .. } => "op_out_of_bounds",
            Self::Missing { .. } => "op_missing",
            Self::Overflow { .. } => "op_overflow",
            Self::NotFinite { .. } => "op_not_finite",
            Self::TooDeep { .. } => "op_too_deep",
        }
    }
}

impl Op {
    /// The op's name, as it is written.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Set { .. } => "set",
            Self::Delete { .. } => "delete",
            Self::Append { .. } => "append",
            Self::MergeObject { .. } => "merge_object",
            Self::Increment { .. } => "increment",
            Self::Decrement { .. } => "decrement",
            Self::Insert { .. } => "insert",
            Self::Remove { .. } => "remove",
        }
    }

    /// Where the op applies.
    pub fn path(&self) -> &Path {
        match self {
            Self::Set { path, .. }
            | Self::Delete { path }
            | Self::Append { path, .. }
            | Self::MergeObject { path, .. }
            | Self::Increment { path, .. }
            | Self::Decrement { path, .. }
            | Self::Insert { path, .. }
            | Self::Remove { path, .. } => path,
        }
    }

    /// Where the op applies, to move it elsewhere.
    pub fn path_mut(&mut self) -> &mut Path {
        match self {
            Self::Set { path, .. }
            | Self::Delete { path }
            | Self::Append { path, .. }
            | Self::MergeObject { path, .. }
            | Self::Increment { path, .. }
            | Self::Decrement { path, .. }
            | Self::Insert { path, .. }
            | Self::Remove { path, .. } => path,
        }
    }
}
