//! Walking a chain of continued threads.

use std::collections::HashSet;

use selvedge_model::{Manifest, ThreadId};

use crate::error::Result;

/// The ids of the chain that `thread` belongs to, from its root to its end. A cycle or a missing thread ends the walk; `manifest` may
/// return those of deleted threads, so that a walk passes through them.
pub fn walk(thread: &ThreadId, manifest: impl Fn(&ThreadId) -> Result<Option<Manifest>>) -> Result<Vec<ThreadId>> {
    let mut seen = HashSet::from([thread.clone()]);
    let mut chain = vec![thread.clone()];
    let mut at = manifest(thread)?.and_then(|found| found.continuation_of);
    while let Some(id) = at.take().filter(|id| seen.insert(id.clone())) {
        let Some(found) = manifest(&id)? else { break };
        chain.insert(0, id);
        at = found.continuation_of;
    }
    at = manifest(thread)?.and_then(|found| found.continuation_thread_id);
    while let Some(id) = at.take().filter(|id| seen.insert(id.clone())) {
        let Some(found) = manifest(&id)? else { break };
        chain.push(id);
        at = found.continuation_thread_id;
    }
    Ok(chain)
}
