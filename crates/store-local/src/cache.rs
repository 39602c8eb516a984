//! The cache of threads between commits, so that a commit reads nothing.
//!
//! - Nothing here is trusted: a commit compares it with the database in its transaction, and drops it if it differs.
//! - A thread whose lease this process holds stays cached until the lease is released, however many are held.
//! - Of the other threads [`CACHED_MAX`] stay. The least recently used is dropped first, one by one.

use std::collections::HashMap;
use std::sync::Arc;

use selvedge_log::Tail;
use selvedge_model::ThreadId;
use serde_json::Value;

use crate::core::{Core, lock};
use crate::leading_events::LeadingEvents;
use crate::lru::LruMap;
use crate::rows::Row;

/// The cached state of a thread after a commit. Never trusted: a commit compares it with the database.
#[derive(Clone, Debug)]
pub(crate) struct CachedThread {
    pub(crate) row: Row,
    pub(crate) tail: Tail,
    /// The events that the next changeset leads with.
    pub(crate) leads: LeadingEvents,
    pub(crate) state: Option<Arc<Value>>,
    /// The length of the log when the state was last saved, and the length of the state.
    pub(crate) saved_state: Option<(u64, u64)>,
    /// The redo row that its head names.
    pub(crate) redo: i64,
    /// Whether there is a valid `thread.json`.
    pub(crate) is_shown: bool,
}

/// The maximum number of cached threads whose lease this process does not hold.
const CACHED_MAX: usize = 4_096;

/// The cached threads.
#[derive(Debug, Default)]
pub(crate) struct ThreadCache {
    /// Those whose lease this process holds.
    held: HashMap<ThreadId, Arc<CachedThread>>,
    others: LruMap<Arc<CachedThread>>,
}

impl ThreadCache {
    fn get(&mut self, thread: &ThreadId) -> Option<&Arc<CachedThread>> {
        match self.held.get(thread) {
            Some(held) => Some(held),
            None => self.others.get(thread),
        }
    }

    /// Returns dropped entries, so that the caller drops them without holding a lock.
    fn put(&mut self, thread: &ThreadId, remembered: Arc<CachedThread>, is_held: bool) -> Vec<Arc<CachedThread>> {
        let mut dropped = Vec::new();
        if is_held {
            dropped.extend(self.others.remove(thread));
            match self.held.get_mut(thread) {
                Some(held) => dropped.push(std::mem::replace(held, remembered)),
                None => _ = self.held.insert(thread.clone(), remembered),
            }
        } else {
            dropped.extend(self.held.remove(thread));
            self.others.insert(thread, remembered);
            dropped.extend(self.others.drop_oldest(CACHED_MAX));
        }
        dropped
    }

    fn remove(&mut self, thread: &ThreadId) -> Option<Arc<CachedThread>> {
        self.held.remove(thread).or_else(|| self.others.remove(thread))
    }
}

impl Core {
    pub(crate) fn remembered(&self, thread: &ThreadId) -> Option<Arc<CachedThread>> {
        lock(&self.cache).get(thread).cloned()
    }

    pub(crate) fn remember(&self, thread: &ThreadId, remembered: CachedThread) {
        let is_held = remembered.row.owner.as_ref() == Some(&self.owner);
        let dropped = lock(&self.cache).put(thread, Arc::new(remembered), is_held);
        drop(dropped);
    }

    pub(crate) fn forget(&self, thread: &ThreadId) {
        let forgotten = lock(&self.cache).remove(thread);
        drop(forgotten);
        self.handles.close(thread);
    }

    /// Updates the cached state of a thread when its lease changes, if it matches the row; otherwise drops it. `before` is the row as the
    /// transaction found it, and `now` as it left it, with another owner and epoch.
    pub(crate) fn remember_lease(&self, thread: &ThreadId, before: &Row, now: &Row) {
        let Some(remembered) = self.remembered(thread).filter(|remembered| remembered.is_of(before)) else {
            return self.forget(thread);
        };
        let row = Row { owner: now.owner.clone(), epoch: now.epoch, mark: now.mark, ..remembered.row.clone() };
        self.remember(thread, CachedThread { row, ..CachedThread::clone(&remembered) });
    }
}

impl CachedThread {
    /// Whether this matches the row, with no events waiting to lead the next changeset.
    fn is_of(&self, row: &Row) -> bool {
        let ours = &self.row;
        ours.mark == row.mark && ours.id == row.id && ours.head == row.head && self.leads.rows.is_empty()
    }
}

#[cfg(test)]
mod tests;
