//! `selvedge config check`: validates the configuration, and prints JSON Schemas for editors.

use selvedge::items::config::{ConfigError, schema, schemas};
use selvedge::items::{Config, Flaw};
use selvedge::project::RuleSource;
use selvedge::snapshot::Schema;
use serde_json::{Value, json};

use crate::config::folders;
use crate::context::Context;
use crate::error::{Exit, Failure, Result};
use crate::output::{BAD, paint};
use crate::running::project_of;
use crate::text::{clean, count};

/// The key of the schema that snapshots are checked against.
const SCHEMA_KEY: &str = "state_persistence.state.schema";

/// Check the configuration files and report every error
///
/// With --schema, prints JSON Schemas instead, for editors that check YAML: the one of a section, or all of them in one object by
/// section. To use one, put `# yaml-language-server: $schema=FILE` at the top of a file.
///
/// JSON: {"ok": true, "files", "digest", "notices"} if everything is valid; "files" are the files that were read and "digest" is the
/// SHA-256 of the whole configuration, as runs record it. Else one object per error, {"ok": false, "error"}, with "error" as on
/// stderr and "file" and "line" in it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print the JSON Schema of a section's file, or of all
    #[arg(long, value_name = "SECTION", num_args = 0..=1, default_missing_value = "")]
    schema: Option<String>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    if let Some(section) = &args.schema {
        return print_schema(section, context);
    }
    match Config::check(&folders(context)?) {
        Ok(config) => match wrong_schema(&config) {
            None => show(&config, context),
            Some(wrong) => refuse(vec![wrong], context),
        },
        Err(wrong) => refuse(wrong, context),
    }
}

/// The error if the schema of snapshots is invalid, so that nothing could run; with the file that sets it.
fn wrong_schema(config: &Config) -> Option<ConfigError> {
    let error = Schema::new(&config.state_persistence.state).err()?;
    let set = config.explain(SCHEMA_KEY).ok().and_then(|explained| explained.values.into_iter().next_back());
    let (file, line) = set.map_or_else(Default::default, |set| (set.origin.file.to_string(), set.origin.line));
    let flaw = Flaw::new(format!("`{SCHEMA_KEY}`: {error}")).on_line(line);
    let hint = "write a JSON Schema without external references, or remove the key";
    Some(ConfigError::Invalid { file, flaw: flaw.hint(hint) })
}

fn print_schema(section: &str, context: &Context<'_>) -> Result<()> {
    let found = match section {
        "" => Value::Object(schemas()),
        section => schema(section).ok_or_else(|| {
            let known: Vec<String> = schemas().into_iter().map(|(name, _)| format!("`{name}`")).collect();
            let failure =
                Failure::new(Exit::NotFound, "config_key_not_found", format!("there is no section `{section}`"));
            failure.hint(format!("the sections are {}", known.join(", ")))
        })?,
    };
    if context.output.is_json() {
        context.output.record(&found)
    } else {
        context.output.text(format_args!("{found:#}"))
    }
}

fn show(config: &Config, context: &Context<'_>) -> Result<()> {
    let files = config.files();
    let mut notices = config.notices().to_vec();
    // Tools are only known in a project.
    if context.find_project().is_some() {
        notices.extend(project_of(config.clone(), context)?.unmatched_rules(RuleSource::All)?);
    }
    if context.output.is_json() {
        let digest = config.digest();
        return context.output.record(&json!({"ok": true, "files": files, "digest": digest, "notices": notices}));
    }
    for notice in &notices {
        context.output.say(clean(notice));
    }
    for file in &files {
        context.output.text(clean(file))?;
    }
    context.output.tell(if files.is_empty() {
        "no configuration files: all keys have their default values".to_owned()
    } else {
        format!("{} checked, no errors", count(files.len() as u64, "configuration file"))
    });
    Ok(())
}

fn refuse(wrong: Vec<ConfigError>, context: &Context<'_>) -> Result<()> {
    let mut failures: Vec<Failure> = wrong.into_iter().map(Failure::from).collect();
    if failures.len() == 1 && !context.output.is_json() {
        return Err(failures.remove(0));
    }
    for failure in &failures {
        if context.output.is_json() {
            context.output.record(&json!({"ok": false, "error": failure.to_value()}))?;
            continue;
        }
        context.output.text(format_args!("{} {}", paint(BAD, "✗"), clean(&failure.message)))?;
        if let Some(hint) = &failure.hint {
            context.output.text(format_args!("  {}", clean(hint)))?;
        }
    }
    let first = &failures[0];
    let all = count(failures.len() as u64, "error");
    let failure = Failure::new(first.exit, first.code, format!("{all} in the configuration"));
    Err(failure.hint("they are listed above, each with its file and line"))
}
