//! Shows a run as it happens.
//!
//! Events come from a bounded queue. A slow reader of stdout loses drafts, with a notice. Committed events are never lost:
//! those that the queue dropped are read from the log and shown before the next ones.

use std::collections::BTreeMap;

use selvedge::model::event::Checkpoint;
use selvedge::model::message::Block;
use selvedge::model::{Draft, Event, Role, ThreadId};
use selvedge::store::Backend;
use selvedge::{NoticeKind, RunEvent};
use serde_json::{Value, json};

use crate::context::Context;
use crate::error::Result;
use crate::event_summary::{event_type, summary};
use crate::output::{BAD, BOLD, DIM, GOOD, WARN, line_width, paint};
use crate::text::{clean, one_line};

/// How many lines of a log are read at a time.
const LINES: usize = 256;

/// Shows a run as it happens.
pub(crate) struct Screen<'a> {
    context: &'a Context<'a>,
    store: &'a dyn Backend,
    is_drafting: bool,
    /// The text of the draft that is being shown.
    drafted: String,
    /// Whether drafts were lost.
    has_gaps: bool,
    /// The first line of each thread that was committed and not delivered.
    missed: BTreeMap<ThreadId, u64>,
    /// Whether why a thread waits is left to the caller.
    is_mute_of_waits: bool,
}

/// The events of one changeset.
struct Changeset<'e> {
    thread: &'e ThreadId,
    version: u64,
    reason: &'static str,
    first_line: u64,
    events: &'e [Event],
}

impl<'a> Screen<'a> {
    pub(crate) fn new(context: &'a Context<'a>, store: &'a dyn Backend) -> Self {
        let (drafted, missed) = Default::default();
        Self { context, store, is_drafting: false, drafted, has_gaps: false, missed, is_mute_of_waits: false }
    }

    /// The same for a caller that itself explains why a thread waits.
    #[must_use]
    pub(crate) fn without_waits(self) -> Self {
        Self { is_mute_of_waits: true, ..self }
    }

    /// Shows one event.
    pub(crate) fn show(&mut self, event: &RunEvent) {
        // A closed stdout does not end a run.
        _ = match event {
            RunEvent::Committed { thread, version, reason, first_line, events, .. } => {
                self.catch_up(thread, Some(*first_line));
                self.changeset(&Changeset {
                    thread,
                    version: *version,
                    reason: reason.as_str(),
                    first_line: *first_line,
                    events,
                })
            }
            RunEvent::Missed { drafts, others, first_lines, has_unlisted, .. } => {
                for (thread, line) in first_lines {
                    self.missed.entry(thread.clone()).or_insert(*line);
                }
                self.gap(*drafts, *others, *has_unlisted)
            }
            event if self.context.output.is_json() => self.record(event),
            event => self.text(event),
        };
    }

    /// Ends a partial draft, and shows what was committed and not delivered.
    pub(crate) fn finish(mut self) {
        self.end_draft();
        for thread in self.missed.keys().cloned().collect::<Vec<_>>() {
            self.catch_up(&thread, None);
        }
    }

    /// Shows what was committed to a thread and not delivered, up to this line or the end of its log.
    fn catch_up(&mut self, thread: &ThreadId, until: Option<u64>) {
        let Some(from) = self.missed.remove(thread) else { return };
        if let Err(error) = self.show_lines(thread, from, until.unwrap_or(u64::MAX)) {
            let how = format!("`selvedge log {thread}` shows them");
            self.context.output.say(format!("lines of `{thread}` from {from} on were missed ({error}); {how}"));
        }
    }

    fn show_lines(&mut self, thread: &ThreadId, from: u64, until: u64) -> selvedge::store::Result<()> {
        let mut next = from;
        let mut first_line = from;
        let mut events = Vec::new();
        while next < until {
            let lines = self.store.read(thread, next, LINES)?;
            if lines.is_empty() {
                break;
            }
            for line in lines.into_iter().filter(|line| line.seq < until) {
                next = line.seq + 1;
                let Event::Checkpoint(checkpoint) = line.event else {
                    events.push(line.event);
                    continue;
                };
                let Checkpoint { version, reason, .. } = *checkpoint;
                // A closed stdout does not end a run.
                _ = self.changeset(&Changeset {
                    thread,
                    version,
                    reason: reason.as_str(),
                    first_line,
                    events: &events,
                });
                events.clear();
                first_line = next;
            }
        }
        Ok(())
    }

