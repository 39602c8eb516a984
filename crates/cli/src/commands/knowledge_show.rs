//! `selvedge knowledge show`: one entry, its metadata and its signature.

use selvedge::items::ItemError;
use selvedge_model::DirectiveId;
use serde::Serialize;

use crate::context::Context;
use crate::error::Result;
use crate::items::knowledge_line;
use crate::output::{DIM, WARN, paint};
use crate::running::project;
use crate::text::{clean, guarded};

/// Show an entry of knowledge, its metadata and its signature
///
/// Shows the entry of the project, or yours if the project has none of this id. The text is shown even if a run would refuse it.
///
/// JSON: {"id", "layer", "shadowed", "condition", "digest", "file", "metadata", "flaws", "text"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The entry, such as `docs/api`
    id: DirectiveId,
}

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    entry: &'a selvedge::items::knowledge::KnowledgeEntry,
    text: &'a str,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let library = project(context)?.library;
    let all = library.knowledge_ids()?;
    let Some(found) = all.iter().find(|entry| entry.id == args.id.as_str()) else {
        // With the nearest name.
        let missing = library.knowledge(&args.id).err();
        return Err(missing
            .unwrap_or(ItemError::NotFound { what: "knowledge", id: args.id.to_string(), nearest: None })
            .into());
    };
    let entry = library.knowledge_entry(found);
    if context.output.is_json() {
        return context.output.record(&Shown { entry: &entry, text: &entry.body });
    }
    context.output.text(knowledge_line(&entry))?;
    for flaw in &entry.flaws {
        context.output.text(format_args!("  {} {}", paint(WARN, "?"), clean(flaw)))?;
    }
    let metadata = serde_json::to_value(&entry.metadata).unwrap_or_default();
    for (name, value) in metadata.as_object().into_iter().flatten() {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        context.output.text(format_args!("  {} {}", paint(DIM, format_args!("{name:<12}")), clean(&text)))?;
    }
    context.output.text(format_args!("\n{}", guarded(&entry.body)))
}
