//! What helps, where that depends on how threads stand: the command that is named is one that works now.

use selvedge::Outcome;
use selvedge_engine::Error;
use selvedge_engine::ledger::short_above;
use selvedge_log::Trust;
use selvedge_model::account::PostingError;
use selvedge_model::event::{SuspendReason, Suspended};
use selvedge_model::{CallId, Classify, Manifest, Status, ThreadId};
use selvedge_store::{Error as StoreError, Store};

use crate::context::User;
use crate::error::{Exit, Failure, Result};
use crate::running;
use crate::text::shell_word;

/// What to type about a call: a word like `approve`, with what follows it. A model chose the id of the call, and no shell may take it
/// for anything else.
pub(crate) fn about(word: &str, call: &CallId, thread: &ThreadId, flags: &str) -> String {
    let id = shell_word(call.as_str());
    if call.as_str().starts_with('-') {
        format!("selvedge {word} --thread {thread}{flags} -- {id}")
    } else {
        format!("selvedge {word} {id} --thread {thread}{flags}")
    }
}

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
        // Another kind of decision is wanted.
        Error::NoOpenCall { thread, call } => match wanted(store, thread, call) {
            Some(hint) => failure.hint(hint),
            None => failure,
        },
        Error::ValueUnused { thread, call } => failure.hint(format!(
            "`{}` allows it as it is, `--edit FILE` with other arguments",
            about("approve", call, thread, "")
        )),
        Error::AboveParent { limit, parent, needs, .. } => {
            let first = raise(store, parent, &format!("{limit}={needs}"));
            failure.hint(format!("raise that of its parent first: `{first}`"))
        }
        Error::AlreadyDecided { thread, .. } => failure.hint(match status(store, thread) {
            Some(Status::Suspended) => format!("what was said counts; `selvedge resume {thread}` goes on with it"),
            Some(Status::Running) => format!(
                "that decision counts, and the process running the thread will apply it; `selvedge log {thread} --follow` shows what comes of it"
            ),
            _ => format!("what was said counts; `selvedge log {thread}` shows what came of it"),
        }),
        _ => failure,
    }
}

/// What to say of a call that waits for somebody, if it does.
fn wanted(store: &dyn Store, thread: &ThreadId, call: &CallId) -> Option<String> {
    let manifest = store.get(thread).ok()?.manifest;
    if !matches!(manifest.status, Status::Suspended | Status::Running) {
        return None;
    }
    let of = |word: &str, flags: &str| about(word, call, thread, flags);
    if manifest.asks.iter().any(|ask| ask.call_id == *call) {
        let approve = of("approve", "");
        let deny = of("deny", "");
        return Some(format!("it was not made: `{approve}` allows it, `{deny}` does not"));
    }
    let is_open = manifest.suspended.is_some_and(|why| why.calls.contains(call));
    is_open.then(|| settle(call, thread))
}

/// The ways to settle a call whose outcome is unknown.
pub(crate) const VERDICTS: [&str; 3] = [" --done", " --not-done", " --unknown"];

/// How a call is settled whose outcome is unknown.
pub(crate) fn settle(call: &CallId, thread: &ThreadId) -> String {
    let [done, not_done, unknown] = VERDICTS.map(|verdict| about("settle", call, thread, verdict));
    format!(
        "find out whether it took effect, then settle it: it did (`{done}`), it did not and is made again (`{not_done}`), or that can't be \
         found out (`{unknown}`); a result may follow `--done`, and the inbox shows what is known of the call"
    )
}

/// The same failure; of one for a key that is not trusted, where no key is trusted at all, with the likelier cause: the keys lie elsewhere.
pub(crate) fn without_trust(failure: Failure) -> Failure {
    // What is left out of a copy, where no key is trusted, is left out for that.
    let codes = ["untrusted_key", "document_untrusted_key", "item_not_trusted", "left_out"];
    if !codes.contains(&failure.code) {
        return failure;
    }
    match no_trust() {
        Some(why) => failure.hint(why),
        None => failure,
    }
}

/// Why nobody's signature counts, and what to do, if no key is trusted.
pub(crate) fn no_trust() -> Option<String> {
    let user = User::find().ok()?;
    let is_empty = Trust::load(&user.trusted()).ok()?.iter().next().is_none();
    is_empty.then(|| {
        format!(
            "no key is trusted, because `{}` holds none; if your keys lie elsewhere, set SELVEDGE_HOME to the folder that has `keys` in it, \
             else `selvedge keys trust FILE --owner NAME` trusts a key whose owner you know",
            user.trusted().display()
        )
    })
}

/// How a command ends whose run ended so.
pub(crate) fn ended(store: &dyn Store, outcome: &Outcome) -> Result<()> {
    let money = outcome.suspended.as_ref().and_then(|why| money(store, &outcome.thread_id, why));
    running::ended(outcome).map_err(|failure| match money {
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
