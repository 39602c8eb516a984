//! Reading logs: a row for each commit, in the order of its bytes. They are never changed, so a reader that knows where the log ends reads
//! them page by page, without a transaction.

use std::io::{self, BufRead, Read};
use std::sync::Arc;

use selvedge_log::{Line, line};
use selvedge_model::ThreadId;
use selvedge_store::Result;

use crate::core::Core;
use crate::pool::Pool;
use crate::rows;

/// How many rows a page has.
const ROWS: i64 = 200;

/// The bytes of a log between two positions.
pub(crate) struct LogReader {
    pool: Arc<Pool>,
    root: ThreadId,
    thread: ThreadId,
    /// Where the buffer ends in the log.
    at: u64,
    end: u64,
    buffer: Vec<u8>,
    used: usize,
}

impl LogReader {
    /// `from` is where a commit begins.
    pub(crate) fn new(pool: Arc<Pool>, root: ThreadId, thread: ThreadId, from: u64, end: u64) -> Self {
        Self { pool, root, thread, at: from, end, buffer: Vec::new(), used: 0 }
    }

    fn fill(&mut self) -> Result<()> {
        let sql = "SELECT first_byte, bytes FROM log WHERE root = $1 AND thread = $2 AND first_byte >= $3 AND first_byte < $4 \
                   ORDER BY first_byte LIMIT $5";
        let (at, end) = (rows::signed(self.at), rows::signed(self.end));
        let values = (self.root.as_str(), self.thread.as_str());
        let found =
            self.pool.read(|connection| Ok(connection.query(sql, &[&values.0, &values.1, &at, &end, &ROWS])?))?;
        self.buffer.clear();
        self.used = 0;
        for row in found {
            // What follows a gap is not part of the log: a reader sees that it ends here.
            if rows::unsigned(row.get(0)) != self.at {
                break;
            }
            let bytes: &[u8] = row.get(1);
            self.buffer.extend_from_slice(bytes);
            self.at += bytes.len() as u64;
        }
        Ok(())
    }
}

impl BufRead for LogReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.used == self.buffer.len() && self.at < self.end {
            self.fill().map_err(io::Error::other)?;
        }
        Ok(&self.buffer[self.used..])
    }

    fn consume(&mut self, amount: usize) {
        self.used = (self.used + amount).min(self.buffer.len());
    }
}

impl Read for LogReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(into)?;
        self.consume(read);
        Ok(read)
    }
}

impl Core {
    pub(crate) fn lines(&self, thread: &ThreadId, from: u64, limit: usize) -> Result<Vec<Line>> {
        let row = self.existing(thread)?;
        let end = from.saturating_add(limit as u64).min(row.head.lines);
        if from >= end {
            return Ok(Vec::new());
        }
        let sql = "SELECT first_line, bytes FROM log WHERE root = $1 AND thread = $2 AND first_line < $3 AND first_line + lines > $4 \
                   ORDER BY first_line LIMIT $5";
        let values = (row.root.as_str(), thread.as_str(), rows::signed(end));
        let mut found = Vec::new();
        let mut next = from;
        while next < end {
            let after = rows::signed(next);
            let page =
                self.read(|connection| Ok(connection.query(sql, &[&values.0, &values.1, &values.2, &after, &ROWS])?))?;
            if page.is_empty() {
                break;
            }
            for row in page {
                let mut seq = rows::unsigned(row.get(0));
                let bytes: &[u8] = row.get(1);
                for bytes in bytes.split_inclusive(|byte| *byte == b'\n') {
                    if seq >= next && seq < end {
                        found.push(line::decode(bytes.strip_suffix(b"\n").unwrap_or(bytes))?);
                    }
                    seq += 1;
                }
                next = next.max(seq);
            }
        }
        Ok(found)
    }
}
