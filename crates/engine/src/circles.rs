//! Who waits for whom: a wait that leads back to whoever waits would only end with its time.
//!
//! Only reading. That a thread waits stands in its log before it does: a call without a result. So of two that begin to wait for each
//! other at the same moment at least one sees the other.
//!
//! A thread waits for all that its open calls name. A child that waits for a place waits for any of those who have one. Where it can't be
//! known that a wait leads back, it is not said to.

use std::collections::HashSet;

use selvedge_model::{Manifest, Status, ThreadId};
use serde_json::Value;

use crate::chain;
use crate::engine::Engine;
use crate::error::Result;
use crate::fold::Fold;
use crate::places::running_below;

/// The most threads that are asked whom they wait for.
const THREADS_MAX: usize = 1000;

/// The threads that a call of this name with these arguments waits for.
pub type Awaited<'a> = dyn Fn(&str, &Value) -> Vec<ThreadId> + 'a;

impl Engine {
    /// Whether a thread, or one that it waits for, waits for a chain: for a child that it started and goes on with, by a call, or for a
    /// place, of which the children of a thread have so many.
    pub fn waits_for(
        &self,
        thread: &ThreadId,
        chain: &ThreadId,
        awaited: &Awaited<'_>,
        at_once: usize,
    ) -> Result<bool> {
        let wanted = chain::threads(&*self.store, chain)?.into_iter().collect();
        Look { engine: self, awaited, at_once: at_once.max(1), left: THREADS_MAX }.leads_to(thread, &wanted)
    }
}

/// One look at who waits for whom.
struct Look<'l> {
    engine: &'l Engine,
    awaited: &'l Awaited<'l>,
    at_once: usize,
    /// How many threads may still be asked.
    left: usize,
}

impl Look<'_> {
    /// Whether a thread, or one that it waits for, is or waits for one of those that are wanted.
    fn leads_to(&mut self, thread: &ThreadId, wanted: &HashSet<ThreadId>) -> Result<bool> {
        let (mut open, mut seen) = (vec![thread.clone()], HashSet::new());
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
                // The dead wait for nobody.
                Status::Running if summary.holder.is_some() => open.extend(self.awaited_by(&manifest.thread_id)?),
                Status::Created if self.is_queued_behind(manifest, wanted)? => return Ok(true),
                _ => {}
            }
        }
        Ok(false)
    }

    /// The threads that a thread waits for, by its log; none, if that does not hold.
    fn awaited_by(&self, thread: &ThreadId) -> Result<Vec<ThreadId>> {
        let store = &*self.engine.store;
        let Ok(fold) = Fold::load(store, thread, &self.engine.trust) else { return Ok(Vec::new()) };
        // One that is not waited for is waited for until it has its place.
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

    /// Whether a child waits for a place that only comes free once one of those that are wanted ends: everybody who has one waits for
    /// one of them, or for the child itself.
    fn is_queued_behind(&mut self, child: &Manifest, wanted: &HashSet<ThreadId>) -> Result<bool> {
        let store = &*self.engine.store;
        let (Some(parent), None) = (&child.parent_id, &child.continuation_of) else { return Ok(false) };
        let placed = running_below(store, parent)?;
        // One for whom there is a place is about to begin, and one whose parent is gone waits for nobody.
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
