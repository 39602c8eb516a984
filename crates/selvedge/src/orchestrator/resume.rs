//! The tool with which an agent resumes a thread that it started.
//!
//! The id of its message is the call's key. So after a crash the other thread's log shows whether the call took effect: if the message
//! is missing, the call is repeated; if it is there, the call is not repeated, and the run that it started is continued.

use std::sync::Arc;

use selvedge_engine::chain::{Continued, get_chain};
use selvedge_engine::{Error, Input, Outcome, Resumed, RunConfig, Submitted};
use selvedge_model::blocking::on_thread;
use selvedge_model::tool::Reconciled;
use selvedge_model::{Call, Cancel, Event, Manifest, Message, MessageId, Output, Role, ThreadId};
use selvedge_store::Error as StoreError;
use selvedge_store::load::each_changeset;
use serde_json::{Value, json};

use super::{Orchestrator, Shared, thread_tools};

/// Sends a message to a descendant of the calling thread, and waits for the outcome.
pub(super) async fn resume(shared: Arc<Shared>, call: Call, cancel: Cancel) -> Result<Value, String> {
    let (run, same) = on_thread(move || begin(&shared, &call, &cancel)).await?;
    let ended = run.await.map_err(|error| error.to_string())?;
    Ok(with_success(ended.resumed.clone().unwrap_or(same), ended))
}

/// Begins the run; also returns how the thread was resumed if it goes on itself.
fn begin(shared: &Arc<Shared>, call: &Call, cancel: &Cancel) -> Result<(Submitted, Resumed), String> {
    let thread = thread_tools::descendant(shared, call)?;
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
    let run = shared.engine.submit_resume(&thread, input, &work, &cancel.child());
    Ok((run.map_err(|error| error.to_string())?, same_thread(&thread, end)))
}

/// The outcome of a call that was dispatched and whose outcome is unknown.
pub(super) fn reconcile(shared: &Arc<Shared>, call: &Call, cancel: &Cancel) -> Reconciled {
    match delivered(shared, call) {
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

/// Continues the run that a call started, unless another process does, and waits for the outcome.
fn finish(shared: &Arc<Shared>, resumed: Resumed, cancel: &Cancel) -> Result<Value, String> {
    let thread = &resumed.new_thread_id;
    let chain = chain(shared, thread)?;
    if let Some(end) = chain.last().filter(|end| !end.status.is_terminal()) {
        let work = work(shared, end)?;
        match shared.engine.resume(thread, Input::nothing(), &work, &cancel.child(), &mut |_| {}) {
            Ok(ended) => return Ok(with_success(resumed, ended)),
            // Another process runs it.
            Err(Error::Store(StoreError::LeaseHeld { .. })) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let waited = shared.engine.wait(std::slice::from_ref(thread), shared.default_timeout(), cancel);
    let mut waited = waited.map_err(|error| error.to_string())?;
    let outcome = waited.results.remove(thread).ok_or("there is no such thread")?;
    Ok(with_success(resumed, outcome))
}

/// The run configuration of the end of a chain.
fn work(shared: &Arc<Shared>, end: &Manifest) -> Result<RunConfig, String> {
    Orchestrator { shared: shared.clone() }.run_config(end).map_err(|error| error.to_string())
}

/// How a thread was resumed by a call, if the message of the call is in a log of its chain.
fn delivered(shared: &Arc<Shared>, call: &Call) -> Result<Option<Resumed>, String> {
    let asked = thread_tools::descendant(shared, call)?;
    let id = id(call)?;
    let store = shared.store();
    let engine = &shared.engine;
    let chain = chain(shared, &asked)?;
    for (place, link) in chain.iter().enumerate() {
        let mut changesets = 0;
        let mut found = None;
        let read = each_changeset(&**store, &link.thread_id, engine.trust(), |entry| {
            let is_it = |event: &Event| matches!(event, Event::Message(message) if message.id.as_ref() == Some(&id));
            if found.is_none() && entry.lines.iter().any(|line| is_it(&line.event)) {
                found = Some(changesets);
            }
            changesets += 1;
        });
        read.map_err(|error| error.to_string())?;
        let Some(changeset) = found else { continue };
        // The first message of a successor was sent to its predecessor, which had ended.
        let before = (changeset == 0).then(|| place.checked_sub(1)).flatten();
        let Some(old) = before.and_then(|before| chain.get(before)) else { return Ok(Some(same_thread(&asked, link))) };
        let shown = get_chain(&**store, &old.thread_id).map_err(|error| error.to_string())?;
        let how = shown
            .chain
            .into_iter()
            .find(|shown| shown.outcome.thread_id == old.thread_id)
            .and_then(|old| old.continued);
        return Ok(Some(Resumed {
            new_thread_id: link.thread_id.clone(),
            reconstructed_turns: how.map_or(0, |Continued { trailing_turns, .. }| trailing_turns),
            ..same_thread(&asked, old)
        }));
    }
    Ok(None)
}

/// A suspended thread that was resumed is its own successor, with all its turns.
fn same_thread(asked: &ThreadId, link: &Manifest) -> Resumed {
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

/// The id of the message of a call: the same for every attempt.
fn id(call: &Call) -> Result<MessageId, String> {
    MessageId::new(call.key.clone()).map_err(|error| error.to_string())
}

/// The result of the tool: the outcome, with `success`.
fn with_success(resumed: Resumed, outcome: Outcome) -> Value {
    let mut result = json!(Outcome { resumed: Some(resumed), ..outcome });
    result["success"] = json!(true);
    result
}
