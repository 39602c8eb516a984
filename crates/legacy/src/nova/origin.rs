//! Whether a thread was imported.

use selvedge_log::Line;
use selvedge_model::op::Op;
use selvedge_model::path::Path;
use selvedge_model::{Event, ThreadId, Timestamp};
use selvedge_store::{Logs, Result};
use serde::Serialize;

use super::record::{ImportRecord, STATE_KEY};

/// The maximum number of lines before the record in the first changeset of an import.
const FIRST_LINES: usize = 3;

/// The origin of an imported thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// The format of the file.
    pub format: String,
    /// Its name.
    pub source: String,
    /// When the import began.
    pub at: Timestamp,
    /// Always false: the signature proves only what was imported, and when.
    pub witnessed: bool,
}

/// The origin of a thread, if it was imported. It is in the first changeset, which only the creator can write; the log is not read further.
pub fn origin(logs: &dyn Logs, thread: &ThreadId) -> Result<Option<Origin>> {
    Ok(first_record(logs, thread)?.map(Origin::of))
}

/// The same from the first lines of a log.
pub fn origin_in(lines: &[Line]) -> Option<Origin> {
    record_in(lines).map(Origin::of)
}

impl Origin {
    fn of((record, at): (ImportRecord, Timestamp)) -> Self {
        let ImportRecord { format, source, witnessed, .. } = record;
        Self { format, source, at, witnessed }
    }
}

/// The record with which a thread's import began, and its time.
pub(super) fn first_record(logs: &dyn Logs, thread: &ThreadId) -> Result<Option<(ImportRecord, Timestamp)>> {
    Ok(record_in(&logs.read(thread, 0, FIRST_LINES)?))
}

fn record_in(lines: &[Line]) -> Option<(ImportRecord, Timestamp)> {
    let key = Path::keys([STATE_KEY]);
    let first = lines.iter().take_while(|line| !matches!(line.event, Event::Checkpoint(_)));
    first.take(FIRST_LINES).find_map(|line| {
        let Event::Patch(patch) = &line.event else { return None };
        let set = patch.ops.iter().find_map(|op| match op {
            Op::Set { path, value } if *path == key => Some(value),
            _ => None,
        });
        let record = serde_json::from_value::<ImportRecord>(set?.clone()).ok()?;
        Some((record, line.timestamp))
    })
}
