//! Successors: of a thread that hands itself off, and of an ended thread that is resumed.
//!
//! Both are one batch: the last changeset of the old thread, which ends it as continued, and the first of the successor, with all messages
//! that it starts with. So neither exists without the other. If the process dies right after the batch, the successor is `created` and runs
//! when it is resumed. It is a sibling of the old thread and not its child, and runs after the old thread was released.
//!
//! When an ended thread is resumed, the successor's money and limits are in the same batch: if either is refused, nothing is written.

use std::collections::BTreeSet;
use std::convert::Infallible;

use selvedge_model::event::{Fields, Handoff, HandoffReason, Predecessor};
use selvedge_model::limits::{Limits, UsageMeter};
use selvedge_model::message::{Block, Visibility};
use selvedge_model::{Changeset, Digest, Event, Expect, Message, MessageId, NewThread, Part, Reason, Role, ThreadId};
use serde_json::{Value, json};

use crate::carryover::{Carryover, size_of};
use crate::conversation::OpenCall;
use crate::derived_ids::IdKind;
use crate::error::{Error, Result};
use crate::fold::Fold;
use crate::graph;
use crate::held::{FIRST_EPOCH, HeldThread, LeaseGuard, OtherThreads, RunContext};
use crate::run_config::{ContinuedThread, RunConfig};

/// How many bytes of a message its preview has.
const PREVIEW_BYTES: usize = 200;

/// A successor, ready to be committed with the end of the old thread.
pub(crate) struct Successor {
    pub(crate) thread: ThreadId,
    pub(crate) more: OtherThreads,
    /// How many answers of the model it starts with.
    pub(crate) turns: u64,
    pub(crate) details: Fields,
}

/// How many bytes of text the successor of a thread whose context is full would start with. Nothing is written for it.
pub(crate) fn successor_size(fold: &Fold, work: &RunConfig, room: usize) -> usize {
    let mut put = |_: &str| Ok::<_, Infallible>(Digest([0; 32]));
    let Ok(carry) = Carryover::of(fold.conversation.messages(), room, &mut put);
    carry.size() + size_of(&first_message(fold, work, room))
}

/// The first message of a successor. If the configured one takes more than half of the room, the default is used.
fn first_message(fold: &Fold, work: &RunConfig, room: usize) -> Message {
    let left =
        ContinuedThread { previous_thread_id: fold.thread_id().clone(), message: work.continuation.message.clone() };
    let text = (work.continuation.first_message)(&left).filter(|text| text.len() <= room / 2).unwrap_or(left.message);
    Message { visibility: Visibility::Internal, ..Message::text(Role::User, text) }
}

impl HeldThread {
    /// The successor of a thread whose context is full: the task, the newest exchanges that fit into `room` bytes, and the message that
    /// seeds its first turn.
    pub(crate) fn successor(
        &self,
        work: &RunConfig,
        room: usize,
        inputs: &Fields,
        running_ms: u64,
    ) -> Result<Successor> {
        let thread = self.successor_id();
        let store = &self.engine.store;
        let mut own = BTreeSet::new();
        let mut put = |text: &str| store.put_blob(&thread, text.as_bytes()).inspect(|blob| _ = own.insert(*blob));
        let carry = Carryover::of(self.fold.conversation.messages(), room, &mut put)?;
        let kept = carry.messages.len();
        let turns = carry.turns();
        let details = json!({"kept": kept, "dropped": carry.dropped, "shortened": carry.shortened, "summarised": 0});
        let mut messages = carry.messages;
        messages.push(self.first_message(work, room));
        self.engine.redactor.messages(&mut messages);
        self.copy_blobs(&thread, &mut messages, &own)?;
        let meter = Some(self.fold.meter().carried(running_ms));
        let birth = NewThread { meter, inputs: inputs.clone(), ..self.successor_birth() };
        self.with(thread, messages, birth, turns, details)
    }

