//! The page that is kept of a thread: verified, and shown as it is.

use std::io::{self, IsTerminal};

use selvedge::pages::{ShownPage, shown};
use selvedge_log::Trust;
use selvedge_model::ThreadId;
use selvedge_store::Backend;

use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::pager;
use crate::text::{clean, count};

pub(super) fn show(
    store: &dyn Backend,
    trust: &Trust,
    thread: &ThreadId,
    is_paged: bool,
    context: &Context<'_>,
) -> Result<()> {
    let Some(page) = shown(store, trust, thread)? else { return Err(no_page(thread)) };
    let output = context.output;
    if output.is_json() {
        return output.record(&page);
    }
    let text = page.parts.iter().map(|part| part.text.as_str()).collect::<Vec<_>>().join("\n");
    if io::stdout().is_terminal() {
        pager::show(&clean(&text), is_paged, output)?;
    } else {
        output.bytes(text.as_bytes())?;
    }
    output.say(verdict(&page));
    Ok(())
}

/// What was verified, and whether it is the newest.
fn verdict(page: &ShownPage) -> String {
    let ShownPage { version, log_version, parts, current, .. } = page;
    let by = parts.last().map_or_else(String::new, |part| format!(", signed by {}", part.signed_by.short()));
    let of = match parts.len() {
        1 => String::new(),
        parts => format!(" in {}", count(parts as u64, "part")),
    };
    if *current {
        return format!("the page{of} is intact{by}, and current: it shows version {version}");
    }
    format!(
        "the page{of} is intact{by}, but not current: it shows version {version} of {log_version}; it is written again after the next run"
    )
}

fn no_page(thread: &ThreadId) -> Failure {
    Failure::new(Exit::Usage, "no_page", format!("there is no page of `{thread}` yet"))
        .hint(
            "pages are written while threads run and after each run; `selvedge reindex` writes all of them again"
                .to_owned(),
        )
        .detail("thread_id", thread.as_str())
}
