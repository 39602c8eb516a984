//! `selvedge knowledge new`: a file to begin with.

use std::path::Path;

use selvedge_model::DirectiveId;
use serde::Serialize;

use crate::context::Context;
use crate::error::Result;
use crate::new_file::write_item;
use crate::scaffold;

/// Create an entry of knowledge in .ai/knowledge
///
/// The file has the usual metadata, and a text to replace. An existing file is never overwritten.
///
/// JSON: {"knowledge", "file"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The entry's id: a-z, 0-9, `_`, `.` and `-`; `/` for subfolders
    id: DirectiveId,
}

#[derive(Serialize)]
struct CreatedKnowledge<'a> {
    knowledge: &'a DirectiveId,
    #[serde(serialize_with = "crate::text::in_json")]
    file: &'a Path,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let project = context.project()?;
    let file = project.join(".ai/knowledge").join(format!("{}.md", args.id));
    write_item(&project, &file, &scaffold::knowledge(args.id.as_str()))?;
    if context.output.is_json() {
        return context.output.record(&CreatedKnowledge { knowledge: &args.id, file: &file });
    }
    context.output.text(file.display())?;
    context.output.tell(format!("Next: edit it, then `selvedge knowledge sign {0}`", args.id));
    Ok(())
}
