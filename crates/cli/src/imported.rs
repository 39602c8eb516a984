//! Imported threads: their signatures prove what was imported and when, and no more.

use selvedge_legacy::nova::{Origin, origin};
use selvedge_model::ThreadId;
use selvedge_store::Logs;

use crate::text::{clean, local_minute};

/// The origin of an imported thread, if its first lines can be read; a damaged log is reported by its other readers.
pub(crate) fn find(store: &dyn Logs, thread: &ThreadId) -> Option<Origin> {
    origin(store, thread).ok().flatten()
}

/// The sentence on the origin of an imported thread.
pub(crate) fn sentence(origin: &Origin) -> String {
    let source = clean(&origin.source);
    let at = local_minute(origin.at);
    format!("imported from {source} on {at}: not witnessed; the signature proves only what was imported and when")
}
