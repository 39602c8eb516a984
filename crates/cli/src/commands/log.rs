//! `selvedge log`: the events of a thread, as text or exact bytes, now or followed.

use std::io::{self, BufRead, Read};
use std::path::Path;
use std::time::Duration;

use selvedge_log::hash::RunningHash;
use selvedge_log::{Line, line, lines};
use selvedge_model::{Event, ThreadId};
use selvedge_store::Backend;
use selvedge_store_local::Access;

use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::event_summary::{event_type, summary_at_bound};
use crate::output::{BOLD, DIM, Output, paint};
use crate::text::local;

/// How many bytes are buffered before they are shown.
const PAGE_BYTES: usize = 64 * 1024;
/// How long to wait for a commit before checking stdout.
const POLL: Duration = Duration::from_millis(500);
/// How many commits are read from the feed at once.
const FEED_PAGE: usize = 1000;

/// Show the events of a thread
///
/// Lines are numbered from 0. The last line of every changeset is its signed checkpoint. Signatures are not verified here: `selvedge
/// verify` does that.
///
/// JSON: one line of the log per line, {"seq", "timestamp", "thread_id", "event_type", "payload"}. With --raw, the exact bytes that
/// were signed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix
    thread: String,
    /// Keep showing events as they are committed, until interrupted
    #[arg(short, long)]
    follow: bool,
    /// Only lines after number SEQ
    #[arg(long, value_name = "SEQ")]
    after: Option<u64>,
    /// Print the exact bytes of the log
    #[arg(long)]
    raw: bool,
    /// The maximum number of lines
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let thread = store.resolve(&args.thread)?;
    let from = args.after.map_or(0, |after| after.saturating_add(1));
    let reader = Reader { store: &*store, thread: &thread, output: context.output, raw: args.raw };
    // Read before the log: a commit in between is seen now or in the next round, never missed.
    let position = store.position()?;
    let left = args.limit.unwrap_or(u64::MAX);
    let place = LogPosition { line: 0, bytes: 0, hash: RunningHash::new(), from, left };
    if args.follow { reader.follow(place, position) } else { reader.show_from(place).map(drop) }
}

/// How far a log has been shown.
#[derive(Clone, Debug)]
struct LogPosition {
    /// The number of the line that begins at `bytes`.
    line: u64,
    /// How many bytes have been read.
    bytes: u64,
    /// Their hash.
    hash: RunningHash,
    /// The number of the first line to be shown.
    from: u64,
    /// How many lines may still be shown.
    left: u64,
}

struct Reader<'a> {
    store: &'a dyn Backend,
    thread: &'a ThreadId,
    output: &'a Output,
    raw: bool,
}

