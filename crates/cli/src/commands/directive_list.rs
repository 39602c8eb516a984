//! `selvedge directive list`: the directives that can be run here.

use selvedge::items::library::{Entry, Kind};
use selvedge::items::{Library, Source};
use selvedge_model::DirectiveId;
use serde::Serialize;
use serde_json::Value;

use crate::context::Context;
use crate::error::{Failure, Result};
use crate::items::{description, layer};
use crate::output::table;
use crate::running::project;
use crate::text::clean;

/// List the directives of the project, of your Selvedge home, and the built-in ones
///
/// If a directive is invalid, the reason is shown. A directive of the project hides yours of the same name, and yours a built-in one.
///
/// JSON: one object per directive, {"id", "layer", "hidden", "version", "description", "sources", "error"}; "layer" is project, user
/// or built_in, "sources" are its file and those it extends, each with "file", "place", "verdict" of its signature and "hash",
/// "error" is the reason why it is invalid.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

#[derive(Serialize)]
struct DirectiveEntry {
    #[serde(flatten)]
    entry: Entry,
    version: Option<String>,
    description: Option<String>,
    sources: Vec<Source>,
    error: Option<Value>,
}

pub(crate) fn run(Args {}: Args, context: &Context<'_>) -> Result<()> {
    let library = project(context)?.library;
    let lines: Vec<DirectiveEntry> =
        library.list(Kind::Directive)?.into_iter().map(|entry| line(entry, &library)).collect();
    if context.output.is_json() {
        return lines.iter().try_for_each(|line| context.output.record(line));
    }
    context.output.text(table(&["DIRECTIVE", "VERSION", "FROM", "DESCRIPTION"], &[], lines.iter().map(row)))
}

fn line(entry: Entry, library: &Library) -> DirectiveEntry {
    let mut line = DirectiveEntry { entry, version: None, description: None, sources: Vec::new(), error: None };
    if line.entry.hidden {
        return line;
    }
    let id = line.entry.readable().and_then(|()| Ok(DirectiveId::new(&line.entry.id)?));
    match id.and_then(|id| library.directive(&id)) {
        Ok(found) => {
            line.version = Some(found.item.version);
            line.description = Some(found.item.description);
            line.sources = found.sources;
        }
        Err(error) => line.error = Some(Failure::from(error).to_value()),
    }
    line
}

fn row(line: &DirectiveEntry) -> Vec<String> {
    let text = description(line.description.as_deref(), line.error.as_ref());
    let version = line.version.as_deref().map_or("-".to_owned(), clean);
    vec![clean(&line.entry.id), version, layer(&line.entry).to_owned(), text]
}
