//! `selvedge directive check`: validates directives, and shows what they would run with.

use std::path::Path;

use selvedge::items::capability::short;
use selvedge::items::interpolate::variable_names;
use selvedge::items::library::Kind;
use selvedge::items::signature::judge;
use selvedge::items::{Directive, ItemError, Layer, Resolved, Source};
use selvedge::project::Project;
use selvedge_log::document::{Comment, DocumentKind};
use selvedge_log::hash::sha256;
use selvedge_model::DirectiveId;
use serde::Serialize;
use serde_json::{Value, json};

use crate::context::Context;
use crate::document::Document;
use crate::error::{Failure, Result};
use crate::items::signature;
use crate::output::{BAD, BOLD, DIM, WARN, paint};
use crate::running::project;
use crate::text::{clean, count};

/// Check directives, and show what they would run with
///
/// For an invalid directive: the file, the line and the reason. For a valid one: the directives it extends, its signature, its inputs
/// and outputs, its knowledge and its capabilities. FILE is a directive outside of .ai/directives; directives that it extends are not
/// checked then.
///
/// JSON: one object per directive, {"id", "ok", "sources", "directive", "warnings", "error"}; "sources" are its own file and then those
/// that it extends, each with "file", "layer", "place", "verdict" of its signature and "hash"; "directive" is the merged directive
/// without its body; "warnings" are texts. "error" is as on stderr, with "file", "line" and "column". If one directive was named and
/// it is invalid, there is only the error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directive, such as `reports/weekly`, or a file that ends in .md; default: all directives
    #[arg(value_name = "ID|FILE")]
    directive: Option<String>,
}

#[derive(Serialize)]
struct CheckedDirective<'a> {
    id: &'a str,
    ok: bool,
    sources: &'a [Source],
    directive: Value,
    warnings: Vec<String>,
    error: Option<Value>,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let project = project(context)?;
    if let Some(asked) = &args.directive {
        let found = find(asked, &project, context)?;
        project.library.context(&found)?;
        return show(&found, &project, context);
    }
    let mut failures = Vec::new();
    let mut all = 0;
    for entry in project.library.list(Kind::Directive)?.into_iter().filter(|entry| !entry.hidden) {
        all += 1;
        let library = &project.library;
        let id = entry.readable().and_then(|()| Ok(DirectiveId::new(&entry.id)?));
        let checked = id.and_then(|id| library.directive(&id));
        // The knowledge that it refers to must exist, too.
        match checked.and_then(|found| library.context(&found).map(|_| found)) {
            Ok(found) => show(&found, &project, context)?,
            Err(error) => {
                let failure = Failure::from(error);
                show_failure(&entry.id, &failure, context)?;
                failures.push(failure);
            }
        }
    }
    let bad = failures.len();
    match failures.into_iter().next() {
        None => Ok(()),
        Some(first) => {
            let message = format!("{bad} of {} are invalid", count(all, "directive"));
            Err(Failure::new(first.exit, first.code, message).hint("they are listed above, each with its reason"))
        }
    }
}

/// A directive by its name, or in a file.
fn find(asked: &str, project: &Project, context: &Context<'_>) -> Result<Resolved<Directive>> {
    let file = context.folder.join(asked);
    let id = if asked.ends_with(".md") { id_of(&file, project) } else { Some(asked.to_owned()) };
    match id {
        Some(id) => {
            let id = DirectiveId::new(&id).map_err(ItemError::from)?;
            Ok(project.library.directive(&id)?)
        }
        None => read(&file, project),
    }
}

/// The name of the directive in a file, if the file is in the folder of directives.
fn id_of(file: &Path, project: &Project) -> Option<String> {
    let folder = project.library.project.as_ref()?.join("directives");
    let file = std::fs::canonicalize(file.parent()?).ok()?.join(file.file_name()?);
    Some(file.strip_prefix(folder).ok()?.to_str()?.strip_suffix(".md")?.to_owned())
}

/// A directive in a file outside of the project's folder.
fn read(file: &Path, project: &Project) -> Result<Resolved<Directive>> {
    let kind = DocumentKind::new("directive");
    let document = Document::read(file, Some(kind), None)?;
    let name = file.display().to_string();
    let directive =
        Directive::parse(document.text()?).map_err(|flaw| ItemError::Invalid { file: name.clone(), flaw })?;
    let verdict = judge(kind, &document.id, Comment::Html, &document.bytes, &project.library.trust);
    let source = Source {
        what: kind.as_str(),
        id: directive.name.clone(),
        layer: Layer::Project,
        file: name,
        place: document.id,
        verdict,
        hash: sha256(&document.bytes),
    };
    Ok(Resolved { item: directive, sources: vec![source] }.permitted(project.library.policy)?)
}

