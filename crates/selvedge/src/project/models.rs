//! Which models there are, by the first word of their names.
//!
//! A model is named by its provider and the provider's name for it: `anthropic:claude-…`, `scripted:answers.yaml`, or the provider alone:
//! `scripted`. Providers on the network are data (`hosts`); the others are registered here. A tier, such as `fast`, is a name for one of
//! these models.

mod hosts;
mod listed;
mod probe;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_items::config;
use selvedge_model::{Embedder, Model, Price, Secrets};
use selvedge_providers::embed::Hashing;
use selvedge_providers::{Recorded, Remote, Script, Scripted};
use serde_json::Value;

use super::ProjectError;
pub use hosts::Credentials;
use hosts::Hosts;
pub use listed::ListedModel;
pub use probe::ProbeError;

/// The provider of models that answer from scripts, and the name of the one that answers offline without any.
pub const SCRIPTED: &str = "scripted";
/// The provider of models that answer from recorded calls.
pub const RECORDED: &str = "recorded";

/// A model that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct RequestedModel<'a> {
    /// What its provider calls it; absent if only the provider is named.
    pub name: Option<&'a str>,
    /// The project's folder.
    pub project: &'a Path,
}

/// A model, and what it says that it costs.
#[derive(Clone)]
pub struct PricedModel {
    /// The model.
    pub model: Arc<dyn Model>,
    /// What its tokens cost, where the configuration does not say.
    pub price: Option<Price>,
    /// The most tokens of an answer, where the configuration does not say.
    pub output_tokens_max: Option<u64>,
}

/// Makes the models of one provider.
pub type Provider = Arc<dyn Fn(RequestedModel<'_>) -> Result<PricedModel, ProjectError> + Send + Sync>;

/// The providers of models, by name. By default there are only those that need no network.
#[derive(Clone)]
pub struct Models {
    providers: BTreeMap<String, Provider>,
    hosts: Option<Hosts>,
}

impl Default for Models {
    fn default() -> Self {
        let mut models = Self { providers: BTreeMap::new(), hosts: None };
        models.register(SCRIPTED, Arc::new(scripted));
        models.register(RECORDED, Arc::new(recorded));
        models
    }
}

impl std::fmt::Debug for Models {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_set().entries(self.providers.keys()).finish()
    }
}

impl Models {
    /// The providers of the configuration, with the credentials that are among these environment variables.
    pub fn configured(config: &config::Models, environment: &BTreeMap<String, String>) -> Self {
        Self { hosts: Some(Hosts::new(config, environment)), ..Self::default() }
    }

    /// The same providers; every call on the network is recorded in a folder, without credentials.
    #[must_use]
    pub fn recording(mut self, folder: PathBuf) -> Self {
        if let Some(hosts) = &mut self.hosts {
            hosts.record = Some(folder);
        }
        self
    }

    /// The same providers, whose calls are not recorded.
    #[must_use]
    pub(crate) fn unrecorded(mut self) -> Self {
        if let Some(hosts) = &mut self.hosts {
            hosts.record = None;
        }
        self
    }

    /// Adds a provider, in place of the one that had this name before.
    pub fn register(&mut self, name: impl Into<String>, provider: Provider) {
        self.providers.insert(name.into(), provider);
    }

    /// The keys of the configured providers, as far as they are known: they must never reach a log.
    pub fn secrets(&self) -> Vec<String> {
        self.hosts.as_ref().map(Hosts::secrets).unwrap_or_default()
    }

    /// The keys that are read later, such as those that commands print, each from the moment before it is first sent.
    pub fn learned_secrets(&self) -> Secrets {
        self.hosts.as_ref().map(|hosts| hosts.learned.clone()).unwrap_or_default()
    }

    /// The model that a tier stands for now.
    pub fn tier(&self, name: &str) -> Option<String> {
        self.hosts.as_ref()?.tier(name)
    }

    /// Whether the configuration names the model of a tier.
    pub(crate) fn names_tier(&self, name: &str) -> bool {
        self.hosts.as_ref().is_some_and(|hosts| hosts.config.tier(name).is_some())
    }

    /// Whether two models are served at the same address.
    pub(crate) fn are_of_one_host(&self, one: &str, other: &str) -> bool {
        let address = |model: &str| {
            let hosts = self.hosts.as_ref()?;
            Some(hosts.base_url(hosts.config.provider(split(model).0)?).to_owned())
        };
        address(one).is_some_and(|one| Some(one) == address(other))
    }

    /// The full name of a model: that of the tier, if the name is that of a tier and not of a provider.
    pub fn named(&self, name: &str) -> String {
        let is_provider = name.contains(':') || self.providers.contains_key(name);
        let tier = if is_provider { None } else { self.tier(name) };
        tier.unwrap_or_else(|| name.to_owned())
    }

