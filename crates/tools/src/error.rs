//! Invalid tool definitions.

use selvedge_model::{Classify, Kind};

/// Why a definition is not a valid tool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` can't be used as a tool: {why}", .tool.escape_debug())]
pub struct InvalidTool {
    /// The tool.
    pub tool: String,
    /// What is wrong with its definition.
    pub why: String,
}

impl InvalidTool {
    /// A tool, and what is wrong with its definition.
    pub fn new(tool: &str, why: impl Into<String>) -> Self {
        Self { tool: tool.to_owned(), why: why.into() }
    }
}

impl Classify for InvalidTool {
    fn kind(&self) -> Kind {
        Kind::Invalid
    }

    fn code(&self) -> &'static str {
        "tool_invalid"
    }
}
