//! A host of models, as data.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use selvedge_model::Secrets;
use serde::{Deserialize, Serialize};

use super::Key;
use crate::wire::Wire;
use crate::wire::anthropic::Anthropic;
use crate::wire::openai_chat::OpenAiChat;
use crate::wire::openai_responses::OpenAiResponses;

/// The vendors' own hosts; their subdomains are their own, too.
const VENDOR_HOSTS: [&str; 2] = ["api.anthropic.com", "api.openai.com"];

/// The wire format of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Format {
    /// Anthropic's Messages API.
    #[serde(rename = "anthropic")]
    Anthropic,
    /// OpenAI's chat completions, which most other hosts are compatible with.
    #[serde(rename = "openai")]
    OpenAiChat,
    /// OpenAI's responses.
    #[serde(rename = "openai-responses")]
    OpenAiResponses,
}

impl Format {
    /// The format's code.
    pub fn wire(self) -> Box<dyn Wire> {
        match self {
            Self::Anthropic => Box::new(Anthropic),
            Self::OpenAiChat => Box::new(OpenAiChat),
            Self::OpenAiResponses => Box::new(OpenAiResponses),
        }
    }
}

/// A host of models.
#[derive(Clone)]
pub struct Host {
    /// The provider's name in `PROVIDER:MODEL`.
    pub name: String,
    /// Its wire format.
    pub format: Format,
    /// Its address, without a slash at the end. Anthropic's does not include `/v1`, OpenAI's does.
    pub base_url: String,
    /// Its key; without one no credentials are sent.
    pub key: Option<Key>,
    /// Headers that are added to each request; they replace those of the format.
    pub headers: Vec<(String, String)>,
    /// The address of a proxy for all requests.
    pub proxy: Option<String>,
    /// A PEM file with certificates of private authorities, in addition to those of the system.
    pub ca_file: Option<PathBuf>,
    /// Its time limits.
    pub timeouts: Timeouts,
    /// The folder where requests and responses are recorded.
    pub record: Option<PathBuf>,
    /// Where its key is added before it is sent, so that it is kept out of logs.
    pub learned: Secrets,
}

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection.
    pub connect: Duration,
    /// From the start of the call to the start of the response, connecting included.
    pub first_byte: Duration,
    /// Between two pieces of the response.
    pub idle: Duration,
    /// For the whole call.
    pub total: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            // A model that reasons may not send anything for minutes.
            first_byte: Duration::from_secs(300),
            idle: Duration::from_secs(120),
            total: Duration::from_secs(1800),
        }
    }
}

impl Host {
    /// A host with default limits and without a key.
    pub fn new(name: impl Into<String>, format: Format, base_url: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            format,
            base_url: base_url.into(),
            key: None,
            headers: Vec::new(),
            proxy: None,
            ca_file: None,
            timeouts: Timeouts::default(),
            record: None,
            learned: Secrets::default(),
        }
    }

    /// Whether this is a vendor's own host. Another one is compatible with a part of the format, and may ignore fields that it does not
    /// know.
    pub fn is_vendors_own(&self) -> bool {
        let rest = self.base_url.split_once("://").map_or(self.base_url.as_str(), |(_, rest)| rest);
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let name = authority.rsplit('@').next().unwrap_or_default();
        let name = name.split(':').next().unwrap_or_default().to_ascii_lowercase();
        let is_below = |vendor: &str| name.strip_suffix(vendor).is_some_and(|rest| rest.ends_with('.'));
        VENDOR_HOSTS.iter().any(|vendor| name == *vendor || is_below(vendor))
    }

    /// The secrets that are known without running a command: the key, or the content of its file, and the credentials in headers and
    /// addresses. Reads the key file.
    pub fn secrets(&self) -> Vec<SecretString> {
        let mut secrets = self.secrets_in_addresses();
        match &self.key {
            Some(Key::Value(value)) => secrets.push(value.clone()),
            Some(file @ Key::File(_)) => secrets.extend(file.read()),
            Some(Key::Command(_)) | None => {}
        }
        secrets
    }

    /// The credentials in its headers and addresses.
    pub(super) fn secrets_in_addresses(&self) -> Vec<SecretString> {
        let in_headers = self.headers.iter().filter(|(name, _)| is_credential(name)).map(|(_, value)| value.as_str());
        let in_urls = [Some(self.base_url.as_str()), self.proxy.as_deref()];
        let in_urls = in_urls.into_iter().flatten().filter_map(password);
        in_headers.chain(in_urls).map(SecretString::from).collect()
    }
}

