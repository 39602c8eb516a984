//! `selvedge tool new`: a file to begin with.

use std::path::Path;

use selvedge_model::DirectiveId;
use serde::Serialize;

use crate::context::Context;
use crate::error::{Failure, Result};
use crate::new_file::write_item;
use crate::scaffold;

/// Create a tool file in .ai/tools
///
/// The file declares a program that a model can call; every field has a comment, and the tool works as it is. An existing file is never
/// overwritten.
///
/// JSON: {"tool", "file"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The tool's name: a-z, 0-9, `_` and `-`; `/` for subfolders
    name: DirectiveId,
}

#[derive(Serialize)]
struct CreatedTool<'a> {
    tool: &'a DirectiveId,
    #[serde(serialize_with = "crate::text::in_json")]
    file: &'a Path,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let project = context.project()?;
    let text = scaffold::tool(args.name.as_str());
    // An invalid name is reported before anything is written.
    selvedge::items::tool::parse(args.name.as_str(), &text)
        .map_err(|flaw| Failure::usage(format!("`{}` can't be the name of a tool: {flaw}", args.name)))?;
    let file = project.join(".ai/tools").join(format!("{}.yaml", args.name));
    write_item(&project, &file, &text)?;
    if context.output.is_json() {
        return context.output.record(&CreatedTool { tool: &args.name, file: &file });
    }
    context.output.text(file.display())?;
    context.output.tell("Next: edit it; `selvedge tool list` shows it, and a directive allows it under `permissions`");
    Ok(())
}
