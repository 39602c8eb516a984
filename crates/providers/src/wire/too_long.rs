//! The words in which hosts say that a prompt exceeds the context window, whatever format they speak: a gateway or a local server repeats
//! those of the host behind it.

/// Parts of messages and codes, in lower case.
const WORDS: [&str; 17] = [
    "context_length_exceeded",
    "contextwindowexceeded",
    "exceed_context_size",
    "exceed context limit",
    "maximum context length",
    "exceeds the context window",
    "exceeds the available context size",
    "exceeds the context length",
    "exceeds maximum context length",
    "exceeds the maximum number of tokens allowed",
    "longer than the model's context length",
    "longer than the maximum model length",
    "context length of only",
    "input is too long for requested model",
    "prompt is too long",
    "prompt too long",
    "reduce the length of the messages",
];

/// Whether a text, such as a message with its code, says that the prompt is too long for the model.
pub(super) fn says(text: &str) -> bool {
    let text = text.to_lowercase();
    WORDS.iter().any(|words| text.contains(words))
}
