//! `selvedge transcript`: a conversation to read.
//!
//! `page` walks over the conversation; `markdown` and `terminal` are how it looks. Everything that a model, a tool or a user wrote is foreign
//! text: on a terminal nothing in it can drive the screen, in Markdown nothing in it can end its block. `signed` is the page that is kept
//! of a thread.

mod markdown;
mod page;
mod signed;
mod terminal;

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use selvedge_engine::transcript_entries::{EntryScope, entries};
use selvedge_store_local::Access;

use self::markdown::Markdown;
use self::terminal::Terminal;
use crate::context::{Context, User};
use crate::error::Result;
use crate::new_file;
use crate::pager;
use crate::text::count;

/// The most bytes of one blob that are shown.
const BLOB_BYTES_MAX: usize = 256 << 10;

/// Show a conversation: messages, tool calls and results, costs
///
/// Messages are whole. What was too large for a line of the log is read back, at most 256 KiB of each; if there is more, a note names the
/// command that shows all of it. The log is verified while it is read: an edited one is refused.
///
/// On a terminal it is shown in a pager: the one in PAGER, else `less -R`. In a pipe, or with -o, it is Markdown.
///
/// With --page, the signed page that is kept of the thread in `.ai/knowledge/agent/threads` is verified and shown as it is, with its
/// signature; the parts of a long one in order. A note says whether it shows the newest version: it is written while a thread runs and after
/// each run, and `selvedge reindex` writes all pages again. Results that are shortened there are whole without --page.
///
/// JSON: one object per entry, each with "at" and "entry": "thread", "message" (with "role", "internal" and "parts"), "partial", "asked",
/// "decided", "denied", "suspended", "continued" or "run" (with "code", "why" and "cost"). A part has "part": "text", "thinking", "call",
/// "result", "image" or "opaque"; its "text" is whole unless it has "bytes_left_out" or "unreadable"; "blob" names the blob that has all of it.
/// With --page: {"thread_id", "current", "version", "log_version", "parts":[{"file", "signed_by", "signed_at", "text"}]}.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The thread: any unique prefix of its id or of its hex suffix
    thread: String,
    /// Every thread of its chain, from the first to the last
    #[arg(long)]
    chain: bool,
    /// Show the signed page itself, and whether it is current
    #[arg(long, conflicts_with_all = ["chain", "output"])]
    page: bool,
    /// Write Markdown to FILE, which must not exist
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Don't use a pager
    #[arg(long)]
    no_pager: bool,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let store = context.open(Access::ReadOnly)?;
    let thread = super::wait::find(&*store, &args.thread)?;
    if args.page {
        return signed::show(&*store, &User::find()?.trust()?, &thread, !args.no_pager, context);
    }
    let scope = EntryScope { chain: args.chain, blob_bytes_max: BLOB_BYTES_MAX };
    let found = entries(&*store, &User::find()?.trust()?, &thread, scope)?;
    let output = context.output;
    if let Some(file) = args.output.as_ref().map(|file| context.folder.join(file)) {
        let text = page::page(&found, Markdown::default());
        new_file::write(&file, text.as_bytes(), 0o600)?;
        let bytes = count(text.len() as u64, "byte");
        if output.is_json() {
            return output.record(&serde_json::json!({"thread_id": thread, "file": file.display().to_string()}));
        }
        return output.text(format_args!("the transcript of {thread} is in {}: {bytes}", file.display()));
    }
    if output.is_json() {
        return found.iter().try_for_each(|entry| output.record(entry));
    }
    if io::stdout().is_terminal() {
        return pager::show(&page::page(&found, Terminal::default()), !args.no_pager, output);
    }
    output.bytes(page::page(&found, Markdown::default()).as_bytes())
}
