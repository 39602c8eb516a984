//! Saying of a thread that it was imported: what is signed then is what was imported when, and no more.

use selvedge_legacy::nova::{Origin, origin};
use selvedge_model::ThreadId;
use selvedge_store::Logs;

use crate::text::{clean, local_minute};

/// Where a thread came from, if it was imported and its first lines can be read. Whoever reads more of it says what is
/// wrong with it.
pub(crate) fn find(store: &dyn Logs, thread: &ThreadId) -> Option<Origin> {
    origin(store, thread).ok().flatten()
}

/// The sentence that is shown wherever an imported thread is.
pub(crate) fn sentence(origin: &Origin) -> String {
    let source = clean(&origin.source);
    let at = local_minute(origin.at);
    format!("imported from {source} on {at}: not witnessed; the signature proves only what was imported when")
}