    /// Reports that drafts were lost.
    fn gap(&mut self, drafts: u64, others: u64, has_unlisted: bool) -> Result<()> {
        self.has_gaps |= drafts > 0;
        let output = &self.context.output;
        if has_unlisted {
            output.say("commits of more threads were missed than can be listed; `selvedge log` shows them");
        }
        match output.is_json() {
            true if drafts + others > 0 => {
                output.record(&json!({"type": "missed", "drafts": drafts, "others": others}))
            }
            _ => Ok(()),
        }
    }

    fn changeset(&mut self, changeset: &Changeset<'_>) -> Result<()> {
        if !self.context.output.is_json() {
            return changeset.events.iter().try_for_each(|event| self.event(event));
        }
        let Changeset { thread, version, reason, first_line, events } = changeset;
        for (event, seq) in events.iter().zip(*first_line..) {
            let mut line = serde_json::to_value(event).unwrap_or_default();
            let more =
                json!({"type": "committed", "thread_id": thread, "version": version, "reason": reason, "seq": seq});
            if let (Value::Object(line), Value::Object(more)) = (&mut line, more) {
                line.extend(more);
            }
            self.context.output.record(&line)?;
        }
        Ok(())
    }

    fn record(&self, event: &RunEvent) -> Result<()> {
        let output = &self.context.output;
        match event {
            RunEvent::Draft { draft, .. } => {
                let mut line = serde_json::to_value(draft).unwrap_or_default();
                if let Value::Object(line) = &mut line {
                    line.insert("type".to_owned(), json!("draft"));
                }
                output.record(&line)
            }
            RunEvent::Calling { call, tool, arguments, .. } => {
                output.record(&json!({"type": "calling", "call_id": call, "tool": tool, "arguments": **arguments}))
            }
            RunEvent::Retrying { why, .. } => output.record(&json!({"type": "retrying", "why": why})),
            RunEvent::Notice { kind, why, .. } => output.record(&json!({"type": kind.as_str(), "why": why})),
            _ => Ok(()),
        }
    }

    fn text(&mut self, event: &RunEvent) -> Result<()> {
        match event {
            RunEvent::Draft { draft: Draft::Text { text }, .. } => {
                self.is_drafting = true;
                self.drafted.push_str(text);
                self.context.output.bytes(clean(text).as_bytes())
            }
            RunEvent::Draft { draft: Draft::Void, .. } if self.is_drafting => {
                self.end_draft();
                self.context.output.say("the answer was cut off; it is discarded and requested again");
                Ok(())
            }
            RunEvent::Calling { tool, arguments, .. } => {
                self.end_draft();
                self.line(format_args!(
                    "{} {} {}",
                    paint(DIM, "→"),
                    paint(BOLD, clean(tool)),
                    one_line(&arguments.to_string(), line_width())
                ))
            }
            RunEvent::Notice { kind: NoticeKind::StateError, why, .. } => {
                self.end_draft();
                self.context.output.say(format!("not committed: {}", clean(why)));
                Ok(())
            }
            RunEvent::Retrying { why, .. } | RunEvent::Notice { why, .. } => {
                self.end_draft();
                self.context.output.say(clean(why));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Message(message) if message.role == Role::Assistant => {
                let text = message.plain_text();
                // The committed text is the drafted one, unless drafts were lost.
                let is_shown = self.is_drafting && (!self.has_gaps || self.drafted == text);
                if is_shown || text.is_empty() {
                    self.end_draft();
                    return Ok(());
                }
                self.end_draft();
                self.context.output.text(clean(&text))
            }
            Event::Message(message) if message.role == Role::Tool => {
                message.content.iter().try_for_each(|block| self.result(block))
            }
            Event::ThreadHandoff(_) | Event::ThreadResumed(_) => {
                self.line(format_args!("{} {}", paint(DIM, "⇢"), summary(event)))
            }
            Event::Suspended(_) if self.is_mute_of_waits => {
                self.end_draft();
                Ok(())
            }
            Event::CapabilityDenied(_) | Event::Suspended(_) => {
                self.line(format_args!("{}: {}", paint(WARN, event_type(event)), summary(event)))
            }
            _ => Ok(()),
        }
    }

    fn result(&self, block: &Block) -> Result<()> {
        let Block::ToolResult { content, is_error, .. } = block else { return Ok(()) };
        let text = content.as_str().map_or_else(|| content.to_string(), str::to_owned);
        let mark = if *is_error { paint(BAD, "✗") } else { paint(GOOD, "✓") };
        self.line(format_args!("{mark} {}", one_line(&text, line_width())))
    }

    fn line(&self, text: std::fmt::Arguments<'_>) -> Result<()> {
        self.context.output.text(text)
    }

    fn end_draft(&mut self) {
        self.drafted.clear();
        if std::mem::replace(&mut self.is_drafting, false) {
            _ = self.context.output.bytes(b"\n");
        }
    }
}
