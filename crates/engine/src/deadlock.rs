//! Detects deadlocks: a wait that leads back to the waiting thread would end only by its timeout.
//!
//! Only reads. A thread that waits has that in its log first: a call without a result. So of two threads that begin to wait for each other
//! at the same moment, at least one sees the other.
//!
//! A thread waits for all threads that its open calls name. A child that waits for a slot waits for any of those that have one. A deadlock is
//! reported only if it is certain.

use std::collections::HashSet;

use selvedge_model::{Manifest, Status, ThreadId};
use serde_json::Value;

use crate::chain;
use crate::child_slots::running_below;
use crate::engine::Engine;
use crate::error::Result;
use crate::fold::Fold;

/// The most threads to check.
const THREADS_MAX: usize = 1000;

/// The threads that a call of this name with these arguments waits for.
pub type AwaitedThreads<'a> = dyn Fn(&str, &Value) -> Vec<ThreadId> + 'a;

impl Engine {
    /// Whether a thread, directly or indirectly, waits for a chain: for a child that it spawned and waits for, by a call, or for a slot
    /// (`at_once` is the number of slots for the children of one thread).
    pub fn waits_for(
        &self,
        thread: &ThreadId,
        chain: &ThreadId,
        awaited: &AwaitedThreads<'_>,
        at_once: usize,
    ) -> Result<bool> {
        let wanted = chain::threads(&*self.store, chain)?.into_iter().collect();
        DeadlockSearch { engine: self, awaited, at_once: at_once.max(1), left: THREADS_MAX }.leads_to(thread, &wanted)
    }
}

/// One search through the threads that wait.
struct DeadlockSearch<'l> {
    engine: &'l Engine,
    awaited: &'l AwaitedThreads<'l>,
    at_once: usize,
    /// How many threads may still be checked.
    left: usize,
}

impl DeadlockSearch<'_> {
    /// Whether a thread is one of those wanted, or waits for one of them, directly or indirectly.
    fn leads_to(&mut self, thread: &ThreadId, wanted: &HashSet<ThreadId>) -> Result<bool> {
        let mut open = vec![thread.clone()];
        let mut seen = HashSet::new();
        while let Some(next) = open.pop() {
            let end = chain::end(&*self.engine.store, &next)?;
            if wanted.contains(&end.thread) {
                return Ok(true);
            }
            let Some(summary) = end.summary.filter(|_| !end.is_deleted) else { continue };
            if self.left == 0 || !seen.insert(end.thread) {
                continue;
            }
            self.left -= 1;
            let manifest = &summary.manifest;
            match manifest.status {
                // A run whose process is dead does not wait.
                Status::Running if summary.holder.is_some() => open.extend(self.awaited_by(&manifest.thread_id)?),
                Status::Created if self.waits_for_slot(manifest, wanted)? => return Ok(true),
                _ => {}
            }
        }
        Ok(false)
    }

    /// The threads that a thread waits for, by its log; none, if its log is not valid.
    fn awaited_by(&self, thread: &ThreadId) -> Result<Vec<ThreadId>> {
        let store = &*self.engine.store;
        let Ok(fold) = Fold::load(store, thread, &self.engine.trust) else { return Ok(Vec::new()) };
        // A detached child is waited for until it has its slot.
        let has_begun = |child: &ThreadId| store.get(child).is_ok_and(|found| found.manifest.status != Status::Created);
        let mut found = Vec::new();
        for call in fold.conversation.open().iter() {
            let child = fold.call(&call.id).and_then(|known| known.child.as_ref());
            let child = child.filter(|child| !child.detached || !has_begun(&child.thread_id));
            found.extend(child.map(|child| child.thread_id.clone()));
            found.extend((self.awaited)(&call.name, &call.arguments));
        }
        Ok(found)
    }

    /// Whether a child waits for a slot that only comes free when one of those wanted ends: every sibling that has a slot waits for one of
    /// them, or for the child itself.
    fn waits_for_slot(&mut self, child: &Manifest, wanted: &HashSet<ThreadId>) -> Result<bool> {
        let store = &*self.engine.store;
        let (Some(parent), None) = (&child.parent_id, &child.continuation_of) else { return Ok(false) };
        let placed = running_below(store, parent)?;
        // If there is a free slot the child is about to begin; if its parent is dead it does not wait.
        if placed.len() < self.at_once || chain::end(store, parent)?.summary.is_none_or(|end| end.holder.is_none()) {
            return Ok(false);
        }
        let mut wanted = wanted.clone();
        wanted.insert(child.thread_id.clone());
        for sibling in placed {
            if !self.leads_to(&sibling, &wanted)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
