//! Models on the network: the hosts of the configuration, with the credentials that the environment has.
//!
//! Nothing here reads the process's environment: the variables are passed in. A key is read when it is first needed, and never shown.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::ExposeSecret;
use selvedge_items::config::{self, KnownModel, TIERS, Timeouts};
use selvedge_model::Secrets;
use selvedge_providers::wire::Dialect;
use selvedge_providers::{self as providers, Connections, Host, Key, Remote, RemoteEmbedder};
use serde::Serialize;
use serde_json::json;

use crate::project::ProjectError;

/// A shorter key is a placeholder for a local server, such as `none`, and must not be masked everywhere.
const SECRET_BYTES_MIN: usize = 8;

/// The hosts of the configuration.
#[derive(Clone)]
pub(super) struct Hosts {
    pub(super) config: config::Models,
    environment: BTreeMap<String, String>,
    connections: Connections,
    pub(super) record: Option<PathBuf>,
    /// Keys that were read, from a command for example.
    pub(super) learned: Secrets,
}

/// Whether the credentials of a provider are there. Never has their value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Credentials {
    /// They are there.
    Present {
        /// The variable, the file or the command that has them.
        from: String,
    },
    /// They are not there.
    Missing {
        /// The variable or the file that should have them.
        from: String,
        /// Why they can't be used.
        why: String,
    },
    /// None are sent.
    NotNeeded,
}

impl Credentials {
    /// Whether a request can be sent.
    pub fn are_there(&self) -> bool {
        !matches!(self, Self::Missing { .. })
    }
}

impl Hosts {
    pub(super) fn new(config: &config::Models, environment: &BTreeMap<String, String>) -> Self {
        let config = config.clone();
        let environment = environment.clone();
        Self { config, environment, connections: Connections::new(), record: None, learned: Secrets::default() }
    }

    /// A variable that is set and not empty.
    fn variable(&self, name: Option<&String>) -> Option<&String> {
        self.environment.get(name?).filter(|value| !value.trim().is_empty())
    }

    /// The address of a provider: what its variable says, or else the configuration.
    pub(super) fn base_url<'a>(&'a self, provider: &'a config::Provider) -> &'a str {
        let url = self.variable(provider.base_url_env.as_ref()).unwrap_or(&provider.base_url);
        url.trim().trim_end_matches('/')
    }

    /// Whether the credentials of a provider are there.
    pub(super) fn credentials(&self, provider: &config::Provider) -> Credentials {
        if let Some(command) = &provider.api_key_command {
            return Credentials::Present {
                from: format!("the command `{}`", command.first().map_or("", String::as_str)),
            };
        }
        if let Some(file) = &provider.api_key_file {
            let path = self.path(file);
            return match check_key_file(&path) {
                Ok(()) => Credentials::Present { from: path.display().to_string() },
                Err(why) => Credentials::Missing { from: path.display().to_string(), why },
            };
        }
        let Some(name) = &provider.api_key_env else { return Credentials::NotNeeded };
        if self.variable(Some(name)).is_some() {
            return Credentials::Present { from: name.clone() };
        }
        // A host of the user's own, such as a local server, may need no key.
        if self.variable(provider.base_url_env.as_ref()).is_some() {
            return Credentials::NotNeeded;
        }
        Credentials::Missing { from: name.clone(), why: "the environment variable is not set".to_owned() }
    }

    /// A path of the configuration; `~/` is the home folder that the environment names.
    fn path(&self, text: &str) -> PathBuf {
        match (text.strip_prefix("~/"), self.environment.get("HOME")) {
            (Some(rest), Some(home)) => Path::new(home).join(rest),
            _ => PathBuf::from(text),
        }
    }

    fn key(&self, provider: &config::Provider) -> Option<Key> {
        if let Some(command) = &provider.api_key_command {
            return Some(Key::Command(command.clone()));
        }
        if let Some(file) = &provider.api_key_file {
            return Some(Key::File(self.path(file)));
        }
        let value = self.variable(provider.api_key_env.as_ref())?;
        Some(Key::Value(value.trim().into()))
    }

