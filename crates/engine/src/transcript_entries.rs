//! A conversation to be read by people: whole messages, tool calls with their results, decisions, suspensions and costs, in the order of the
//! log.
//!
//! [`crate::transcript`] is the same for a model: one short text. Here every part has a type, content that was stored as a blob is read back
//! up to a bound, and an entry says what is left out. How it looks is left to the caller. Every text is as it was written, by a model or a tool: a
//! caller that shows it must expect control characters and markup.

use std::collections::BTreeMap;

use selvedge_log::Trust;
use selvedge_model::event::{DecisionAction, Fields, NewThread, SuspendReason};
use selvedge_model::limits::Cost;
use selvedge_model::message::{Block, Visibility};
use selvedge_model::{AgentId, CallId, Digest, DirectiveId, Event, Message, Role, ThreadId, Timestamp};
use selvedge_store::Store;
use selvedge_store::load::each_changeset;
use serde::Serialize;
use serde_json::Value;

use crate::blobs::part_of;
use crate::chain;
use crate::error::Result;

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryScope {
    /// Whether every thread of the chain is read, from its root to its end; else only the one that was named.
    pub chain: bool,
    /// The most bytes of one blob that are read back.
    pub blob_bytes_max: usize,
}

/// One entry of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// When it was committed.
    pub at: Timestamp,
    /// What it is.
    #[serde(flatten)]
    pub kind: EntryKind,
}

/// The kinds of entries.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum EntryKind {
    /// A thread begins.
    Thread {
        /// The thread.
        thread_id: ThreadId,
        /// Its agent.
        agent_id: AgentId,
        /// Its directive.
        directive: Option<DirectiveId>,
        /// The model that it was created with.
        model: Option<String>,
        /// The title that it was created with.
        title: Option<String>,
        /// The thread that it continues.
        continues: Option<ThreadId>,
    },
    /// A message.
    Message {
        /// Its author.
        role: Role,
        /// Whether it is not meant for the user: the engine wrote it for the model.
        internal: bool,
        /// Its parts.
        parts: Vec<EntryPart>,
    },
    /// The beginning of an answer that was stopped. It was never sent back to a model.
    Partial {
        /// The text so far.
        text: String,
    },
    /// A call needs an approval.
    Asked {
        /// The call.
        call_id: CallId,
        /// Its tool.
        tool: String,
        /// Why.
        why: Option<String>,
    },
    /// A person decided about a call.
    Decided {
        /// The call.
        call_id: CallId,
        /// Who.
        who: String,
        /// What was decided.
        action: DecisionAction,
        /// Why.
        reason: Option<String>,
    },
    /// A call was refused because the thread has no capability for it.
    Denied {
        /// What was recorded of it.
        details: Fields,
    },
    /// The thread waits.
    Suspended {
        /// Why.
        reason: SuspendReason,
        /// The limit that was reached, or the cause.
        code: Option<String>,
    },
    /// The thread continues in another one.
    Continued {
        /// The successor.
        thread_id: ThreadId,
    },
    /// A run ended.
    Run {
        /// Why, as a stable code.
        code: Option<String>,
        /// Why, as a sentence.
        why: Option<String>,
        /// What it used.
        cost: Cost,
    },
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "part", rename_all = "snake_case")]
pub enum EntryPart {
    /// Text.
    Text(EntryText),
    /// Reasoning of the model.
    Thinking(EntryText),
    /// A tool call.
    Call {
        /// Its id.
        call_id: CallId,
        /// Its tool.
        tool: String,
        /// Its arguments, as JSON.
        #[serde(flatten)]
        arguments: EntryText,
    },
    /// The result of a tool call.
    Result {
        /// The call.
        call_id: CallId,
        /// Its tool, if the call is part of what was read.
        tool: Option<String>,
        /// Whether it is an error.
        is_error: bool,
        /// The result: text, or JSON.
        #[serde(flatten)]
        content: EntryText,
    },
    /// An image.
    Image {
        /// Its media type.
        media_type: String,
        /// The blob that holds it.
        blob: Digest,
    },
    /// Data that only a provider understands.
    Opaque {
        /// The provider.
        provider: String,
    },
}

/// A text, whole or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EntryText {
    /// The text.
    pub text: String,
    /// The blob that has the whole, if it was too large for a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blob: Option<Digest>,
    /// How many bytes of it come after `text`, if it was cut here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_left_out: Option<u64>,
    /// Why the blob could not be read; `text` is then what the model got.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

/// The conversation of a thread, or of its chain. Every log is verified on the way: on success, the entries are those of valid, signed logs.
///
/// A message that a successor took over from its predecessor as it was is there once; one that was shortened on the way is there in both
/// forms.
pub fn entries(store: &dyn Store, trust: &Trust, thread: &ThreadId, scope: EntryScope) -> Result<Vec<Entry>> {
    let threads = if scope.chain { chain::threads(store, thread)? } else { vec![thread.clone()] };
    let mut reader = Reader {
        store,
        thread,
        scope,
        entries: Vec::new(),
        tools: BTreeMap::new(),
        before: BTreeMap::new(),
        own: BTreeMap::new(),
        has_run: false,
    };
    for thread in &threads {
        reader.begin(thread);
        each_changeset(store, thread, trust, |changeset| {
            for line in changeset.lines {
                reader.take(line.timestamp, line.event);
            }
        })?;
    }
    Ok(reader.entries)
}

