//! An embedder of a host: the endpoint `embeddings` that OpenAI, Ollama and most compatible hosts have.
//!
//! One request is one answer: nothing is retried here, except once with a key that was read again after a 401. Texts are sent in batches, each
//! cut to [`TEXT_CHARS_MAX`] characters, because models have a limit. A host that refuses a batch as invalid gets its halves, and of a single
//! text its first half: one text that is too long for the model must not keep the others from getting their vectors.

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use selvedge_model::blocking::BoxFuture;
use selvedge_model::{Cancel, Classify, EmbedError, Embedder, ModelError};
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use super::remote::Network;
use super::{Connections, Host, Incoming, Outgoing, Transport};
use crate::wire::Credentials;

/// The most texts of one request.
const TEXTS_MAX: usize = 32;
/// The most characters of a text that are sent.
const TEXT_CHARS_MAX: usize = 8000;
/// A text of at most so many characters is not shortened any more.
const TEXT_CHARS_LEAST: usize = 200;
/// The most bytes of a response.
const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// How long one request may take.
const TIME_MAX: Duration = Duration::from_secs(60);

/// An embedder on a host.
pub struct RemoteEmbedder {
    network: Network,
    /// The host and the model, by its host's name for it.
    name: String,
    model: String,
    dimensions: usize,
}

#[derive(Deserialize)]
struct Response {
    data: Vec<Embedding>,
}

#[derive(Deserialize)]
struct Embedding {
    #[serde(default)]
    index: Option<usize>,
    embedding: Vec<f32>,
}

/// Why a request got no vectors.
enum Refusal {
    /// The host finds it invalid, perhaps because a text is too long for the model.
    Invalid(String),
    Error(EmbedError),
}

impl From<EmbedError> for Refusal {
    fn from(error: EmbedError) -> Self {
        Self::Error(error)
    }
}

fn first_chars(text: &str, count: usize) -> String {
    text.chars().take(count).collect()
}

impl RemoteEmbedder {
    /// The embedder of this name on a host, whose vectors have this length. Nothing is read or connected yet.
    pub fn new(connections: &Connections, host: Host, model: impl Into<String>, dimensions: usize) -> Self {
        let model = model.into();
        let name = format!("{}:{model}", host.name);
        // Calls are not recorded: a recording is about models.
        let network = Network::new(connections, Host { record: None, ..host }, Credentials::Bearer, None);
        Self { network, name, model, dimensions }
    }

    async fn batch(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let mut vectors = Vec::with_capacity(texts.len());
        // What is asked for next is last.
        let mut pending = vec![texts.iter().map(|text| first_chars(text, TEXT_CHARS_MAX)).collect::<Vec<String>>()];
        while let Some(mut texts) = pending.pop() {
            match self.ask(&texts).await {
                Ok(found) => vectors.extend(found),
                Err(Refusal::Invalid(_)) if texts.len() > 1 => {
                    let second = texts.split_off(texts.len() / 2);
                    pending.extend([second, texts]);
                }
                Err(Refusal::Invalid(why)) => {
                    let count = texts.first().map_or(0, |text| text.chars().count());
                    if count <= TEXT_CHARS_LEAST {
                        return Err(EmbedError::Refused { why });
                    }
                    pending.push(texts.iter().map(|text| first_chars(text, count / 2)).collect());
                }
                Err(Refusal::Error(error)) => return Err(error),
            }
        }
        Ok(vectors)
    }