impl Reader<'_> {
    /// Shows the existing events, then new ones.
    fn follow(&self, mut place: LogPosition, mut position: u64) -> Result<()> {
        loop {
            place = self.show_from(place)?;
            loop {
                if place.left == 0 || self.output.is_closed() {
                    return Ok(());
                }
                if self.has_news(&mut position)? {
                    break;
                }
                self.store.wait(position, POLL)?;
                // A deleted thread gets no more commits.
                self.store.head(self.thread)?;
            }
        }
    }

    /// Whether this thread has commits after `position`, which is advanced.
    fn has_news(&self, position: &mut u64) -> Result<bool> {
        let news = self.store.after(*position, FEED_PAGE)?;
        *position = news.last().map_or(*position, |last| last.position);
        Ok(news.iter().any(|commitment| commitment.thread == *self.thread))
    }

    /// Shows the existing events.
    fn show_from(&self, mut place: LogPosition) -> Result<LogPosition> {
        let failed = |error: io::Error| Failure::io("read the log of", Path::new(self.thread.as_str()), &error);
        let (head, mut reader) = self.store.transcript(self.thread)?;
        io::copy(&mut reader.by_ref().take(place.bytes), &mut io::sink()).map_err(failed)?;
        let mut page = Vec::new();
        let mut line = Vec::new();
        let mut changeset = Vec::new();
        while place.left > 0 && next_line(&mut reader, &mut line).map_err(failed)? {
            if place.line >= place.from {
                self.add(&mut page, &mut changeset, &line, place.line)?;
                place.left -= 1;
            }
            place.line += 1;
            place.bytes += line.len() as u64;
            place.hash.update(&line);
            if page.len() > PAGE_BYTES {
                self.flush(&mut page)?;
                if self.output.is_closed() {
                    return Ok(place);
                }
            }
        }
        page.extend_from_slice(readable(&changeset).as_bytes());
        self.flush(&mut page)?;
        if place.left > 0 && (place.bytes, place.hash.digest()) != (head.bytes, head.hash) {
            let message = format!("the log of `{}` is not what was signed", self.thread);
            let hint = format!("`selvedge verify {}` shows which versions are valid", self.thread);
            return Err(Failure::new(Exit::Integrity, "log_damaged", message).hint(hint));
        }
        Ok(place)
    }

    /// Adds one line of the log to the page, as it is to be shown. For people, the lines of a changeset are shown together: what one of
    /// them means may depend on another.
    fn add(&self, page: &mut Vec<u8>, changeset: &mut Vec<Line>, bytes: &[u8], number: u64) -> Result<()> {
        if self.raw {
            page.extend_from_slice(bytes);
            return Ok(());
        }
        let decoded = line::decode(bytes.strip_suffix(b"\n").unwrap_or(bytes)).map_err(|error| {
            let mut failure = Failure::of(&error);
            failure.message = format!("line {} of the log of `{}`: {}", number + 1, self.thread, failure.message);
            failure.hint(format!("`selvedge verify {}` shows which versions are valid", self.thread))
        })?;
        if self.output.is_json() {
            // A line of the log is the documented JSON.
            page.extend_from_slice(bytes);
            return Ok(());
        }
        let is_end = matches!(decoded.event, Event::Checkpoint(_));
        changeset.push(decoded);
        if is_end {
            page.extend_from_slice(readable(changeset).as_bytes());
            changeset.clear();
        }
        Ok(())
    }

    /// Shows a page and starts the next.
    fn flush(&self, page: &mut Vec<u8>) -> Result<()> {
        if page.is_empty() {
            return Ok(());
        }
        match std::str::from_utf8(page) {
            Ok(text) if !self.raw && !self.output.is_json() => self.output.text(text.trim_end_matches('\n'))?,
            _ => self.output.bytes(page)?,
        }
        page.clear();
        Ok(())
    }
}

fn next_line(reader: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    lines::next_line(&mut { reader }, line)
}

/// The lines of a changeset, or of a part of one.
fn readable(lines: &[Line]) -> String {
    let is_whole = lines.iter().any(|line| matches!(line.event, Event::Checkpoint(_)));
    let has_answer = lines.iter().any(|line| matches!(&line.event, Event::Usage(used) if used.estimated));
    let is_unknown = |line: &Line| line.event.posting().is_some_and(|(_, record)| record.unknown);
    // An answer without usage is committed with what was settled for it, after what was settled for earlier attempts.
    let answered = lines.iter().rposition(is_unknown).filter(|_| has_answer);
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        let at_bound = if answered == Some(index) {
            "usage not reported"
        } else if is_whole {
            "answer lost"
        } else {
            "cost unknown"
        };
        let name = format!("{:<16}", event_type(&line.event));
        let summary = summary_at_bound(&line.event, at_bound);
        let (name, summary) = match &line.event {
            Event::Checkpoint(_) => (paint(DIM, name), paint(DIM, summary)),
            _ => (paint(BOLD, name), summary),
        };
        text.push_str(&format!("{:>5}  {}  {name}  {summary}\n", line.seq, paint(DIM, local(line.timestamp))));
    }
    text
}
