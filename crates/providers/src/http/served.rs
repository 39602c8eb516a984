//! The names of the models that a host serves, as it lists them itself: the lists of all three formats have the same form.

use std::time::Duration;

use reqwest::Method;
use secrecy::SecretString;
use selvedge_model::{Cancel, ModelError};
use serde_json::Value;
use tokio::time::Instant;

use super::limit::until;
use super::messages::brief;
use super::{Body, Connections, Format, Host, exchange};
use crate::wire::{Credentials, anthropic};

/// The most bytes of a list.
const LIST_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long a list may take.
const LIST_TIME_MAX: Duration = Duration::from_secs(20);

/// Asks a host for its models.
pub(super) async fn list(
    connections: &Connections,
    host: &Host,
    credentials: Option<(Credentials, &SecretString)>,
) -> Result<Vec<String>, ModelError> {
    let path = match host.format {
        Format::Anthropic => "v1/models",
        Format::OpenAiChat | Format::OpenAiResponses => "models",
    };
    let late = |_| ModelError::Unreached { why: format!("no list of models within {LIST_TIME_MAX:?}") };
    let asked = async {
        let request = exchange::Outgoing { path, headers: headers(host.format), body: bytes::Bytes::new() };
        let response = exchange::send(connections, host, credentials, Method::GET, &request).await?;
        let status = response.status().as_u16();
        Ok((status, whole(response).await))
    };
    let asked = until(Instant::now() + LIST_TIME_MAX, &Cancel::new(), asked).await.map_err(late)?;
    let (status, text) = asked?;
    if !(200..300).contains(&status) {
        return Err(ModelError::Status { status, why: brief(&text), retry_after: None });
    }
    names(&text).ok_or_else(|| ModelError::Permanent { why: format!("it lists no models: {}", brief(&text)) })
}

fn headers(format: Format) -> Vec<(&'static str, String)> {
    match format {
        Format::Anthropic => vec![anthropic::version()],
        Format::OpenAiChat | Format::OpenAiResponses => Vec::new(),
    }
}

/// The body of a response, as far as it is read; one that breaks off is no list.
async fn whole(response: reqwest::Response) -> String {
    let mut body = Body::Network { response, tape: None };
    let mut bytes = Vec::new();
    while let Ok(Some(piece)) = body.piece().await {
        bytes.extend_from_slice(&piece);
        if bytes.len() > LIST_BYTES_MAX {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The names in a list.
fn names(text: &str) -> Option<Vec<String>> {
    let list: Value = serde_json::from_str(text).ok()?;
    let models = list["data"].as_array()?;
    Some(models.iter().filter_map(|model| model["id"].as_str()).map(str::to_owned).collect())
}
