//! `selvedge knowledge sign`: signs entries of knowledge by their ids.

use selvedge_model::DirectiveId;

use super::sign;
use crate::context::Context;
use crate::error::Result;

/// Sign entries of knowledge of the project
///
/// Does the same as `selvedge sign` with their files: the signature covers all of a file, its kind and its path.
///
/// JSON: one object per entry, as of `selvedge sign`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The entries, such as `docs/api`
    #[arg(required = true)]
    ids: Vec<DirectiveId>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let folder = context.project()?.join(".ai/knowledge");
    args.ids.iter().try_for_each(|id| sign::sign(&folder.join(format!("{id}.md")), context))
}
