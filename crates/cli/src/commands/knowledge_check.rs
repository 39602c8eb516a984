//! `selvedge knowledge check`: what is wrong with entries of knowledge.

use std::collections::BTreeSet;

use selvedge::items::knowledge::{Condition, KnowledgeEntry};
use serde::Serialize;

use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::items::knowledge_line;
use crate::output::{WARN, paint};
use crate::running::project;
use crate::text::{clean, count};

/// Check entries of knowledge: signatures, metadata, names, and the entries that they refer to
///
/// An entry fails the check if it was changed after it was signed, is a symbolic link, is too large, has no text, or has unreadable metadata.
/// A reference to an entry that does not exist, or a name that is not that of the file, is a warning.
///
/// JSON: one object per entry, {"id", "layer", "shadowed", "condition", "digest", "file", "metadata", "flaws", "ok", "warnings"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The entries; default: all
    ids: Vec<String>,
}

#[derive(Serialize)]
struct CheckedEntry<'a> {
    #[serde(flatten)]
    entry: &'a KnowledgeEntry,
    ok: bool,
    warnings: Vec<String>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let project = project(context)?;
    let library = &project.library;
    let listed = library.knowledge_ids()?;
    let known: BTreeSet<&str> = listed.iter().map(|entry| entry.id.as_str()).collect();
    if let Some(missing) = args.ids.iter().find(|id| !known.contains(id.as_str())) {
        let id = selvedge_model::DirectiveId::new(missing).map_err(selvedge::items::ItemError::from)?;
        library.knowledge(&id)?;
    }
    let mut bad = 0;
    let mut all = 0;
    for entry in listed.iter().filter(|entry| args.ids.is_empty() || args.ids.contains(&entry.id)) {
        all += 1;
        let entry = library.knowledge_entry(entry);
        let warnings = warnings(&entry, &known, &project.folder);
        // What only does not fit its place is a warning.
        let ok = entry.condition != Condition::Damaged && entry.flaws.iter().all(|flaw| warnings.contains(flaw));
        bad += usize::from(!ok);
        show(&CheckedEntry { entry: &entry, ok, warnings }, context)?;
    }
    if bad == 0 {
        return Ok(());
    }
    let message = format!("{bad} of {} can't be used", count(all, "file"));
    Err(Failure::new(Exit::Usage, "item_invalid", message).hint("they are listed above, each with its reason"))
}

fn warnings(entry: &KnowledgeEntry, known: &BTreeSet<&str>, project: &std::path::Path) -> Vec<String> {
    let of = &entry.metadata;
    let mut warnings = of.misfits(&entry.id);
    let folder = entry.id.rsplit_once('/').map_or("", |(folder, _)| folder);
    let is_there = |id: &String| {
        let beside = format!("{folder}/{id}");
        // Documents refer to entries beside them, and to files of the project.
        known.contains(id.as_str()) || known.contains(beside.as_str()) || project.join(id).is_file()
    };
    for (what, ids) in [("extends", &of.extends), ("refers to", &of.references)] {
        let missing = ids.iter().filter(|id| !is_there(id));
        warnings.extend(missing.map(|id| format!("it {what} `{}`, which does not exist", id.escape_debug())));
    }
    warnings
}

fn show(checked: &CheckedEntry<'_>, context: &Context<'_>) -> Result<()> {
    if context.output.is_json() {
        return context.output.record(checked);
    }
    context.output.text(knowledge_line(checked.entry))?;
    let others = checked.warnings.iter().filter(|warning| !checked.entry.flaws.contains(warning));
    let lines = checked.entry.flaws.iter().chain(others);
    lines.map(|line| format!("  {} {}", paint(WARN, "?"), clean(line))).try_for_each(|line| context.output.text(line))
}
