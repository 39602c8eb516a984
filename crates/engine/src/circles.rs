//! Who waits for whom: a wait that leads back to whoever waits would only end with its time.
//!
//! Only reading. That a thread waits stands in its log before it does: a call without a result. So of two that begin to wait for each
//! other at the same moment at least one sees the other.

use std::collections::HashSet;

use selvedge_model::{Status, ThreadId};
use serde_json::Value;

use crate::chain;
use crate::engine::Engine;
use crate::error::Result;
use crate::fold::Fold;
use crate::standing::holder;

/// The most threads that are asked whom they wait for.
const THREADS_MAX: usize = 1000;

/// The threads that a call of this name with these arguments waits for.
pub type Awaited<'a> = dyn Fn(&str, &Value) -> Vec<ThreadId> + 'a;

impl Engine {
    /// Whether a thread, or one that it waits for, waits for a chain: for a child that it started and goes on with, or by a call.
    pub fn waits_for(&self, thread: &ThreadId, chain: &ThreadId, awaited: &Awaited<'_>) -> Result<bool> {
        let wanted: HashSet<ThreadId> = chain::threads(&*self.store, chain)?.into_iter().collect();
        let (mut open, mut seen) = (vec![thread.clone()], HashSet::new());
        while let Some(next) = open.pop() {
            let end = chain::end(&*self.store, &next)?;
            if wanted.contains(&end.thread) {
                return Ok(true);
            }
            let runs = end.manifest.is_some_and(|manifest| manifest.status == Status::Running) && !end.is_deleted;
            if !runs || seen.len() >= THREADS_MAX || !seen.insert(end.thread.clone()) {
                continue;
            }
            // The dead wait for nobody, and nobody knows what a log says that does not hold.
            if holder(&*self.store, &end.thread)?.is_some()
                && let Ok(fold) = Fold::load(&*self.store, &end.thread, &self.trust)
            {
                open.extend(awaits(&fold, awaited));
            }
        }
        Ok(false)
    }
}

/// The threads that a thread waits for.
fn awaits(fold: &Fold, awaited: &Awaited<'_>) -> Vec<ThreadId> {
    let mut found = Vec::new();
    for call in fold.conversation.open() {
        let child = fold.call(&call.id).and_then(|known| known.child.as_ref()).filter(|child| !child.detached);
        found.extend(child.map(|child| child.thread_id.clone()));
        found.extend(awaited(&call.name, &call.arguments));
    }
    found
}
