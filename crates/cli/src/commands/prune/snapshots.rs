//! Removes snapshots of idle threads that the configuration does not keep.

use selvedge::snapshot::retain::tidy_idle;
use selvedge_model::{Clock, ThreadId};
use selvedge_store::{Backend, Filter};
use selvedge_store_local::system::SystemClock;
use serde::Serialize;

use super::PAGE;
use crate::config::configuration;
use crate::context::Context;
use crate::error::Result;
use crate::text::count;

#[derive(Serialize)]
struct RemovedSnapshots<'a> {
    thread_id: &'a ThreadId,
    snapshots: Vec<String>,
    removed: bool,
}

/// Removes the outdated snapshots of every idle thread, except of threads that are deleted.
pub(super) fn prune(
    store: &dyn Backend,
    leaves: impl Fn(&ThreadId) -> bool,
    dry_run: bool,
    context: &Context<'_>,
) -> Result<()> {
    let rules = configuration(context)?.state_persistence.retention;
    let mut snapshots = 0;
    let mut threads = 0;
    let mut cursor = None;
    loop {
        let page = store.list(&Filter::default(), cursor, PAGE)?;
        for thread in page.items.iter().filter(|thread| thread.holder.is_none()) {
            let id = &thread.manifest.thread_id;
            if leaves(id) {
                continue;
            }
            // Unreadable snapshots of one thread don't affect the others.
            let gone = match tidy_idle(store, &rules, id, SystemClock.now(), !dry_run) {
                Ok(gone) if gone.is_empty() => continue,
                Ok(gone) => gone,
                Err(error) => {
                    context.output.say(format_args!("the snapshots of {id} are kept: {error}"));
                    continue;
                }
            };
            snapshots += gone.len() as u64;
            threads += 1;
            if context.output.is_json() {
                let names = gone.into_iter().map(|kept| kept.name).collect();
                context.output.record(&RemovedSnapshots { thread_id: id, snapshots: names, removed: !dry_run })?;
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    if snapshots > 0 {
        let word = if dry_run { "would be removed" } else { "removed" };
        let snapshots = count(snapshots, "old snapshot");
        let threads = count(threads, "idle thread");
        context.output.tell(format_args!("{snapshots} of {threads} {word}; everything in them is in the logs"));
    }
    Ok(())
}
