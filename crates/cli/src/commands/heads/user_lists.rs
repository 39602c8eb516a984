//! The lists that the user keeps (`heads` in the user's folder), compared with a store.
//!
//! A store id changes when a database is rebuilt without its old one, and when a backup is restored. So a list of another store id counts
//! too, for the threads that both have: what is behind it was rolled back, whatever the store calls itself. The user accepts an older
//! state with `selvedge heads export --force`, which writes a newer list of this store; the other list stays, as evidence.

use std::fs;
use std::path::PathBuf;

use selvedge_model::{ThreadId, Timestamp};
use selvedge_store::Backend;
use selvedge_store::heads::{Comparison, Depth, Heads, LogHead, SignedHeads};

use super::{folder, read, rolled_back, what_to_do};
use crate::context::User;
use crate::error::Failure;

/// How much of a log is hashed when not everything is: as much as `selvedge doctor` reads of it anyway.
pub(crate) const BYTES_MAX: u64 = 256 << 10;

/// One list, and the store against it.
pub(crate) struct UserList {
    pub(crate) file: PathBuf,
    /// The list and its signer; of another store, only the threads that both have.
    pub(crate) signed: SignedHeads,
    /// Whether it is of this store id.
    pub(crate) is_ours: bool,
    /// Whether the user accepted an older state after it was made.
    pub(crate) is_superseded: bool,
    pub(crate) compared: Comparison,
}

impl UserList {
    /// Whether it shows that the store was rolled back.
    pub(crate) fn is_ahead(&self) -> bool {
        !self.compared.differs.is_empty() && !self.is_superseded
    }
}

/// Compares a store with every list that the user keeps and that knows threads of it; lists that can't be read come separately.
pub(crate) fn compare(user: &User, store: &dyn Backend, depth: Depth) -> (Vec<UserList>, Vec<Failure>) {
    let Ok(entries) = fs::read_dir(folder(user)) else { return (Vec::new(), Vec::new()) };
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "json"));
    files.sort();
    let store_id = store.store_id().ok();
    let mut lists = Vec::new();
    let mut refused = Vec::new();
    for file in files {
        match read(&file, store.trust()) {
            Ok(signed) => lists.push((file, signed)),
            Err(failure) => refused.push(failure),
        }
    }
    let is_ours = |heads: &Heads| store_id.as_ref() == Some(&heads.store_id);
    let accepted: Option<Timestamp> =
        lists.iter().filter(|(_, signed)| is_ours(&signed.heads)).map(|(_, signed)| signed.heads.made_at).max();
    let kept = lists.into_iter().filter_map(|(file, SignedHeads { heads, signer })| {
        let is_ours = is_ours(&heads);
        let is_superseded = !is_ours && accepted.is_some_and(|accepted| accepted > heads.made_at);
        let heads = if is_ours { heads } else { in_common(heads, store)? };
        let compared = store.compare_heads(&heads, depth);
        Some(UserList { file, signed: SignedHeads { heads, signer }, is_ours, is_superseded, compared })
    });
    (kept.collect(), refused)
}

/// The failure of a command whose store is behind a list that the user keeps.
pub(crate) fn failure(store: &dyn Backend) -> Option<Failure> {
    let user = User::find().ok()?;
    let (kept, _) = compare(&user, store, Depth::UpTo(BYTES_MAX));
    let first = kept.iter().find(|kept| kept.is_ahead())?;
    Some(rolled_back(&first.compared, &first.file).hint(remedy(first, store)))
}

/// What to do about a store that is behind a list.
pub(crate) fn remedy(kept: &UserList, store: &dyn Backend) -> String {
    let remedy = what_to_do(&kept.compared, store);
    if kept.is_ours {
        return remedy;
    }
    format!(
        "{remedy}; if this store is meant to be an older copy, `selvedge heads export --force` accepts it as it is, and \
         the list stays"
    )
}

/// Of a list of another store, the threads whose logs are here too; nothing if there are none.
fn in_common(heads: Heads, store: &dyn Backend) -> Option<Heads> {
    let is_here = |head: &&LogHead| store.transcript(&head.thread_id).is_ok_and(|(now, _)| now.log_id == head.log_id);
    let threads: std::collections::BTreeSet<ThreadId> =
        heads.threads.iter().filter(is_here).map(|head| head.thread_id.clone()).collect();
    (!threads.is_empty()).then(|| heads.only(&threads))
}
