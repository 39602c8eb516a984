//! The blobs that a log names: the only definition of which blobs must be stored beside it.
//!
//! A log names a blob in
//!
//! - the image blocks of its messages, and shortened blocks, whose `blob` holds the full content;
//! - the outcome of a tool whose result was too long for a line;
//! - the record of an import, `__import` in its state: the lists `blobs` and `head_blobs`, wherever a patch or a snapshot writes
//!   them. A blob that was named once stays named, even if a later patch overwrites the list.
//!
//! Every named blob must exist, unless a `blob_erased` event records its erasure. Nothing else in a state counts, even if it looks like a
//! blob's name.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::digest::Digest;
use crate::event::Event;
use crate::message::Block;
use crate::op::Op;
use crate::path::Segment;

/// The key of the state that holds the record of an import.
const IMPORT: &str = "__import";
/// The lists of that record that name blobs.
const LISTS: [&str; 2] = ["blobs", "head_blobs"];

impl Event {
    /// The blobs that this event names.
    pub fn blobs(&self) -> Vec<Digest> {
        let mut found = Vec::new();
        match self {
            Self::Message(message) => found.extend(message.content.iter().filter_map(Block::blob)),
            Self::ToolOutcome(outcome) => found.extend(outcome.blob),
            Self::Patch(patch) => patch.ops.iter().for_each(|op| of_op(op, &mut found)),
            Self::Snapshot(snapshot) => of_state(&snapshot.state, &mut found),
            _ => {}
        }
        found
    }
}

/// The blobs in what an op writes to the record of an import.
fn of_op(op: &Op, found: &mut Vec<Digest>) {
    let (path, value) = match op {
        Op::Set { path, value } | Op::Append { path, value } | Op::Insert { path, value, .. } => (path, value),
        Op::MergeObject { path, value } => match path.segments() {
            [] => {
                if let Some(record) = value.get(IMPORT) {
                    of_record(record, found);
                }
                return;
            }
            [Segment::Key(key)] if key == IMPORT => {
                for list in LISTS.iter().filter_map(|list| value.get(*list)) {
                    of_list(list, found);
                }
                return;
            }
            // The entries of one element of a list.
            [Segment::Key(key), Segment::Key(list), ..] if key == IMPORT && LISTS.contains(&list.as_str()) => {
                return found.extend(value.get("blob").and_then(name));
            }
            _ => return,
        },
        Op::Delete { .. } | Op::Increment { .. } | Op::Decrement { .. } | Op::Remove { .. } => return,
    };
    match path.segments() {
        [] => of_state(value, found),
        [Segment::Key(key)] if key == IMPORT => of_record(value, found),
        [Segment::Key(key), Segment::Key(list), ..] if key == IMPORT && LISTS.contains(&list.as_str()) => {
            of_list(value, found);
        }
        _ => {}
    }
}

fn of_state(state: &Value, found: &mut Vec<Digest>) {
    if let Some(record) = state.get(IMPORT) {
        of_record(record, found);
    }
}

fn of_record(record: &Value, found: &mut Vec<Digest>) {
    for list in LISTS.iter().filter_map(|list| record.get(*list)) {
        of_list(list, found);
    }
}

/// A list of pieces, one piece, or a piece's blob name.
fn of_list(value: &Value, found: &mut Vec<Digest>) {
    match value {
        Value::Array(pieces) => pieces.iter().for_each(|piece| of_list(piece, found)),
        Value::Object(piece) => found.extend(piece.get("blob").and_then(name)),
        other => found.extend(name(other)),
    }
}

fn name(value: &Value) -> Option<Digest> {
    value.as_str()?.parse().ok()
}

/// The blobs that a log names and those that it records as erased, collected event by event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedBlobs {
    named: BTreeMap<Digest, u64>,
    erased: BTreeSet<Digest>,
}

impl NamedBlobs {
    /// Adds an event of the changeset `version`.
    pub fn take(&mut self, version: u64, event: &Event) {
        for blob in event.blobs() {
            self.named.entry(blob).or_insert(version);
        }
        if let Event::BlobErased(erasure) = event {
            self.erased.insert(erasure.blob);
        }
    }

