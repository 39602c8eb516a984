//! Bare `selvedge`: where you are and what to do next.

use std::path::PathBuf;

use selvedge_log::keys::{KeyError, KeyFolder};
use selvedge_model::Digest;
use selvedge_store::{Filter, Page, Summary};
use selvedge_store_local::Access;
use serde::Serialize;

use crate::commands::thread_list;
use crate::context::{Context, User};
use crate::error::Result;
use crate::output::{BOLD, paint};

const NEWEST: usize = 5;

#[derive(Serialize)]
struct Overview {
    selvedge: &'static str,
    #[serde(serialize_with = "crate::text::in_json")]
    folder: PathBuf,
    project: Option<String>,
    #[serde(serialize_with = "crate::text::in_json")]
    user: PathBuf,
    key: Option<Digest>,
    newest: Vec<Summary>,
    next: Vec<String>,
}

pub(crate) fn run(context: &Context<'_>) -> Result<()> {
    let user = User::find()?;
    let key = match KeyFolder::load(&user.signing()) {
        Ok(signer) => Some(signer.fingerprint()),
        Err(KeyError::Absent { .. } | KeyError::Lost { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let project = context.find_project();
    let page = match &project {
        Some(_) => context.open(Access::ReadOnly)?.list(&Filter::default(), None, NEWEST)?,
        None => Page { items: Vec::new(), next: None },
    };
    let next = next_steps(project.is_some() && key.is_some(), &page.items);
    let here = Overview {
        selvedge: env!("CARGO_PKG_VERSION"),
        folder: context.folder.clone(),
        project: project.map(|project| project.display().to_string()),
        user: user.folder,
        key,
        newest: page.items.clone(),
        next,
    };
    if context.output.is_json() { context.output.record(&here) } else { show(&here, &page, context) }
}

fn next_steps(ready: bool, threads: &[Summary]) -> Vec<String> {
    let steps = match (ready, threads.first()) {
        (false, _) => vec!["selvedge init".to_owned(), "selvedge demo".to_owned()],
        (true, None) => vec!["selvedge chat".to_owned(), "selvedge demo".to_owned()],
        (true, Some(Summary { manifest, version, .. })) => {
            let id = &manifest.thread_id;
            vec![
                format!("selvedge log {id}"),
                format!("selvedge append {id} --expect {version} < changeset.json"),
                "selvedge verify --all".to_owned(),
            ]
        }
    };
    steps.into_iter().chain(["selvedge help".to_owned()]).collect()
}

fn show(here: &Overview, page: &Page<Summary>, context: &Context<'_>) -> Result<()> {
    let output = context.output;
    let project = match &here.project {
        Some(project) => project.clone(),
        None => format!("none in {} or above it", here.folder.display()),
    };
    let key = match here.key {
        Some(key) => format!("{} in {}", key.short(), here.user.display()),
        None => format!("none in {}", here.user.display()),
    };
    output.text(format_args!("selvedge {}: durable AI-agent threads on signed logs\n", here.selvedge))?;
    output.text(format_args!("{}  {project}", paint(BOLD, "project")))?;
    output.text(format_args!("{}  {key}", paint(BOLD, "key    ")))?;
    if !page.items.is_empty() {
        output.text("")?;
        thread_list::show(page, output)?;
        if page.next.is_some() {
            output.text("…")?;
        }
    }
    output.text("\nnext:")?;
    here.next.iter().try_for_each(|step| output.text(format_args!("  {step}")))
}