    /// A provider as the network knows it, whether or not its credentials are there.
    fn host(&self, provider: &config::Provider, project: &Path) -> Result<Host, ProjectError> {
        let Timeouts { connect_ms, first_byte_ms, idle_ms, total_ms } = provider.timeouts;
        let of = Duration::from_millis;
        // Both know a format by the same word.
        let format: Result<providers::Format, _> = serde_json::from_value(json!(provider.format));
        let format =
            format.map_err(|_| ProjectError::NoModel { model: format!("{}:", provider.id), known: Vec::new() })?;
        let mut host = Host::new(&provider.id, format, self.base_url(provider));
        host.key = self.key(provider);
        host.headers = provider.headers.clone().into_iter().collect();
        host.proxy = provider.proxy.clone();
        host.ca_file = provider.ca_file.as_ref().map(|file| project.join(self.path(file)));
        host.timeouts = providers::Timeouts {
            connect: of(connect_ms),
            first_byte: of(first_byte_ms),
            idle: of(idle_ms),
            total: of(total_ms),
        };
        host.record = self.record.clone();
        host.learned = self.learned.clone();
        Ok(host)
    }

    /// A model of a provider, by the provider's name for it.
    pub(super) fn remote(
        &self,
        provider: &config::Provider,
        model: &str,
        project: &Path,
    ) -> Result<Remote, ProjectError> {
        if let Credentials::Missing { from, why } = self.credentials(provider) {
            return Err(ProjectError::NoKey { provider: provider.id.clone(), from, why });
        }
        let host = self.host(provider, project)?;
        let known = self.config.find(&format!("{}:{model}", provider.id));
        let dialect = Dialect {
            provider: provider.id.clone(),
            output_tokens_max: known.and_then(|known| known.output_tokens.or(known.output_tokens_max)),
            thinking_tokens: known.and_then(|known| known.thinking_tokens),
            effort: known.and_then(|known| known.effort.clone()),
            compatible: !host.is_vendors_own(),
            cache: provider.cache,
            sessions: provider.sessions,
            extra: provider.extra.clone(),
        };
        Ok(Remote::new(&self.connections, host, model, dialect))
    }

    /// An embedder of a provider, by the provider's name for it.
    pub(super) fn embedder(
        &self,
        provider: &config::Provider,
        model: &str,
        dimensions: usize,
        project: &Path,
    ) -> Result<RemoteEmbedder, ProjectError> {
        if let Credentials::Missing { from, why } = self.credentials(provider) {
            return Err(ProjectError::NoKey { provider: provider.id.clone(), from, why });
        }
        Ok(RemoteEmbedder::new(&self.connections, self.host(provider, project)?, model, dimensions))
    }

    /// The model of a tier: the configured one, or the preferred known one whose credentials are there. A usual tier without a model takes
    /// that of the next lower one.
    pub(super) fn tier(&self, name: &str) -> Option<String> {
        if let Some(model) = self.config.tier(name) {
            return Some(model.to_owned());
        }
        let has_key = |known: &&KnownModel| {
            let provider = known.id.split(':').next().and_then(|id| self.config.provider(id));
            provider.is_some_and(|provider| match self.credentials(provider) {
                Credentials::Present { .. } => true,
                // Such an address serves models of its own.
                Credentials::NotNeeded => !provider.has_key_source(),
                Credentials::Missing { .. } => false,
            })
        };
        let lower: &[&str] = match TIERS.iter().position(|tier| *tier == name) {
            Some(at) => &TIERS[..at],
            None => &[],
        };
        let tiers = [name].into_iter().chain(lower.iter().rev().copied());
        tiers.filter_map(|tier| self.config.of_tier(tier).find(has_key)).map(|known| known.id.clone()).next()
    }

    /// The keys that are known without running a command, and passwords in addresses and headers: they must never reach a log.
    pub(super) fn secrets(&self) -> Vec<String> {
        let hosts = self.config.providers.iter().filter_map(|provider| self.host(provider, Path::new("")).ok());
        let secrets = hosts.flat_map(|host| host.secrets());
        let secrets = secrets.map(|secret| secret.expose_secret().to_owned());
        secrets.filter(|secret| secret.len() >= SECRET_BYTES_MIN).collect()
    }
}

/// Checks that only the owner can read a key file, as the network will before it is used.
fn check_key_file(path: &Path) -> Result<(), String> {
    let found = fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    let mode = found.mode() & 0o777;
    if !found.is_file() {
        Err("it is not a regular file".to_owned())
    } else if mode & 0o077 != 0 {
        Err(format!("its mode is {mode:04o}; run `chmod 600` on it"))
    } else {
        Ok(())
    }
}
