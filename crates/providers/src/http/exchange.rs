//! One request and the beginning of its response, whatever carries them.

use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Url};
use secrecy::{ExposeSecret, SecretString};
use selvedge_model::ModelError;
use selvedge_model::blocking::BoxFuture;

use super::{Connections, Host};
use crate::recording::{CallWriter, ResponsePlayer};
use crate::wire::Credentials;

/// A request to send.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    /// The path below the host's address.
    pub(crate) path: &'static str,
    /// The headers of the format.
    pub(crate) headers: Vec<(&'static str, String)>,
    /// The exact bytes of the body.
    pub(crate) body: Bytes,
}

/// The beginning of a response.
pub(crate) struct Incoming {
    /// The HTTP status.
    pub(crate) status: u16,
    /// Its headers.
    pub(crate) headers: HeaderMap,
    /// The rest.
    pub(crate) body: Body,
}

/// Carries a request to a host and its response back.
pub(crate) trait Transport: Send + Sync {
    /// Makes ready to send: whatever takes long before that, such as reading a key, is not a part of the wait for the response.
    fn ready(&self) -> BoxFuture<'_, Result<(), ModelError>> {
        Box::pin(async { Ok(()) })
    }

    /// Sends a request and waits for the headers of its response. Dropping the future or the body closes the connection.
    fn send<'a>(&'a self, request: &'a Outgoing) -> BoxFuture<'a, Result<Incoming, ModelError>>;

    /// Whether another key can be tried after the host has refused one.
    fn replace_key(&self) -> BoxFuture<'_, Result<bool, ModelError>> {
        Box::pin(async { Ok(false) })
    }
}

/// The body of a response.
pub(crate) enum Body {
    /// It arrives from the network, and is recorded if the host says so.
    Network { response: reqwest::Response, tape: Option<CallWriter> },
    /// It was recorded.
    Recorded(ResponsePlayer),
}

impl Body {
    /// The next piece; `None` at the end. An error says how the connection failed.
    pub(crate) async fn piece(&mut self) -> Result<Option<Bytes>, String> {
        match self {
            Self::Network { response, tape } => {
                let piece = response.chunk().await.map_err(in_words)?;
                if let (Some(tape), Some(piece)) = (tape, &piece) {
                    tape.push(piece.clone());
                }
                Ok(piece)
            }
            Self::Recorded(player) => Ok(player.piece()),
        }
    }

    /// Closes the connection, unless all of the response was read, and completes its recording. Returns why that failed, if it did.
    pub(crate) async fn close(self) -> Option<String> {
        match self {
            Self::Network { response, tape } => {
                drop(response);
                match tape {
                    Some(tape) => tape.end().await.err().map(|error| error.to_string()),
                    None => None,
                }
            }
            Self::Recorded(_) => None,
        }
    }
}

/// Sends one request to a host over the network.
pub(super) async fn send(
    connections: &Connections,
    host: &Host,
    credentials: Option<(Credentials, &SecretString)>,
    method: Method,
    request: &Outgoing,
) -> Result<reqwest::Response, ModelError> {
    let client = client(connections, host).await?;
    let prepared = prepare(&client, host, credentials, method, request)?;
    client.execute(prepared).await.map_err(unanswered)
}

/// The client for a host.
pub(super) async fn client(connections: &Connections, host: &Host) -> Result<Client, ModelError> {
    connections.client(host).await.map_err(|error| ModelError::Permanent { why: error.to_string() })
}

fn prepare(
    client: &Client,
    host: &Host,
    credentials: Option<(Credentials, &SecretString)>,
    method: Method,
    request: &Outgoing,
) -> Result<reqwest::Request, ModelError> {
    let permanent = |why: String| ModelError::Permanent { why };
    let url = format!("{}/{}", host.base_url.trim_end_matches('/'), request.path);
    let url: Url =
        url.parse().map_err(|error| permanent(format!("the address of `{}` is not valid: {error}", host.name)))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(permanent(format!("the address of `{}` is not one of `http` or `https`", host.name)));
    }
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    headers.insert("accept", HeaderValue::from_static("text/event-stream"));
    let format = request.headers.iter().map(|(name, value)| (*name, value.as_str()));
    let custom = host.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    if let Some((form, key)) = credentials {
        let (name, value) = match form {
            Credentials::Bearer => ("authorization", format!("Bearer {}", key.expose_secret())),
            Credentials::Header(name) => (name, key.expose_secret().to_owned()),
        };
        insert(&mut headers, name, &value)?;
    }
    for (name, value) in format.chain(custom) {
        insert(&mut headers, name, value)?;
    }
    let request = client.request(method, url).headers(headers).body(request.body.clone());
    request.build().map_err(|error| permanent(format!("the request can't be built: {}", in_words(error))))
}

fn insert(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), ModelError> {
    let invalid =
        || ModelError::Permanent { why: format!("the header `{name}` has a name or a value that can't be sent") };
    let key = HeaderName::try_from(name).map_err(|_| invalid())?;
    let mut value = HeaderValue::try_from(value).map_err(|_| invalid())?;
    value.set_sensitive(super::host::is_credential(name));
    headers.insert(key, value);
    Ok(())
}

/// The error of a request without a response: it was not sent, or its fate is unknown.
fn unanswered(error: reqwest::Error) -> ModelError {
    if error.is_connect() {
        return ModelError::Unreached { why: in_words(error) };
    }
    if error.is_builder() {
        return ModelError::Permanent { why: in_words(error) };
    }
    ModelError::Cut { why: format!("no response: {}", in_words(error)), partial: Vec::new(), usage: None }
}

/// An error with its causes. The address is left out: it may have credentials.
fn in_words(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut words = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        let cause_words = cause.to_string();
        if !words.contains(&cause_words) {
            words = format!("{words}: {cause_words}");
        }
        source = cause.source();
    }
    words
}
