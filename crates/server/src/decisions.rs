//! Decisions about calls: approve, edit, deny, and resolve one whose outcome is unknown.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use selvedge::{Choice, Digest, Input, Recorded, Value, json};
use selvedge_model::{CallId, ThreadId};
use serde::Deserialize;

use crate::listen::App;
use crate::problem::{Body, Problem, Result};

/// A decision.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Decision {
    decision: Word,
    /// The arguments of an edit, the value of an approval, or the result of a call that took effect.
    value: Option<Value>,
    /// The reason of a denial; the model is told.
    reason: Option<String>,
    /// The hash of the action that was shown. A decision about a call that needs approval is refused without it.
    action_hash: Option<Digest>,
    /// Who decides; recorded in the log.
    who: Option<String>,
    /// Whether the thread continues once nothing is undecided; default: yes.
    #[serde(default = "yes")]
    resume: bool,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Approve,
    Edit,
    Deny,
    Done,
    NotDone,
    Unknown,
}

impl Word {
    fn is_about_approval(self) -> bool {
        matches!(self, Self::Approve | Self::Edit | Self::Deny)
    }
}

/// The most characters of the name of a decider.
const WHO_CHARS_MAX: usize = 100;

pub(crate) async fn decide(
    State(app): State<App>,
    Path((thread, call)): Path<(String, String)>,
    Body(asked): Body<Decision>,
) -> Result<Json<Value>> {
    let thread = app.selvedge.find(&thread).await?;
    let call = CallId::new(call)?;
    if asked.decision.is_about_approval() {
        check_action(&app, &thread, &call, asked.action_hash).await?;
    }
    let choice = choice(asked.decision, asked.value, asked.reason)?;
    let who: String = asked.who.as_deref().unwrap_or("server").chars().take(WHO_CHARS_MAX).collect();
    let decided = app.selvedge.decide(&thread, &call, choice, &who).await?;
    let is_resumed = asked.resume && decided.recorded != Recorded::Queued && decided.undecided.is_empty();
    if is_resumed {
        app.selvedge.submit_resume(&thread, Input::nothing()).await?;
    }
    let recorded = match decided.recorded {
        Recorded::Now => "now",
        Recorded::Before => "before",
        Recorded::Queued => "queued",
    };
    Ok(Json(json!({
        "thread_id": thread,
        "call_id": call,
        "recorded": recorded,
        "undecided": decided.undecided,
        "resumed": is_resumed,
    })))
}

fn choice(word: Word, value: Option<Value>, reason: Option<String>) -> Result<Choice> {
    Ok(match (word, value) {
        (Word::Approve, value) => Choice::Approve(value),
        (Word::Edit, Some(arguments)) => Choice::Edit(arguments),
        (Word::Edit, None) => return Err(Problem::invalid("an edit needs the arguments, as `value`")),
        (Word::Deny, _) => Choice::Deny(reason),
        (Word::Done, value) => Choice::Done(value.unwrap_or_else(|| json!("done"))),
        (Word::NotDone, _) => Choice::NotDone,
        (Word::Unknown, _) => Choice::Unknown,
    })
}

/// Refuses a decision about another action than the one that was shown.
async fn check_action(app: &App, thread: &ThreadId, call: &CallId, shown: Option<Digest>) -> Result<()> {
    let (thread, call) = (thread.clone(), call.clone());
    let asks = app.read(move |store| Ok(store.get(&thread)?.manifest.asks)).await?;
    let Some(ask) = asks.into_iter().find(|ask| ask.call_id == call) else {
        // The engine says why: decided before, resolved, or never asked.
        return Ok(());
    };
    match shown {
        Some(hash) if hash == ask.action_hash => Ok(()),
        Some(_) => {
            let message = "the call asks for another action than the one that was shown";
            Err(Problem::new(StatusCode::CONFLICT, "action_changed", message).hint("read `/v1/inbox` again"))
        }
        None => Err(Problem::invalid("`action_hash` is missing: a decision is bound to the action that was shown")),
    }
}
