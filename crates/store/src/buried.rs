//! What goes with the log of a thread that is deleted, so that its tombstone can say so.

use std::io::{self, BufRead};

use selvedge_log::{line, lines};
use selvedge_model::account::replay::Buried;

/// The postings that a log has, for its tombstone. A line that can't be read has none: what is damaged can be deleted.
pub fn postings_of(log: impl BufRead) -> io::Result<Vec<Buried>> {
    let mut log = log;
    let mut bytes = Vec::new();
    let mut found = Vec::new();
    while lines::next_line(&mut log, &mut bytes)? {
        if let Ok(line) = line::decode(bytes.strip_suffix(b"\n").unwrap_or(&bytes))
            && let Some((_, record)) = line.event.posting()
        {
            found.push(record.clone());
        }
    }
    Ok(Buried::of(&found))
}
