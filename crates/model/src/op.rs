//! One change of a thread's state.
//!
//! Defines the ops, their written form and, in `apply`, their effect; [`crate::patch`] combines several of them.
//!
//! - An op that fails leaves the state unchanged.
//! - An op never replaces a value of the wrong type on its path: it fails. Only a missing or null value is created, and only as an
//!   object, or as the array that `append` needs. An index never creates or extends an array.
//! - After `delete` there is nothing at its path, so it does nothing if the path does not exist.
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

/// The maximum nesting of arrays and objects in a state.
pub const DEPTH_MAX: usize = 60;

/// One change of a state, at one path. Written as an object tagged by `op`; unknown ops and unknown fields are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// Sets a value, replacing the old one, and creates the objects on its path.
    Set {
        /// Its path.
        path: Path,
        /// The new value.
        value: Value,
    },
    /// Deletes a value: an element is removed from its array, the root becomes null.
    Delete {
        /// Its path.
        path: Path,
    },
    /// Appends an element to an array, which is created if it is missing or null.
    Append {
        /// The path of the array.
        path: Path,
        /// The element.
        value: Value,
    },
    /// Sets each entry in an object, which is created if it is missing or null. The entries are not merged recursively.
    MergeObject {
        /// The path of the object.
        path: Path,
        /// The entries.
        value: Map<String, Value>,
    },
    /// Adds to an existing number.
    Increment {
        /// The path of the number.
        path: Path,
        /// The amount to add.
        amount: Number,
    },
    /// Subtracts from an existing number.
    Decrement {
        /// The path of the number.
        path: Path,
        /// The amount to subtract.
        amount: Number,
    },
    /// Inserts an element into an existing array, before the one at `index` or at the end.
    Insert {
        /// The path of the array.
        path: Path,
        /// The element's index afterwards.
        index: usize,
        /// The element.
        value: Value,
    },
    /// Removes the first equal element from an existing array; does nothing if there is none.
    Remove {
        /// The path of the array.
        path: Path,
        /// The value to compare with; numbers are compared by value, so `1` and `1.0` are equal.
        value: Value,
    },
}

/// Why an op can't be applied to this state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// A value of another type is at the path or on the way to it.
    #[error("`{op}` needs {expected} at `{path}` but found {found}")]
    TypeMismatch {
        /// The op's name.
        op: &'static str,
        /// The path of that value.
        path: Path,
        /// The expected type.
        expected: &'static str,
        /// The actual type.
        found: &'static str,
    },
    /// An index is beyond the end of its array.
    #[error("`{op}` can't reach index {index} of the array at `{path}`, which has {length} elements")]
    OutOfBounds {
        /// The op's name.
        op: &'static str,
        /// The path of the array.
        path: Path,
        /// The index.
        index: usize,
        /// The number of elements in the array.
        length: usize,
    },
    /// There is no value, and this op doesn't create one.
    #[error("`{op}` needs {expected} at `{path}` but nothing is there")]
    Missing {
        /// The op's name.
        op: &'static str,
        /// The path without a value.
        path: Path,
        /// The expected type.
        expected: &'static str,
    },
    /// The result is an integer that neither `i64` nor `u64` holds.
    #[error("`{op}` makes the integer at `{path}` larger than 64 bits")]
    Overflow {
        /// The op's name.
        op: &'static str,
        /// The path of the number.
        path: Path,
    },
    /// The result is not a finite number.
    #[error("`{op}` makes the number at `{path}` infinite")]
    NotFinite {
        /// The op's name.
        op: &'static str,
        /// The path of the number.
        path: Path,
    },
    /// The state would be nested too deeply.
    #[error("`{op}` at `{path}` would nest the state deeper than {DEPTH_MAX} levels")]
    TooDeep {
        /// The op's name.
        op: &'static str,
        /// The op's path.
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

    /// The op's path.
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

    /// The op's path, to be changed.
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
