//! One event of a stream. Hosts add fields, leave out others and send `null` for any of them.

use selvedge_model::answer::Usage;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::opaque::REASONING;

/// One event.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Chunk {
    pub(super) id: Option<String>,
    pub(super) model: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) choices: Vec<Choice>,
    pub(super) usage: Option<Value>,
    pub(super) error: Option<Value>,
    /// `error` for the reports of some hosts, which have the fields of an error at the top.
    pub(super) object: Option<String>,
}

/// One of the answers; only the first is asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Choice {
    pub(super) index: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    pub(super) delta: Delta,
    /// A whole message, from proxies that don't stream what they forward.
    pub(super) message: Option<Delta>,
    pub(super) finish_reason: Option<String>,
}

/// What a choice adds.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Delta {
    pub(super) content: Option<Content>,
    pub(super) reasoning_content: Option<Value>,
    pub(super) reasoning: Option<Value>,
    #[serde(deserialize_with = "or_default")]
    pub(super) reasoning_details: Vec<Value>,
    pub(super) refusal: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) tool_calls: Vec<CallDelta>,
    /// A call of the format before parallel calls.
    pub(super) function_call: Option<Function>,
}

impl Delta {
    /// Reasoning and its field. Compatible hosts have two fields for it, and some of them send both.
    pub(super) fn reasoning(&self) -> Option<(&'static str, &str)> {
        let [content, reasoning] = REASONING;
        let named = text_of(&self.reasoning_content).map(|text| (content, text));
        named.or_else(|| text_of(&self.reasoning).map(|text| (reasoning, text)))
    }
}

fn text_of(field: &Option<Value>) -> Option<&str> {
    field.as_ref().and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// A text, or a list of parts.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Content {
    Text(String),
    Parts(Vec<Value>),
}

/// A piece of a call.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CallDelta {
    pub(super) index: Option<u64>,
    pub(super) id: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) function: Function,
    pub(super) extra_content: Option<Value>,
}

/// The function of a call.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Function {
    pub(super) name: Option<String>,
    /// Text; some hosts send an object.
    pub(super) arguments: Option<Value>,
}

impl Function {
    /// The arguments as text.
    pub(super) fn arguments(self) -> String {
        match self.arguments {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
        }
    }
}

/// Reads `null` like an absent field.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// The usage that a host reports; `None` if it reports none, or zero of everything.
pub(super) fn usage(report: &Value) -> Option<Usage> {
    let count = |path: &str| report.pointer(path).and_then(Value::as_u64);
    let first = |paths: &[&str]| paths.iter().find_map(|path| count(path)).unwrap_or(0);
    let input_tokens = count("/prompt_tokens")?;
    let output_tokens = count("/completion_tokens").unwrap_or(0);
    if input_tokens == 0 && output_tokens == 0 {
        return None;
    }
    let cache_read_tokens = first(&["/prompt_tokens_details/cached_tokens", "/prompt_cache_hit_tokens"]);
    let cache_read_tokens = cache_read_tokens.min(input_tokens);
    let cache_write_tokens = first(&["/prompt_tokens_details/cache_write_tokens", "/cache_creation_input_tokens"]);
    let cache_write_tokens = cache_write_tokens.min(input_tokens - cache_read_tokens);
    Some(Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, estimated: false })
}
