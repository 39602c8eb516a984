//! What is remembered of threads between commits, so that a commit reads nothing.
//!
//! - Nothing here is trusted: a commit compares it with the database in its transaction, and forgets it if it is not the same.
//! - A thread whose lease this process holds stays remembered until the lease is released, however many are held.
//! - Of the other threads the last [`REMEMBERED_MAX`] stay. The one that was used longest ago is forgotten first, one by one.

use std::collections::HashMap;
use std::sync::Arc;

use selvedge_log::Tail;
use selvedge_model::ThreadId;
use serde_json::Value;

use crate::core::{Core, lock};
use crate::leads::Leads;
use crate::recent::Recent;
use crate::rows::Row;

/// What is remembered of a thread after a commit. Never trusted: a commit compares it with the database.
#[derive(Clone, Debug)]
pub(crate) struct Remembered {
    pub(crate) row: Row,
    pub(crate) tail: Tail,
    /// What the next changeset leads with.
    pub(crate) leads: Leads,
    pub(crate) state: Option<Arc<Value>>,
    /// Where the log ended when the state was saved last, and how long it was.
    pub(crate) saved_state: Option<(u64, u64)>,
    /// The row of redo that its head names.
    pub(crate) redo: i64,
    /// Whether there is a `thread.json` that is believed.
    pub(crate) is_shown: bool,
}

/// How many threads are remembered at most whose lease this process does not hold.
const REMEMBERED_MAX: usize = 4_096;

/// The threads that are remembered.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Those whose lease this process holds.
    held: HashMap<ThreadId, Arc<Remembered>>,
    others: Recent<Arc<Remembered>>,
}

impl Memory {
    fn get(&mut self, thread: &ThreadId) -> Option<&Arc<Remembered>> {
        match self.held.get(thread) {
            Some(held) => Some(held),
            None => self.others.get(thread),
        }
    }

    /// Gives what is remembered no more, to be dropped outside of any lock.
    fn put(&mut self, thread: &ThreadId, remembered: Arc<Remembered>, is_held: bool) -> Vec<Arc<Remembered>> {
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
            dropped.extend(self.others.drop_oldest(REMEMBERED_MAX));
        }
        dropped
    }

    fn remove(&mut self, thread: &ThreadId) -> Option<Arc<Remembered>> {
        self.held.remove(thread).or_else(|| self.others.remove(thread))
    }
}

impl Core {
    pub(crate) fn remembered(&self, thread: &ThreadId) -> Option<Arc<Remembered>> {
        lock(&self.memory).get(thread).cloned()
    }

    pub(crate) fn remember(&self, thread: &ThreadId, remembered: Remembered) {
        let is_held = remembered.row.owner.as_ref() == Some(&self.owner);
        let dropped = lock(&self.memory).put(thread, Arc::new(remembered), is_held);
        drop(dropped);
    }

    pub(crate) fn forget(&self, thread: &ThreadId) {
        let forgotten = lock(&self.memory).remove(thread);
        drop(forgotten);
        self.handles.close(thread);
    }

    /// Keeps what is remembered of a thread when its lease changes, if it is what the row says; otherwise forgets it. `before` is the row
    /// as the transaction found it, and `now` as it left it, with another owner and epoch and everything else as it was.
    pub(crate) fn remember_lease(&self, thread: &ThreadId, before: &Row, now: &Row) {
        let Some(remembered) = self.remembered(thread).filter(|remembered| remembered.is_of(before)) else {
            return self.forget(thread);
        };
        let row = Row { owner: now.owner.clone(), epoch: now.epoch, mark: now.mark, ..remembered.row.clone() };
        self.remember(thread, Remembered { row, ..Remembered::clone(&remembered) });
    }
}

impl Remembered {
    /// Whether this is what the row says, with nothing pending that the next changeset must lead with.
    fn is_of(&self, row: &Row) -> bool {
        let ours = &self.row;
        ours.mark == row.mark && ours.id == row.id && ours.head == row.head && self.leads.rows.is_empty()
    }
}

#[cfg(test)]
mod tests;
