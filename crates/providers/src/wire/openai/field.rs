//! Fields that a host refuses although its format has them.
//!
//! A compatible host knows a part of the format, and says so with a status of 400 or 422 that names the field.

use super::HostError;
use crate::wire::Refusal;

/// Parts of messages and codes about a field that a host does not know. Complaints about its value don't count.
const REFUSING: &[&str] = &[
    "unsupported",
    "not supported",
    "does not support",
    "unrecognized",
    "not recognized",
    "unknown",
    "unexpected",
    "extra_forbidden",
    "extra inputs",
    "extra fields",
    "additional properties",
    "not permitted",
    "not allowed",
    "not implemented",
];

/// Of these fields, the one that a host refused because it does not know it. A message may name another field to use instead: the one
/// that it names first is the refused one.
pub(in crate::wire) fn refused_field<'a>(fields: &[&'a str], refusal: &Refusal<'_>) -> Option<&'a str> {
    if !matches!(refusal.status, Some(400 | 422)) {
        return None;
    }
    let error = HostError::parse(refusal.body)?;
    if error.is_too_long() || !error.mentions(REFUSING) {
        return None;
    }
    let named = fields.iter().filter_map(|field| error.place_of(field).map(|place| (place, *field)));
    named.min_by_key(|(place, _)| *place).map(|(_, field)| field)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FIELDS: [&str; 3] = ["stream_options", "max_completion_tokens", "max_tokens"];

    fn refused(status: u16, message: &str) -> Option<&'static str> {
        let body = json!({"error": {"message": message, "type": "invalid_request_error"}}).to_string();
        refused_field(&FIELDS, &Refusal { status: Some(status), body: &body })
    }

    #[test]
    fn the_refused_field_is_the_one_that_is_named_first() {
        let unknown = "Unrecognized request argument supplied: stream_options";
        assert_eq!(refused(400, unknown), Some("stream_options"));
        assert_eq!(refused(401, unknown), None);
        let extra = json!({"detail": [{"type": "extra_forbidden", "loc": ["body", "max_completion_tokens"],
            "msg": "Extra inputs are not permitted"}]});
        let refusal = Refusal { status: Some(422), body: &extra.to_string() };
        assert_eq!(refused_field(&FIELDS, &refusal), Some("max_completion_tokens"));
        let instead = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.";
        assert_eq!(refused(400, instead), Some("max_tokens"));
        let param = json!({"error": {"message": "Unknown parameter", "param": "stream_options.include_usage"}});
        let refusal = Refusal { status: Some(400), body: &param.to_string() };
        assert_eq!(refused_field(&FIELDS, &refusal), Some("stream_options"));
        assert_eq!(refused(400, "Unknown model"), None);
    }

    #[test]
    fn a_refused_value_is_not_a_refused_field() {
        assert_eq!(refused(400, "max_completion_tokens is too large: 100000"), None);
        let window = "'max_completion_tokens' is too large: 100000. This model's maximum context length is 4096 tokens, \
                      and more is not supported";
        assert_eq!(refused(400, window), None);
    }
}