/// Whether a header of this name carries a credential, such as `x-api-key` or `authorization`; `x-ratelimit-reset-tokens` does not.
pub(crate) fn is_credential(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.split(|character: char| !character.is_ascii_alphanumeric()).any(|word| {
        let ends = ["key", "token", "secret", "cookie", "password", "signature"];
        word.starts_with("auth") || ends.iter().any(|end| word.ends_with(end))
    })
}

/// The password in a URL.
fn password(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (user, _) = authority.rsplit_once('@')?;
    user.split_once(':').map(|(_, password)| password).filter(|password| !password.is_empty())
}

/// A URL without its credentials.
fn without_credentials(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
            let kept = authority.rfind('@').map_or(rest, |at| &rest[at + 1..]);
            format!("{scheme}://{kept}")
        }
        None => url.to_owned(),
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Host")
            .field("name", &self.name)
            .field("format", &self.format)
            .field("base_url", &without_credentials(&self.base_url))
            .field("key", &self.key)
            .field("headers", &headers)
            .field("proxy", &self.proxy.as_deref().map(without_credentials))
            .field("ca_file", &self.ca_file)
            .field("timeouts", &self.timeouts)
            .field("record", &self.record)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn headers_with_credentials_are_known_by_their_names() {
        for name in ["Authorization", "x-api-key", "apikey", "X-Auth-Token", "set-cookie", "proxy-authorization"] {
            assert!(is_credential(name), "{name}");
        }
        for name in
            ["x-ratelimit-reset-tokens", "anthropic-ratelimit-tokens-reset", "content-type", "anthropic-version"]
        {
            assert!(!is_credential(name), "{name}");
        }
    }

    #[test]
    fn a_vendors_own_host_is_known_by_its_name() {
        let is_own = |url: &str| Host::new("openai", Format::OpenAiChat, url).is_vendors_own();
        for url in ["https://api.openai.com/v1", "https://eu.api.openai.com:443/v1", "https://API.OpenAI.com"] {
            assert!(is_own(url), "{url}");
        }
        for url in [
            "http://127.0.0.1:11434/v1",
            "https://api.openai.com.example.org/v1",
            "https://evilapi.openai.com/v1",
            "https://api.openai.com@example.org/v1",
            "https://example.org/api.openai.com",
        ] {
            assert!(!is_own(url), "{url}");
        }
    }

    #[test]
    fn credentials_are_found_and_not_shown() {
        let mut host = Host::new("a", Format::Anthropic, "http://me:canary-base@127.0.0.1:1/v1");
        host.key = Some(Key::Value("canary-key".into()));
        host.headers =
            vec![("X-Api-Key".to_owned(), "canary-header".to_owned()), ("X-Title".to_owned(), "my project".to_owned())];
        host.proxy = Some("http://user:canary-proxy@proxy:3128".to_owned());
        let secrets = host.secrets();
        let secrets: Vec<_> = secrets.iter().map(ExposeSecret::expose_secret).collect();
        assert_eq!(secrets, ["canary-header", "canary-base", "canary-proxy", "canary-key"]);
        let shown = format!("{host:?}");
        assert!(!shown.contains("canary"), "{shown}");
        assert!(shown.contains("http://127.0.0.1:1/v1") && shown.contains("http://proxy:3128"), "{shown}");
    }
}
