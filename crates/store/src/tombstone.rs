//! The postings of a deleted log, for its tombstone.

use std::io::{self, BufRead};

use selvedge_log::{line, lines};
use selvedge_model::account::replay::DeletedPostings;

/// The postings of a log, for its tombstone. Unreadable lines are skipped, so that a damaged log can be deleted.
pub fn postings_of(mut log: impl BufRead) -> io::Result<Vec<DeletedPostings>> {
    let mut bytes = Vec::new();
    let mut found = Vec::new();
    while lines::next_line(&mut log, &mut bytes)? {
        if let Ok(line) = line::decode(bytes.strip_suffix(b"\n").unwrap_or(&bytes))
            && let Some((_, record)) = line.event.posting()
        {
            found.push(record.clone());
        }
    }
    Ok(DeletedPostings::of(&found))
}