    /// The successor of a graph whose log is long enough: the state, and where to continue.
    pub(crate) fn next_segment(&self, inputs: &Fields, running_ms: u64) -> Result<Successor> {
        let meter = Some(self.fold.meter().carried(running_ms));
        let birth = NewThread { meter, inputs: inputs.clone(), ..self.successor_birth() };
        self.with(self.successor_id(), Vec::new(), birth, 0, json!({}))
    }

    fn first_message(&self, work: &RunConfig, room: usize) -> Message {
        let id = MessageId::new(self.derive_id(IdKind::Seed, 0)).ok();
        Message { id, ..first_message(&self.fold, work, room) }
    }

    /// Adds to the delta the postings that fund a successor in which this thread is resumed. Returns the successor's limits; refused for
    /// every reason its first run would be refused for.
    pub(crate) fn fund_successor(&mut self, work: &RunConfig, raise: Option<&Limits>) -> Result<Option<Limits>> {
        self.check_price(work)?;
        let raised = raise.map(|raise| self.raised(raise, work)).transpose()?;
        self.fund(work, raise)?;
        Ok(raised.map_or_else(|| self.fold.manifest().limits.clone(), |changed| changed.limits))
    }

    /// The successor of an ended thread that is resumed with these messages, under these limits: the whole conversation, then these
    /// messages.
    pub(crate) fn resumed(&self, mut said: Vec<Message>, limits: Option<Limits>) -> Result<Successor> {
        let thread = self.successor_id();
        let preview = said.first().map(|message| preview(&message.plain_text())).unwrap_or_default();
        let mut messages: Vec<Message> = self
            .fold
            .conversation
            .messages()
            .iter()
            .map(|message| Message { run_id: None, step: None, ..(**message).clone() })
            .collect();
        let turns = messages.iter().filter(|message| message.role == Role::Assistant).count() as u64;
        self.engine.redactor.messages(&mut said);
        // No call stays without a result in a successor; readers order the results after their calls. Calls that no message contains end
        // with the old thread.
        let interrupted = |open: &OpenCall| {
            Block::tool_error(open.id.clone(), json!("interrupted: the outcome of this call is unknown"))
        };
        let asked = self.fold.conversation.open().iter().filter(|open| open.is_of_message());
        let results = asked.map(interrupted).enumerate();
        messages.extend(results.map(|(index, block)| {
            let id = MessageId::new(self.derive_id(IdKind::Seed, index)).ok();
            Message { id, content: vec![block], ..Message::text(Role::Tool, "") }
        }));
        messages.extend(said);
        self.copy_blobs(&thread, &mut messages, &BTreeSet::new())?;
        let details = json!({"message_preview": preview, "reconstructed_turns": turns});
        // A user resumed it: of the usage, only the money counts on.
        let meter = Some(UsageMeter { spend: self.fold.meter().spend, ..UsageMeter::default() });
        let birth = NewThread { meter, limits, ..self.successor_birth() };
        self.with(thread, messages, birth, turns, details)
    }

    fn successor_id(&self) -> ThreadId {
        ThreadId::generate(self.fold.manifest().name(), &self.engine.ids.hex12())
    }

    fn with(
        &self,
        thread: ThreadId,
        messages: Vec<Message>,
        birth: NewThread,
        turns: u64,
        details: Value,
    ) -> Result<Successor> {
        let mut state = self.fold.state().clone();
        let scopes = &self.engine.scopes;
        // The state of a run or a call ends here; a patch that only deletes existing fields applies.
        if let Some(patch) = scopes.run_cleanup(&state) {
            _ = patch.apply_to(&mut state);
        }
        if let Some(fields) = state.as_object_mut() {
            fields.remove(selvedge_model::scope::TOOL_CALL_KEY);
        }
        let is_empty = state.as_object().is_some_and(serde_json::Map::is_empty);
        let changeset = Changeset { snapshot: (!is_empty).then_some(state), messages, ..Changeset::creating(birth) };
        // Held from the start; the store moves the pending requests of the old thread along.
        let part = Part::new(thread.clone(), Expect::Absent, changeset).under(FIRST_EPOCH);
        let details = match details {
            Value::Object(details) => details,
            _ => Fields::new(),
        };
        Ok(Successor { thread, more: OtherThreads { parts: vec![part], ..OtherThreads::default() }, turns, details })
    }

