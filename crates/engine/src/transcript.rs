//! A thread's messages as readable text, with the blobs that have what was too large for a line.

use std::collections::VecDeque;

use selvedge_log::Trust;
use selvedge_model::message::{Block, Visibility};
use selvedge_model::{Digest, Event, Message, Role, ThreadId};
use selvedge_store::Store;
use selvedge_store::load::each_changeset;
use selvedge_store::search::NotSearched;
use serde::Serialize;
use serde_json::Value;

use crate::blobs::Texts;
use crate::error::Result;

/// The most bytes of text that are returned; older lines are left out.
pub const CONTENT_BYTES_MAX: usize = 1 << 20;

/// A thread's messages as readable text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Transcript {
    /// Always true, even if there are no messages yet.
    pub success: bool,
    /// The thread.
    pub thread_id: ThreadId,
    /// The text.
    pub content: String,
    /// Whether earlier lines were left out.
    pub truncated: bool,
    /// Content of blobs that is not in the text.
    pub not_searched: NotSearched,
}

/// The messages of a thread as readable text, or the last lines of it. The log is streamed and verified on the way: on success, the text is
/// that of a valid, signed log.
pub fn read_transcript(
    store: &dyn Store,
    trust: &Trust,
    thread: &ThreadId,
    tail_lines: Option<usize>,
) -> Result<Transcript> {
    let mut kept =
        LastLines { lines: VecDeque::new(), bytes: 0, lines_max: tail_lines.unwrap_or(usize::MAX), truncated: false };
    let mut texts = Texts::new(store, thread);
    each_changeset(store, thread, trust, |entry| {
        for line in &entry.lines {
            if let Event::Message(message) = &line.event {
                kept.add(&shown(message, &mut texts));
            }
        }
    })?;
    let content: String = kept.lines.into_iter().collect();
    let truncated = kept.truncated;
    let not_searched = texts.left_out();
    Ok(Transcript { success: true, thread_id: thread.clone(), content, truncated, not_searched })
}

/// The last lines of a text that grows.
struct LastLines {
    lines: VecDeque<String>,
    bytes: usize,
    lines_max: usize,
    truncated: bool,
}

impl LastLines {
    fn add(&mut self, text: &str) {
        // An empty line separates two messages; after the last one it would be the last line.
        let between = if self.lines.is_empty() { "" } else { "\n" };
        for line in between.split_inclusive('\n').chain(text.split_inclusive('\n')) {
            self.bytes += line.len();
            self.lines.push_back(line.to_owned());
        }
        while self.lines.len() > self.lines_max || self.bytes > CONTENT_BYTES_MAX {
            let Some(first) = self.lines.pop_front() else { return };
            self.bytes -= first.len();
            self.truncated = true;
        }
    }
}

fn shown(message: &Message, texts: &mut Texts<'_>) -> String {
    let who = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let internal = if message.visibility == Visibility::Internal { " (internal)" } else { "" };
    let blocks: Vec<String> = message.content.iter().map(|one| block(one, texts)).collect();
    format!("## {who}{internal}\n\n{}\n", blocks.join("\n\n").trim_end())
}

fn block(block: &Block, texts: &mut Texts<'_>) -> String {
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match block {
        Block::Text { text, blob } => whole(text.clone(), blob.as_ref(), texts),
        Block::Thinking { text, .. } => format!("(thinks) {text}"),
        Block::ToolCall { id, name, arguments, .. } => format!("(calls `{name}` as {id}) {arguments}"),
        Block::ToolResult { call_id, content, is_error, blob } => {
            let what = if *is_error { "error" } else { "result" };
            format!("({what} of {call_id}) {}", whole(plain(content), blob.as_ref(), texts))
        }
        Block::Image { media_type, blob } => format!("({media_type}, {})", blob.short()),
        Block::Opaque { provider, .. } => format!("(data of {provider})"),
    }
}

/// The text of a blob, if there is one that can be read; else the text of the line, which was shortened.
fn whole(shortened: String, blob: Option<&Digest>, texts: &mut Texts<'_>) -> String {
    let mut text = shortened;
    if let Some(blob) = blob {
        texts.of(blob, &mut |whole| whole.clone_into(&mut text));
    }
    text
}
