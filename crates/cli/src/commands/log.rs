//! `selvedge log`: the events of a thread, readable or to the byte, now or as they come.

use std::io;
use std::path::Path;
use std::time::Duration;

use selvedge_log::{Line, lines};
use selvedge_model::{Event, ThreadId};
use selvedge_store::{Feed, Logs, Registry};
use selvedge_store_local::{Access, LocalStore};

use crate::context::Context;
use crate::error::{Failure, Result};
use crate::gist::{event_type, gist};
use crate::output::{BOLD, DIM, Output, paint};
use crate::text::local;

/// How many lines are read and shown at once.
const PAGE: u64 = 500;
/// How long to wait for news before looking whether anybody still listens.
const LISTEN: Duration = Duration::from_millis(500);
/// How many commits of other threads are passed over at once.
const FEED_PAGE: usize = 1000;

/// Show the events of a thread
///
/// Lines are numbered from 0. The last line of every changeset is its signed checkpoint. What is shown has not been
/// verified: `selvedge verify` does that.
///
/// JSON: one line of the log per line, {"seq", "timestamp", "thread_id", "event_type", "payload"}. With --raw the exact bytes
/// that were signed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Any unique beginning of the thread's id or its hex
    thread: String,
    /// Go on with events as they are committed, until interrupted
    #[arg(short, long)]
    follow: bool,
    /// Only lines behind number SEQ
    #[arg(long, value_name = "SEQ")]
    after: Option<u64>,
    /// The exact bytes of the log
    #[arg(long)]
    raw: bool,
    /// At most this many lines
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let thread = store.resolve(&args.thread)?;
    let next = args.after.map_or(0, |after| after.saturating_add(1));
    let reader = Reader { store: &store, thread: &thread, output: context.output, raw: args.raw };
    // Asked before reading: what is committed in between is read now and again looked for, never missed.
    let position = store.position()?;
    let place = Place { next, bytes: 0, left: args.limit.unwrap_or(u64::MAX) };
    if args.follow { reader.follow(place, position) } else { reader.show_from(place).map(drop) }
}

/// How far a log has been shown.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The number of the next line.
    next: u64,
    /// Where it begins, as far as the bytes before it have been read.
    bytes: u64,
    /// How many lines may still be shown.
    left: u64,
}

struct Reader<'a> {
    store: &'a LocalStore,
    thread: &'a ThreadId,
    output: &'a Output,
    raw: bool,
}

impl Reader<'_> {
    /// Shows what is there, then what comes.
    fn follow(&self, mut place: Place, mut position: u64) -> Result<()> {
        loop {
            place = self.show_from(place)?;
            while !self.has_news(&mut position)? {
                if place.left == 0 || self.output.is_closed() {
                    return Ok(());
                }
                self.store.wait(position, LISTEN)?;
            }
        }
    }

    /// Whether this thread was committed to behind `position`, which moves on.
    fn has_news(&self, position: &mut u64) -> Result<bool> {
        let news = self.store.after(*position, FEED_PAGE)?;
        *position = news.last().map_or(*position, |last| last.position);
        Ok(news.iter().any(|commitment| commitment.thread == *self.thread))
    }

    /// Shows what is there.
    fn show_from(&self, place: Place) -> Result<Place> {
        if self.raw { self.show_bytes(place) } else { self.show_lines(place) }
    }

    fn show_lines(&self, mut place: Place) -> Result<Place> {
        while place.left > 0 && !self.output.is_closed() {
            let lines = self.store.read(self.thread, place.next, place.left.min(PAGE) as usize)?;
            let Some(last) = lines.last() else { break };
            place = Place { next: last.seq + 1, left: place.left.saturating_sub(lines.len() as u64), ..place };
            self.show(&lines)?;
        }
        Ok(place)
    }

    fn show(&self, lines: &[Line]) -> Result<()> {
        if self.output.is_json() {
            return lines.iter().try_for_each(|line| self.output.record(line));
        }
        self.output.text(lines.iter().map(readable).collect::<Vec<_>>().join("\n"))
    }

    fn show_bytes(&self, mut place: Place) -> Result<Place> {
        let (_, mut reader) = self.store.transcript(self.thread)?;
        let failed = |error: io::Error| Failure::io("read the log of", Path::new(self.thread.as_str()), &error);
        io::copy(&mut io::Read::take(&mut reader, place.bytes), &mut io::sink()).map_err(failed)?;
        let mut at = if place.bytes == 0 { 0 } else { place.next };
        let mut line = Vec::new();
        while place.left > 0 && lines::next_line(&mut reader, &mut line).map_err(failed)? {
            place.bytes += line.len() as u64;
            if at >= place.next {
                self.output.bytes(&line)?;
                place = Place { next: at + 1, left: place.left - 1, ..place };
            }
            at += 1;
        }
        Ok(place)
    }
}

fn readable(line: &Line) -> String {
    let name = format!("{:<16}", event_type(&line.event));
    let (name, gist) = match &line.event {
        Event::Checkpoint(_) => (paint(DIM, name), paint(DIM, gist(&line.event))),
        _ => (paint(BOLD, name), gist(&line.event)),
    };
    format!("{:>5}  {}  {name}  {gist}", line.seq, paint(DIM, local(line.timestamp)))
}
