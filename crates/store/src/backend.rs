//! What commands ask of a store besides running threads: its word on itself, what must be forgotten, the signed pages beside a log, and
//! closing it. [`Backend`] is a store with all of that; façade and command line work on a `dyn Backend`, so a store that implements it gets
//! every command.

use selvedge_model::{Digest, Manifest, ThreadId};

use crate::archive::Archives;
use crate::contract::Store;
use crate::error::Result;
use crate::heads::{Compared, Depth, Heads, Noted};
use crate::snapshot::Snapshots;

/// A store's word on where it is, for a list that is kept elsewhere; see [`crate::heads`].
pub trait Attest: Send + Sync {
    /// The random id of this store.
    fn store_id(&self) -> Result<String>;

    /// Where every log and account is now, as of one moment.
    fn heads(&self) -> Result<Noted>;

    /// Signs a list with the key of this store's user.
    fn sign_heads(&self, heads: &Heads) -> Result<String>;

    /// Compares this store with a list. Writes nothing, and needs no key.
    fn compare_heads(&self, heads: &Heads, depth: Depth) -> Compared;
}

/// Forgetting content that a log only names.
pub trait Erase: Send + Sync {
    /// Erases the content of a blob. On return the log says so and the content is gone; what a disk itself still holds is another
    /// matter. Gives the version that says it. What no log ever named is refused; what is named and lost can be erased.
    fn erase(&self, thread: &ThreadId, blob: &Digest, reason: &str) -> Result<u64>;
}

/// The signed pages beside a log that show what a thread is and what it may do.
pub trait Pages: Send + Sync {
    /// Signs and writes what a thread may call, unless that was done before; says whether it was written now. One that is there and is
    /// not what was signed is refused.
    fn write_capabilities(&self, thread: &ThreadId, body: &dyn Fn() -> String) -> Result<bool>;

    /// Refuses a thread of which the store or its `thread.json` says that it may do something else than its log says; `recorded` is what
    /// the verified log says. A page that is missing is written anew on the way.
    fn vouch(&self, recorded: &Manifest) -> Result<()>;

    /// What is to be said before a thread that has been shown goes on, if its `thread.json` is gone.
    fn missing_manifest(&self, thread: &ThreadId) -> Option<String>;

    /// What was found amiss and mended on the way since this was last asked, in words.
    fn take_amiss(&self) -> Vec<String>;
}

/// A handle on a store, as one process has it.
pub trait Handle: Send + Sync {
    /// Ends the work with this handle: what was committed is where it belongs, leases are given back. Nothing that was committed depends on
    /// it, and the handle must not be written with afterwards.
    fn leave(&mut self) -> Result<()>;
}

/// A store with everything that commands ask of one.
pub trait Backend: Store + Snapshots + Archives + Attest + Erase + Pages + Handle {}

impl<T: Store + Snapshots + Archives + Attest + Erase + Pages + Handle> Backend for T {}
