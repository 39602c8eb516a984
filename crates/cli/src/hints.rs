//! Hints that depend on the current state of threads: they name a command that works now.

use selvedge::Outcome;
pub(crate) use selvedge::needs::{VERDICTS, about, money, raise};
use selvedge_engine::Error;
use selvedge_log::Trust;
use selvedge_model::account::PostingError;
use selvedge_model::{CallId, Classify, Manifest, Status, ThreadId};
use selvedge_store::{Error as StoreError, Store};

use crate::context::User;
use crate::error::{Exit, Failure, Result};
use crate::running;

/// The failure for a request that the engine refused.
pub(crate) fn refused(store: &dyn Store, error: &Error) -> Failure {
    let failure = Failure::of(error);
    match error {
        // An interrupted wait is not "not allowed".
        Error::NotHeardYet { .. } => Failure { exit: Exit::Interrupted, ..failure },
        Error::Store(StoreError::Posting(PostingError::Insufficient { account, .. })) => failure.hint(format!(
            "use a lower limit, or raise the parent's account first: `{}`; `selvedge budget {account}` shows what is left",
            raise(store, account, "spend=…")
        )),
        // Another process was first, perhaps with a successor of the thread; a message can be queued for it.
        Error::Store(StoreError::LeaseHeld { thread, .. }) => {
            let end = end(store, thread).map_or_else(|| thread.clone(), |end| end.thread_id);
            failure.detail("thread_id", end.as_str()).hint(format!(
                "another process is running `{end}`: `selvedge send {end} \"…\"` queues a message, `selvedge wait {end}` waits for its end, \
                 `selvedge cancel {end}` stops it"
            ))
        }
        // The call waits for another kind of decision.
        Error::NoOpenCall { thread, call } => match wanted(store, thread, call) {
            Some(hint) => failure.hint(hint),
            None => failure,
        },
        Error::ValueUnused { thread, call } => failure.hint(format!(
            "`{}` approves it as it is, `--edit FILE` with other arguments",
            about("approve", call, thread, "")
        )),
        Error::AboveParent { limit, parent, needs, .. } => {
            let first = raise(store, parent, &format!("{limit}={needs}"));
            failure.hint(format!("raise the limit of its parent first: `{first}`"))
        }
        Error::AlreadyDecided { thread, .. } => failure.hint(match status(store, thread) {
            Some(Status::Suspended) => format!("the first decision counts; `selvedge resume {thread}` continues with it"),
            Some(Status::Running) => format!(
                "the first decision counts, and the process running the thread will apply it; `selvedge log {thread} --follow` shows the result"
            ),
            _ => format!("the first decision counts; `selvedge log {thread}` shows the result"),
        }),
        _ => failure,
    }
}

/// How to decide about a call that waits for a person, if it does.
fn wanted(store: &dyn Store, thread: &ThreadId, call: &CallId) -> Option<String> {
    let manifest = store.get(thread).ok()?.manifest;
    if !matches!(manifest.status, Status::Suspended | Status::Running) {
        return None;
    }
    let of = |word: &str, flags: &str| about(word, call, thread, flags);
    if manifest.asks.iter().any(|ask| ask.call_id == *call) {
        let approve = of("approve", "");
        let deny = of("deny", "");
        return Some(format!("it is pending approval: `{approve}` or `{deny}`"));
    }
    let is_open = manifest.suspended.is_some_and(|why| why.calls.contains(call));
    is_open.then(|| settle(call, thread))
}

/// The hint on how to resolve a call whose outcome is unknown.
pub(crate) fn settle(call: &CallId, thread: &ThreadId) -> String {
    let [done, not_done, unknown] = VERDICTS.map(|verdict| about("settle", call, thread, verdict));
    format!(
        "find out whether it took effect, then resolve it: it did (`{done}`), it did not and is dispatched again (`{not_done}`), or that \
         can't be found out (`{unknown}`); a result may follow `--done`; `selvedge inbox` shows what is known of the call"
    )
}

/// The failure with the likely cause, if it is about an untrusted key and no key is trusted at all: the keys are in another folder.
pub(crate) fn without_trust(failure: Failure) -> Failure {
    // Without any trusted key, everything is left out of a copy.
    let codes = ["untrusted_key", "document_untrusted_key", "item_not_trusted", "threads_skipped"];
    if !codes.contains(&failure.code) {
        return failure;
    }
    match no_trust() {
        Some(why) => failure.hint(why),
        None => failure,
    }
}

/// The hint if no key is trusted.
pub(crate) fn no_trust() -> Option<String> {
    let user = User::find().ok()?;
    let is_empty = Trust::load(&user.trusted()).ok()?.iter().next().is_none();
    is_empty.then(|| {
        format!(
            "no key is trusted, because `{}` is empty; if your keys are in another folder, set SELVEDGE_HOME to the one that contains `keys`; \
             `selvedge keys trust FILE --owner NAME` trusts a key whose owner you know",
            user.trusted().display()
        )
    })
}

/// The result of a command whose run had this outcome.
pub(crate) fn ended(store: &dyn Store, outcome: &Outcome) -> Result<()> {
    let money = outcome.suspended.as_ref().and_then(|why| money(store, &outcome.thread_id, why));
    running::ended(outcome).map_err(|failure| match money {
        Some([first, then]) => {
            failure.hint(format!("its parent's account is exhausted: first `{first}`, then `{then}`"))
        }
        None => failure,
    })
}

/// The hint for a stalled thread. One whose chain is damaged can't be resumed.
pub(crate) fn stalled(store: &dyn Store, thread: &ThreadId) -> String {
    match store.get(thread).map(|found| found.manifest.status) {
        Ok(Status::Continued) | Err(StoreError::NoThread(_)) => {
            let broken = Error::ChainDamaged { thread: thread.clone(), why: String::new() };
            broken.hint().unwrap_or_default()
        }
        _ => format!("`selvedge resume {thread}` continues it; `selvedge chain {thread}` shows where its chain ends"),
    }
}

/// The status of the end of a thread's chain.
fn status(store: &dyn Store, thread: &ThreadId) -> Option<Status> {
    end(store, thread).map(|end| end.status)
}

fn end(store: &dyn Store, thread: &ThreadId) -> Option<Manifest> {
    store.chain(thread).ok()?.pop().map(|end| end.manifest)
}