    /// The blobs that must exist, and the version that first names each.
    pub fn must_be_there(&self) -> impl Iterator<Item = (Digest, u64)> {
        self.named.iter().filter(|(blob, _)| !self.erased.contains(*blob)).map(|(blob, version)| (*blob, *version))
    }

    /// The blobs that were erased.
    pub fn erased(&self) -> &BTreeSet<Digest> {
        &self.erased
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::event::{BlobErased, Snapshot};
    use crate::id::CallId;
    use crate::message::{Message, Role};
    use crate::patch::Patch;

    fn digest(byte: u8) -> Digest {
        Digest([byte; 32])
    }

    fn patch(ops: Value) -> Event {
        Event::Patch(serde_json::from_value::<Patch>(json!({ "ops": ops })).unwrap())
    }

    #[test]
    fn messages_name_their_images() {
        let image = Block::Image { blob: digest(1), media_type: "image/png".to_owned() };
        let message = Message { content: vec![image], ..Message::text(Role::User, "") };
        assert_eq!(Event::Message(message).blobs(), [digest(1)]);
    }

    #[test]
    fn messages_name_the_full_content_of_shortened_blocks() {
        let call = CallId::new("c").unwrap();
        let blob = |byte| Some(digest(byte));
        let content = vec![
            Block::Text { text: String::new(), blob: blob(1) },
            Block::ToolCall { id: call.clone(), name: "t".to_owned(), arguments: Value::Null, blob: blob(2) },
            Block::ToolResult { call_id: call, content: Value::Null, is_error: false, blob: blob(3) },
            Block::text(digest(4).to_string()),
        ];
        let message = Message { content, ..Message::text(Role::User, "") };
        assert_eq!(Event::Message(message).blobs(), [digest(1), digest(2), digest(3)]);
    }

    #[test]
    fn an_import_names_its_blobs_however_its_record_is_written() {
        let piece = |byte| json!({ "blob": digest(byte), "bytes": 1 });
        let record = json!({ "blobs": [piece(1), piece(2)], "head_blobs": [piece(3)] });
        let all = [digest(1), digest(2), digest(3)];
        for ops in [
            json!([{ "op": "set", "path": ["__import"], "value": record }]),
            json!([{ "op": "set", "path": [], "value": { "__import": record } }]),
            json!([{ "op": "merge_object", "path": [], "value": { "__import": record } }]),
            json!([{ "op": "merge_object", "path": ["__import"], "value": record }]),
            json!([
                { "op": "append", "path": ["__import", "blobs"], "value": piece(1) },
                { "op": "insert", "path": ["__import", "blobs"], "index": 1, "value": piece(2) },
                { "op": "set", "path": ["__import", "head_blobs", 0, "blob"], "value": digest(3) },
            ]),
        ] {
            assert_eq!(patch(ops.clone()).blobs(), all, "{ops}");
        }
        assert_eq!(Event::Snapshot(Snapshot { state: json!({ "__import": record }) }).blobs(), all);
    }

    #[test]
    fn values_that_only_look_like_a_blob_name_do_not_count() {
        let looks = json!({ "blob": digest(1), "bytes": 1 });
        for ops in [
            json!([{ "op": "set", "path": ["note"], "value": { "blobs": [looks] } }]),
            json!([{ "op": "set", "path": ["__import", "manifest"], "value": { "blobs": [looks] } }]),
            json!([{ "op": "merge_object", "path": ["__import"], "value": { "manifest": looks } }]),
            json!([{ "op": "remove", "path": ["__import", "blobs"], "value": looks }]),
            json!([{ "op": "append", "path": ["__import", "blobs"], "value": { "blob": "short" } }]),
        ] {
            assert_eq!(patch(ops.clone()).blobs(), [], "{ops}");
        }
    }

    #[test]
    fn an_erased_blob_need_not_exist() {
        let mut named = NamedBlobs::default();
        let piece =
            json!([{ "op": "append", "path": ["__import", "blobs"], "value": { "blob": digest(1), "bytes": 1 } }]);
        named.take(3, &patch(piece.clone()));
        named.take(4, &patch(piece));
        assert_eq!(named.must_be_there().collect::<Vec<_>>(), [(digest(1), 3)]);
        named.take(5, &Event::BlobErased(BlobErased { blob: digest(1), reason: "asked to".to_owned() }));
        assert_eq!((named.must_be_there().count(), named.erased().len()), (0, 1));
    }
}
