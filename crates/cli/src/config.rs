//! The configuration: its folders, notices about it, and how values are shown.

use std::fs;
use std::time::SystemTime;

use selvedge::items::Config;
use selvedge::items::config::{Folders, Origin};
use selvedge::items::library::Layer;
use selvedge_model::Run;
use serde_json::Value;

use crate::context::{Context, User};
use crate::error::Result;
use crate::text::clean;

/// The configuration of the project around the folder; its notices are shown.
pub(crate) fn configuration(context: &Context<'_>) -> Result<Config> {
    let config = Config::load(&folders(context)?)?;
    for notice in config.notices() {
        context.output.say(clean(notice));
    }
    Ok(config)
}

/// The folders of the configuration: the user's, and the project's if there is one.
pub(crate) fn folders(context: &Context<'_>) -> Result<Folders> {
    let project = context.find_project().map(|project| project.join(".ai"));
    Ok(Folders { user: Some(User::find()?.folder), project })
}

/// The notice if a thread's last run had another configuration. The old one is not stored: the run's record has its digest, and files
/// that were written since are the likely cause.
pub(crate) fn changed_since(config: &Config, last: &Run) -> Option<String> {
    let before = last.meta.config.filter(|before| *before != config.digest())?;
    let is_newer = |file: &String| {
        let written = fs::metadata(file).and_then(|found| found.modified()).ok();
        let written = written.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        written.is_some_and(|time| time.as_micros() as i64 > last.created_at.as_micros())
    };
    let files: Vec<String> =
        config.files().into_iter().filter(is_newer).map(|file| format!("`{}`", clean(&file))).collect();
    let written = if files.is_empty() { String::new() } else { format!("; changed since: {}", files.join(", ")) };
    let before = before.short();
    let now = config.digest().short();
    Some(format!(
        "the configuration changed since the last run (digest {before} then, {now} now){written}; `selvedge config list --origin` shows it"
    ))
}

/// Where a key is set, for people: paths in the project are relative to it.
pub(crate) fn shown(origin: &Origin, context: &Context<'_>) -> String {
    if origin.layer == Layer::BuiltIn {
        let name = origin.file.rsplit('/').next().unwrap_or(&origin.file);
        return format!("built in ({}:{})", clean(name), origin.line);
    }
    let project = context.find_project().map(|project| format!("{}/", project.display())).unwrap_or_default();
    let file = origin.file.strip_prefix(&project).unwrap_or(&origin.file);
    format!("{}:{}", clean(file), origin.line)
}

/// A value for people: text as it is, everything else as JSON.
pub(crate) fn value(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
