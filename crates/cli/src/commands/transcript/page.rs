//! A walk over a conversation: what is shown of each entry, whatever the style.

use selvedge_engine::transcript_entries::{Entry, EntryKind, EntryPart, EntryText};
use selvedge_model::limits::Cost;
use selvedge_model::{Role, ThreadId, Timestamp};
use serde_json::{Value, json};

use crate::running::used;
use crate::text::{count, local};

/// A piece of a line.
pub(super) enum Piece<'a> {
    /// Words of this program, or of others.
    Words(&'a str),
    /// The name of something: a tool, a call, a thread, a command.
    Name(&'a str),
}

/// How a conversation looks. Every text that it is given may be foreign.
pub(super) trait Style {
    /// The title of the whole.
    fn title(&mut self, text: &str);
    /// Who speaks, and when.
    fn speaker(&mut self, who: &str, at: &str);
    /// Text of a message.
    fn prose(&mut self, text: &str);
    /// Text of a machine, in a language.
    fn machine(&mut self, language: &str, text: &str);
    /// A line about the conversation.
    fn note(&mut self, pieces: &[Piece<'_>]);
    /// What was written.
    fn text(self) -> String;
}

use Piece::{Name, Words};

/// The whole conversation.
pub(super) fn page(entries: &[Entry], look: impl Style) -> String {
    let mut page = Page { look, thread: None, is_begun: false };
    let mut cost = Cost::default();
    let mut runs = 0;
    for entry in entries {
        page.entry(entry);
        if let EntryKind::Run { cost: of_run, .. } = &entry.kind {
            cost.add(of_run);
            runs += 1;
        }
    }
    if runs > 1 {
        page.look.note(&[Words(&format!("{runs} runs together: {}", used(&cost)))]);
    }
    page.look.text()
}

struct Page<'e, L> {
    look: L,
    /// The thread that is shown.
    thread: Option<&'e ThreadId>,
    is_begun: bool,
}

impl<'e, L: Style> Page<'e, L> {
    fn entry(&mut self, entry: &'e Entry) {
        match &entry.kind {
            EntryKind::Thread { thread_id, agent_id, directive, model, title, continues } => {
                if !self.is_begun {
                    self.look.title(title.as_deref().unwrap_or(thread_id.as_str()));
                }
                self.is_begun = true;
                self.thread = Some(thread_id);
                let at = local(entry.at);
                let mut about =
                    vec![Words("Thread "), Name(thread_id.as_str()), Words(" of agent "), Name(agent_id.as_str())];
                if let Some(directive) = directive {
                    about.extend([Words(", directive "), Name(directive.as_str())]);
                }
                if let Some(model) = model {
                    about.extend([Words(", model "), Name(model)]);
                }
                if let Some(before) = continues {
                    about.extend([Words(", continues "), Name(before.as_str())]);
                }
                about.extend([Words(", created "), Words(&at)]);
                self.look.note(&about);
            }
            EntryKind::Message { role, internal, parts } => self.message(entry.at, *role, *internal, parts),
            EntryKind::Partial { text } => {
                self.look.speaker("assistant (stopped)", &local(entry.at));
                self.look.prose(text);
            }
            EntryKind::Asked { call_id, tool, why } => {
                let why = why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                self.look.note(&[
                    Words("Approval requested for call "),
                    Name(call_id.as_str()),
                    Words(" of "),
                    Name(tool),
                    Words(&why),
                ]);
            }
            EntryKind::Decided { call_id, who, action, reason } => {
                let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
                let said = format!("Decision of {who} about call ");
                self.look.note(&[
                    Words(&said),
                    Name(call_id.as_str()),
                    Words(": "),
                    Words(action.as_str()),
                    Words(&reason),
                ]);
            }
            EntryKind::Denied { details } => {
                let details = json!(details).to_string();
                self.look.note(&[Words("A call was denied: "), Name(&details)]);
            }
            EntryKind::Suspended { reason, code } => {
                let reason = json!(reason);
                let reason = reason.as_str().unwrap_or_default();
                let code = code.as_deref().filter(|code| *code != reason);
                let code = code.map(|code| format!(" ({code})")).unwrap_or_default();
                self.look.note(&[Words("The thread was suspended: "), Words(reason), Words(&code)]);
            }
            EntryKind::Continued { thread_id } => {
                self.look.note(&[Words("The thread continues as "), Name(thread_id.as_str())]);
            }
            EntryKind::Run { code, why, cost } => {
                let code = code.as_deref().unwrap_or("ended");
                let why = why.as_ref().map(|why| format!(", {why}")).unwrap_or_default();
                self.look.note(&[Words("Run: "), Words(code), Words(&why), Words("; "), Words(&used(cost))]);
            }
        }
    }

    fn message(&mut self, at: Timestamp, role: Role, internal: bool, parts: &[EntryPart]) {
        let who = json!(role);
        let who = who.as_str().unwrap_or("message");
        let who = if internal { format!("{who} (internal)") } else { who.to_owned() };
        // The results of tools stand under their own names.
        if role != Role::Tool {
            self.look.speaker(&who, &local(at));
        }
        for part in parts {
            self.part(part);
        }
    }

    fn part(&mut self, part: &EntryPart) {
        match part {
            EntryPart::Text(content) => {
                self.look.prose(&content.text);
                self.rest(content);
            }
            EntryPart::Thinking(content) => {
                self.look.note(&[Words("Thinking:")]);
                self.look.prose(&content.text);
                self.rest(content);
            }
            EntryPart::Call { call_id, tool, arguments } => {
                self.look.note(&[Words("→ "), Name(tool), Words(" (call "), Name(call_id.as_str()), Words(")")]);
                self.machine(arguments);
            }
            EntryPart::Result { call_id, tool, is_error, content } => {
                let mark = if *is_error { "✗ Error" } else { "✓ Result" };
                let mut about = vec![Words(mark), Words(" of ")];
                if let Some(tool) = tool {
                    about.extend([Name(tool), Words(", ")]);
                }
                about.extend([Words("call "), Name(call_id.as_str())]);
                self.look.note(&about);
                self.machine(content);
            }
            EntryPart::Image { media_type, blob } => {
                let command = self.command(&blob.short());
                self.look.note(&[
                    Words("Image, "),
                    Words(media_type),
                    Words(": "),
                    Name(&command),
                    Words(" -o FILE writes it"),
                ]);
            }
            EntryPart::Opaque { provider } => self.look.note(&[Words("Data of "), Words(provider)]),
        }
    }

    /// Arguments and results: JSON where they are more than one value, else text.
    fn machine(&mut self, content: &EntryText) {
        match serde_json::from_str::<Value>(&content.text) {
            Ok(value) if value.is_object() || value.is_array() => {
                self.look.machine("json", &serde_json::to_string_pretty(&value).unwrap_or_default());
            }
            _ => self.look.machine("text", &content.text),
        }
        self.rest(content);
    }

    /// What of a text is not shown, and how it can be.
    fn rest(&mut self, content: &EntryText) {
        let Some(blob) = &content.blob else { return };
        let command = self.command(&blob.short());
        match (&content.unreadable, content.bytes_left_out) {
            (Some(why), _) => self.look.note(&[Words("Shortened; the whole can't be read: "), Words(why)]),
            (None, Some(left_out)) => {
                let left_out = format!("{} more: ", count(left_out, "byte"));
                self.look.note(&[Words(&left_out), Name(&command), Words(" shows all of it")]);
            }
            (None, None) => self.look.note(&[Words("All of blob "), Name(&blob.short())]),
        }
    }

    fn command(&self, blob: &str) -> String {
        format!("selvedge blob {} {blob}", self.thread.map_or("", ThreadId::as_str))
    }
}
