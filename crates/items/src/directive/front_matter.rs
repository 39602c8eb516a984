//! Reads the form with YAML before the body.

use std::collections::BTreeMap;
use std::fmt;

use selvedge_model::id::DirectiveId;
use selvedge_model::limits::Limits;
use serde::de::{MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Context, Directive};
use crate::capability::Permissions;
use crate::error::Flaw;
use crate::hook::Hook;
use crate::input::{Input, Output};
use crate::yaml::parse_yaml;

/// The requested model: by its id, or by a tier.
///
/// Written as an id, or as `{id, tier, provider, fallback}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ModelChoice {
    /// The provider's name for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The tier, as named in the configuration: `fast`, `general`, `high`, `max`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// Its provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The model to use if it is not available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
}

impl ModelChoice {
    /// Checks that it names a model.
    pub(crate) fn check(self) -> Result<Self, &'static str> {
        let texts = [&self.id, &self.tier, &self.provider, &self.fallback];
        if texts.iter().any(|text| text.as_deref().is_some_and(|text| text.trim().is_empty())) {
            return Err("the name of a model must not be empty");
        }
        if self.id.is_none() && self.tier.is_none() {
            return Err("a model needs an `id` or a `tier`");
        }
        Ok(self)
    }
}

impl<'de> Deserialize<'de> for ModelChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            id: Option<String>,
            tier: Option<String>,
            provider: Option<String>,
            fallback: Option<String>,
        }

        struct Forms;

        impl<'de> Visitor<'de> for Forms {
            type Value = ModelChoice;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the id of a model, or `id`, `tier`, `provider` and `fallback`")
            }

            fn visit_str<E: serde::de::Error>(self, id: &str) -> Result<ModelChoice, E> {
                ModelChoice { id: Some(id.to_owned()), ..ModelChoice::default() }.check().map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ModelChoice, A::Error> {
                let Fields { id, tier, provider, fallback } = Fields::deserialize(MapAccessDeserializer::new(map))?;
                ModelChoice { id, tier, provider, fallback }.check().map_err(serde::de::Error::custom)
            }
        }

        deserializer.deserialize_any(Forms)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    name: String,
    #[serde(default = "first")]
    version: String,
    #[serde(default)]
    description: String,
    category: Option<String>,
    author: Option<String>,
    model: Option<ModelChoice>,
    #[serde(default)]
    limits: Limits,
    permissions: Option<Permissions>,
    #[serde(default)]
    inputs: Vec<Input>,
    #[serde(default)]
    outputs: Vec<Output>,
    #[serde(default)]
    hooks: Vec<Hook>,
    #[serde(default)]
    context: Context,
    extends: Option<DirectiveId>,
    continuation_directive: Option<DirectiveId>,
    #[serde(default)]
    extra: BTreeMap<String, String>,
}

/// The version of a directive without one.
pub(super) fn first() -> String {
    "0.0.0".to_owned()
}

pub(super) fn read(text: &str, line: u64) -> Result<Directive, Flaw> {
    let fields: Fields = parse_yaml(text, line)?;
    Ok(Directive {
        name: fields.name,
        version: fields.version,
        description: fields.description.trim().to_owned(),
        category: fields.category,
        author: fields.author,
        model: fields.model,
        limits: fields.limits,
        permissions: fields.permissions,
        inputs: fields.inputs,
        outputs: fields.outputs,
        hooks: fields.hooks,
        context: fields.context,
        extends: fields.extends,
        continuation_directive: fields.continuation_directive,
        extra: fields.extra,
        ..Directive::default()
    })
}
