//! Exports a thread as a file of the older format.
//!
//! Imported events are written as they were, normalised. Ours are written as closely as the format allows: it has no field for
//! results of tools, system messages, thoughts and pictures, and what is left out is counted.
//!
//! Lines are in the order of the log. In an imported thread, those that were witnessed here are marked: `"witnessedIn"` is the id of the
//! log that has them, signed when they happened. So lines of a file that continued elsewhere and was imported again can be distinguished
//! from ours.

use std::collections::HashMap;
use std::io::{self, Write};

use selvedge_log::scan::ScannedChangeset;
use selvedge_log::{Line, Trust};
use selvedge_model::limits::Cost;
use selvedge_model::message::{Block, Visibility};
use selvedge_model::run::RunRecorded;
use selvedge_model::{Event, Message, Role, RunId, RunStatus, ThreadId};
use selvedge_store::load::each_changeset;
use selvedge_store::{Error, Store, Summary};
use serde::Serialize;
use serde_json::{Map, Value};

use super::error::NovaError;
use super::mapping::FileEvents;
use super::record::{self, ImportRecord};
use crate::nova_file::{self, Manifest, Metrics, write_event, write_manifest};

/// The result of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Exported {
    /// The version of the thread.
    pub version: u64,
    /// Lines after the manifest, in the order of the log.
    pub events: u64,
    /// Those of them that were imported.
    pub imported: u64,
    /// Parts of messages for which the format has no field.
    pub left_out: u64,
}

/// Writes a thread as a file of the older format. Its log is verified, and its messages are not kept in memory.
pub fn export(store: &dyn Store, trust: &Trust, thread: &ThreadId, out: &mut dyn Write) -> Result<Exported, NovaError> {
    let summary = store.get(thread)?;
    let Some((record, version)) = record::load(store, trust, thread)? else {
        return Err(Error::NoThread(thread.to_string()).into());
    };
    let witnessed_in = record.is_some().then(|| store.head(thread)).transpose()?.map(|head| head.log_id.to_string());
    let written = Exported { version, ..Exported::default() };
    let mut writer = Writer { out, written, witnessed_in, cached: (0, 0), written_costs: HashMap::new(), failed: None };
    writer.try_write(|out| write_manifest(out, &manifest(&summary, record.as_ref(), version)));
    each_changeset(store, thread, trust, |entry| {
        if entry.head.version <= version {
            writer.changeset(&entry);
        }
    })?;
    writer.try_write(|out| out.flush());
    match writer.failed {
        Some(source) => Err(NovaError::Io { what: "write the export of", name: thread.to_string(), source }),
        None => Ok(writer.written),
    }
}

fn manifest(summary: &Summary, record: Option<&ImportRecord>, version: u64) -> Manifest {
    let ours = &summary.manifest;
    let imported = record.and_then(ImportRecord::manifest);
    let mut manifest = imported.unwrap_or_default();
    if manifest.id().is_none() {
        manifest.set_id(record.map_or(ours.thread_id.as_str(), |record| record.original_id.as_str()));
    }
    if manifest.agent_id().is_none() {
        manifest.set_agent_id(ours.agent_id.as_str());
    }
    if let Some(title) = ours.title.as_deref().filter(|title| manifest.title() != Some(title)) {
        manifest.set_title(title);
    }
    if let Some(session) = ours.session_id.as_deref().filter(|session| manifest.session_id() != Some(session)) {
        manifest.set_session_id(session);
    }
    if let Some(task) = ours.task_id.as_ref().filter(|task| manifest.task_id() != Some(task.as_str())) {
        manifest.set_task_id(task.as_str());
    }
    if !manifest.fields().contains_key("createdAt") {
        manifest.set_created_at(&ours.created_at.to_string());
    }
    let is_as_imported = record.is_some_and(|record| record.log_version == Some(version));
    if !is_as_imported || !manifest.fields().contains_key("updatedAt") {
        manifest.set_updated_at(&ours.updated_at.to_string());
    }
    manifest
}

struct Writer<'a> {
    out: &'a mut dyn Write,
    written: Exported,
    /// The log, if some of it was imported, so that the other lines must be marked.
    witnessed_in: Option<String>,
    /// Tokens read from and written to the provider's cache since the last result.
    cached: (u64, u64),
    /// The usage that was written for runs that stopped and may continue: only the additional usage is written next.
    written_costs: HashMap<RunId, Cost>,
    failed: Option<io::Error>,
}

