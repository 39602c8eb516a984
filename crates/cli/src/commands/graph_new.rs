//! `selvedge graph new`: a file to begin with.

use std::path::Path;

use selvedge_model::DirectiveId;
use serde::Serialize;

use crate::context::Context;
use crate::error::Result;
use crate::new_file::write_item;
use crate::scaffold;

/// Create a graph file in .ai/graphs
///
/// The file has nodes of several types, each with a comment, and runs as it is. An existing file is never overwritten.
///
/// JSON: {"graph", "file"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The graph's name: a-z, 0-9, `_`, `.` and `-`; `/` for subfolders
    name: DirectiveId,
}

#[derive(Serialize)]
struct CreatedGraph<'a> {
    graph: &'a DirectiveId,
    #[serde(serialize_with = "crate::text::in_json")]
    file: &'a Path,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let project = context.project()?;
    let file = project.join(".ai/graphs").join(format!("{}.yaml", args.name));
    write_item(&project, &file, &scaffold::graph(args.name.as_str()))?;
    if context.output.is_json() {
        return context.output.record(&CreatedGraph { graph: &args.name, file: &file });
    }
    context.output.text(file.display())?;
    context
        .output
        .tell(format!("Next: edit it, then `selvedge graph check {0}` and `selvedge graph run {0}`", args.name));
    Ok(())
}