    /// The embedder of a name: the offline one, or one of a provider.
    pub(crate) fn embedder(
        &self,
        config: &config::Embeddings,
        project: &Path,
    ) -> Result<Option<Arc<dyn Embedder>>, ProjectError> {
        let Some(name) = &config.model else { return Ok(None) };
        if name == config::HASHING {
            return Ok(Some(Arc::new(Hashing)));
        }
        let (provider, model) = split(name);
        let found = self.hosts.as_ref().and_then(|hosts| Some((hosts, hosts.config.provider(provider)?)));
        match (found, model) {
            (Some((hosts, found)), Some(model)) if !model.is_empty() => {
                let dimensions = usize::try_from(config.dimensions).unwrap_or(usize::MAX);
                Ok(Some(Arc::new(hosts.embedder(found, model, dimensions, project)?)))
            }
            _ => Err(self.unknown(name)),
        }
    }

    /// The model of a name on the network, to try it.
    pub fn remote(&self, model: &str, project: &Path) -> Result<Remote, ProjectError> {
        let (provider, name) = split(model);
        let found = self.hosts.as_ref().and_then(|hosts| Some((hosts, hosts.config.provider(provider)?)));
        match (found, name) {
            (Some((hosts, found)), Some(name)) if !name.is_empty() => hosts.remote(found, name, project),
            _ => Err(self.unknown(model)),
        }
    }

    /// The model of a name.
    pub(crate) fn make(&self, model: &str, project: &Path) -> Result<PricedModel, ProjectError> {
        let (provider, name) = split(model);
        match self.providers.get(provider) {
            Some(provider) => provider(RequestedModel { name, project }),
            None => {
                Ok(PricedModel { model: Arc::new(self.remote(model, project)?), price: None, output_tokens_max: None })
            }
        }
    }

    /// The names of the providers that are not on the network.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.providers.keys().map(String::as_str)
    }

    fn unknown(&self, model: &str) -> ProjectError {
        let hosts = self.hosts.iter().flat_map(|hosts| &hosts.config.providers).map(|provider| provider.id.as_str());
        let mut known: Vec<String> = self.names().chain(hosts).map(str::to_owned).collect();
        known.sort();
        ProjectError::NoModel { model: model.to_owned(), known }
    }
}

/// A name as the provider, and the provider's name for the model, if there is one.
fn split(model: &str) -> (&str, Option<&str>) {
    model.split_once(':').map_or((model, None), |(provider, name)| (provider, Some(name)))
}

fn recorded(wanted: RequestedModel<'_>) -> Result<PricedModel, ProjectError> {
    let folder = wanted.project.join(wanted.name.unwrap_or_default());
    let model = Recorded::open(&folder).map_err(ProjectError::Recording)?;
    let output_tokens_max = recorded_limit(&folder);
    Ok(PricedModel { model: Arc::new(model), price: Some(Price::default()), output_tokens_max })
}

/// The output limit of the first recorded request: a request with another one is not the recorded one.
fn recorded_limit(folder: &Path) -> Option<u64> {
    let names = std::fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let first = names.filter(|name| name.ends_with(".request.json")).min()?;
    let body: Value = serde_json::from_slice(&std::fs::read(folder.join(first)).ok()?).ok()?;
    let fields = ["max_tokens", "max_completion_tokens", "max_output_tokens"];
    fields.iter().find_map(|name| body.get(name)?.as_u64())
}

fn scripted(wanted: RequestedModel<'_>) -> Result<PricedModel, ProjectError> {
    let Some(path) = wanted.name else {
        return Ok(PricedModel { model: Arc::new(Scripted::offline()), price: None, output_tokens_max: None });
    };
    let no_script = |why: String| ProjectError::NoScript { path: path.to_owned(), why };
    let file = wanted.project.join(path).canonicalize().map_err(|error| no_script(error.to_string()))?;
    let is_inside = wanted.project.canonicalize().is_ok_and(|project| file.starts_with(project));
    if !is_inside {
        return Err(no_script("it lies outside the project".to_owned()));
    }
    let text = std::fs::read_to_string(&file).map_err(|error| no_script(error.to_string()))?;
    let script = Script::parse(&text).map_err(|source| ProjectError::Script { path: path.to_owned(), source })?;
    let price = script.price.map(|price| Price {
        input: price.input_per_million_tokens,
        output: price.output_per_million_tokens,
        cache_read: price.cache_read_per_million_tokens,
        cache_write: price.cache_write_per_million_tokens,
    });
    Ok(PricedModel { model: Arc::new(Scripted::new(script)), price, output_tokens_max: None })
}