impl Writer<'_> {
    fn try_write(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        if self.failed.is_none() {
            self.failed = write(self.out).err();
        }
    }

    fn event(&mut self, event: &nova_file::Event) {
        self.try_write(|out| write_event(out, event));
        self.written.events += 1;
    }

    /// An event that was witnessed here.
    fn own(&mut self, event: nova_file::Event) {
        match self.witnessed_in.clone() {
            Some(log) => self.event(&event.witnessed_in(log)),
            None => self.event(&event),
        }
    }

    /// The imported events of a changeset, in the order of the file, then ours.
    fn changeset(&mut self, entry: &ScannedChangeset) {
        let mut theirs = FileEvents::default();
        for line in &entry.lines {
            if let Event::StateAction(fields) = &line.event {
                theirs.action(fields);
            }
        }
        let mut ours = Vec::new();
        for line in &entry.lines {
            match &line.event {
                Event::Message(message) if theirs.message(message) => {}
                Event::Message(_) | Event::Usage(_) | Event::RunFinished(_) => ours.push(line),
                _ => {}
            }
        }
        for event in theirs.in_order() {
            self.event(&event);
            self.written.imported += 1;
        }
        for line in ours {
            self.line(line);
        }
    }

    fn line(&mut self, line: &Line) {
        let at = line.timestamp.to_string();
        match &line.event {
            Event::Message(message) => self.message(message, &at),
            Event::Usage(used) => {
                let (read, written) = &mut self.cached;
                *read = read.saturating_add(used.cache_read_tokens);
                *written = written.saturating_add(used.cache_write_tokens);
            }
            // A waiting run has its usage, and may never continue.
            Event::RunFinished(run) if run.meta.status != RunStatus::Running => {
                let metrics = self.metrics(run);
                self.own(nova_file::Event::result(&metrics, at));
            }
            _ => {}
        }
    }

    /// The usage of a run since its last result.
    fn metrics(&mut self, run: &RunRecorded) -> Metrics {
        let cost = run.meta.total_cost();
        let before = self.written_costs.insert(run.run_id.clone(), cost.clone()).unwrap_or_default();
        let (cache_read_tokens, cache_write_tokens) = std::mem::take(&mut self.cached);
        let spend = Cost { spend: cost.spend.saturating_sub(before.spend), ..Cost::default() };
        Metrics {
            cost: serde_json::to_value(&spend).ok().and_then(|cost| cost.get("spend")?.as_f64()),
            duration_ms: cost.duration_ms.saturating_sub(before.duration_ms),
            turns: cost.turns.saturating_sub(before.turns),
            input_tokens: cost.input_tokens.saturating_sub(before.input_tokens),
            output_tokens: cost.output_tokens.saturating_sub(before.output_tokens),
            cache_read_tokens,
            cache_write_tokens,
        }
    }

    fn message(&mut self, message: &Message, at: &str) {
        let is_internal = message.visibility == Visibility::Internal;
        let is_text = |block: &Block| matches!(block, Block::Text { .. });
        let is_call = |block: &Block| matches!(block, Block::ToolCall { .. });
        let has_place = match message.role {
            Role::User => !is_internal,
            Role::Assistant => true,
            Role::System | Role::Tool => false,
        };
        let written =
            |block: &&Block| has_place && (is_text(block) || message.role == Role::Assistant && is_call(block));
        let kept = message.content.iter().filter(written).count();
        self.written.left_out += (message.content.len() - kept) as u64;
        if !has_place {
            return;
        }
        if message.content.iter().any(is_text) {
            let text = message.plain_text();
            let beside_calls = message.role == Role::Assistant && (is_internal || message.content.iter().any(is_call));
            self.own(if beside_calls {
                nova_file::Event::assistant_text(text, at)
            } else {
                nova_file::Event::message(message.role, text, at)
            });
        }
        for block in message.content.iter().filter(|_| message.role == Role::Assistant) {
            if let Block::ToolCall { name, arguments, .. } = block {
                self.own(nova_file::Event::tool_use(name, input(arguments), at));
            }
        }
    }
}

/// The arguments of a call, as an object.
fn input(arguments: &Value) -> Map<String, Value> {
    match arguments {
        Value::Object(fields) => fields.clone(),
        Value::Null => Map::new(),
        other => Map::from_iter([("value".to_owned(), other.clone())]),
    }
}
