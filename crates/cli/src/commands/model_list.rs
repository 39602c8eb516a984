//! `selvedge model list`: the models that are configured.

use selvedge::items::Config;
use selvedge::items::config::{KnownModel, Origin};
use selvedge::project::models::{Credentials, ListedModel};
use serde::Serialize;

use crate::config::configuration;
use crate::context::Context;
use crate::error::Result;
use crate::output::table;
use crate::text::{clean, grouped};
use crate::visible_models::registry;

/// List the models that are configured
///
/// Shows the name to use with --model, the tier that a model is used for, its price in dollars per million tokens sent and received, its
/// context window, the longest answer it is capable of, and the credentials: which variable, file or command has them, or what is missing.
/// `PROVIDER:*` is a provider without listed models; every model that it offers can be used. `config explain models.known` shows how to
/// list a model, `config explain models.providers` how to add a provider.
///
/// JSON: one object per model, {"model", "provider", "format", "base_url", "tiers", "known", "credentials", "offline", "set_in"}; "known" is
/// its entry in the configuration, "credentials" is {"state", "from", "why"} with a state of present, missing or not_needed, and "set_in" is
/// {"layer", "file", "line"}.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// List only models whose credentials are there
    #[arg(long)]
    usable: bool,
}

/// A model, and where it is set.
#[derive(Debug, Serialize)]
pub(crate) struct ModelEntry {
    #[serde(flatten)]
    pub(crate) listed: ListedModel,
    pub(crate) set_in: Option<Origin>,
}

impl ModelEntry {
    pub(crate) fn new(listed: ListedModel, config: &Config) -> Self {
        let key = match &listed.known {
            Some(known) => format!("models.known.{}", known.id),
            None => format!("models.providers.{}", listed.provider),
        };
        let said = config.explain(&key).ok().and_then(|explained| explained.values.into_iter().next_back());
        Self { listed, set_in: said.map(|said| said.origin) }
    }
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let config = configuration(context)?;
    let listed = registry(&config).list().into_iter();
    let listed = listed.filter(|listed| !args.usable || listed.credentials.are_there());
    let lines: Vec<ModelEntry> = listed.map(|listed| ModelEntry::new(listed, &config)).collect();
    if context.output.is_json() {
        return lines.iter().try_for_each(|line| context.output.record(line));
    }
    let header = ["MODEL", "TIER", "INPUT", "OUTPUT", "CONTEXT", "MAX ANSWER", "CREDENTIALS"];
    context.output.text(table(&header, &[2, 3, 4, 5], lines.iter().map(|line| row(&line.listed))))?;
    context.output.tell(format!(
        "prices in dollars per million tokens; those that come with the program are list prices of {}",
        config.models.prices_of
    ));
    Ok(())
}

fn row(listed: &ListedModel) -> Vec<String> {
    let known =
        |of: fn(&KnownModel) -> Option<String>| listed.known.as_ref().and_then(of).unwrap_or_else(|| "-".to_owned());
    let price = |of: fn(&KnownModel) -> Option<String>| if listed.is_offline { "free".to_owned() } else { known(of) };
    vec![
        clean(&listed.model),
        if listed.tiers.is_empty() { "-".to_owned() } else { clean(&listed.tiers.join(", ")) },
        price(|known| Some(known.input.to_string())),
        price(|known| Some(known.output.to_string())),
        known(|known| known.context_tokens.map(grouped)),
        known(|known| known.output_tokens_max.or(known.output_tokens).map(grouped)),
        credentials(&listed.credentials),
    ]
}

/// Whether credentials are there, for people.
pub(crate) fn credentials(credentials: &Credentials) -> String {
    match credentials {
        Credentials::Present { from } => clean(from),
        Credentials::Missing { from, .. } => format!("missing: {}", clean(from)),
        Credentials::NotNeeded => "-".to_owned(),
    }
}
