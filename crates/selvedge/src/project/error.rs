//! Why a directive can't be run.

use selvedge_items::ItemError;
use selvedge_items::input::InputError;
use selvedge_items::interpolate::InterpolationError;
use selvedge_model::error::{Classify, Kind as ErrorKind};
use selvedge_providers::{RecordError, ScriptError};
use selvedge_tools::InvalidTool;

use super::TIER;

/// Why a directive can't be run.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    /// An item is missing, not valid, or not trusted.
    #[error(transparent)]
    Item(#[from] ItemError),
    /// The inputs are not what the directive declares.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The body refers to an input or a variable without a value.
    #[error("`{file}` can't be filled in: {source}")]
    Interpolation {
        /// The file that has the body.
        file: String,
        /// What is wrong, with the line of that file.
        source: InterpolationError,
    },
    /// A declared tool is invalid.
    #[error(transparent)]
    Tool(#[from] InvalidTool),
    /// A script is invalid.
    #[error("the script `{path}` is invalid: {source}")]
    Script {
        /// The script.
        path: String,
        /// What is wrong with it.
        source: ScriptError,
    },
    /// A script can't be read.
    #[error("the script `{path}` can't be read: {why}")]
    NoScript {
        /// The script.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// Recorded calls can't be read.
    #[error(transparent)]
    Recording(#[from] RecordError),
    /// Environment variables that a graph needs are not set.
    #[error("graph `{graph}` needs environment variables that are not set: {}", listed(.names))]
    NoVariables {
        /// The graph.
        graph: String,
        /// The variables.
        names: Vec<String>,
    },
    /// A graph has no such node.
    #[error("graph `{graph}` has no node `{node}`")]
    NoNode {
        /// The graph.
        graph: String,
        /// The node.
        node: String,
    },
    /// The key of a provider is not there.
    #[error("provider `{provider}` has no key: `{from}`: {why}")]
    NoKey {
        /// The provider.
        provider: String,
        /// The variable or the file that should have it.
        from: String,
        /// Why it can't be used.
        why: String,
    },
    /// No registered provider has the model.
    #[error("there is no provider for the model `{model}`; the providers are {}", listed(known))]
    NoModel {
        /// The model.
        model: String,
        /// The registered providers.
        known: Vec<String>,
    },
}

impl ProjectError {
    /// Whether only the model can't be used.
    pub fn is_about_model(&self) -> bool {
        matches!(
            self,
            Self::NoModel { .. }
                | Self::NoKey { .. }
                | Self::NoScript { .. }
                | Self::Script { .. }
                | Self::Recording(_)
        )
    }
}

impl Classify for ProjectError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Item(error) => error.kind(),
            Self::Interpolation { source, .. } => source.kind(),
            Self::Input(_) | Self::Tool(_) | Self::Script { .. } | Self::Recording(_) => ErrorKind::Invalid,
            Self::NoScript { .. }
            | Self::NoModel { .. }
            | Self::NoKey { .. }
            | Self::NoVariables { .. }
            | Self::NoNode { .. } => ErrorKind::Absent,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Item(error) => error.code(),
            Self::Input(error) => error.code(),
            Self::Interpolation { source, .. } => source.code(),
            Self::Tool(error) => error.code(),
            Self::Script { .. } => "script_invalid",
            Self::NoScript { .. } => "script_not_found",
            Self::Recording(error) => error.code(),
            Self::NoVariables { .. } => "graph_variables_missing",
            Self::NoNode { .. } => "graph_node_not_found",
            Self::NoKey { .. } => "model_key_missing",
            Self::NoModel { .. } => "model_not_found",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Item(error) => error.hint(),
            Self::Input(error) => error.hint(),
            Self::Interpolation { source, .. } => source.hint(),
            Self::Tool(error) => error.hint(),
            Self::Script { source, .. } => source.hint(),
            Self::NoScript { .. } => Some("name a file inside the project: `--model scripted:PATH`".to_owned()),
            Self::NoModel { model, .. } if model.starts_with(TIER) => {
                let tier = model.trim_start_matches(TIER);
                Some(format!(
                    "set ANTHROPIC_API_KEY or OPENAI_API_KEY, or name a model: `tiers: {{{tier}: MODEL}}` in \
                     `.ai/config/agent/models.yaml`"
                ))
            }
            Self::NoVariables { names, .. } => names.first().map(|name| format!("set them: `export {name}=…`")),
            Self::NoNode { graph, .. } => Some(format!("`selvedge graph show {graph}` lists its nodes")),
            Self::Recording(_) => Some("name a folder that `selvedge run --record DIR` wrote".to_owned()),
            Self::NoKey { from, .. } if from.starts_with('/') => {
                Some("write the key into that file, and let only its owner read it (`chmod 600`)".to_owned())
            }
            Self::NoKey { provider, from, .. } => Some(format!(
                "set `{from}`, or name a key file or a command for `{provider}`: `selvedge config explain models.providers`"
            )),
            Self::NoModel { .. } => Some(
                "`selvedge model list` shows the models; `selvedge config explain models.providers` shows how to add a provider"
                    .to_owned(),
            ),
        }
    }
}

fn listed(known: &[String]) -> String {
    let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    known.join(", ")
}
