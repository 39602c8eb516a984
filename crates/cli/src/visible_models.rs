//! The models that can be used here: what is configured, and whose credentials the environment has.

use selvedge::items::Config;
use selvedge::project::Models;
use selvedge::project::models::Credentials;

use crate::config::folders;
use crate::context::Context;
use crate::error::Result;
use crate::running::environment;

/// The models of the configuration and the environment. A project need not be there.
pub(crate) fn registry(config: &Config) -> Models {
    Models::configured(&config.models, &environment())
}

/// A sentence that names the models that can be used here, and how to use one.
pub(crate) fn visible_models(context: &Context<'_>) -> Result<String> {
    let models = registry(&Config::load(&folders(context)?)?);
    let mut hosts: Vec<String> = Vec::new();
    let mut is_local = false;
    for (provider, sample) in models.samples() {
        let Some(shown) = models.show(&sample.unwrap_or_else(|| format!("{provider}:*"))) else { continue };
        match shown.credentials {
            Credentials::Present { from } => hosts.push(format!("{provider} ({from})")),
            Credentials::NotNeeded => {
                is_local = true;
                hosts.push(format!("{provider} ({})", shown.base_url.unwrap_or_default()));
            }
            Credentials::Missing { .. } => {}
        }
    }
    if hosts.is_empty() {
        return Ok("Models: `scripted` only, which works offline; with ANTHROPIC_API_KEY or OPENAI_API_KEY set, `selvedge model list` \
                   shows more"
            .to_owned());
    }
    let named = models.tier("general").map(|model| format!("; `--model {model}` uses one")).unwrap_or_default();
    let more = if is_local {
        "`selvedge model check --probe` asks which models a host has"
    } else {
        "`selvedge model list` shows all"
    };
    Ok(format!("Models: {}{named}; {more}", hosts.join(", ")))
}
