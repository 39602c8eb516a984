//! An error as hosts of the OpenAI formats report it, and what it means.
//!
//! The hosts agree on `{"error": {"message", "type", "code", "param"}}` only in outline: `error` may be a text, the fields may stand at
//! the top or under `detail`, codes may be numbers, and a proxy puts the report of the host behind it into a text. What an error means
//! is therefore read from the code where there is one, and from the message where there is none.

use std::time::Duration;

use selvedge_model::answer::ModelError;
use serde_json::Value;

use crate::wire::too_long;

/// How much of a message is kept.
const MESSAGE_CHARS_MAX: usize = 2000;

/// Codes and types of refusals that no retry resolves, although their status may be one that is retried.
const EXHAUSTED: &[&str] = &["insufficient_quota", "billing_hard_limit_reached", "billing_not_active"];

/// An error report.
#[derive(Debug, Default)]
pub(in crate::wire) struct HostError {
    /// For people.
    pub(in crate::wire) message: String,
    kind: String,
    code: String,
    param: String,
}

impl HostError {
    /// Reads a report from a body or an event; `None` if it is not one.
    pub(in crate::wire) fn parse(body: &str) -> Option<Self> {
        Self::of(&serde_json::from_str(body).ok()?)
    }

    /// Reads a report from a value.
    pub(in crate::wire) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Array(items) => return Self::of(items.first()?),
            Value::String(message) if !message.is_empty() => {
                return Some(Self { message: cut(message), ..Self::default() });
            }
            _ => {}
        }
        if let Some(inner) = value.get("error").filter(|error| !error.is_null()) {
            return Self::of(inner);
        }
        let message = match (value.get("message").and_then(Value::as_str), value.get("detail")) {
            (Some(message), _) => message.to_owned(),
            (None, Some(Value::String(detail))) => detail.clone(),
            (None, Some(Value::Array(details))) => details.iter().map(complaint).collect::<Vec<_>>().join("; "),
            (None, Some(detail)) => return Self::of(detail),
            (None, None) => return None,
        };
        let behind = value.pointer("/metadata/raw").map(text_of).filter(|raw| !raw.is_empty());
        let message = behind.map_or(message.clone(), |raw| format!("{message}: {raw}"));
        let field = |name: &str| value.get(name).map(text_of).unwrap_or_default();
        Some(Self { message: cut(&message), kind: field("type"), code: field("code"), param: field("param") })
    }

    /// Whether the prompt is too long for the model.
    pub(in crate::wire) fn is_too_long(&self) -> bool {
        too_long::says(&format!("{} {} {}", self.kind, self.code, self.message))
    }

    /// Whether the stored conversation that the request continues is not known.
    pub(in crate::wire) fn is_session_refused(&self) -> bool {
        self.code == "previous_response_not_found"
            || self.param == "previous_response_id"
            || self.mentions(&["previous_response_not_found", "previous_response_id", "previous response with id"])
    }

    /// Where a field of the request is named: 0 as the cause, else behind its place in the message.
    pub(in crate::wire) fn place_of(&self, field: &str) -> Option<usize> {
        let rest = self.param.strip_prefix(field);
        let is_cause = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
        if is_cause { Some(0) } else { self.message.find(field).map(|at| at + 1) }
    }

    /// Whether the message or the code contains one of these parts, which are lower-case.
    pub(in crate::wire) fn mentions(&self, parts: &[&str]) -> bool {
        let text = format!("{} {}", self.code, self.message).to_lowercase();
        parts.iter().any(|part| text.contains(part))
    }

    /// What the error means, where the code or the message says more than an HTTP status.
    pub(in crate::wire) fn meaning(&self) -> Option<ModelError> {
        let why = self.message.clone();
        if self.is_too_long() {
            return Some(ModelError::ContextTooLong { why });
        }
        let is_exhausted = EXHAUSTED.iter().any(|code| self.code == *code || self.kind == *code);
        is_exhausted.then_some(ModelError::Permanent { why })
    }

    /// What the error means inside a stream, which has no status.
    pub(in crate::wire) fn in_stream(&self) -> ModelError {
        if let Some(meaning) = self.meaning() {
            return meaning;
        }
        let why = self.message.clone();
        let retry_after = retry_in(&why);
        if let Some(status) = self.code.parse().ok().filter(|status| (400..600).contains(status)) {
            return ModelError::Status { status, why, retry_after };
        }
        let names = format!("{} {}", self.code, self.kind).to_lowercase();
        let is = |parts: &[&str]| parts.iter().any(|part| names.contains(part));
        if is(&["rate_limit", "ratelimit", "too_many_requests"]) {
            ModelError::RateLimited { why, retry_after }
        } else if is(&["overloaded", "unavailable", "slow_down"]) {
            ModelError::Status { status: 503, why, retry_after }
        } else if is(&["server_error", "timeout", "internal"]) {
            ModelError::Transient { why }
        } else if is(&["invalid", "badrequest", "bad_request", "authentication", "permission", "not_found", "content_"])
        {
            ModelError::Permanent { why }
        } else {
            ModelError::Transient { why }
        }
    }
}

