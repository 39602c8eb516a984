//! Whether a thread was imported.

use selvedge_log::Line;
use selvedge_model::op::Op;
use selvedge_model::path::Path;
use selvedge_model::{Event, ThreadId, Timestamp};
use selvedge_store::{Logs, Result};
use serde::Serialize;

use super::record::{Record, STATE_KEY};

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
    Ok(first_record(logs, thread)?.map(Origin::of))
}

/// The same of a log that is read elsewhere, by its first lines.
pub fn origin_in(lines: &[Line]) -> Option<Origin> {
    record_in(lines).map(Origin::of)
}

impl Origin {
    fn of((record, at): (Record, Timestamp)) -> Self {
        let Record { format, source, witnessed, .. } = record;
        Self { format, source, at, witnessed }
    }
}

/// The record with which a thread's import began, and when that was.
pub(super) fn first_record(logs: &dyn Logs, thread: &ThreadId) -> Result<Option<(Record, Timestamp)>> {
    Ok(record_in(&logs.read(thread, 0, FIRST_LINES)?))
}

fn record_in(lines: &[Line]) -> Option<(Record, Timestamp)> {
    let key = Path::keys([STATE_KEY]);
    let first = lines.iter().take_while(|line| !matches!(line.event, Event::Checkpoint(_)));
    first.take(FIRST_LINES).find_map(|line| {
        let Event::Patch(patch) = &line.event else { return None };
        let set = patch.ops.iter().find_map(|op| match op {
            Op::Set { path, value } if *path == key => Some(value),
            _ => None,
        });
        let record = serde_json::from_value::<Record>(set?.clone()).ok()?;
        Some((record, line.timestamp))
    })
}