fn show(found: &Resolved<Directive>, project: &Project, context: &Context<'_>) -> Result<()> {
    let mut fields = serde_json::to_value(&found.item).unwrap_or_default();
    if let Value::Object(members) = &mut fields {
        members.remove("body");
    }
    let mut warnings = found.item.warnings();
    warnings.extend(project.directive_warnings(&found.item)?);
    let allowed = project.environment().allowed;
    let hidden = variable_names(&found.item.body).into_iter().filter(|name| !allowed.contains(name));
    warnings.extend(
        hidden.map(|name| format!("its body uses `{{env:{name}}}`, which is not allowed: it can't be run here")),
    );
    if context.output.is_json() {
        let id = found.id();
        let sources = found.sources.as_slice();
        return context.output.record(&CheckedDirective {
            id,
            ok: true,
            sources,
            directive: fields,
            warnings,
            error: None,
        });
    }
    let line = |name: &str, text: String| {
        if text.is_empty() {
            Ok(())
        } else {
            context.output.text(format_args!("  {} {}", paint(DIM, format_args!("{name:<11}")), clean(&text)))
        }
    };
    let Directive { version, description, permissions, .. } = &found.item;
    context.output.text(format_args!("{} {version}  {}", paint(BOLD, clean(found.id())), clean(description.trim())))?;
    for (index, source) in found.sources.iter().enumerate() {
        line(if index == 0 { "file" } else { "extends" }, source.file.clone())?;
        line("", signature(source, &project.library.trust))?;
    }
    if let (Some(parent), 1) = (&found.item.extends, found.sources.len()) {
        line("extends", format!("{parent} (not checked)"))?;
    }
    line("model", model(&fields["model"]))?;
    line("limits", pairs(&fields["limits"]))?;
    line("inputs", values(&fields["inputs"]))?;
    line("outputs", values(&fields["outputs"]))?;
    let places = ["system", "before", "after"].map(|place| (place, &fields["context"][place]));
    let brought = places.into_iter().flat_map(|(place, ids)| {
        let ids = ids.as_array().into_iter().flatten().filter_map(Value::as_str);
        ids.map(move |id| format!("{id} ({place})"))
    });
    line("knowledge", brought.collect::<Vec<_>>().join(", "))?;
    let may_call = permissions.as_ref().map(|permissions| permissions.allow.to_strings());
    line(
        "permissions",
        match may_call.as_deref() {
            None => "not declared: those of its agent".to_owned(),
            Some([]) => "none".to_owned(),
            Some(tokens) => tokens.iter().map(|token| short(token)).collect::<Vec<_>>().join(", "),
        },
    )?;
    warnings
        .iter()
        .try_for_each(|warning| context.output.text(format_args!("  {} {}", paint(WARN, "?"), clean(warning))))
}

/// The model or the tier that a directive names.
fn model(value: &Value) -> String {
    let id = value["id"].as_str().map(str::to_owned);
    id.or_else(|| value["tier"].as_str().map(|tier| format!("tier {tier}"))).unwrap_or_default()
}

/// The members of an object, on one line.
fn pairs(value: &Value) -> String {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let pairs = value.as_object().into_iter().flatten().map(|(name, value)| format!("{name} {}", word(value)));
    pairs.collect::<Vec<_>>().join(", ")
}

/// Inputs or outputs, on one line.
fn values(declared: &Value) -> String {
    let value = |value: &Value| {
        let of = value["type"].as_str().unwrap_or_default();
        let more = match (&value["default"], value["required"] == json!(true)) {
            (Value::Null, true) => ", required".to_owned(),
            (Value::Null, false) => String::new(),
            (default, _) => format!(", default {default}"),
        };
        format!("{} ({of}{more})", value["name"].as_str().unwrap_or_default())
    };
    declared.as_array().into_iter().flatten().map(value).collect::<Vec<_>>().join(", ")
}

fn show_failure(id: &str, failure: &Failure, context: &Context<'_>) -> Result<()> {
    if context.output.is_json() {
        let error = Some(failure.to_value());
        let warnings = Vec::new();
        return context.output.record(&CheckedDirective {
            id,
            ok: false,
            sources: &[],
            directive: Value::Null,
            warnings,
            error,
        });
    }
    context.output.text(format_args!("{} {}", paint(BAD, "✗"), paint(BOLD, clean(id))))?;
    let hint = failure.hint.iter().map(String::as_str);
    let mut texts = std::iter::once(failure.message.as_str()).chain(hint);
    texts.try_for_each(|text| context.output.text(format_args!("  {}", clean(text))))
}
