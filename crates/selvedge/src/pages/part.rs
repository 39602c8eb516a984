//! One part of a page: the changesets of a piece of a log, as Markdown.
//!
//! What is written follows from the changesets alone, never from when a page was updated: so it is the same whenever it is written again.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use selvedge_log::Head;
use selvedge_log::scan::ScannedChangeset;
use selvedge_model::event::{CallOrigin, Fields, Injected, ToolOutcome};
use selvedge_model::manifest::Contradiction;
use selvedge_model::message::{Block, Message, Visibility};
use selvedge_model::run::{PromptPart, RunRecorded};
use selvedge_model::{CallId, Digest, Event, Manifest, Role, ThreadId, Timestamp};
use selvedge_store::pages::PageStart;
use serde_json::{Value, json};

use crate::markdown::{fenced, name, quoted, words};

/// A part with so much text is full.
const TEXT_BYTES: usize = 64 << 10;
/// A part of so much of a log is full.
const LOG_BYTES: u64 = 256 << 10;
/// A part of so many changesets is full.
const CHANGESETS: u64 = 256;
/// How much of one changeset is shown.
const CHANGESET_BYTES: usize = 256 << 10;
/// How much of one message is shown.
const MESSAGE_BYTES: usize = 32 << 10;
/// How much of a result is shown.
const RESULT_CHARS: usize = 2000;
/// How much of each text in the arguments of a call is shown.
const ARGUMENT_CHARS: usize = 500;

/// A part, as far as it was read.
#[derive(Debug)]
pub(super) struct Part {
    /// Its number, from 1 on.
    pub(super) number: u64,
    /// The hash of the part before it.
    pub(super) before: Option<Digest>,
    /// The thread, up to the last changeset; none before the first one.
    pub(super) manifest: Option<Manifest>,
    /// How many answers there are, with those of earlier parts.
    pub(super) turns: u64,
    /// Whether an engine ran the thread.
    pub(super) is_run: bool,
    /// The first version it shows.
    pub(super) first_version: Option<u64>,
    /// The end of the log after its last changeset.
    pub(super) head: Option<Head>,
    /// When that was written.
    pub(super) at: Timestamp,
    /// What it says.
    pub(super) text: String,
    begins: u64,
    changesets: u64,
    /// The calls whose results are not there yet, and their tools.
    open: BTreeMap<CallId, String>,
    /// The calls that no message asks for.
    opened: BTreeMap<CallId, String>,
    /// What the prompt was made of when it was last shown.
    prompt: Vec<PromptPart>,
    /// The length of the text before the changeset that is being read.
    changeset: usize,
}

impl Part {
    /// The first part of a thread.
    pub(super) fn first() -> Self {
        Self {
            number: 1,
            before: None,
            manifest: None,
            turns: 0,
            is_run: false,
            first_version: None,
            head: None,
            at: Timestamp::from_micros(0),
            text: String::new(),
            begins: 0,
            changesets: 0,
            open: BTreeMap::new(),
            opened: BTreeMap::new(),
            prompt: Vec::new(),
            changeset: 0,
        }
    }

    /// A part that begins there.
    pub(super) fn beginning(start: PageStart) -> Self {
        let PageStart { head, part, before, turns, is_run, manifest, .. } = start;
        Self {
            number: part,
            before: Some(before),
            manifest: Some(manifest),
            turns,
            is_run,
            begins: head.bytes,
            ..Self::first()
        }
    }

    /// Where the next part begins; the seal is added by the store.
    pub(super) fn next_start(&self, hash: Digest) -> Option<PageStart> {
        Some(PageStart {
            head: self.head.clone()?,
            seal: String::new(),
            part: self.number + 1,
            before: hash,
            turns: self.turns,
            is_run: self.is_run,
            manifest: self.manifest.clone()?,
        })
    }

    /// Whether the next changeset begins another part. A call and its result stay together, if that is not too much.
    pub(super) fn is_full(&self) -> bool {
        let of = |times: usize| {
            let log = self.head.as_ref().map_or(0, |head| head.bytes.saturating_sub(self.begins));
            let times = times as u64;
            self.text.len() as u64 >= TEXT_BYTES as u64 * times
                || log >= LOG_BYTES * times
                || self.changesets >= CHANGESETS * times
        };
        of(2) || (of(1) && self.open.is_empty())
    }

