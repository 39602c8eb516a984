//! The format of a script, and its validation.
//!
//! ```yaml
//! context_tokens_max: 200000                  # optional
//! price: {input_per_million_tokens: 3.00, output_per_million_tokens: 15.00}   # optional, in dollars; kept as data
//! turns:
//!   - when: {user: {contains: pay}}           # all that is given must hold
//!     think: They want to pay.
//!     provider: {name: acme, data: {sealed: gAAA}}   # data that must come back unchanged
//!     say: [One moment, {text: " please.", delay_ms: 20}]
//!     calls: [{tool: pay, arguments: {amount: 5, note: "{user}"}}]
//!     usage: {input_tokens: 120, output_tokens: 20}
//!   - when: {result: {contains: {paid: true}}}
//!     fail: [{transient: the line is down}, {status: {code: 503, why: busy}}, {cut: {say: Pai}}]    # the first attempts fail
//!     say: Paid.
//!   - error: {permanent: I have nothing to say}                   # instead of an answer, always
//!     repeat: forever
//! ```
//!
//! `{user}`, `{result}` and `{turn}` in texts and arguments are replaced by the last user message, the last tool result without an answer,
//! and the number of this answer. A call without an `id` is `call_N`, the N-th of the conversation. Without `usage`, none is reported.

use std::fmt;

use selvedge_model::answer::{End, Usage};
use selvedge_model::money::{self, Money};
use selvedge_model::{CallId, Classify, Kind};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use crate::yaml;

/// A script that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the script{} is not a valid model script: {why}", .line.map(|line| format!(", line {line},")).unwrap_or_default())]
pub struct ScriptError {
    /// The line, counted from 1, if it is known.
    pub line: Option<u64>,
    /// What is wrong with it.
    pub why: String,
}

impl Classify for ScriptError {
    fn kind(&self) -> Kind {
        Kind::Invalid
    }

    fn code(&self) -> &'static str {
        "script_invalid"
    }

    fn hint(&self) -> Option<String> {
        Some("a script is `turns:`, a list of answers such as `- say: Hello`".to_owned())
    }
}

/// A script for a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// The size of the context window that it claims.
    pub context_tokens_max: Option<u64>,
    /// The price that it claims.
    pub price: Option<Price>,
    /// Its answers.
    pub turns: Vec<Turn>,
}

impl Script {
    /// Parses and validates a script.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let file: File = yaml::parse(text).map_err(|bad| ScriptError { line: bad.line, why: bad.why })?;
        if file.turns.is_empty() {
            return Err(ScriptError { line: None, why: "it has no turn; add one such as `- say: Hello`".to_owned() });
        }
        for turn in &file.turns {
            turn.value.check().map_err(|why| ScriptError { line: Some(turn.referenced.line()), why })?;
        }
        let turns = file.turns.into_iter().map(|turn| turn.value).collect();
        Ok(Self { context_tokens_max: file.context_tokens_max, price: file.price, turns })
    }

    /// The script of the default model.
    pub(super) fn offline() -> Self {
        Self::parse(include_str!("offline.yaml")).expect("the built-in script is read by a test")
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    context_tokens_max: Option<u64>,
    price: Option<Price>,
    turns: Vec<Spanned<Turn>>,
}

/// The price of a million tokens, in dollars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Tokens sent.
    #[serde(with = "money::decimal")]
    pub input_per_million_tokens: Money,
    /// Tokens received.
    #[serde(with = "money::decimal")]
    pub output_per_million_tokens: Money,
    /// Tokens read from the cache; absent: the same price as tokens sent.
    #[serde(default, with = "money::decimal::option")]
    pub cache_read_per_million_tokens: Option<Money>,
    /// Tokens written to the cache; absent: the same price as tokens sent.
    #[serde(default, with = "money::decimal::option")]
    pub cache_write_per_million_tokens: Option<Money>,
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    /// The condition for it.
    #[serde(default)]
    pub when: Option<When>,
    /// How often it may be used in one conversation.
    #[serde(default)]
    pub repeat: Repeat,
    /// The delay before it begins.
    #[serde(default)]
    pub delay_ms: u64,
    /// The failures of the first attempts, before the answer.
    #[serde(default)]
    pub fail: Vec<Failure>,
    /// The thinking, which comes first.
    #[serde(default, deserialize_with = "pieces")]
    pub think: Vec<Piece>,
    /// Opaque data that must come back unchanged, after the thinking.
    #[serde(default)]
    pub provider: Option<ScriptedData>,
    /// The text.
    #[serde(default, deserialize_with = "pieces")]
    pub say: Vec<Piece>,
    /// The tool calls.
    #[serde(default)]
    pub calls: Vec<ScriptedCall>,
    /// The usage that it reports.
    #[serde(default, deserialize_with = "said_usage")]
    pub usage: Option<Usage>,
    /// How it ends; by default as its calls imply.
    #[serde(default)]
    pub end: Option<End>,
    /// The provider's session that now has the conversation.
    #[serde(default)]
    pub session: Option<String>,
    /// The failure that comes instead of an answer, every time.
    #[serde(default)]
    pub error: Option<Failure>,
}