/// How often each message is in a log; a message is the same if its author and its content are.
type Messages = BTreeMap<String, usize>;

struct Reader<'a> {
    store: &'a dyn Store,
    thread: &'a ThreadId,
    scope: EntryScope,
    entries: Vec<Entry>,
    /// The tools of the calls that were read.
    tools: BTreeMap<CallId, String>,
    /// The messages of the thread before this one in the chain, without those that this one was found to have taken over.
    before: Messages,
    /// The messages of this thread so far.
    own: Messages,
    /// Whether a run of this thread has begun: what it took over is before that.
    has_run: bool,
}

impl<'a> Reader<'a> {
    fn begin(&mut self, thread: &'a ThreadId) {
        self.thread = thread;
        self.before = std::mem::take(&mut self.own);
        self.has_run = false;
    }

    fn take(&mut self, at: Timestamp, event: Event) {
        self.has_run |= matches!(event, Event::RunStarted(_));
        let kind = match event {
            Event::ThreadCreated(created) => self.thread_begins(created.thread),
            Event::Message(message) => match self.message(message) {
                Some(kind) => kind,
                None => return,
            },
            Event::ContextInjected(fields) => match partial(&fields) {
                Some(text) => EntryKind::Partial { text },
                None => return,
            },
            Event::Asked(ask) => EntryKind::Asked { call_id: ask.call_id, tool: ask.tool, why: ask.why },
            Event::Decision(decision) => EntryKind::Decided {
                call_id: decision.call_id,
                who: decision.who,
                action: decision.action,
                reason: decision.reason,
            },
            Event::CapabilityDenied(details) => EntryKind::Denied { details },
            Event::Suspended(why) => EntryKind::Suspended { reason: why.reason, code: why.code },
            Event::ThreadHandoff(handoff) | Event::ThreadResumed(handoff) => {
                EntryKind::Continued { thread_id: handoff.new_thread_id }
            }
            Event::RunFinished(run) => EntryKind::Run {
                cost: run.meta.cost.unwrap_or_else(|| Cost {
                    input_tokens: run.meta.input_tokens,
                    output_tokens: run.meta.output_tokens,
                    ..Cost::default()
                }),
                code: run.meta.termination_code,
                why: run.meta.termination_detail,
            },
            _ => return,
        };
        self.entries.push(Entry { at, kind });
    }

    fn thread_begins(&self, thread: NewThread) -> EntryKind {
        EntryKind::Thread {
            thread_id: self.thread.clone(),
            agent_id: thread.agent_id,
            directive: thread.directive,
            model: thread.model,
            title: thread.title,
            continues: thread.continuation_of.map(|before| before.thread_id),
        }
    }

    /// A message, unless it was read in an earlier thread of the chain.
    fn message(&mut self, message: Message) -> Option<EntryKind> {
        if self.scope.chain && self.is_taken_over(&message) {
            return None;
        }
        let parts = message.content.into_iter().map(|block| self.part(block)).collect();
        let internal = message.visibility == Visibility::Internal;
        Some(EntryKind::Message { role: message.role, internal, parts })
    }

    /// Whether the thread took a message over from its predecessor, which has it too.
    fn is_taken_over(&mut self, message: &Message) -> bool {
        let key = serde_json::to_string(&(message.role, &message.content)).unwrap_or_default();
        *self.own.entry(key.clone()).or_default() += 1;
        match self.before.get_mut(&key) {
            Some(count) if !self.has_run && *count > 0 => {
                *count -= 1;
                true
            }
            _ => false,
        }
    }

    fn part(&mut self, block: Block) -> EntryPart {
        match block {
            Block::Text { text, blob } => EntryPart::Text(self.content(text, blob)),
            Block::Thinking { text, .. } => EntryPart::Thinking(self.content(text, None)),
            Block::ToolCall { id, name, arguments, blob } => {
                self.tools.insert(id.clone(), name.clone());
                EntryPart::Call { call_id: id, tool: name, arguments: self.content(arguments.to_string(), blob) }
            }
            Block::ToolResult { call_id, content, is_error, blob } => {
                let text = if let Value::String(text) = content { text } else { content.to_string() };
                let tool = self.tools.get(&call_id).cloned();
                EntryPart::Result { call_id, tool, is_error, content: self.content(text, blob) }
            }
            Block::Image { blob, media_type } => EntryPart::Image { media_type, blob },
            Block::Opaque { provider, .. } => EntryPart::Opaque { provider },
        }
    }

    /// A text, with its blob read back up to the bound.
    fn content(&self, text: String, blob: Option<Digest>) -> EntryText {
        let Some(named) = blob else { return EntryText { text, ..EntryText::default() } };
        let read = match self.store.blob(self.thread, &named) {
            Ok(bytes) => part_of(&bytes, 0, self.scope.blob_bytes_max).ok_or_else(|| "it is not text".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        match read {
            Ok(part) => {
                let bytes_left_out = part.next.map(|next| part.bytes - next);
                EntryText { text: part.text, blob, bytes_left_out, unreadable: None }
            }
            Err(why) => EntryText { text, blob, bytes_left_out: None, unreadable: Some(why) },
        }
    }
}

fn partial(fields: &Fields) -> Option<String> {
    fields.get("partial_cognition")?.get("text")?.as_str().map(str::to_owned)
}