    /// Adds a changeset.
    pub(super) fn take(&mut self, thread: &ThreadId, entry: &ScannedChangeset) -> Result<(), Contradiction> {
        self.first_version.get_or_insert(entry.head.version);
        self.changeset = self.text.len();
        let mut left_out = 0_u64;
        for line in &entry.lines {
            let (event, at) = (&line.event, line.timestamp);
            match (event, &mut self.manifest) {
                (Event::ThreadCreated(created), None) => self.manifest = Some(Manifest::born(thread, created, at)),
                (event, Some(manifest)) => manifest.apply(event, at)?,
                (_, None) => {}
            }
            self.at = at;
            if self.text.len() - self.changeset < CHANGESET_BYTES {
                self.event(event, at);
            } else {
                left_out += 1;
            }
        }
        if left_out > 0 {
            let command = name(&format!("selvedge transcript {thread}"));
            self.block(&format!("*{left_out} more lines of this changeset: {command}*"));
        }
        self.head = Some(entry.head.clone());
        self.changesets += 1;
        Ok(())
    }

    /// Adds a block, apart from the one before it.
    fn block(&mut self, block: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(block);
        self.text.push('\n');
    }

    fn heading(&mut self, level: usize, what: &str, at: Timestamp) {
        self.block(&format!("{} {what} · {}", "#".repeat(level), moment(at)));
    }

    fn event(&mut self, event: &Event, at: Timestamp) {
        match event {
            Event::RunStarted(run) => self.run_started(run),
            Event::Message(message) => self.message(message, at),
            Event::ContextInjected(fields) => self.context(fields, at),
            Event::CallOpened(call) => {
                self.opened.insert(call.call_id.clone(), call.tool.clone());
                self.open.insert(call.call_id.clone(), call.tool.clone());
                let of = match &call.origin {
                    CallOrigin::Hook { hook, .. } => format!("hook {}", name(hook)),
                    CallOrigin::Node { graph, node } => format!("node {} of {}", name(node), name(graph)),
                    _ => "another origin".to_owned(),
                };
                self.heading(3, &format!("Tool: {} ({of})", name(&call.tool)), at);
                self.arguments(&call.arguments);
            }
            Event::ToolOutcome(outcome) => self.outcome(outcome, at),
            Event::RunFinished(run) => {
                let code = run.meta.termination_code.as_deref().unwrap_or("ended");
                let why = run.meta.termination_detail.as_ref().map(|why| format!(": {}", words(why)));
                self.block(&format!("*Run ended: {}{}*", words(code), why.unwrap_or_default()));
            }
            Event::Asked(ask) => {
                let why = ask.why.as_ref().map(|why| format!(": {}", words(why))).unwrap_or_default();
                self.block(&format!(
                    "*Approval requested for {} ({}){why}*",
                    name(&ask.tool),
                    name(ask.call_id.as_str())
                ));
            }
            Event::Decision(decision) => {
                let reason = decision.reason.as_ref().map(|why| format!(": {}", words(why))).unwrap_or_default();
                let (action, who) = (words(decision.action.as_str()), words(&decision.who));
                self.block(&format!(
                    "*Decision about {}: {action}, by {who}{reason}*",
                    name(decision.call_id.as_str())
                ));
            }
            Event::Suspended(why) => {
                let reason = json!(why.reason);
                let code = why.code.as_ref().map(|code| format!(" ({})", words(code))).unwrap_or_default();
                self.block(&format!("*Suspended: {}{code}*", words(reason.as_str().unwrap_or_default())));
            }
            Event::ThreadHandoff(handoff) | Event::ThreadResumed(handoff) => {
                self.block(&format!("*Continued by {}*", name(handoff.new_thread_id.as_str())));
            }
            Event::BlobErased(erased) => {
                self.block(&format!(
                    "*The content of blob {} was erased: {}*",
                    name(&erased.blob.short()),
                    words(&erased.reason)
                ));
            }
            Event::Recovery(found) => self.block(&format!("*Recovered: {}*", words(&found.found))),
            Event::HookFired(fields) => self.hook(fields),
            Event::ChildSpawned(fields)
            | Event::ChildSettled(fields)
            | Event::CapabilityDenied(fields)
            | Event::ContextLimitReached(fields)
            | Event::GraphStarted(fields)
            | Event::StepStarted(fields)
            | Event::StepCompleted(fields)
            | Event::ForeachCompleted(fields)
            | Event::GraphCompleted(fields)
            | Event::GraphError(fields)
            | Event::GraphCancelled(fields) => self.trace(event, fields),
            _ => {}
        }
    }