impl Turn {
    fn check(&self) -> Result<(), String> {
        let says = !self.say.is_empty() || !self.think.is_empty() || self.provider.is_some() || !self.calls.is_empty();
        let is_error = self.error.as_ref().is_some_and(|error| !matches!(error, Failure::SessionRefused(_)));
        let flaw = if self.repeat == Repeat::Times(0) {
            "`repeat: 0` means never; leave the turn out"
        } else if self.when.as_ref().is_some_and(When::is_empty) {
            "`when` asks for nothing; give it `user`, `result` or `turns`, or leave it out"
        } else if says && is_error {
            "a turn has an answer or an `error`, not both; failures before an answer go into `fail`"
        } else if !says && self.error.is_none() && self.end.is_none() {
            "the turn says nothing; give it `say`, `think`, `provider`, `calls`, `error` or an `end`"
        } else if self.end == Some(End::ToolCalls) && self.calls.is_empty() {
            "it ends with `tool_calls` and has no `calls`"
        } else {
            return Ok(());
        };
        Err(flaw.to_owned())
    }
}

/// How often a turn may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// This often.
    Times(u64),
    /// Without limit.
    Forever,
}

impl Default for Repeat {
    fn default() -> Self {
        Self::Times(1)
    }
}

impl<'de> Deserialize<'de> for Repeat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RepeatVisitor;

        impl Visitor<'_> for RepeatVisitor {
            type Value = Repeat;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or `forever`")
            }

            fn visit_u64<E: de::Error>(self, times: u64) -> Result<Repeat, E> {
                Ok(Repeat::Times(times))
            }

            fn visit_i64<E: de::Error>(self, times: i64) -> Result<Repeat, E> {
                u64::try_from(times).map(Repeat::Times).map_err(|_| E::custom("`repeat` can't be negative"))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Repeat, E> {
                match text {
                    "forever" => Ok(Repeat::Forever),
                    other => Err(E::custom(format!("`repeat` is a number or `forever`, not `{other}`"))),
                }
            }
        }

        deserializer.deserialize_any(RepeatVisitor)
    }
}

/// A condition on the prompt; everything that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// The last message of a user.
    pub user: Option<TextCondition>,
    /// A tool result without an answer; one match is enough.
    pub result: Option<TextCondition>,
    /// How often the model has answered.
    pub turns: Option<NumberCondition>,
}

impl When {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A condition on a text or a value; everything that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextCondition {
    /// It equals this.
    #[serde(default)]
    pub equals: Option<Value>,
    /// It contains this text, or, as an object, these members.
    #[serde(default)]
    pub contains: Option<Value>,
}

/// A condition on a number; everything that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumberCondition {
    /// It equals this.
    pub is: Option<u64>,
    /// It is this or more.
    pub at_least: Option<u64>,
    /// It is this or less.
    pub at_most: Option<u64>,
}

/// A piece of text.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    /// The text.
    pub text: String,
    /// The delay before it.
    #[serde(default)]
    pub delay_ms: u64,
}

/// Opaque data of a provider.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedData {
    /// The provider.
    pub name: String,
    /// The data; placeholders are not replaced.
    pub data: Value,
}

/// A tool call.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedCall {
    /// The tool.
    pub tool: String,
    /// The id of the call; by default it is numbered.
    #[serde(default)]
    pub id: Option<CallId>,
    /// The arguments.
    #[serde(default = "nothing")]
    pub arguments: Value,
}

fn nothing() -> Value {
    Value::Object(Map::new())
}

/// A failure that comes instead of an answer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// A retry may help.
    Transient(String),
    /// The provider was not reached; a retry may help.
    Unreached(String),
    /// The provider returns an HTTP status.
    Status {
        /// The status.
        code: u16,
        /// The message.
        #[serde(default)]
        why: String,
        /// The wait that the provider asks for.
        #[serde(default)]
        retry_after_ms: Option<u64>,
    },
    /// The provider limits the rate.
    RateLimited {
        /// The message.
        #[serde(default)]
        why: String,
        /// The wait that the provider asks for.
        #[serde(default)]
        retry_after_ms: Option<u64>,
    },
    /// A retry does not help.
    Permanent(String),
    /// The prompt is longer than the context window.
    ContextTooLong(String),
    /// The session is unknown; only for a prompt that names one.
    SessionRefused(String),
    /// The answer breaks off.
    Cut {
        /// The message.
        #[serde(default)]
        why: String,
        /// The partial text.
        #[serde(default, deserialize_with = "pieces")]
        say: Vec<Piece>,
        /// The usage that it reports.
        #[serde(default, deserialize_with = "usage")]
        usage: Usage,
    },
}

/// Reads a text, or a list of texts and pieces.
fn pieces<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Piece>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text, or a list of texts and of `{text: …, delay_ms: …}`")]
    enum One {
        Text(String),
        Piece(Piece),
    }

    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text, or a list of texts and of `{text: …, delay_ms: …}`")]
    enum Some {
        Text(String),
        List(Vec<One>),
    }

    let one = |one| match one {
        One::Text(text) => Piece { text, delay_ms: 0 },
        One::Piece(piece) => piece,
    };
    Ok(match Some::deserialize(deserializer)? {
        Some::Text(text) => vec![Piece { text, delay_ms: 0 }],
        Some::List(list) => list.into_iter().map(one).collect(),
    })
}

fn said_usage<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Usage>, D::Error> {
    usage(deserializer).map(Some)
}

/// Reads a usage; absent numbers are zero.
fn usage<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Usage, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct ReportedUsage {
        input_tokens: u64,
        output_tokens: u64,
        cache_read_tokens: u64,
        cache_write_tokens: u64,
    }

    let said = ReportedUsage::deserialize(deserializer)?;
    Ok(Usage {
        input_tokens: said.input_tokens,
        output_tokens: said.output_tokens,
        cache_read_tokens: said.cache_read_tokens,
        cache_write_tokens: said.cache_write_tokens,
        estimated: false,
    })
}
