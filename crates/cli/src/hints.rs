//! What helps, where that depends on how threads stand: the command that is named is one that works now.

use selvedge::Ended;
use selvedge_engine::Error;
use selvedge_engine::ledger::short_above;
use selvedge_model::account::PostingError;
use selvedge_model::event::{SuspendReason, Suspended};
use selvedge_model::{Classify, Manifest, Status, ThreadId};
use selvedge_store::{Error as StoreError, Store};

use crate::error::{Exit, Failure, Result};
use crate::running::outcome;

/// The failure of something that an engine refused.
pub(crate) fn refused(store: &dyn Store, error: &Error) -> Failure {
    let failure = Failure::of(error);
    match error {
        // Whoever interrupts the waiting is not told that it was not allowed.
        Error::NotHeardYet { .. } => Failure { exit: Exit::Interrupted, ..failure },
        Error::Store(StoreError::Posting(PostingError::Insufficient { account, .. })) => failure.hint(format!(
            "ask for less, or give the account it comes from more first: `{}`; `selvedge budget {account}` shows what it holds",
            raise(store, account, "spend=…")
        )),
        // Somebody else was faster, perhaps by going on with it in another one; what was to be said can be left with that.
        Error::Store(StoreError::LeaseHeld { thread, .. }) => {
            let end = end(store, thread).map_or_else(|| thread.clone(), |end| end.thread_id);
            failure.detail("thread_id", end.as_str()).hint(format!(
                "somebody goes on with `{end}` right now: `selvedge send {end} \"…\"` says something to it, `selvedge wait {end}` waits for \
                 its end, `selvedge cancel {end}` asks for one"
            ))
        }
        Error::AboveParent { limit, parent, needs, .. } => {
            let first = raise(store, parent, &format!("{limit}={needs}"));
            failure.hint(format!("raise that of its parent first: `{first}`"))
        }
        Error::AlreadyDecided { thread, .. } => failure.hint(match status(store, thread) {
            Some(Status::Suspended) => format!("what was said counts; `selvedge resume {thread}` goes on with it"),
            Some(Status::Running) => format!(
                "what was said counts, and whoever runs the thread goes by it; `selvedge log {thread} --follow` shows what comes of it"
            ),
            _ => format!("what was said counts; `selvedge log {thread}` shows what came of it"),
        }),
        _ => failure,
    }
}

/// How a command ends whose run ended so.
pub(crate) fn ended(store: &dyn Store, ended: &Ended) -> Result<()> {
    let money = ended.suspended.as_ref().and_then(|why| money(store, &ended.thread, why));
    outcome(ended).map_err(|failure| match money {
        Some([first, then]) => failure.hint(format!(
            "the account that its money comes from has nothing left: `{first}` first, and then `{then}`"
        )),
        None => failure,
    })
}

/// What to type, in order, so that a thread goes on which waits for money that an account above its own does not have either.
pub(crate) fn money(store: &dyn Store, thread: &ThreadId, why: &Suspended) -> Option<[String; 2]> {
    if why.reason != SuspendReason::Budget {
        return None;
    }
    let account = store.get(thread).ok()?.manifest.chain_root_id;
    let short = short_above(store, &account).ok()??;
    Some([raise(store, &short, "spend=…"), raise(store, thread, "spend=…")])
}

/// What to do about a thread that nobody goes on with. One that went on in others which lead nowhere can't be resumed.
pub(crate) fn stalled(store: &dyn Store, thread: &ThreadId) -> String {
    match store.get(thread).map(|found| found.manifest.status) {
        Ok(Status::Continued) | Err(StoreError::NoThread(_)) => {
            let broken = Error::ChainDamaged { thread: thread.clone(), why: String::new() };
            broken.hint().unwrap_or_default()
        }
        _ => format!("`selvedge resume {thread}` goes on; `selvedge chain {thread}` shows where its chain ends"),
    }
}

/// What to type so that a thread, or whatever goes on in its place, may use more. One that has ended goes on only if it is told something,
/// and so does one that has not begun.
fn raise(store: &dyn Store, thread: &ThreadId, more: &str) -> String {
    let message = match status(store, thread) {
        Some(status) if status.is_terminal() || status == Status::Created => "\"…\" ",
        _ => "",
    };
    format!("selvedge resume {thread} {message}--raise {more}")
}

/// How the end of a thread's chain stands.
fn status(store: &dyn Store, thread: &ThreadId) -> Option<Status> {
    end(store, thread).map(|end| end.status)
}

fn end(store: &dyn Store, thread: &ThreadId) -> Option<Manifest> {
    store.chain(thread).ok()?.pop().map(|end| end.manifest)
}