    /// An event whose payload is its writer's own.
    fn trace(&mut self, event: &Event, fields: &Fields) {
        let kind = json!(event);
        let kind = kind["event_type"].as_str().unwrap_or_default().replace('_', " ");
        let shown = json!(fields).to_string();
        self.block(&format!("*{}:* {}", words(&kind), name(cut(&shown, RESULT_CHARS).0)));
    }

    fn run_started(&mut self, run: &RunRecorded) {
        self.is_run |= run.meta.held;
        if run.meta.prompt.is_empty() || run.meta.prompt == self.prompt {
            return;
        }
        self.prompt.clone_from(&run.meta.prompt);
        let mut text = String::from("## System Prompt (layers)\n");
        for part in &run.meta.prompt {
            let source = json!(part.source);
            let position = json!(part.position);
            let id = part.id.as_ref().map(|id| format!(" {}", name(id))).unwrap_or_default();
            let (source, position) = (source.as_str().unwrap_or_default(), position.as_str().unwrap_or_default());
            _ = write!(text, "\n- {source}{id} ({position}), `{}`", part.digest.short());
        }
        self.block(&text);
    }

    fn message(&mut self, message: &Message, at: Timestamp) {
        let internal = if message.visibility == Visibility::Internal { " (internal)" } else { "" };
        match message.role {
            Role::User => self.heading(2, &format!("Input - Turn {}{internal}", self.turns + 1), at),
            Role::System => self.heading(2, &format!("System{internal}"), at),
            Role::Assistant if message.marker.is_none() => self.turns += 1,
            Role::Assistant | Role::Tool => {}
        }
        let mut is_said = false;
        for block in &message.content {
            match block {
                Block::Text { text, blob } => {
                    if message.role == Role::Assistant && !is_said {
                        is_said = true;
                        let turn = self.turns;
                        self.heading(3, &format!("Response - Turn {turn}{internal}"), at);
                    }
                    let (shown, is_cut) = cut(text, MESSAGE_BYTES);
                    self.block(&quoted(shown));
                    self.rest(is_cut, blob.as_ref());
                }
                Block::Thinking { text, .. } => {
                    let (shown, is_cut) = cut(text, MESSAGE_BYTES);
                    let lines = shown.trim().lines().map(|line| match words(line).trim() {
                        "" => ">".to_owned(),
                        line => format!("> *{line}*"),
                    });
                    let lines: Vec<String> = lines.collect();
                    self.block(&lines.join("\n"));
                    self.rest(is_cut, None);
                }
                Block::ToolCall { id, name: tool, arguments, blob } => {
                    self.open.insert(id.clone(), tool.clone());
                    self.heading(3, &format!("Tool: {}", name(tool)), at);
                    self.arguments(arguments);
                    self.rest(false, blob.as_ref());
                }
                Block::ToolResult { call_id, content, is_error, blob } => {
                    self.result(call_id, content, *is_error, blob.as_ref(), at);
                }
                Block::Image { blob, media_type } => {
                    self.block(&format!("*Image, {}: {}*", words(media_type), name(&blob.short())));
                }
                Block::Opaque { provider, .. } => self.block(&format!("*Data of {}*", words(provider))),
            }
        }
    }

    fn arguments(&mut self, arguments: &Value) {
        let mut shown = arguments.clone();
        let is_cut = shorten(&mut shown);
        let text = match &shown {
            Value::String(text) => text.clone(),
            other => serde_json::to_string_pretty(other).unwrap_or_default(),
        };
        let (text, is_longer) = cut(&text, MESSAGE_BYTES);
        self.block(&fenced("json", text));
        self.rest(is_cut || is_longer, None);
    }

