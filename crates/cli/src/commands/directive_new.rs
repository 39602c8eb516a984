//! `selvedge directive new`: a file to begin with.

use std::path::Path;

use selvedge_model::DirectiveId;
use serde::Serialize;

use crate::context::Context;
use crate::error::Result;
use crate::new_file::write_item;
use crate::scaffold;

/// Create a directive file in .ai/directives
///
/// The file has the usual fields, each with a comment, and runs as it is. An existing file is never overwritten.
///
/// JSON: {"directive", "file"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directive's name: a-z, 0-9, `_`, `.` and `-`; `/` for subfolders
    name: DirectiveId,
}

#[derive(Serialize)]
struct CreatedDirective<'a> {
    directive: &'a DirectiveId,
    #[serde(serialize_with = "crate::text::in_json")]
    file: &'a Path,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let project = context.project()?;
    let file = project.join(".ai/directives").join(format!("{}.md", args.name));
    write_item(&project, &file, &scaffold::directive(args.name.as_str()))?;
    if context.output.is_json() {
        return context.output.record(&CreatedDirective { directive: &args.name, file: &file });
    }
    context.output.text(file.display())?;
    context
        .output
        .tell(format!("Next: edit it, then `selvedge directive check {0}` and `selvedge run {0}`", args.name));
    Ok(())
}
