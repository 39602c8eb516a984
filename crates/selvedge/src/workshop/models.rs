//! Which models there are, by the first word of their names.
//!
//! A model is named by its provider and what that calls it: `scripted:answers.yaml`, or the provider alone: `scripted`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use selvedge_model::{Model, Price};
use selvedge_providers::{Script, Scripted};

use super::OrderError;

/// The provider of models that answer from scripts, and the name of the one that answers offline without any.
pub const SCRIPTED: &str = "scripted";

/// A model that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// What its provider calls it; absent if only the provider is named.
    pub name: Option<&'a str>,
    /// The project's folder.
    pub project: &'a Path,
}

/// A model, and what it says that it costs.
#[derive(Clone)]
pub struct Provided {
    /// The model.
    pub model: Arc<dyn Model>,
    /// What its tokens cost, where the configuration does not say.
    pub price: Option<Price>,
}

/// Makes the models of one provider.
pub type Provider = Arc<dyn Fn(Wanted<'_>) -> Result<Provided, OrderError> + Send + Sync>;

/// The providers of models, by name. By default there is only the scripted one.
#[derive(Clone)]
pub struct Models {
    providers: BTreeMap<String, Provider>,
}

impl Default for Models {
    fn default() -> Self {
        let mut models = Self { providers: BTreeMap::new() };
        models.register(SCRIPTED, Arc::new(scripted));
        models
    }
}

impl std::fmt::Debug for Models {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_set().entries(self.providers.keys()).finish()
    }
}

impl Models {
    /// Adds a provider, in place of the one that had this name before.
    pub fn register(&mut self, name: impl Into<String>, provider: Provider) {
        self.providers.insert(name.into(), provider);
    }

    /// The model of a name.
    pub(super) fn make(&self, model: &str, project: &Path) -> Result<Provided, OrderError> {
        let (provider, name) = match model.split_once(':') {
            Some((provider, name)) => (provider, Some(name)),
            None => (model, None),
        };
        match self.providers.get(provider) {
            Some(provider) => provider(Wanted { name, project }),
            None => {
                let known = self.providers.keys().cloned().collect();
                Err(OrderError::NoModel { model: model.to_owned(), known })
            }
        }
    }
}

fn scripted(wanted: Wanted<'_>) -> Result<Provided, OrderError> {
    let Some(path) = wanted.name else {
        return Ok(Provided { model: Arc::new(Scripted::offline()), price: None });
    };
    let no_script = |why: String| OrderError::NoScript { path: path.to_owned(), why };
    let file = wanted.project.join(path).canonicalize().map_err(|error| no_script(error.to_string()))?;
    let is_inside = wanted.project.canonicalize().is_ok_and(|project| file.starts_with(project));
    if !is_inside {
        return Err(no_script("it lies outside the project".to_owned()));
    }
    let text = std::fs::read_to_string(&file).map_err(|error| no_script(error.to_string()))?;
    let script = Script::parse(&text).map_err(|source| OrderError::Script { path: path.to_owned(), source })?;
    let price = script.price.map(|price| Price {
        input: price.input_per_million_tokens,
        output: price.output_per_million_tokens,
        cache_read: price.cache_read_per_million_tokens,
        cache_write: price.cache_write_per_million_tokens,
    });
    Ok(Provided { model: Arc::new(Scripted::new(script)), price })
}
