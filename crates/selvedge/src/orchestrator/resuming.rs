//! The door by which an agent goes on with a thread that it started.
//!
//! What it says there has the call's key as its id, so the other thread's log knows whether a call was made that nobody saw end: a call
//! whose message stands nowhere is made, and one whose message stands there is not made again; what it began is gone on with.

use std::sync::Arc;

use selvedge_engine::chain::{Continued, get_chain};
use selvedge_engine::{Assignment, Error, Input, Outcome, Resumed};
use selvedge_model::tool::Reconciled;
use selvedge_model::{Call, Cancel, Event, Manifest, Message, MessageId, Output, Role, ThreadId};
use selvedge_store::Error as StoreError;
use selvedge_store::load::each_changeset;
use serde_json::{Value, json};

use super::{Orchestrator, Shared, doors};

/// Says something to a thread that the calling one started, and waits for what comes of it.
pub(super) fn resume(shared: &Arc<Shared>, call: &Call, cancel: &Cancel) -> Result<Value, String> {
    let thread = doors::own(shared, call)?;
    let message = call.arguments.get("message").and_then(Value::as_str).ok_or("`message` is missing")?;
    if message.trim().is_empty() {
        return Err("`message` is empty".to_owned());
    }
    let chain = chain(shared, &thread)?;
    let end = chain.last().ok_or("there is no such thread")?;
    let message = Message::text(Role::User, message).with_id(id(call)?);
    let input = Input::messages(vec![message]);
    let work = work(shared, end)?;
    // A stop of the calling thread stops the child; a stop of the child does not stop the calling thread.
    let ended = shared.engine.resume(&thread, input, &work, &cancel.child(), &mut |_| {});
    let ended = ended.map_err(|error| error.to_string())?;
    let resumed = ended.resumed.clone().unwrap_or_else(|| in_itself(&thread, end));
    Ok(told(resumed, ended))
}

/// What became of a call that nobody saw end.
pub(super) fn reconcile(shared: &Arc<Shared>, call: &Call, cancel: &Cancel) -> Reconciled {
    match said(shared, call) {
        Ok(None) => Reconciled::NotDone,
        Ok(Some(resumed)) if cancel.said().is_none() => Reconciled::Done(match finish(shared, resumed, cancel) {
            Ok(content) => Output { content, ..Output::default() },
            Err(error) => {
                Output { content: json!({"success": false, "error": error}), is_error: true, ..Output::default() }
            }
        }),
        _ => Reconciled::Unknown,
    }
}

/// Goes on with what a call began, if nobody does, and waits for what comes of it.
fn finish(shared: &Arc<Shared>, resumed: Resumed, cancel: &Cancel) -> Result<Value, String> {
    let thread = &resumed.new_thread_id;
    let chain = chain(shared, thread)?;
    if let Some(end) = chain.last().filter(|end| !end.status.is_terminal()) {
        let work = work(shared, end)?;
        match shared.engine.resume(thread, Input::nothing(), &work, &cancel.child(), &mut |_| {}) {
            Ok(ended) => return Ok(told(resumed, ended)),
            // Somebody else does.
            Err(Error::Store(StoreError::LeaseHeld { .. })) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let waited = shared.engine.wait(std::slice::from_ref(thread), shared.patience(), cancel);
    let mut waited = waited.map_err(|error| error.to_string())?;
    let outcome = waited.results.remove(thread).ok_or("there is no such thread")?;
    Ok(told(resumed, outcome))
}

/// What the end of a chain is run with.
fn work(shared: &Arc<Shared>, end: &Manifest) -> Result<Assignment, String> {
    Orchestrator { shared: shared.clone() }.assignment(end).map_err(|error| error.to_string())
}

/// How a thread was gone on with by a call, if what the call says stands in the log of one of its chain.
fn said(shared: &Arc<Shared>, call: &Call) -> Result<Option<Resumed>, String> {
    let asked = doors::own(shared, call)?;
    let id = id(call)?;
    let store = shared.store();
    let engine = &shared.engine;
    let chain = chain(shared, &asked)?;
    for (place, link) in chain.iter().enumerate() {
        let mut changesets = 0;
        let mut said = None;
        let read = each_changeset(&**store, &link.thread_id, engine.trust(), |entry| {
            let is_it = |event: &Event| matches!(event, Event::Message(message) if message.id.as_ref() == Some(&id));
            if said.is_none() && entry.lines.iter().any(|line| is_it(&line.event)) {
                said = Some(changesets);
            }
            changesets += 1;
        });
        read.map_err(|error| error.to_string())?;
        let Some(changeset) = said else { continue };
        // What a thread is born with was said to the one before it, which had ended.
        let before = (changeset == 0).then(|| place.checked_sub(1)).flatten();
        let Some(old) = before.and_then(|before| chain.get(before)) else { return Ok(Some(in_itself(&asked, link))) };
        let shown = get_chain(&**store, &old.thread_id).map_err(|error| error.to_string())?;
        let how = shown
            .chain
            .into_iter()
            .find(|shown| shown.outcome.thread_id == old.thread_id)
            .and_then(|old| old.continued);
        return Ok(Some(Resumed {
            new_thread_id: link.thread_id.clone(),
            reconstructed_turns: how.map_or(0, |Continued { trailing_turns, .. }| trailing_turns),
            ..in_itself(&asked, old)
        }));
    }
    Ok(None)
}

/// One that waited goes on by itself: it is its own successor, and took along everything.
fn in_itself(asked: &ThreadId, link: &Manifest) -> Resumed {
    Resumed {
        old_thread_id: link.thread_id.clone(),
        new_thread_id: link.thread_id.clone(),
        original_thread_id: Some(asked.clone()).filter(|asked| *asked != link.thread_id),
        resolved_thread_id: link.thread_id.clone(),
        directive: link.directive.clone(),
        reconstructed_turns: link.cost.turns,
    }
}

fn chain(shared: &Shared, thread: &ThreadId) -> Result<Vec<Manifest>, String> {
    let chain = shared.store().chain(thread).map_err(|error| error.to_string())?;
    Ok(chain.into_iter().map(|link| link.manifest).collect())
}

/// The name of what a call says, the same whenever it is made.
fn id(call: &Call) -> Result<MessageId, String> {
    MessageId::new(call.key.clone()).map_err(|error| error.to_string())
}

/// What is told of a thread that was resumed: the outcome of what goes on in its place.
fn told(resumed: Resumed, outcome: Outcome) -> Value {
    let mut told = json!(Outcome { resumed: Some(resumed), ..outcome });
    told["success"] = json!(true);
    told
}
