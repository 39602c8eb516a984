//! `selvedge model show`: everything that is configured about one model.

use selvedge::items::config::KnownModel;
use selvedge::project::ProjectError;
use selvedge::project::models::Credentials;
use serde_json::Value;

use super::model_list::ModelEntry;
use crate::config::{configuration, shown};
use crate::context::Context;
use crate::error::{Failure, Result};
use crate::output::{BOLD, DIM, paint};
use crate::text::{clean, grouped};
use crate::visible_models::registry;

/// Show what is configured about a model
///
/// Shows its provider, tiers, prices, context window and limits, whether its credentials are there, and the file and line where it is set.
/// A key is never shown. A model of a configured provider can be used without an entry of its own, but not under a spending limit: it has
/// no price.
///
/// JSON: the object of `model list`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The model, such as `anthropic:claude-…`, or a tier: fast, general, high or max
    #[arg(value_name = "NAME")]
    name: String,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let config = configuration(context)?;
    let models = registry(&config);
    let Some(listed) = models.show(&args.name) else {
        return Err(unknown(&args.name, &models));
    };
    let line = ModelEntry::new(listed, &config);
    if context.output.is_json() {
        return context.output.record(&line);
    }
    let ModelEntry { listed, set_in } = line;
    let show = |name: &str, text: String| {
        if text.is_empty() {
            return Ok(());
        }
        context.output.text(format_args!("  {} {}", paint(DIM, format_args!("{name:<11}")), clean(&text)))
    };
    context.output.text(paint(BOLD, clean(&listed.model)))?;
    let format = listed.format.map(|format| serde_json::to_value(format).unwrap_or_default());
    let format = format.as_ref().and_then(Value::as_str).map(str::to_owned).unwrap_or_default();
    show("format", format)?;
    show("address", listed.base_url.unwrap_or_default())?;
    show("tiers", listed.tiers.join(", "))?;
    match &listed.known {
        Some(known) => settings(known).into_iter().try_for_each(|(name, text)| show(name, text))?,
        None if listed.is_offline => show("price", "free".to_owned())?,
        None => show("price", "unknown: it is refused if there is a spending limit".to_owned())?,
    }
    show(
        "credentials",
        match &listed.credentials {
            Credentials::Present { from } => from.clone(),
            Credentials::Missing { from, why } => format!("missing: {from}: {why}"),
            Credentials::NotNeeded => "none are sent".to_owned(),
        },
    )?;
    set_in.map_or(Ok(()), |origin| show("set in", shown(&origin, context)))
}

fn settings(known: &KnownModel) -> Vec<(&'static str, String)> {
    let tokens = |tokens: Option<u64>| tokens.map(|tokens| format!("{} tokens", grouped(tokens))).unwrap_or_default();
    let most =
        |tokens: Option<u64>| tokens.map(|tokens| format!("at most {} tokens", grouped(tokens))).unwrap_or_default();
    let cached = [("cache read", known.cache_read), ("cache write", known.cache_write)];
    let cached =
        cached.into_iter().filter_map(|(name, price)| Some(format!(", {name} ${}", price?))).collect::<String>();
    vec![
        ("price", format!("input ${}, output ${}{cached} per million tokens", known.input, known.output)),
        ("context", tokens(known.context_tokens)),
        ("answer", most(known.output_tokens_max.or(known.output_tokens))),
        ("requested", most(known.output_tokens)),
        ("thinking", tokens(known.thinking_tokens)),
        ("effort", known.effort.clone().unwrap_or_default()),
    ]
}

/// The failure for a model whose provider is not configured.
pub(crate) fn unknown(name: &str, models: &selvedge::project::Models) -> Failure {
    let mut known: Vec<String> = models.list().into_iter().map(|listed| listed.provider).collect();
    known.dedup();
    let failure = Failure::from(ProjectError::NoModel { model: name.to_owned(), known });
    failure.hint("`selvedge model list` shows the models; `selvedge config explain models.providers` shows how to add a provider")
}
