//! All output to the terminal.
//!
//! - Data goes to stdout, everything else to stderr.
//! - For people: text, with colours if the terminal has them. For programs: one JSON object per line, on both.
//! - The reader of stdout may close it at any time: later output is discarded, and no command fails because of it.

use std::cell::Cell;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;
use serde_json::json;

use crate::args::Global;
use crate::error::{Exit, Failure, Result};
use crate::running::unsecret;
use crate::text;

/// For headings and names.
pub(crate) const BOLD: Style = Style::new().bold();
/// For secondary text.
pub(crate) const DIM: Style = Style::new().dimmed();
/// For success.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// For failure.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
/// For warnings.
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();

/// Text in a style.
pub(crate) fn paint(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// The output of a command.
#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
    quiet: bool,
    closed: Cell<bool>,
    has_written: Cell<bool>,
}

impl Output {
    /// The output for these options.
    pub(crate) fn new(global: &Global) -> Self {
        if global.no_color {
            anstream::ColorChoice::Never.write_global();
        }
        Self { json: global.json, quiet: global.quiet, closed: Cell::new(false), has_written: Cell::new(false) }
    }

    /// Whether the output is JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether notices on stderr are text and not suppressed.
    pub(crate) fn speaks_to_people(&self) -> bool {
        !self.json && !self.quiet
    }

    /// Writes text for people to stdout, as one line or several.
    pub(crate) fn text(&self, text: impl Display) -> Result<()> {
        let text = text.to_string();
        self.write(|| writeln!(anstream::stdout().lock(), "{}", text::guarded(&text)))
    }

    /// Writes one JSON object to stdout, on one line. Characters that could drive a terminal are escaped, which means the same.
    pub(crate) fn record(&self, value: &impl Serialize) -> Result<()> {
        self.write(|| {
            let mut line = text::clean_json(&serde_json::to_string(value)?);
            line.push('\n');
            io::stdout().lock().write_all(line.as_bytes())
        })
    }

    /// Writes exactly these bytes to stdout.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<()> {
        self.write(|| {
            let mut stdout = io::stdout().lock();
            stdout.write_all(bytes)?;
            stdout.flush()
        })
    }

    /// Whether anything was written to stdout.
    pub(crate) fn has_written(&self) -> bool {
        self.has_written.get()
    }

    fn write(&self, write: impl FnOnce() -> io::Result<()>) -> Result<()> {
        self.has_written.set(true);
        if self.closed.get() {
            return Ok(());
        }
        match write() {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.closed.set(true),
            Err(error) => return Err(Failure::new(Exit::Failed, "io", format!("can't write to stdout: {error}"))),
            Ok(()) => {}
        }
        Ok(())
    }

    /// Whether the reader of stdout has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        let stdout = io::stdout();
        let mut fds = [PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::empty())];
        let polled = poll(&mut fds, Some(&Default::default()));
        if polled.is_ok() && fds[0].revents().intersects(PollFlags::ERR | PollFlags::NVAL) {
            self.closed.set(true);
        }
        self.closed.get()
    }

    /// Writes a notice to stderr, as text or JSON.
    pub(crate) fn say(&self, message: impl Display) {
        if self.quiet {
            return;
        }
        if self.json {
            self.stderr(json!({ "notice": { "message": message.to_string() } }));
        } else {
            self.stderr(text::guarded(&message.to_string()));
        }
    }

    /// Writes a notice for people only to stderr: next steps, progress.
    pub(crate) fn tell(&self, message: impl Display) {
        if !self.json {
            self.say(message);
        }
    }

    /// Writes the failure of the command to stderr. A mistyped argument may be a secret, and is not repeated.
    pub(crate) fn error(&self, failure: &Failure) {
        if self.json {
            return self.stderr(unsecret(&failure.to_json().to_string()));
        }
        self.stderr(format_args!("{} {}", paint(BAD, "error:"), unsecret(&text::clean(&failure.message))));
        if let Some(hint) = &failure.hint {
            self.stderr(format_args!("{} {}", paint(WARN, "hint:"), unsecret(&text::clean(hint))));
        }
        self.stderr(paint(DIM, format_args!("more: selvedge help {}", failure.code)));
    }

    // There is nowhere to report a failing stderr to.
    fn stderr(&self, message: impl Display) {
        let _ = writeln!(anstream::stderr().lock(), "{message}");
    }

    /// Asks on the terminal and returns the answer; `None` without a terminal.
    pub(crate) fn ask(&self, question: &str) -> Option<String> {
        if self.json || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return None;
        }
        let _ = write!(anstream::stderr().lock(), "{} ", text::guarded(question));
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).ok()?;
        Some(answer.trim().to_owned())
    }

    /// A progress bar for long work: on stderr, and only if that is a terminal.
    pub(crate) fn progress(&self, steps: u64, what: &'static str) -> ProgressBar {
        if self.json || self.quiet || steps < 2 || !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new(steps);
        if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {eta}") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what);
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }
}

