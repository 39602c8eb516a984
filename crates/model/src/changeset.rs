//! The unit of append: what one commit appends to one thread.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Classify, Kind};
use crate::event::{Event, Fields, Handoff, LineOrder, NewThread, Snapshot};
use crate::id::{CallId, RunId};
use crate::message::{Block, Message};
use crate::patch::Patch;
use crate::run::{RunMeta, RunRecorded};
use crate::status::RunStatus;

/// Why a changeset was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// Input arrived.
    UserMessage,
    /// The model's turn is final.
    AssistantTurnCommitted,
    /// The tools of a turn have returned.
    ToolResultsCommitted,
    /// A run ended.
    RunFinished,
    /// Money was reserved for the next call.
    Reserved,
    /// A tool is about to be dispatched.
    ToolIntentCommitted,
    /// A step of a graph began or ended.
    StepCommitted,
    /// Something without a run: creation, a new title.
    Lifecycle,
}

impl Reason {
    /// Its name, as stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UserMessage => "UserMessage",
            Self::AssistantTurnCommitted => "AssistantTurnCommitted",
            Self::ToolResultsCommitted => "ToolResultsCommitted",
            Self::RunFinished => "RunFinished",
            Self::Reserved => "Reserved",
            Self::ToolIntentCommitted => "ToolIntentCommitted",
            Self::StepCommitted => "StepCommitted",
            Self::Lifecycle => "Lifecycle",
        }
    }
}

/// What one commit appends to one thread.
///
/// Its JSON form is the `ThreadChangeSet` that any program may submit. `created` and `events` can't be set there, because their event
/// types are reserved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changeset {
    /// The thread's creation; only in its first changeset.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub created: Option<NewThread>,
    /// The run it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The parent of that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// Describes the run; on its first and its last changeset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_meta: Option<RunMeta>,
    /// Why it was committed.
    pub reason: Reason,
    /// The turn of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u64>,
    /// A state that replaces the thread's, before the patches are applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Value>,
    /// New messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// Changes of state, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patches: Vec<Patch>,
    /// Recorded intents, for audit; never replayed.
    #[serde(default, rename = "actions", alias = "state_actions", skip_serializing_if = "Vec::is_empty")]
    pub state_actions: Vec<Fields>,
    /// Everything else; written by the engine.
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
}

