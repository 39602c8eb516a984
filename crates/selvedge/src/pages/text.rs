//! The whole text of a part: its metadata in a block of YAML, what it says, and its last line.

use std::fmt::Write as _;

use selvedge_model::event::ThreadKind;
use selvedge_model::{Manifest, Status};
use selvedge_store::pages::{ENTRY_TYPE, FOLDER, PageId};
use serde_json::{Value, json};

use super::part::{Part, moment};
use crate::markdown::{name, words};

/// The text of a part; a closed one is followed by another.
pub(super) fn text(id: &PageId, part: &Part, is_closed: bool) -> Option<String> {
    let (manifest, head) = (part.manifest.as_ref()?, part.head.as_ref()?);
    let mut text = metadata(id, part, manifest, is_closed);
    for (field, value) in [
        ("part", json!(part.number)),
        ("first_version", json!(part.first_version)),
        ("log_version", json!(head.version)),
        ("log_hash", json!(head.hash)),
        ("previous_part", json!((part.number > 1).then(|| id.part(part.number - 1).as_str().to_owned()))),
        ("previous_hash", json!(part.before)),
    ] {
        add(&mut text, field, &value);
    }
    text.push_str("```\n\n");
    let title = manifest.directive.as_ref().map_or(manifest.thread_id.as_str(), |directive| directive.as_str());
    let of = if part.number > 1 || is_closed { format!(", part {}", part.number) } else { String::new() };
    _ = write!(text, "# {}{of}\n\n{}\n---\n\n", words(title), part.text);
    if is_closed {
        _ = writeln!(text, "*Continued in part {}*", part.number + 1);
    } else {
        text.push_str(&last_line(manifest));
    }
    Some(text)
}

/// The fields of an entry of knowledge, and what is known of the thread.
fn metadata(id: &PageId, part: &Part, manifest: &Manifest, is_closed: bool) -> String {
    let own = if is_closed { id.part(part.number) } else { id.clone() };
    let (category, stem) = own.as_str().rsplit_once('/').unwrap_or((FOLDER, own.as_str()));
    let title = manifest.title.as_deref().unwrap_or(manifest.thread_id.as_str());
    let title = if is_closed { format!("{title}, part {}", part.number) } else { title.to_owned() };
    let mut text = String::from("```yaml\n");
    for (field, value) in [("name", json!(stem)), ("title", json!(title))] {
        add(&mut text, field, &value);
    }
    _ = writeln!(text, "entry_type: {ENTRY_TYPE}");
    for (field, value) in [
        ("category", json!(category)),
        ("version", json!("1.0.0")),
        ("author", json!("selvedge")),
        ("created_at", json!(moment(manifest.created_at))),
        ("thread_id", json!(manifest.thread_id)),
        ("directive", json!(manifest.directive)),
        ("agent", json!(manifest.agent_id)),
        ("kind", json!((manifest.kind != ThreadKind::Agent).then_some(manifest.kind))),
    ] {
        add(&mut text, field, &value);
    }
    // What changes stands on the page alone: an earlier part is never written again.
    if !is_closed {
        changing(&mut text, part, manifest);
    }
    text
}

fn changing(text: &mut String, part: &Part, manifest: &Manifest) {
    let cost = &manifest.cost;
    let status = json!(manifest.status);
    let folder = manifest.thread_id.folder();
    let capabilities = part.is_run.then(|| format!(".ai/agent/threads/{folder}/capabilities.md"));
    for (field, value) in [
        ("status", status.clone()),
        ("model", json!(manifest.model)),
        ("updated_at", json!(moment(manifest.updated_at))),
        ("duration", json!(seconds(cost.duration_ms))),
        ("elapsed_seconds", json!(cost.duration_ms / 1000)),
        ("turns", json!(cost.turns)),
        ("input_tokens", json!(cost.input_tokens)),
        ("output_tokens", json!(cost.output_tokens)),
        ("spend", cost.spend.to_json()),
        ("tags", json!(["thread", status])),
        ("permissions", json!(manifest.capabilities.clone().unwrap_or_default())),
        ("capabilities_ref", json!(capabilities)),
        ("parent_id", json!(manifest.parent_id)),
        ("continuation_of", json!(manifest.continuation_of)),
        ("continuation_thread_id", json!(manifest.continuation_thread_id)),
    ] {
        add(text, field, &value);
    }
}

/// Adds a field, unless it has no value. JSON is YAML, whatever it has in it.
fn add(text: &mut String, field: &str, value: &Value) {
    if !value.is_null() {
        _ = writeln!(text, "{field}: {value}");
    }
}

/// What the thread came to so far.
fn last_line(manifest: &Manifest) -> String {
    let cost = &manifest.cost;
    let status = json!(manifest.status);
    let status = words(status.as_str().unwrap_or_default());
    let turns = if cost.turns == 1 { "turn" } else { "turns" };
    let next = match (&manifest.continuation_thread_id, manifest.status) {
        (Some(next), Status::Continued) => format!(" by {}", name(next.as_str())),
        _ => String::new(),
    };
    format!(
        "**{status}**{next} · {} {turns} · {} tokens in, {} out · ${} · {}\n",
        cost.turns,
        cost.input_tokens,
        cost.output_tokens,
        cost.spend,
        seconds(cost.duration_ms)
    )
}

fn seconds(milliseconds: u64) -> String {
    format!("{}.{}s", milliseconds / 1000, milliseconds % 1000 / 100)
}