    fn successor_birth(&self) -> NewThread {
        let old = self.fold.manifest().clone();
        let head = &self.fold.head;
        let family_root_id = Some(old.family_root().clone());
        NewThread {
            kind: old.kind,
            graph: graph::continued(&self.fold),
            directive: old.directive,
            parent_id: old.parent_id,
            parent_run_id: old.parent_run_id,
            family_root_id,
            chain_position: old.chain_position.saturating_add(1),
            task_id: old.task_id,
            title: old.title,
            model: old.model,
            inputs: old.inputs,
            limits: old.limits,
            capabilities: old.capabilities,
            acknowledged: old.acknowledged,
            continuation_of: Some(Predecessor { thread_id: old.thread_id, version: head.version, hash: head.hash }),
            chain_root_id: Some(old.chain_root_id),
            ..NewThread::of(old.agent_id)
        }
    }

    /// Copies the blobs that the messages name for the successor; `own` are in its folder already. A blob that was erased, or is missing,
    /// is not named any more.
    fn copy_blobs(&self, thread: &ThreadId, messages: &mut [Message], own: &BTreeSet<Digest>) -> Result<()> {
        for block in messages.iter_mut().flat_map(|message| &mut message.content) {
            let Some(named) = block.blob().copied().filter(|named| !own.contains(named)) else { continue };
            let copy = match self.engine.store.blob(self.thread(), &named) {
                Ok(bytes) => Some(self.engine.store.put_blob(thread, &bytes)?),
                Err(_) => None,
            };
            // The text that the model reads names the copy, too.
            let name = copy.map_or_else(|| format!("{named} (gone)"), |copy| copy.to_string());
            let renamed = |text: &str| text.replace(&named.to_string(), &name);
            match (block, copy) {
                (Block::Image { blob, .. }, Some(copy)) => *blob = copy,
                (block @ Block::Image { .. }, None) => {
                    *block = Block::text(format!("[an image that is missing: blob {named}]"));
                }
                (Block::Text { text, blob }, copy) => {
                    *text = renamed(text);
                    *blob = copy;
                }
                (Block::ToolCall { arguments, blob, .. }, copy) => {
                    each_text(arguments, &renamed);
                    *blob = copy;
                }
                (Block::ToolResult { content, blob, .. }, copy) => {
                    each_text(content, &renamed);
                    *blob = copy;
                }
                (Block::Thinking { .. } | Block::Opaque { .. }, _) => {}
            }
        }
        Ok(())
    }
}

impl HeldThread {
    /// Commits the end of this thread together with its successor, for a resume. Returns the lease of the successor.
    pub(crate) fn resume_in(&mut self, successor: Successor) -> Result<LeaseGuard> {
        self.interrupt_calls("interrupted: the thread ended before this call was executed");
        let handoff = successor.handoff(self, None);
        self.delta.events.push(Event::ThreadResumed(handoff));
        self.commit_with(Reason::Lifecycle, RunContext::default(), successor.more).map_err(Error::unfunded)?;
        self.successor.take().ok_or_else(|| selvedge_store::Error::BadBatch.into())
    }
}

impl Successor {
    /// The record of the handoff in the old thread.
    pub(crate) fn handoff(&self, held: &HeldThread, reason: Option<HandoffReason>) -> Handoff {
        Handoff {
            new_thread_id: self.thread.clone(),
            reason,
            directive: held.fold.manifest().directive.clone(),
            trailing_turns: self.turns,
            details: self.details.clone(),
        }
    }
}

/// Changes every text in a value.
fn each_text(value: &mut Value, change: &dyn Fn(&str) -> String) {
    match value {
        Value::String(text) => *text = change(text),
        Value::Array(items) => {
            for item in items {
                each_text(item, change);
            }
        }
        Value::Object(fields) => {
            for field in fields.values_mut() {
                each_text(field, change);
            }
        }
        _ => {}
    }
}

fn preview(text: &str) -> String {
    text[..text.floor_char_boundary(PREVIEW_BYTES)].to_owned()
}