/// A changeset that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidChangeset {
    /// The run is described but not named.
    #[error("`run_meta` needs a `run_id`")]
    MetaWithoutRun,
    /// An event is among `events` although another field carries it.
    #[error("an event of type `{0}` can't be submitted in `events`")]
    MisplacedEvent(&'static str),
    /// A detail of an event has the name of one of its fields.
    #[error("a detail of a `thread_handoff` or `thread_resumed` can't be called `{0}`")]
    DoubledField(&'static str),
    /// A call is opened twice.
    #[error("the call `{0}` is opened twice; every call needs its own id")]
    CallOpenedTwice(CallId),
    /// Events can't be grouped into the changeset they came from.
    #[error("the events of a changeset are out of order: {0}")]
    OutOfOrder(&'static str),
}

impl Classify for InvalidChangeset {
    fn kind(&self) -> Kind {
        Kind::Invalid
    }

    fn code(&self) -> &'static str {
        "invalid_changeset"
    }
}

impl Changeset {
    /// A changeset that adds nothing but a version.
    pub fn empty(reason: Reason) -> Self {
        Self {
            created: None,
            run_id: None,
            parent_run_id: None,
            run_meta: None,
            reason,
            turn: None,
            snapshot: None,
            messages: Vec::new(),
            patches: Vec::new(),
            state_actions: Vec::new(),
            events: Vec::new(),
        }
    }

    /// The first changeset of a new thread.
    pub fn creating(thread: NewThread) -> Self {
        Self { created: Some(thread), ..Self::empty(Reason::Lifecycle) }
    }

    /// A changeset of one event that has no run.
    pub fn of_event(event: Event) -> Self {
        Self { events: vec![event], ..Self::empty(Reason::Lifecycle) }
    }

    /// Checks the rules that the types don't express.
    pub fn check(&self) -> Result<(), InvalidChangeset> {
        if self.run_meta.is_some() && self.run_id.is_none() {
            return Err(InvalidChangeset::MetaWithoutRun);
        }
        for event in &self.events {
            if let Event::ThreadHandoff(handoff) | Event::ThreadResumed(handoff) = event
                && let Some(name) = Handoff::FIELDS.into_iter().find(|name| handoff.details.contains_key(*name))
            {
                return Err(InvalidChangeset::DoubledField(name));
            }
        }
        self.check_opened()?;
        let misplaced = self.events.iter().find_map(|event| match event.place() {
            LineOrder::Others if event.is_record_of_a_posting() => Some("posting, which the ledger records"),
            LineOrder::Others => None,
            LineOrder::Lead => Some("recovery or key_rotated"),
            LineOrder::Birth => Some("thread_created"),
            LineOrder::RunStart | LineOrder::RunEnd => Some("run_started or run_finished"),
            LineOrder::Base => Some("snapshot"),
            LineOrder::Messages => Some("message"),
            LineOrder::Patches => Some("patch"),
            LineOrder::Actions => Some("state_action"),
            LineOrder::End => Some("checkpoint"),
        });
        misplaced.map_or(Ok(()), |name| Err(InvalidChangeset::MisplacedEvent(name)))
    }

    /// Refuses a call that is opened here more than once.
    fn check_opened(&self) -> Result<(), InvalidChangeset> {
        let mut opened = HashSet::new();
        for event in &self.events {
            if let Event::CallOpened(call) = event
                && !opened.insert(&call.call_id)
            {
                return Err(InvalidChangeset::CallOpenedTwice(call.call_id.clone()));
            }
        }
        for block in self.messages.iter().flat_map(|message| &message.content) {
            if let Block::ToolCall { id, .. } = block
                && opened.contains(id)
            {
                return Err(InvalidChangeset::CallOpenedTwice(id.clone()));
            }
        }
        Ok(())
    }

    /// The events of this changeset after the creation, in the order of their lines; the log adds leads, creation and checkpoint.
    pub fn into_events(self) -> Vec<Event> {
        let recorded = match (self.run_id.clone(), self.run_meta) {
            (Some(run_id), Some(meta)) => Some(RunRecorded { run_id, parent_run_id: self.parent_run_id.clone(), meta }),
            _ => None,
        };
        let (start, end) = match recorded {
            Some(run) if run.meta.status == RunStatus::Running => (Some(run), None),
            other => (None, other),
        };
        let mut messages = self.messages;
        for message in &mut messages {
            if message.run_id == self.run_id {
                message.run_id = None;
            }
        }
        let mut events = Vec::new();
        events.extend(start.map(Event::RunStarted));
        events.extend(self.snapshot.map(|state| Event::Snapshot(Snapshot { state })));
        events.extend(messages.into_iter().map(Event::Message));
        events.extend(self.patches.into_iter().map(Event::Patch));
        events.extend(self.state_actions.into_iter().map(Event::StateAction));
        events.extend(self.events);
        events.extend(end.map(Event::RunFinished));
        events
    }

    /// Rebuilds the changeset from the events between two checkpoints, including the closing checkpoint.
    pub fn from_events(events: impl IntoIterator<Item = Event>) -> Result<Self, InvalidChangeset> {
        let mut changeset = Self::empty(Reason::Lifecycle);
        let mut place = LineOrder::Lead;
        for event in events {
            if event.place() < place {
                return Err(InvalidChangeset::OutOfOrder("an event comes after one that must follow it"));
            }
            place = event.place();
            match event {
                Event::Recovery(_) | Event::KeyRotated(_) => {}
                Event::ThreadCreated(created) => changeset.created = Some(created.thread),
                Event::RunStarted(run) | Event::RunFinished(run) => changeset.run_meta = Some(run.meta),
                Event::Snapshot(snapshot) => changeset.snapshot = Some(snapshot.state),
                Event::Message(message) => changeset.messages.push(message),
                Event::Patch(patch) => changeset.patches.push(patch),
                Event::StateAction(action) => changeset.state_actions.push(action),
                Event::Checkpoint(checkpoint) => {
                    changeset.reason = checkpoint.reason;
                    changeset.run_id = checkpoint.run_id;
                    changeset.parent_run_id = checkpoint.parent_run_id;
                    changeset.turn = checkpoint.turn;
                    for message in &mut changeset.messages {
                        message.run_id = message.run_id.take().or_else(|| changeset.run_id.clone());
                    }
                }
                other => changeset.events.push(other),
            }
        }
        if place != LineOrder::End {
            return Err(InvalidChangeset::OutOfOrder("the last event is not a checkpoint"));
        }
        Ok(changeset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{CallOpened, CallOrigin};
    use crate::message::Role;

    #[test]
    fn a_changeset_is_read_under_both_names_of_its_actions() {
        for name in ["actions", "state_actions"] {
            let text = format!(
                r#"{{"run_id":"r1","reason":"AssistantTurnCommitted","messages":[{{"role":"user","content":"hi"}}],
                    "patches":[{{"ops":[{{"op":"set","path":["a"],"value":1}}]}}],"{name}":[{{"payload":1}}],"snapshot":null}}"#
            );
            let changeset: Changeset = serde_json::from_str(&text).unwrap();
            assert_eq!((changeset.messages.len(), changeset.patches.len(), changeset.state_actions.len()), (1, 1, 1));
            assert_eq!(changeset.snapshot, None);
            assert_eq!(changeset.reason, Reason::AssistantTurnCommitted);
        }
    }

    #[test]
    fn reserved_events_cannot_be_submitted() {
        for extra in [r#""events":[]"#, r#""created":{"agent_id":"x"}"#, r#""checkpoint":{}"#] {
            let text = format!(r#"{{"reason":"UserMessage",{extra}}}"#);
            assert!(serde_json::from_str::<Changeset>(&text).is_err(), "{extra}");
        }
        let sneaked = Changeset::of_event(Event::Snapshot(Snapshot { state: Value::Null }));
        assert!(sneaked.check().is_err());
    }

    #[test]
    fn a_changeset_opens_a_call_once() {
        let id = |name| CallId::new(name).unwrap();
        let opened = |name| {
            let origin = CallOrigin::Hook { hook: "h".to_owned(), required: false };
            Event::CallOpened(CallOpened { call_id: id(name), origin, tool: "t".to_owned(), arguments: Value::Null })
        };
        let block = |name| Block::tool_call(id(name), "t", Value::Null);
        let message = |name| Message { content: vec![block(name)], ..Message::text(Role::Assistant, "") };
        let of = |events, messages| Changeset { events, messages, ..Changeset::empty(Reason::Lifecycle) }.check();
        assert_eq!(of(vec![opened("a"), opened("b")], vec![message("c")]), Ok(()));
        let twice = Err(InvalidChangeset::CallOpenedTwice(id("a")));
        assert_eq!(of(vec![opened("a"), opened("a")], vec![]), twice);
        assert_eq!(of(vec![opened("a")], vec![message("a")]), twice);
    }
}
