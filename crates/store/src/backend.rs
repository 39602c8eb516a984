//! What commands need from a store besides running threads: its list of heads, erasing content, the signed files beside a log, searching,
//! effects, and closing it. [`Backend`] is a store with all of that; façade and command line work on a `dyn Backend`, so a store that implements it gets every
//! command.

use selvedge_model::{Digest, DirectiveId, Manifest, ThreadId};

use crate::archive::Archives;
use crate::contract::Store;
use crate::effects::Effects;
use crate::error::Result;
use crate::heads::{Comparison, CurrentHeads, Depth, Heads};
use crate::pages::Pages;
use crate::search::Search;
use crate::snapshot::Snapshots;

/// The heads of a store, for a list that is kept elsewhere; see [`crate::heads`].
pub trait ReadHeads: Send + Sync {
    /// The random id of this store.
    fn store_id(&self) -> Result<String>;

    /// The head of every log and account, as of one moment.
    fn heads(&self) -> Result<CurrentHeads>;

    /// Signs a list with the key of this store's user.
    fn sign_heads(&self, heads: &Heads) -> Result<String>;

    /// Compares this store with a list. Writes nothing, and needs no key.
    fn compare_heads(&self, heads: &Heads, depth: Depth) -> Comparison;
}

/// Erasing content that a log only names.
pub trait Erase: Send + Sync {
    /// Erases the content of a blob. On return the erasure is in the log and the content is removed; the disk itself may still hold the
    /// bytes. Returns the version that records it. A blob that no log ever named is refused; one that is named and lost can be erased.
    fn erase(&self, thread: &ThreadId, blob: &Digest, reason: &str) -> Result<u64>;
}

/// The signed files beside a log that show what a thread is and what it may do.
pub trait SignedFiles: Send + Sync {
    /// Signs and writes the capabilities of a thread, unless the file exists; returns whether it was written now. An existing file that
    /// fails verification is refused.
    fn write_capabilities(&self, thread: &ThreadId, body: &dyn Fn() -> String) -> Result<bool>;

    /// Signs and writes an entry of knowledge that an agent wrote, atomically and durably; returns the digest of its file. An existing one
    /// is replaced only if it is signed, intact, and replaceable by its text.
    fn write_knowledge(&self, id: &DirectiveId, body: &str, is_replaceable: &dyn Fn(&str) -> bool) -> Result<Digest>;

    /// Refuses a thread if the store or its `thread.json` grants other capabilities than its log; `recorded` is the manifest from the
    /// verified log. A missing file is written again.
    fn check_manifest(&self, recorded: &Manifest) -> Result<()>;

    /// A warning for a thread whose `thread.json` is missing, to show before the thread continues.
    fn missing_manifest(&self, thread: &ThreadId) -> Option<String>;
}

/// One process's handle on a store.
pub trait Handle: Send + Sync {
    /// Closes the handle: pending bytes are synced, leases are released. No commit depends on it, and the handle must not be used for
    /// writing afterwards.
    fn shut_down(&mut self) -> Result<()>;
}

/// A store with everything that commands need.
pub trait Backend:
    Store + Snapshots + Archives + ReadHeads + Erase + SignedFiles + Search + Effects + Pages + Handle
{
}

impl<T: Store + Snapshots + Archives + ReadHeads + Erase + SignedFiles + Search + Effects + Pages + Handle> Backend
    for T
{
}