/// One entry of a list of validation errors: where, and what.
fn complaint(entry: &Value) -> String {
    let place: Vec<String> = entry.get("loc").and_then(Value::as_array).into_iter().flatten().map(text_of).collect();
    let what = entry.get("msg").map_or_else(|| text_of(entry), text_of);
    if place.is_empty() { what } else { format!("{}: {what}", place.join(".")) }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn cut(message: &str) -> String {
    message.chars().take(MESSAGE_CHARS_MAX).collect()
}

/// The pause that a message asks for, such as `Please try again in 1.5s`.
fn retry_in(message: &str) -> Option<Duration> {
    const MARK: &str = "try again in ";
    let lower = message.to_lowercase();
    let rest = &lower[lower.find(MARK)? + MARK.len()..];
    let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let number: f64 = rest[..digits].parse().ok()?;
    let unit = rest[digits..].trim_start();
    let seconds = match unit {
        _ if unit.starts_with("ms") || unit.starts_with("milli") => number / 1000.0,
        _ if unit.starts_with('m') => number * 60.0,
        _ if unit.starts_with('h') => number * 3600.0,
        _ => number,
    };
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_different_hosts_are_read() {
        for (body, message) in [
            (r#"{"error":{"message":"no","type":"invalid_request_error","code":null,"param":null}}"#, "no"),
            (r#"{"error":"model \"x\" not found"}"#, "model \"x\" not found"),
            (r#"{"object":"error","message":"no","type":"BadRequestError","code":400}"#, "no"),
            (r#"[{"error":{"code":400,"message":"no","status":"INVALID_ARGUMENT"}}]"#, "no"),
            (r#"{"detail":"Not Found"}"#, "Not Found"),
            (
                r#"{"detail":[{"type":"extra_forbidden","loc":["body","x"],"msg":"Extra inputs"}]}"#,
                "body.x: Extra inputs",
            ),
            (r#"{"detail":{"error":"no key"}}"#, "no key"),
            (
                r#"{"error":{"message":"Provider returned error","metadata":{"raw":"busy"}}}"#,
                "Provider returned error: busy",
            ),
            (r#"{"type":"error","code":"x","message":"no","param":null}"#, "no"),
        ] {
            assert_eq!(HostError::parse(body).unwrap().message, message, "{body}");
        }
        for body in ["", "<html>", "{}", "7", r#"{"error":null}"#, r#"{"choices":[]}"#] {
            assert!(HostError::parse(body).is_none(), "{body}");
        }
    }

    #[test]
    fn a_prompt_that_is_too_long_is_recognised_in_the_words_of_each_host() {
        for message in [
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
            "the request exceeds the available context size. try increasing the context size or enable context shift",
            "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
            "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
            "litellm.ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: too much",
            "the input length exceeds the context length",
            "input length exceeds maximum context length",
            "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
            "The input token count (40000) exceeds the maximum number of tokens allowed (32768).",
            "prompt is too long: 2000 tokens > 1000 maximum",
        ] {
            let body = serde_json::json!({"error": {"message": message}}).to_string();
            let meaning = HostError::parse(&body).unwrap().meaning();
            assert!(matches!(meaning, Some(ModelError::ContextTooLong { .. })), "{message}");
        }
        let code = r#"{"error":{"message":"too much","code":"context_length_exceeded"}}"#;
        assert!(HostError::parse(code).unwrap().is_too_long());
        let kind = r#"{"error":{"code":400,"message":"no","type":"exceed_context_size_error","n_ctx":4096}}"#;
        assert!(HostError::parse(kind).unwrap().is_too_long());
        let other = r#"{"error":{"message":"Invalid value for 'messages'"}}"#;
        assert!(HostError::parse(other).unwrap().meaning().is_none());
    }

    #[test]
    fn an_exhausted_quota_is_not_retried() {
        let body = r#"{"error":{"message":"You exceeded your quota","type":"insufficient_quota","code":"insufficient_quota"}}"#;
        assert!(matches!(HostError::parse(body).unwrap().meaning(), Some(ModelError::Permanent { .. })));
    }

    #[test]
    fn errors_inside_a_stream_are_classified_by_code_and_type() {
        let meaning = |body: &str| HostError::parse(body).unwrap().in_stream();
        assert!(matches!(meaning(r#"{"error":{"message":"m","code":502}}"#), ModelError::Status { status: 502, .. }));
        assert!(matches!(meaning(r#"{"error":{"message":"m","code":"429"}}"#), ModelError::Status { status: 429, .. }));
        let limited = meaning(r#"{"message":"Please try again in 1.5s.","code":"rate_limit_exceeded"}"#);
        assert_eq!(limited.retry_after(), Some(Duration::from_millis(1500)));
        assert!(matches!(limited, ModelError::RateLimited { .. }));
        assert!(matches!(meaning(r#"{"message":"m","type":"server_error"}"#), ModelError::Transient { .. }));
        let busy = meaning(r#"{"message":"m","code":"server_is_overloaded","type":"server_error"}"#);
        assert!(matches!(busy, ModelError::Status { status: 503, .. }));
        assert!(matches!(meaning(r#"{"message":"m","code":"invalid_prompt"}"#), ModelError::Permanent { .. }));
        assert!(matches!(meaning(r#"{"message":"m"}"#), ModelError::Transient { .. }));
    }

    #[test]
    fn the_pause_is_read_from_the_message() {
        for (text, milliseconds) in [
            ("20ms", 20),
            ("6s", 6000),
            ("1.25s.", 1250),
            ("2 minutes", 120_000),
            ("7 seconds", 7000),
            ("1h", 3_600_000),
        ] {
            let message = format!("Limit reached. Please try again in {text} or so");
            assert_eq!(retry_in(&message), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        assert_eq!(retry_in("try again in a while"), None);
        assert_eq!(retry_in("no"), None);
    }
}
