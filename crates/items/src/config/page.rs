//! The documentation of the configuration: `docs/CONFIG.md`.

use std::fmt::Write;

use serde_json::Value;

use super::Config;
use super::section::{SECTIONS, Section};
use super::shape::{Key, ProjectRule, Shape};

/// The text above the keys.
const HEAD: &str = include_str!("page.md");

/// The page of all keys, in Markdown.
pub fn page() -> String {
    let built_in = Config::built_in();
    let mut page = HEAD.to_owned();
    for section in SECTIONS {
        // Writing to a `String` can't fail.
        _ = write_section(&mut page, section, &built_in);
    }
    page
}

fn write_section(page: &mut String, section: &Section, built_in: &Config) -> std::fmt::Result {
    writeln!(page, "\n## {}\n", section.name)?;
    writeln!(page, "`.ai/config/{}`. {}\n", section.place, section.means)?;
    writeln!(page, "| key | type | default | meaning |\n|---|---|---|---|")?;
    let keys: Vec<&Key> = section.keys.iter().collect();
    write_keys(page, section.name, &keys, built_in)
}

fn write_keys(page: &mut String, around: &str, keys: &[&Key], built_in: &Config) -> std::fmt::Result {
    for key in keys {
        let path = format!("{around}.{}", key.name);
        let entries = matches!(key.shape, Shape::Entries(_));
        let fields = matches!(key.shape, Shape::Fields(_));
        if !fields {
            let default = match built_in.get(&path) {
                Ok(Value::Array(items)) if entries && !items.is_empty() => "see `config get`".to_owned(),
                Ok(Value::Null) | Err(_) => String::new(),
                Ok(Value::Object(_)) if matches!(key.shape, Shape::Free) => "see `config get`".to_owned(),
                Ok(value) => format!("`{}`", value.as_str().map_or_else(|| value.to_string(), str::to_owned)),
            };
            let required = if key.required { ", required" } else { "" };
            let restriction = match key.project_rule {
                ProjectRule::Anything => "",
                ProjectRule::Stricter => " A project can be stricter than the user, never more lenient.",
                ProjectRule::AddOnly => " A project can add entries, but not replace the user's.",
                ProjectRule::Ignored => " Only the user can set it.",
            };
            writeln!(page, "| `{path}` | {}{required} | {default} | {}{restriction} |", key.shape, key.means)?;
        }
        let inside = if entries { format!("{path}.ID") } else { path };
        write_keys(page, &inside, &key.shape.keys(), built_in)?;
    }
    Ok(())
}
