//! A model of a host.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use reqwest::Method;
use secrecy::{ExposeSecret, SecretString};
use selvedge_model::answer::Drafts;
use selvedge_model::blocking::BoxFuture;
use selvedge_model::{Answer, Cancel, Message, Model, ModelError, Prompt, Role};

use super::key::Keyring;
use super::{Body, Caller, Connections, Host, Incoming, Outgoing, SecretFilter, Transport, exchange, served};
use crate::recording::Recorder;
use crate::wire::{Adjustment, Dialect, Wire};

/// The most tokens of a probe's answer.
const PROBE_TOKENS: u64 = 16;

/// A model on a host.
pub struct Remote {
    network: Network,
    model: String,
    dialect: Dialect,
    wire: Box<dyn Wire>,
    /// What the host rejects, learned from its refusals, for as long as this model is used: a run, or a message of a chat. The next one asks
    /// anew, so a host that was mended gets every field again. A plain lock: it is held for a lookup.
    adjustments: Mutex<Vec<Adjustment>>,
}

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The model that answered, by its host's name for it.
    pub model: String,
    /// Tokens sent; `None` if the host does not count them.
    pub input_tokens: Option<u64>,
    /// Tokens received; `None` if the host does not count them.
    pub output_tokens: Option<u64>,
    /// How long it took.
    pub elapsed: Duration,
}

/// The way to a host.
pub(super) struct Network {
    connections: Connections,
    host: Host,
    credentials: crate::wire::Credentials,
    keyring: Option<Keyring>,
    /// The keys that were sent, the last one last. A plain lock: it is held for a lookup.
    sent: Mutex<Vec<SecretString>>,
    recorder: Option<Arc<Recorder>>,
}

impl Remote {
    /// The model of this name on a host. Nothing is read or connected yet. Its blocks are marked with the dialect's provider, or, if that is
    /// empty, with the host's name.
    pub fn new(connections: &Connections, host: Host, model: impl Into<String>, mut dialect: Dialect) -> Self {
        if dialect.provider.is_empty() {
            dialect.provider.clone_from(&host.name);
        }
        let wire = host.format.wire();
        let model = model.into();
        let recorder = host.record.as_ref().map(|folder| Arc::new(Recorder::new(folder, &host, &model, &dialect)));
        let network = Network::new(connections, host, wire.credentials(), recorder);
        Self { network, model, dialect, wire, adjustments: Mutex::default() }
    }

    /// Reads the key and the certificates, without connecting.
    pub async fn check(&self) -> Result<(), ModelError> {
        self.network.ready().await.map_err(|error| self.network.filter().error(error))
    }

    /// Asks for one short answer, to see whether host, key and model work. This costs a few tokens.
    pub async fn probe(&self) -> Result<Probe, ModelError> {
        let messages = [Arc::new(Message::text(Role::User, "Reply with the word ok."))];
        let mut prompt = Prompt::new(&self.model, &messages);
        prompt.output_tokens_max = Some(PROBE_TOKENS);
        let dialect = Dialect { thinking_tokens: None, cache: false, sessions: false, ..self.dialect.clone() };
        let started = Instant::now();
        let answer = self.ask(&dialect, &prompt, &mut |_| {}, &Cancel::new()).await?;
        Ok(Probe {
            model: answer.model.unwrap_or_else(|| self.model.clone()),
            input_tokens: answer.usage.map(|usage| usage.input_tokens),
            output_tokens: answer.usage.map(|usage| usage.output_tokens),
            elapsed: started.elapsed(),
        })
    }

    /// Whether its host is a vendor's own.
    pub fn is_vendors_own(&self) -> bool {
        self.network.host.is_vendors_own()
    }

    /// The names of the models that its host lists.
    pub async fn served(&self) -> Result<Vec<String>, ModelError> {
        self.network.served().await.map_err(|error| self.network.filter().error(error))
    }

