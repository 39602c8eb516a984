//! A map by thread that drops the least recently used entries.

use std::collections::{BTreeMap, HashMap};

use selvedge_model::ThreadId;

/// A map that tracks the order in which its entries were used.
///
/// Every operation takes logarithmic time at most. It has no maximum of its own: the owner drops the oldest entries with
/// [`LruMap::drop_oldest`].
#[derive(Debug)]
pub(crate) struct LruMap<V> {
    entries: HashMap<ThreadId, LruEntry<V>>,
    /// The threads by their last use.
    order: BTreeMap<u64, ThreadId>,
    /// The number of uses so far.
    time: u64,
}

#[derive(Debug)]
struct LruEntry<V> {
    value: V,
    used: u64,
}

impl<V> Default for LruMap<V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), order: BTreeMap::new(), time: 0 }
    }
}

impl<V> LruMap<V> {
    /// The value of a thread, which becomes the most recently used.
    pub(crate) fn get(&mut self, thread: &ThreadId) -> Option<&V> {
        let entry = self.entries.get_mut(thread)?;
        self.time += 1;
        if let Some(thread) = self.order.remove(&entry.used) {
            self.order.insert(self.time, thread);
        }
        entry.used = self.time;
        Some(&entry.value)
    }

    /// Inserts or replaces a value, as the most recently used.
    pub(crate) fn insert(&mut self, thread: &ThreadId, value: V) {
        self.time += 1;
        let before = self.entries.insert(thread.clone(), LruEntry { value, used: self.time });
        let name = before.and_then(|before| self.order.remove(&before.used)).unwrap_or_else(|| thread.clone());
        self.order.insert(self.time, name);
    }

    pub(crate) fn remove(&mut self, thread: &ThreadId) -> Option<V> {
        let entry = self.entries.remove(thread)?;
        self.order.remove(&entry.used);
        Some(entry.value)
    }

    /// Removes the least recently used entries until at most `most` are left; returns them.
    pub(crate) fn drop_oldest(&mut self, most: usize) -> Vec<V> {
        let mut dropped = Vec::new();
        while self.entries.len() > most
            && let Some((_, thread)) = self.order.pop_first()
        {
            dropped.extend(self.entries.remove(&thread).map(|entry| entry.value));
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(number: usize) -> ThreadId {
        ThreadId::new(format!("t-{number}")).unwrap()
    }

    #[test]
    fn the_least_recently_used_entry_is_dropped_first_and_alone() {
        let mut recent = LruMap::default();
        (0..4).for_each(|number| recent.insert(&thread(number), number));
        assert_eq!(recent.get(&thread(0)), Some(&0));
        recent.insert(&thread(1), 10);
        assert_eq!(recent.drop_oldest(3), [2]);
        assert_eq!(recent.drop_oldest(3), [0; 0]);
        assert_eq!(recent.drop_oldest(1), [3, 0]);
        assert_eq!(recent.get(&thread(1)), Some(&10));
    }

    #[test]
    fn a_removed_entry_leaves_nothing_in_the_order() {
        let mut recent = LruMap::default();
        for round in 0..3 {
            (0..10).for_each(|number| recent.insert(&thread(number), round));
            (0..10).for_each(|number| assert_eq!(recent.remove(&thread(number)), Some(round)));
            assert_eq!(recent.remove(&thread(0)), None);
        }
        assert!(recent.entries.is_empty() && recent.order.is_empty());
    }
}
