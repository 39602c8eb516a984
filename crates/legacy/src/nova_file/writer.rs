//! Writes the older form.
//!
//! A file is *normalised* when it is what this writer writes of it: the manifest, with `id`, `agentId`, `createdAt`
//! and `updatedAt` and without `channel`, then every event that could be separated, in order, one line each, each line ended by `\n`. The fields of a line
//! are in the order of the form's own documentation, unknown ones after them by name; there is no white space between
//! tokens, text is escaped only where JSON requires it, and numbers have the shortest form that reads back the same. A message
//! without `type` stays without. Skipped content is left out.

use std::io::{self, Write};

use selvedge_model::event::Fields;
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::event::Event;
use super::manifest::Manifest;

const MANIFEST: [&str; 7] = ["id", "agentId", "sessionId", "taskId", "title", "createdAt", "updatedAt"];
const EVENT: [&str; 13] = [
    "type",
    "role",
    "name",
    "input",
    "text",
    "cost",
    "durationMs",
    "turns",
    "inputTokens",
    "outputTokens",
    "cacheReadTokens",
    "cacheWriteTokens",
    "timestamp",
];

/// Writes the manifest's line.
pub fn write_manifest(out: &mut (impl Write + ?Sized), manifest: &Manifest) -> io::Result<()> {
    write_line(out, &Ordered { fields: manifest.fields(), order: &MANIFEST })
}

/// Writes an event's line.
pub fn write_event(out: &mut (impl Write + ?Sized), event: &Event) -> io::Result<()> {
    write_line(out, &Ordered { fields: event.fields(), order: &EVENT })
}

fn write_line(out: &mut (impl Write + ?Sized), line: &Ordered<'_>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

/// Fields with the known ones first.
struct Ordered<'a> {
    fields: &'a Fields,
    order: &'a [&'a str],
}

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.fields.len()))?;
        for name in self.order {
            if let Some(value) = self.fields.get(*name) {
                map.serialize_entry(name, value)?;
            }
        }
        for (name, value) in self.fields.iter().filter(|(name, _)| !self.order.contains(&name.as_str())) {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}
