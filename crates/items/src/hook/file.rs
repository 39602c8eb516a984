//! `config/agent/hooks.yaml`: the hooks of a project, or of a user, for all their directives.
//!
//! ```text
//! hooks: [ … ]          in the form of a directive's hooks
//! suppress: [ id, … ]   hooks of lower layers that don't fire
//! ```
//!
//! What it names is executed, so it is judged like an item: a file that was changed after it was signed is refused, and with
//! `unsigned: refuse` an unsigned one, too.

use selvedge_log::document::Comment;
use serde::Deserialize;

use super::Hook;
use crate::error::{Flaw, ItemError};
use crate::library::{Layer, Library, Source};
use crate::yaml::parse_yaml;

/// Its path below the folder of a project or a user.
pub const FILE: &str = "config/agent/hooks.yaml";

/// The content of one file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HookFile {
    /// The hooks.
    #[serde(default)]
    pub hooks: Vec<Hook>,
    /// The ids of hooks that don't fire.
    #[serde(default)]
    pub suppress: Vec<String>,
}

impl HookFile {
    /// Parses a file; a signature line is skipped.
    pub fn parse(text: &str) -> Result<Self, Flaw> {
        let content = Comment::Hash.unsigned(text);
        let first_line = if content.len() < text.len() { 2 } else { 1 };
        if content.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(Self::default());
        }
        let file: Self = parse_yaml(&content, first_line)?;
        let mut seen = std::collections::BTreeSet::new();
        match file.hooks.iter().find(|hook| !seen.insert(&hook.id)) {
            Some(twice) => Err(Flaw::new(format!("the hook `{}` occurs twice", twice.id.escape_debug()))),
            None => Ok(file),
        }
    }
}

impl Library {
    /// The hooks of a layer, if it has such a file, and it may be used.
    pub fn hooks(&self, layer: Layer) -> Result<Option<(HookFile, Source)>, ItemError> {
        let Some((text, source)) = self.config_file(layer, FILE)? else { return Ok(None) };
        let refused = |why| ItemError::NotTrusted {
            file: source.file.clone(),
            what: source.what,
            place: source.place.clone(),
            why,
        };
        self.policy.permits(&source.verdict).map_err(refused)?;
        let parsed = HookFile::parse(&text);
        let parsed = parsed.map_err(|flaw| ItemError::Invalid { file: source.file.clone(), flaw })?;
        Ok(Some((parsed, source)))
    }
}
