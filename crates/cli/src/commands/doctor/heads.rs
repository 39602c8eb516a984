//! What the user remembers of stores: lists in `heads` of the user's folder, against the store that is looked at.

use std::fs;
use std::path::Path;

use selvedge_log::Trust;
use selvedge_store::Backend;
use selvedge_store::doctor::{Depth, Finding, Severity};
use selvedge_store::heads::{Depth as Hashed, Heads, Signed};

use crate::commands::heads;
use crate::context::{Context, User};

/// How much of a log is hashed when not everything is: as much as is read of it anyway.
const BYTES_MAX: u64 = 256 << 10;

/// Compares the store with every list that the user keeps. A store that can't be opened has been reported.
pub(super) fn look(project: &Path, trust: &Trust, depth: Depth, context: &Context<'_>) -> Vec<Finding> {
    let Ok(user) = User::find() else { return Vec::new() };
    let Ok(entries) = fs::read_dir(heads::folder(&user)) else { return Vec::new() };
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "json"));
    files.sort();
    let (Ok(store), false) = (context.open_to_look(project, trust), files.is_empty()) else { return Vec::new() };
    let hashed = if depth == Depth::Whole { Hashed::Whole } else { Hashed::UpTo(BYTES_MAX) };
    files.iter().filter_map(|file| compared(file, &*store, trust, hashed)).collect()
}

fn compared(file: &Path, store: &dyn Backend, trust: &Trust, depth: Hashed) -> Option<Finding> {
    let Signed { heads, .. } = match heads::read(file, trust) {
        Ok(signed) => signed,
        Err(failure) => {
            let why = "what it remembers can't be compared with the store";
            let found = Finding::new(Severity::Warning, "heads_refused", "your heads", failure.message, why);
            return Some(
                found.help(failure.hint.unwrap_or_else(|| "`selvedge heads export` writes a new one".to_owned())),
            );
        }
    };
    let is_ours = store.store_id().is_ok_and(|id| id == heads.store_id);
    let heads = if is_ours { heads } else { in_common(heads, store) };
    let compared = store.compare_heads(&heads, depth);
    let first = compared.differs.first()?;
    let what = match compared.differs.len() {
        1 => format!("it is behind `{}`: {first}", file.display()),
        many => format!("it is behind `{}` in {many} places; the first: {first}", file.display()),
    };
    Some(if is_ours {
        let why = "what was signed and acknowledged is gone: the store was put back to an older state, or cut";
        let found = Finding::new(Severity::Damage, "rolled_back", "the store", what, why);
        found.help(heads::what_to_do(&compared, store))
    } else {
        let why = "the list is of another store id: this is a copy of that store, or its `store.json` was replaced";
        let found = Finding::new(Severity::Warning, "heads_elsewhere", "the store", what, why);
        found.help(format!(
            "if the original goes on elsewhere, write to one of them only; if it is gone for good, remove `{}`",
            file.display()
        ))
    })
}

/// Of a list of another store, the threads whose logs are here too.
fn in_common(heads: Heads, store: &dyn Backend) -> Heads {
    let is_here = |head: &&selvedge_store::heads::LogHead| {
        store.transcript(&head.thread_id).is_ok_and(|(now, _)| now.log_id == head.log_id)
    };
    let threads = heads.threads.iter().filter(is_here).map(|head| head.thread_id.clone()).collect();
    heads.only(&threads)
}
