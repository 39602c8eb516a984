//! The user's lists of heads, in `heads` of the Selvedge home, compared with the store.

use std::fs;
use std::path::Path;

use selvedge_log::Trust;
use selvedge_store::Backend;
use selvedge_store::doctor::{Depth, Finding, Severity};
use selvedge_store::heads::{Depth as Hashed, Heads, Signed};

use crate::commands::heads;
use crate::context::{Context, User};

/// How much of a log is hashed in a quick check: as much as is read of it anyway.
const BYTES_MAX: u64 = 256 << 10;

/// Compares the store with every list. A store that can't be opened has been reported.
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
            let why = "it can't be compared with the store";
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
        1 => format!("it is older than `{}`: {first}", file.display()),
        many => format!("it is older than `{}` in {many} places; the first: {first}", file.display()),
    };
    Some(if is_ours {
        let why = "acknowledged commits are gone: the store was reset to an older state, or cut";
        let found = Finding::new(Severity::Damage, "rolled_back", "the store", what, why);
        found.help(heads::what_to_do(&compared, store))
    } else {
        let why = "the list has another store id: this is a copy of that store, or its `store.json` was replaced";
        let found = Finding::new(Severity::Warning, "heads_elsewhere", "the store", what, why);
        found.help(format!(
            "if the original is still in use, write to only one of the two; if it is gone for good, remove `{}`",
            file.display()
        ))
    })
}

/// The threads in a list of another store whose logs are also here.
fn in_common(heads: Heads, store: &dyn Backend) -> Heads {
    let is_here = |head: &&selvedge_store::heads::LogHead| {
        store.transcript(&head.thread_id).is_ok_and(|(now, _)| now.log_id == head.log_id)
    };
    let threads = heads.threads.iter().filter(is_here).map(|head| head.thread_id.clone()).collect();
    heads.only(&threads)
}
