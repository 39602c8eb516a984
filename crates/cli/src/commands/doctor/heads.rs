//! The user's lists of heads, in `heads` of the Selvedge home, compared with the store.

use std::path::Path;

use selvedge_log::Trust;
use selvedge_store::Backend;
use selvedge_store::doctor::{Depth, Finding, Severity};
use selvedge_store::heads::Depth as Hashed;

use crate::commands::heads::user_lists::{self, BYTES_MAX, UserList};
use crate::context::{Context, User};
use crate::error::Failure;

/// Compares the store with every list. A store that can't be opened has been reported.
pub(super) fn look(project: &Path, trust: &Trust, depth: Depth, context: &Context<'_>) -> Vec<Finding> {
    let Ok(user) = User::find() else { return Vec::new() };
    let Ok(store) = context.open_to_look(project, trust) else { return Vec::new() };
    let hashed = if depth == Depth::Whole { Hashed::Whole } else { Hashed::UpTo(BYTES_MAX) };
    let (lists, refused) = user_lists::compare(&user, &*store, hashed);
    let mut findings: Vec<Finding> = refused.into_iter().map(unread).collect();
    findings.extend(lists.iter().filter_map(|kept| finding(kept, &*store)));
    findings
}

fn unread(failure: Failure) -> Finding {
    let why = "it can't be compared with the store";
    let found = Finding::new(Severity::Warning, "heads_refused", "your heads", failure.message, why);
    found.help(failure.hint.unwrap_or_else(|| "`selvedge heads export` writes a new one".to_owned()))
}

fn finding(kept: &UserList, store: &dyn Backend) -> Option<Finding> {
    let UserList { file, compared, .. } = kept;
    let first = compared.differs.first()?;
    let what = match compared.differs.len() {
        1 => format!("it is older than `{}`: {first}", file.display()),
        many => format!("it is older than `{}` in {many} places; the first: {first}", file.display()),
    };
    if kept.is_superseded {
        let why = "you accepted that with a newer list of this store; the older list has another store id";
        return Some(Finding::new(Severity::Note, "rollback_accepted", "the store", what, why));
    }
    let why = if kept.is_ours {
        "acknowledged commits are gone: the store was reset to an older state, or cut"
    } else {
        "the list has another store id and later versions of the same logs: this store was reset to an older state and got \
         a new id, or it is an older copy"
    };
    let found = Finding::new(Severity::Damage, "rolled_back", "the store", what, why);
    Some(found.help(user_lists::remedy(kept, store)))
}
