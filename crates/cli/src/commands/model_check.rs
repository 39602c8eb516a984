//! `selvedge model check`: whether models can be used.

use std::path::Path;

use selvedge::project::Models;
use selvedge::project::ProjectError;
use selvedge::project::models::{Credentials, ListedModel};
use selvedge::providers::Probe;
use serde::Serialize;
use serde_json::{Value, json};

use super::model_show::unknown;
use crate::config::configuration;
use crate::context::Context;
use crate::error::{Failure, Result};
use crate::output::{BAD, GOOD, WARN, paint};
use crate::text::clean;
use crate::visible_models::registry;

/// Check that models can be used
///
/// With a NAME, checks that its provider is configured and that its credentials are there; the command fails if not. Without one, checks
/// every provider; credentials that are not set are shown, but are not a failure.
///
/// With --probe, one small real call is made, which costs a few tokens: to the model of that NAME, or without one to the cheapest known
/// model of every provider whose credentials are there. A host that is not the vendor's own, such as a local server, is asked first which
/// models it has.
///
/// JSON: one object per model, {"model", "provider", "ok", "base_url", "credentials", "serves", "probe", "error"}; "serves" has the names that
/// the host lists, and is null if it was not asked or has no list; "probe" is {"model", "input_tokens", "output_tokens", "elapsed_ms"} and
/// null if no call was made, "error" is as on stderr.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The model, such as `anthropic:claude-…`, or a tier: fast, general, high or max
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Make one small real call
    #[arg(long)]
    probe: bool,
}

/// How many models of a host are named.
const NAMES_SHOWN: usize = 8;

#[derive(Serialize)]
struct CheckedModel {
    model: String,
    provider: String,
    ok: bool,
    base_url: Option<String>,
    credentials: Credentials,
    serves: Option<Vec<String>>,
    probe: Option<Value>,
    error: Option<Value>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let config = configuration(context)?;
    let models = registry(&config);
    let project = context.find_project().unwrap_or_else(|| context.folder.clone());
    let asked = match &args.name {
        Some(name) => vec![models.show(name).ok_or_else(|| unknown(name, &models))?],
        None => {
            let samples = models.samples().into_iter();
            let names = samples.map(|(provider, sample)| sample.unwrap_or_else(|| format!("{provider}:*")));
            names.filter_map(|name| models.show(&name)).collect()
        }
    };
    let mut failures = Vec::new();
    for mut listed in asked {
        let is_named = args.name.is_some();
        let is_asked = args.probe && !is_named && !listed.is_offline && listed.credentials.are_there();
        // A host without a list may still answer.
        let served = if is_asked { models.served(&listed.provider, &project).ok().flatten() } else { None };
        if let Some(one) = served.as_ref().and_then(|served| one_of(served, &listed.model)) {
            listed = models.show(&format!("{}:{one}", listed.provider)).unwrap_or(listed);
        }
        let checked = check(&listed, args.probe, is_named, &models, &project);
        show(listed, &checked, served, is_named, context)?;
        failures.extend(checked.err());
    }
    match failures.into_iter().next() {
        Some(first) => Err(first),
        None => Ok(()),
    }
}

/// The model to try of those that a host has: the known one if it is among them, else the first.
fn one_of<'a>(served: &'a [String], known: &str) -> Option<&'a String> {
    let known = known.split_once(':').map_or("", |(_, name)| name);
    served.iter().find(|name| *name == known).or(served.first())
}

/// Checks a model. One that was not asked for by name may lack its credentials, and a host without a known model can't be probed.
fn check(listed: &ListedModel, probe: bool, is_named: bool, models: &Models, project: &Path) -> Result<Option<Probe>> {
    if listed.is_offline {
        return Ok(None);
    }
    if let Credentials::Missing { from, why } = &listed.credentials {
        let is_unset = !from.starts_with('/');
        if !is_named && is_unset {
            return Ok(None);
        }
        let provider = listed.provider.clone();
        return Err(ProjectError::NoKey { provider, from: from.clone(), why: why.clone() }.into());
    }
    let can_be_probed = is_named || !listed.model.ends_with(":*");
    if !probe || !can_be_probed {
        return Ok(None);
    }
    models.probe(&listed.model, project).map(Some).map_err(|error| Failure::of(&error))
}

fn show(
    listed: ListedModel,
    checked: &Result<Option<Probe>>,
    serves: Option<Vec<String>>,
    is_named: bool,
    context: &Context<'_>,
) -> Result<()> {
    let ListedModel { model, provider, base_url, credentials, .. } = listed;
    if context.output.is_json() {
        let probe = checked.as_ref().ok().and_then(Option::as_ref).map(|probe| {
            json!({
                "model": probe.model, "input_tokens": probe.input_tokens, "output_tokens": probe.output_tokens,
                "elapsed_ms": u64::try_from(probe.elapsed.as_millis()).unwrap_or(u64::MAX),
            })
        });
        // If only one was asked for, its failure is on stderr.
        let error = checked.as_ref().err().filter(|_| !is_named).map(Failure::to_value);
        let ok = checked.is_ok() && credentials.are_there();
        if is_named && checked.is_err() {
            return Ok(());
        }
        let checked = CheckedModel { model, provider, ok, base_url, credentials, serves, probe, error };
        return context.output.record(&checked);
    }
    let (mark, said) = match (checked, &credentials) {
        (Err(failure), _) => (paint(BAD, "✗"), clean(&failure.message)),
        (Ok(Some(probe)), _) => {
            let seconds = probe.elapsed.as_secs_f64();
            let tokens = probe.input_tokens.zip(probe.output_tokens);
            let tokens = tokens.map(|(sent, received)| format!(", {sent} tokens sent, {received} received"));
            (
                paint(GOOD, "✓"),
                format!("`{}` answered{}, {seconds:.1} s", clean(&probe.model), tokens.unwrap_or_default()),
            )
        }
        (Ok(None), Credentials::Missing { from, .. }) => {
            (paint(WARN, "-"), format!("not usable: {} is not set", clean(from)))
        }
        (Ok(None), Credentials::Present { from }) => (paint(GOOD, "✓"), format!("key from {}", clean(from))),
        (Ok(None), Credentials::NotNeeded) => (paint(GOOD, "✓"), "no key is sent".to_owned()),
    };
    let name = if is_named { model } else { provider };
    let address = base_url.map(|url| format!(" at {}", clean(&url))).unwrap_or_default();
    context.output.text(format_args!("{mark} {}{address}: {said}", clean(&name)))?;
    match serves.filter(|serves| !serves.is_empty()) {
        Some(serves) => context.output.text(format_args!("  serves {}", clean(&some_of(&serves)))),
        None => Ok(()),
    }
}

/// The first names of a list.
fn some_of(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(NAMES_SHOWN).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(NAMES_SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
