//! The questions every error of the project answers.
//!
//! Each module has its own small error enum; what callers act on is the same everywhere: was the thing absent, in
//! conflict, invalid or broken, and is trying again worth it? The command line, and later the HTTP server, map these
//! answers and never parse a message.

/// What went wrong, as far as a caller can act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The thing named does not exist, or a prefix names more than one.
    Absent,
    /// Somebody else was first: a version, an epoch, a key or an id is already taken.
    Conflict,
    /// The request itself can't be honoured, now or later, as it stands.
    Invalid,
    /// The request is well formed but not permitted: a lease, a status, a mode or a permission forbids it.
    Denied,
    /// A limit or a budget would be crossed.
    Exhausted,
    /// Something signed or stored is not what it should be.
    Integrity,
    /// The world failed: disk, database, operating system.
    Broken,
}

/// The answers an error gives.
pub trait Classify: std::error::Error {
    /// What went wrong, as far as a caller can act on it.
    fn kind(&self) -> Kind;

    /// A stable word for this error, the same in exit texts, JSON and documentation.
    fn code(&self) -> &'static str;

    /// Whether the same request may succeed later without anybody changing it.
    fn retryable(&self) -> bool {
        false
    }

    /// What to do about it, when there is something to say.
    fn hint(&self) -> Option<String> {
        None
    }
}
