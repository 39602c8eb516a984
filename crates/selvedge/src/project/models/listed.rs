//! What is configured about models, for people and programs that choose one.

use selvedge_items::config::{Format, KnownModel};
use serde::Serialize;

use super::hosts::Hosts;
use super::{Credentials, Models, RECORDED, SCRIPTED};

/// A model, or a provider of which no model is known, and what is configured about it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ListedModel {
    /// Its full name; `PROVIDER:*` for a provider of which no model is known.
    pub model: String,
    /// The id of its provider.
    pub provider: String,
    /// The wire format; absent for models that are not on the network.
    pub format: Option<Format>,
    /// The address; absent for models that are not on the network.
    pub base_url: Option<String>,
    /// The tiers that it is used for now.
    pub tiers: Vec<String>,
    /// Its entry in the configuration.
    pub known: Option<KnownModel>,
    /// Whether the credentials of its provider are there.
    pub credentials: Credentials,
    /// Whether its answers cost nothing, because nothing is called.
    #[serde(rename = "offline")]
    pub is_offline: bool,
}

impl Models {
    /// Every known model, every provider of which none is known, and those that need no network.
    pub fn list(&self) -> Vec<ListedModel> {
        let offline = self.names().map(|name| offline(name.to_owned()));
        let Some(hosts) = &self.hosts else { return offline.collect() };
        let known = hosts.config.known.iter().filter_map(|known| self.show(&known.id));
        let has_known = |id: &str| hosts.config.known.iter().any(|known| known.id.split(':').next() == Some(id));
        let bare = hosts.config.providers.iter().filter(|provider| !has_known(&provider.id));
        let bare = bare.filter_map(|provider| self.show(&format!("{}:*", provider.id)));
        let mut listed: Vec<ListedModel> = known.chain(bare).collect();
        listed.sort_by(|one, other| one.provider.cmp(&other.provider));
        offline.chain(listed).collect()
    }

    /// What is configured about a model or a tier; `None` if its provider is not known.
    pub fn show(&self, name: &str) -> Option<ListedModel> {
        let name = self.named(name);
        let provider = name.split(':').next().unwrap_or_default();
        if self.providers.contains_key(provider) {
            return Some(offline(name));
        }
        let hosts = self.hosts.as_ref()?;
        let found = hosts.config.provider(provider)?;
        Some(ListedModel {
            provider: found.id.clone(),
            format: Some(found.format),
            base_url: Some(without_credentials(hosts.base_url(found))),
            tiers: tiers(hosts, &name),
            known: hosts.config.find(&name).cloned(),
            credentials: hosts.credentials(found),
            is_offline: false,
            model: name,
        })
    }

    /// The providers on the network, each with a model to try it with: the cheapest tier's, or any that is known.
    pub fn samples(&self) -> Vec<(String, Option<String>)> {
        let Some(hosts) = &self.hosts else { return Vec::new() };
        let sample = |id: &str| {
            let of = |known: &&KnownModel| known.id.split(':').next() == Some(id);
            let price = |known: &&KnownModel| (known.output, known.input);
            let found = hosts.config.known.iter().filter(of).min_by_key(price);
            let other = hosts.config.provider(id).and_then(|provider| provider.models_as.clone());
            let shared = other.and_then(|other| {
                let of = |known: &&KnownModel| known.id.split(':').next() == Some(other.as_str());
                let found = hosts.config.known.iter().filter(of).min_by_key(price)?;
                Some(format!("{id}:{}", found.id.split_once(':')?.1))
            });
            found.map(|known| known.id.clone()).or(shared)
        };
        hosts.config.providers.iter().map(|provider| (provider.id.clone(), sample(&provider.id))).collect()
    }
}

/// An address without the user and password that a variable may have put into it.
fn without_credentials(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let shown = host.rfind('@').map_or(rest, |at| &rest[at + 1..]);
    format!("{scheme}://{shown}")
}

/// A model of a provider that is not on the network.
fn offline(name: String) -> ListedModel {
    let provider = name.split(':').next().unwrap_or_default().to_owned();
    let is_offline = [SCRIPTED, RECORDED].contains(&provider.as_str());
    ListedModel {
        model: if provider == RECORDED && name == RECORDED { format!("{RECORDED}:DIR") } else { name },
        provider,
        format: None,
        base_url: None,
        tiers: Vec::new(),
        known: None,
        credentials: Credentials::NotNeeded,
        is_offline,
    }
}

fn tiers(hosts: &Hosts, model: &str) -> Vec<String> {
    let usual = selvedge_items::config::TIERS.into_iter().map(str::to_owned);
    let own = hosts.config.tiers.keys().cloned();
    let mut tiers: Vec<String> = usual.chain(own).filter(|tier| hosts.tier(tier).as_deref() == Some(model)).collect();
    tiers.dedup();
    tiers
}
