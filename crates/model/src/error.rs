//! The questions every error of the project answers.
//!
//! Each module has its own small error enum. Callers act on the same questions everywhere: was the thing absent, in conflict, invalid or
//! broken, and is a retry worthwhile? The command line and the HTTP server use these answers and never parse a message.

/// What went wrong, as far as a caller can act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The named thing does not exist, or a prefix matches more than one.
    Absent,
    /// Another writer was first: a version, an epoch, a key or an id is already taken.
    Conflict,
    /// The request can't succeed as it is, now or later.
    Invalid,
    /// The request is well formed but not permitted: a lease, a status, a mode or a permission forbids it.
    Denied,
    /// A limit or a budget would be exceeded.
    Exhausted,
    /// Signed or stored data is not what it should be.
    Integrity,
    /// The environment failed: disk, database, network or operating system.
    Broken,
}

/// The answers an error gives.
pub trait Classify: std::error::Error {
    /// What went wrong, as far as a caller can act on it.
    fn kind(&self) -> Kind;

    /// A stable name for this error, the same in exit texts, JSON and documentation.
    fn code(&self) -> &'static str;

    /// Whether the same request may succeed later, unchanged.
    fn retryable(&self) -> bool {
        false
    }

    /// What to do about it, if there is something to do.
    fn hint(&self) -> Option<String> {
        None
    }
}
