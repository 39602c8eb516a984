//! What the logs of one batch remember of each other.
//!
//! A checkpoint names the versions to which the other threads of its batch came. If such a thread now ends earlier, it was
//! cut, however well signed what is left of it may be.

use std::collections::BTreeMap;

use selvedge_model::ThreadId;
use selvedge_store::Registry;
use selvedge_store_local::LocalStore;

use super::verdict::Checked;
use crate::error::Result;

/// The furthest that any checked log remembers of another thread, and which log that is.
fn remembered(checked: &[Checked]) -> BTreeMap<ThreadId, (u64, ThreadId)> {
    let mut most: BTreeMap<ThreadId, (u64, ThreadId)> = BTreeMap::new();
    for one in checked {
        for (mate, version) in one.mates() {
            let known = most.entry(mate.clone()).or_insert_with(|| (*version, one.thread().clone()));
            if *version > known.0 {
                *known = (*version, one.thread().clone());
            }
        }
    }
    most
}

/// Holds every verdict against what the other logs remember; with `all`, threads that are gone get a verdict as well.
pub(super) fn compare(checked: &mut Vec<Checked>, all: bool, store: &LocalStore) -> Result<()> {
    for (mate, (version, by)) in remembered(checked) {
        match checked.iter_mut().find(|one| *one.thread() == mate) {
            Some(one) => one.is_remembered_by(version, &by),
            None if all && !was_deleted(&mate, version, store)? => checked.push(Checked::gone(mate, version, &by)),
            None => {}
        }
    }
    Ok(())
}

fn was_deleted(thread: &ThreadId, version: u64, store: &LocalStore) -> Result<bool> {
    Ok(store.tombstone(thread)?.is_some_and(|tombstone| tombstone.head.version >= version))
}