    async fn ask(
        &self,
        dialect: &Dialect,
        prompt: &Prompt<'_>,
        draft: &mut Drafts<'_>,
        cancel: &Cancel,
    ) -> Result<Answer, ModelError> {
        let caller = Caller {
            wire: self.wire.as_ref(),
            model: &self.model,
            dialect,
            adjustments: &self.adjustments,
            timeouts: self.network.host.timeouts,
            transport: &self.network,
            cancel,
        };
        match caller.answer(prompt, draft).await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.network.filter().error(error)),
        }
    }
}

impl Model for Remote {
    fn answer<'a>(
        &'a self,
        prompt: &'a Prompt<'a>,
        draft: &'a mut Drafts<'a>,
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(self.ask(&self.dialect, prompt, draft, cancel))
    }

    fn context_tokens_max(&self, _: &str) -> Option<u64> {
        None
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("host", &self.network.host).field("model", &self.model).finish_non_exhaustive()
    }
}

impl Network {
    /// Nothing is read or connected yet.
    pub(super) fn new(
        connections: &Connections,
        host: Host,
        credentials: crate::wire::Credentials,
        recorder: Option<Arc<Recorder>>,
    ) -> Self {
        let keyring = host.key.clone().map(Keyring::new);
        Self { connections: connections.clone(), credentials, keyring, sent: Mutex::default(), recorder, host }
    }

    /// Knows every secret of the host that was used so far.
    pub(super) fn filter(&self) -> SecretFilter {
        let keys = self.sent().clone();
        SecretFilter::new(self.host.secrets_in_addresses().into_iter().chain(keys))
    }

    fn sent(&self) -> MutexGuard<'_, Vec<SecretString>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn served(&self) -> Result<Vec<String>, ModelError> {
        let key = self.key().await?;
        let credentials = key.as_ref().map(|key| (self.credentials, key));
        served::list(&self.connections, &self.host, credentials).await
    }

    /// The key to send, if the host has one.
    async fn key(&self) -> Result<Option<SecretString>, ModelError> {
        let Some(keyring) = &self.keyring else { return Ok(None) };
        let key = keyring.get().await.map_err(|error| ModelError::Permanent { why: error.to_string() })?;
        let mut sent = self.sent();
        let is_new = sent.last().is_none_or(|last| last.expose_secret() != key.expose_secret());
        if is_new {
            self.host.learned.add(key.expose_secret());
            sent.push(key.clone());
        }
        Ok(Some(key))
    }
}

impl Transport for Network {
    fn ready(&self) -> BoxFuture<'_, Result<(), ModelError>> {
        Box::pin(async move {
            self.key().await?;
            exchange::client(&self.connections, &self.host).await?;
            Ok(())
        })
    }

    fn send<'a>(&'a self, request: &'a Outgoing) -> BoxFuture<'a, Result<Incoming, ModelError>> {
        Box::pin(async move {
            let key = self.key().await?;
            let tape = match &self.recorder {
                Some(recorder) => {
                    let tape = recorder.start(request, self.filter()).await;
                    let why = |error| format!("the request can't be recorded: {error}");
                    Some(tape.map_err(|error| ModelError::Permanent { why: why(error) })?)
                }
                None => None,
            };
            let credentials = key.as_ref().map(|key| (self.credentials, key));
            let response = exchange::send(&self.connections, &self.host, credentials, Method::POST, request).await?;
            let status = response.status().as_u16();
            let headers = response.headers().clone();
            let tape = tape.map(|tape| tape.response(status, &headers));
            Ok(Incoming { status, headers, body: Body::Network { response, tape } })
        })
    }

    fn replace_key(&self) -> BoxFuture<'_, Result<bool, ModelError>> {
        Box::pin(async move {
            let refused = self.sent().last().cloned();
            let (Some(keyring), Some(refused)) = (&self.keyring, refused) else { return Ok(false) };
            let other = keyring.replace(&refused).await;
            let other = other.map_err(|error| ModelError::Permanent { why: error.to_string() })?;
            Ok(other.is_some())
        })
    }
}
