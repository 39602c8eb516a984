//! What dead processes left in a tree of threads: settled by whoever looks at the tree, and said.

use std::sync::Arc;

use selvedge::tools::ProcessGroups;
use selvedge_engine::orphans::orphans_below;
use selvedge_model::ThreadId;
use selvedge_store_local::LocalStore;

use crate::context::Context;
use crate::running::plain_engine;

/// Settles the threads in and below these that are said to go on and that nobody alive has. Nothing is opened to write if there are
/// none. Whoever may not write, or has no key, sees them as they are: `stalled`.
pub(crate) fn settle(threads: &[ThreadId], store: &LocalStore, context: &Context<'_>) {
    let is_orphaned =
        |thread| orphans_below(store, store.trust(), &ProcessGroups, thread).is_ok_and(|found| !found.is_empty());
    if !threads.iter().any(is_orphaned) {
        return;
    }
    let Ok((store, engine)) = plain_engine(context) else { return };
    for thread in engine.settle_orphans(threads).unwrap_or_default() {
        context.output.say(left_running(&thread));
    }
    drop(engine);
    if let Ok(store) = Arc::try_unwrap(store) {
        context.close(store);
    }
}

/// What is said of a thread that a dead process left and that was settled.
pub(crate) fn left_running(thread: &ThreadId) -> String {
    format!(
        "thread `{thread}` was left running by a process that is gone; it waits now, and `selvedge resume {thread}` goes on"
    )
}