/// The width of the terminal in characters; `None` if stdout is not a terminal.
pub(crate) fn terminal_width() -> Option<usize> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(stdout.as_fd()).ok()?;
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// The maximum length of a text on one line: the width of the terminal, or 100 in a pipe or file.
pub(crate) fn line_width() -> usize {
    terminal_width().unwrap_or(100)
}

/// A table without lines; the columns in `right` are right-aligned. On a terminal the last column is cut to the remaining space.
pub(crate) fn table(header: &[&str], right: &[usize], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    table_within(terminal_width(), header, right, &[], rows.into_iter().collect())
}

/// The same, where the columns in `spare` are left out, in this order, until the others fit.
pub(crate) fn table_fitted(header: &[&str], right: &[usize], spare: &[usize], rows: Vec<Vec<String>>) -> String {
    table_within(terminal_width(), header, right, spare, rows)
}

/// The spaces between two columns.
const GAP: usize = 2;
/// The minimum width of the last column.
const LAST_MIN: usize = 16;

fn table_within(
    width: Option<usize>,
    header: &[&str],
    right: &[usize],
    spare: &[usize],
    mut rows: Vec<Vec<String>>,
) -> String {
    let mut columns: Vec<usize> = (0..header.len()).collect();
    if let Some(width) = width {
        let natural = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([header[column].len()]).max().unwrap_or(0)
        };
        let last = header.len().saturating_sub(1);
        // The width of all columns but the last.
        let taken = |columns: &[usize]| -> usize {
            columns.iter().filter(|column| **column != last).map(|column| natural(*column) + GAP).sum()
        };
        for left_out in spare {
            if taken(&columns) + natural(last).min(LAST_MIN) <= width {
                break;
            }
            columns.retain(|column| column != left_out);
        }
        let room = width.saturating_sub(taken(&columns)).max(LAST_MIN);
        for cell in rows.iter_mut().filter_map(|row| row.get_mut(last)).filter(|cell| cell.chars().count() > room) {
            // Cutting could split a colour sequence.
            if !cell.contains('\u{1b}') {
                *cell = cell.chars().take(room - 1).chain(['…']).collect();
            }
        }
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(columns.iter().map(|column| header[*column]));
    for row in rows {
        table.add_row(columns.iter().map(|column| row.get(*column).cloned().unwrap_or_default()));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right.contains(&columns[index]) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let text = table.trim_fmt();
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let separator = if rest.is_empty() { "" } else { "\n" };
    format!("{}{separator}{rest}", paint(DIM, first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(width: Option<usize>) -> String {
        let row = |title: &str| ["scribe-0123456789ab", "scribe", "running", "17", title].map(str::to_owned).to_vec();
        let rows = vec![row("a title that says at some length what the thread is about"), row("short")];
        table_within(width, &["THREAD", "AGENT", "STATUS", "VERSION", "TITLE"], &[3], &[3, 1], rows)
    }

    #[test]
    fn a_table_fits_its_terminal() {
        let whole = shown(None);
        assert!(whole.contains("what the thread is about") && whole.contains("VERSION"), "{whole}");
        assert_eq!(shown(Some(200)), whole, "a wide terminal shows everything");
        for (width, kept, dropped) in [(70, "VERSION", "~"), (58, "AGENT", "VERSION"), (50, "STATUS", "AGENT")] {
            let text = shown(Some(width));
            let lines = text.lines().skip(1);
            assert!(lines.clone().all(|line| line.chars().count() <= width), "{width}: {text}");
            assert!(text.contains(kept) && !text.contains(dropped) && text.contains('…'), "{width}: {text}");
        }
    }
}