    /// One request.
    async fn ask(&self, input: &[String]) -> Result<Vec<Vec<f32>>, Refusal> {
        let body = json!({"model": self.model, "input": input, "encoding_format": "float"});
        let request = Outgoing { path: "embeddings", headers: Vec::new(), body: Bytes::from(body.to_string()) };
        let asked = timeout(TIME_MAX, self.exchange(&request)).await;
        let late = || EmbedError::Transient { why: format!("no response within {} seconds", TIME_MAX.as_secs()) };
        let bytes = asked.map_err(|_| Refusal::Error(late()))??;
        let refused = |why: String| Refusal::Error(EmbedError::Refused { why });
        let Response { mut data } = serde_json::from_slice(&bytes)
            .map_err(|error| refused(format!("its response is not understood: {error}")))?;
        if data.iter().all(|one| one.index.is_some()) {
            data.sort_by_key(|one| one.index);
        }
        if data.len() != input.len() {
            return Err(refused(format!("it answered {} vectors for {} texts", data.len(), input.len())));
        }
        data.into_iter().map(|one| self.checked(one.embedding).map_err(Refusal::Error)).collect()
    }

    async fn exchange(&self, request: &Outgoing) -> Result<Vec<u8>, Refusal> {
        let mut response = self.send(request).await?;
        if response.status == 401 && self.network.replace_key().await.map_err(|error| self.error(error))? {
            response = self.send(request).await?;
        }
        let Incoming { status, mut body, .. } = response;
        let mut bytes = Vec::new();
        loop {
            match body.piece().await {
                Ok(Some(piece)) if bytes.len() + piece.len() <= RESPONSE_BYTES_MAX => bytes.extend_from_slice(&piece),
                Ok(Some(_)) => return Err(EmbedError::Refused { why: "its response is too long".to_owned() }.into()),
                Ok(None) => break,
                Err(why) => return Err(EmbedError::Transient { why }.into()),
            }
        }
        let told = || {
            let text: String = String::from_utf8_lossy(&bytes).chars().take(200).collect();
            self.network.filter().text(&format!("status {status}: {text}"))
        };
        match status {
            200 => Ok(bytes),
            400 | 413 | 422 => Err(Refusal::Invalid(told())),
            408 | 425 | 429 | 500..=599 => Err(EmbedError::Transient { why: told() }.into()),
            _ => Err(EmbedError::Refused { why: told() }.into()),
        }
    }

    async fn send(&self, request: &Outgoing) -> Result<Incoming, EmbedError> {
        self.network.send(request).await.map_err(|error| self.error(error))
    }

    fn error(&self, error: ModelError) -> EmbedError {
        let error = self.network.filter().error(error);
        let why = error.to_string();
        if error.retryable() { EmbedError::Transient { why } } else { EmbedError::Refused { why } }
    }

    /// A vector of length 1; refused if it has another dimension.
    fn checked(&self, mut vector: Vec<f32>) -> Result<Vec<f32>, EmbedError> {
        if vector.len() != self.dimensions {
            let why = format!("its vectors have {} dimensions and not {}", vector.len(), self.dimensions);
            return Err(EmbedError::Refused { why });
        }
        let length = vector.iter().map(|one| one * one).sum::<f32>().sqrt();
        if !length.is_finite() {
            return Err(EmbedError::Refused { why: "its vectors have values that are no numbers".to_owned() });
        }
        if length > 0.0 {
            vector.iter_mut().for_each(|one| *one /= length);
        }
        Ok(vector)
    }
}

impl Embedder for RemoteEmbedder {
    fn name(&self) -> &str {
        &self.name
    }

    fn dimensions(&self) -> usize {
        self.dimensions
    }

    fn embed<'a>(
        &'a self,
        texts: &'a [String],
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, Result<Vec<Vec<f32>>, EmbedError>> {
        Box::pin(async move {
            let mut vectors = Vec::with_capacity(texts.len());
            for batch in texts.chunks(TEXTS_MAX) {
                let mut found = Box::pin(self.batch(batch));
                let mut stopped = pin!(cancel.stopped());
                let next = poll_fn(|context| match stopped.as_mut().poll(context) {
                    Poll::Ready(_) => Poll::Ready(Err(EmbedError::Stopped)),
                    Poll::Pending => found.as_mut().poll(context),
                });
                vectors.extend(next.await?);
            }
            Ok(vectors)
        })
    }
}

impl fmt::Debug for RemoteEmbedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteEmbedder").field("name", &self.name).finish_non_exhaustive()
    }
}