    fn result(&mut self, call: &CallId, content: &Value, is_error: bool, blob: Option<&Digest>, at: Timestamp) {
        let tool = self.open.remove(call).unwrap_or_else(|| call.to_string());
        let what = if is_error { "Error" } else { "Result" };
        self.heading(3, &format!("{what}: {}", name(&tool)), at);
        let (language, text) = match content {
            Value::String(text) => ("text", text.clone()),
            other => ("json", serde_json::to_string_pretty(other).unwrap_or_default()),
        };
        let (text, is_cut) = cut(&text, RESULT_CHARS);
        self.block(&fenced(if is_cut { "text" } else { language }, text));
        self.rest(is_cut, blob);
    }

    /// The outcome of a call that no message asks for; that of any other call is in a message.
    fn outcome(&mut self, outcome: &ToolOutcome, at: Timestamp) {
        if self.opened.remove(&outcome.call_id).is_none() {
            return;
        }
        let error = outcome.error.as_ref().map(|error| json!(error));
        let content = error.as_ref().or(outcome.result.as_ref()).unwrap_or(&Value::Null);
        self.result(&outcome.call_id, content, error.is_some(), outcome.blob.as_ref(), at);
    }

    fn context(&mut self, fields: &Fields, at: Timestamp) {
        if let Some(brought) = Injected::of(fields) {
            let Injected { source, hook, event, digest, text, .. } = brought;
            self.heading(3, &format!("Context: {}", words(&source)), at);
            self.block(&format!("*Brought by hook {} at {}, {}*", name(&hook), name(&event), name(&digest.short())));
            let (text, is_cut) = cut(&text, RESULT_CHARS);
            self.block(&fenced("text", text));
            self.rest(is_cut, None);
        } else if let Some(text) = fields.get("partial_cognition").and_then(|partial| partial["text"].as_str()) {
            self.heading(3, "Partial response", at);
            let (text, is_cut) = cut(text, MESSAGE_BYTES);
            self.block(&quoted(text));
            self.rest(is_cut, None);
        }
    }

    fn hook(&mut self, fields: &Fields) {
        let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
        let came = match (fields.get("decision"), fields.get("skipped")) {
            (Some(decision), _) => format!(" decided {}", name(&decision.to_string())),
            (None, Some(why)) => format!(" brought nothing: {}", words(why.as_str().unwrap_or_default())),
            (None, None) => " fired".to_owned(),
        };
        self.block(&format!("*Hook {} at {}{came}*", name(text("hook")), name(text("event"))));
    }

    /// What of a text is not shown.
    fn rest(&mut self, is_cut: bool, blob: Option<&Digest>) {
        match blob {
            Some(blob) => self.block(&format!("*Shortened; all of it is blob {}*", name(&blob.short()))),
            None if is_cut => self.block("*Shortened; all of it is in the log*"),
            None => {}
        }
    }
}

/// The beginning of a text, at most so many bytes, and whether that is not all.
fn cut(text: &str, most: usize) -> (&str, bool) {
    let shown = &text[..text.floor_char_boundary(most)];
    (shown, shown.len() < text.len())
}

/// Shortens the texts in a value; whether any was.
fn shorten(value: &mut Value) -> bool {
    match value {
        Value::String(text) => {
            let (shown, is_cut) = cut(text, ARGUMENT_CHARS);
            if is_cut {
                *text = format!("{shown}…");
            }
            is_cut
        }
        Value::Array(list) => list.iter_mut().map(shorten).filter(|is_cut| *is_cut).count() > 0,
        Value::Object(fields) => fields.values_mut().map(shorten).filter(|is_cut| *is_cut).count() > 0,
        _ => false,
    }
}

/// A time, to the second, in UTC.
pub(super) fn moment(at: Timestamp) -> String {
    let text = at.whole_seconds().to_string();
    text.split_once('.').map_or(text.clone(), |(seconds, _)| format!("{seconds}Z"))
}
