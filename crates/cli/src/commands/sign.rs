//! `selvedge sign`: writes a signature into a file.

use std::path::{Path, PathBuf};

use selvedge_legacy::rye;
use selvedge_log::Signer;
use selvedge_log::document::{Comment, DocumentError, DocumentKind, Form, SIGNATURE_MEMBER, sign_json, sign_text};
use selvedge_log::strict::{self, Limits};
use selvedge_model::{Clock, Digest, Timestamp};
use selvedge_store_local::system::SystemClock;
use serde::Serialize;

use crate::context::{Context, User};
use crate::document::{Document, parse_kind, replace};
use crate::error::{Exit, Failure, Result};
use crate::text::clean;

/// The maximum size and depth of a JSON document: a signed one must be readable again.
const LIMITS: Limits = Limits { bytes_max: 64 << 20, depth_max: 96 };

/// Sign a file, so that changing or moving it is detected
///
/// Writes your signature into the file: in a comment on its first line (the second after `#!`), in JSON as the member `_signature`.
/// An existing signature is replaced. The signature covers content, kind, id and time: a directive can't be passed off as knowledge,
/// nor one item as another. The kind follows from the folder below `.ai` (directives, knowledge, tools, agents, graphs, config; else
/// `document`), the id is the path in the project, or the file name outside of a project.
///
/// JSON: {"file", "kind", "id", "signer", "signed_at", "replaced"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Markdown, YAML, TOML, JSON or a script
    file: PathBuf,
    /// Sign it as this kind; default: from its path
    #[arg(long, value_name = "KIND", value_parser = parse_kind)]
    kind: Option<DocumentKind>,
    /// Sign it under this id; default: its path
    #[arg(long)]
    id: Option<String>,
}

#[derive(Serialize)]
struct SignedFile<'a> {
    #[serde(serialize_with = "crate::text::in_json")]
    file: &'a Path,
    kind: &'a str,
    id: &'a str,
    signer: Digest,
    signed_at: Timestamp,
    replaced: bool,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let path = context.folder.join(&args.file);
    let document = Document::read(&path, args.kind, args.id.as_deref())?;
    write(&path, &args.file, &document, context)
}

/// Signs a file as what its path says.
pub(crate) fn sign(path: &Path, context: &Context<'_>) -> Result<()> {
    write(path, path, &Document::read(path, None, None)?, context)
}

fn write(path: &Path, named: &Path, document: &Document, context: &Context<'_>) -> Result<()> {
    if !document.is_signed_by_people() {
        let message = if document.is_of_store {
            format!("`{}` is a file of the store, which signs its own files", path.display())
        } else {
            format!("a `{}` is signed by the store itself", document.kind.as_str())
        };
        return Err(Failure::new(Exit::NotAllowed, "document_of_store", message));
    }
    let user = User::find()?;
    if let Some(project) = context.find_project() {
        user.check_apart_from(&project)?;
    }
    let signer = user.signer()?;
    let at = SystemClock.now().whole_seconds();
    let (text, replaced) = signed_text(document, &signer, at)?;
    replace(path, text.as_bytes())?;
    let kind = document.kind.as_str();
    let id = document.id.as_str();
    if context.output.is_json() {
        let signer = signer.fingerprint();
        return context.output.record(&SignedFile { file: path, kind, id, signer, signed_at: at, replaced });
    }
    let again = if replaced { " again" } else { "" };
    let key = signer.fingerprint().short();
    context.output.text(format_args!("{} is signed{again} as {kind} `{}` by key {key}", named.display(), clean(id)))
}

/// The file's text with a signature, and whether there was one.
fn signed_text(document: &Document, signer: &Signer, at: Timestamp) -> Result<(String, bool)> {
    let kind = document.kind;
    let id = document.id.as_str();
    match document.form()? {
        Form::Json => {
            let value = strict::parse_within(&document.bytes, LIMITS).map_err(|error| Failure::of(&error))?;
            let replaced = value.get(SIGNATURE_MEMBER).is_some();
            let text = sign_json(kind, id, value, signer, at).map_err(|error| match error {
                DocumentError::NotStrict(error) => Failure::of(&error),
                error => Failure { exit: Exit::Usage, ..Failure::of(&error) },
            })?;
            Ok((text, replaced))
        }
        Form::Text(comment) => {
            // A byte order mark would be between the signature and the signed text.
            let text = document.text()?;
            let text = text.strip_prefix('\u{feff}').unwrap_or(text);
            let body = comment.unsigned(text);
            let replaced = body.len() != text.len();
            refuse_other_line(comment, &body)?;
            Ok((sign_text(kind, id, comment, &body, signer, at), replaced))
        }
    }
}

/// Refuses a second signature line: it would be covered by the new one, and mean nothing.
fn refuse_other_line(comment: Comment, body: &str) -> Result<()> {
    if comment.unsigned(body).len() == body.len() && !rye::is_signed(body.as_bytes()) {
        return Ok(());
    }
    let message = "the file has more than one signature line";
    Err(Failure::new(Exit::NotAllowed, "signed_twice", message).hint("remove those that you don't want"))
}
