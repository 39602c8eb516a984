//! Whether a thread was imported.

use selvedge_model::op::Op;
use selvedge_model::path::Path;
use selvedge_model::{Event, ThreadId, Timestamp};
use serde::Serialize;

use super::record::{Record, STATE_KEY};
use crate::contract::Logs;
use crate::error::Result;

/// How many lines the first changeset of an import has at most before its record.
const FIRST_LINES: usize = 3;

/// Where an imported thread came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// The form of the file.
    pub format: String,
    /// Its name.
    pub source: String,
    /// When the import began.
    pub at: Timestamp,
    /// Always false: the signature proves only what was imported when.
    pub witnessed: bool,
}

/// Where a thread came from, if it was imported. Told by its first changeset, which nobody but its creator can write; the
/// log is not read further.
pub fn origin(logs: &dyn Logs, thread: &ThreadId) -> Result<Option<Origin>> {
    let key = Path::keys([STATE_KEY]);
    for line in logs.read(thread, 0, FIRST_LINES)? {
        let ops = match &line.event {
            Event::Patch(patch) => patch.ops.as_slice(),
            Event::Checkpoint(_) => break,
            _ => &[],
        };
        let set = ops.iter().find_map(|op| match op {
            Op::Set { path, value } if *path == key => Some(value),
            _ => None,
        });
        if let Some(record) = set.and_then(|value| serde_json::from_value::<Record>(value.clone()).ok()) {
            let Record { format, source, witnessed, .. } = record;
            return Ok(Some(Origin { format, source, at: line.timestamp, witnessed }));
        }
    }
    Ok(None)
}
