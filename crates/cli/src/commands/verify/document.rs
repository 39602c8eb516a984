//! The verdict on one signed document: its signer, kind and id, and what the signature covers.

use std::path::Path;

use selvedge_legacy::rye;
use selvedge_log::Trust;
use selvedge_log::document::{DocumentError, DocumentKind, Form, verify_json, verify_text};
use selvedge_log::keys::PublicKey;
use selvedge_log::trust::Status;
use selvedge_model::Digest;
use serde::Serialize;

use crate::context::{Context, User};
use crate::document::Document;
use crate::error::{Failure, Result};
use crate::output::{BOLD, GOOD, paint};
use crate::text::{clean, key, local, owner};

const PROVES: &str = "its content, kind, id and time are as they were when that key signed them";
const NOT_TRUE: &str = "that the content is true";
const NOT_SAFE: &str = "that the owner of the key has not signed another one";
const NOT_SPELLING: &str = "white space, the order of members and how a number is spelt";

/// The document to verify, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct DocumentRequest<'a> {
    pub(super) file: &'a Path,
    pub(super) key: Option<&'a Path>,
    pub(super) kind: Option<DocumentKind>,
    pub(super) id: Option<&'a str>,
}

#[derive(Serialize)]
struct DocumentReport<'a> {
    #[serde(serialize_with = "crate::text::in_json")]
    file: &'a Path,
    sound: bool,
    form: &'a str,
    kind: Option<&'a str>,
    id: Option<&'a str>,
    signer: Digest,
    /// Rye's name of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_id: Option<String>,
    owner: Option<&'a str>,
    signed_at: String,
    /// The same for people.
    #[serde(skip)]
    shown_at: String,
    /// Whether the signature covers the time.
    time_covered: bool,
    proves: String,
    does_not_prove: Vec<&'a str>,
}

pub(super) fn run(asked: DocumentRequest<'_>, context: &Context<'_>) -> Result<()> {
    let path = context.folder.join(asked.file);
    let document = Document::read(&path, asked.kind, asked.id)?;
    let trust = match asked.key {
        Some(file) => {
            let key = read_key(&context.folder.join(file))?;
            tell_if_revoked(&key, context);
            Trust::of(&[key])
        }
        None => trust_of_user(context)?,
    };
    let judged = if rye::is_signed(&document.bytes) { older(&document, &trust) } else { ours(&document, &trust) };
    let record = judged.map_err(|failure| match asked.key {
        Some(_) if failure.code == "document_untrusted_key" => of_another_key(failure, context),
        _ => failure,
    })?;
    if context.output.is_json() {
        return context.output.record(&record);
    }
    let as_what = match (record.kind, record.id) {
        (Some(kind), Some(id)) => format!(", as {kind} `{}`", clean(id)),
        _ => " in Rye's format".to_owned(),
    };
    let signer = if asked.key.is_some() { record.signer.short() } else { key(&record.signer, &trust) };
    let key_id = record.key_id.as_ref().map_or(String::new(), |id| format!(", Rye key id {id},"));
    let headline = format!("unchanged since it was signed by key {signer}{key_id}{as_what}");
    context.output.text(format_args!("{}: {}", paint(BOLD, asked.file.display()), paint(GOOD, headline)))?;
    let claimed = if record.time_covered { "" } else { " (claimed; the signature does not cover it)" };
    context.output.text(format_args!("  signed at {}{claimed}", record.shown_at))?;
    context.output.text(format_args!("\nProven      {}", record.proves))?;
    for (index, what) in record.does_not_prove.iter().enumerate() {
        let label = if index == 0 { "Not proven" } else { "" };
        context.output.text(format_args!("{label:<10}  {what}"))?;
    }
    Ok(())
}

/// The keys that the user trusts. Nothing inside a project counts.
pub(super) fn trust_of_user(context: &Context<'_>) -> Result<Trust> {
    let user = User::find()?;
    if let Some(project) = context.find_project() {
        user.check_apart_from(&project)?;
    }
    user.trust()
}

/// Warns if the key of `--public-key` is one that the user revoked.
pub(super) fn tell_if_revoked(key: &PublicKey, context: &Context<'_>) {
    let fingerprint = key.fingerprint();
    if trust_of_user(context).is_ok_and(|trust| trust.status(&fingerprint) == Some(Status::Revoked)) {
        let short = fingerprint.short();
        context.output.say(format!("you revoked key {short}; it is trusted here only because --public-key names it"));
    }
}

/// The failure if the document is signed by another key than that of `--public-key`; it may be one that the user trusts.
fn of_another_key(failure: Failure, context: &Context<'_>) -> Failure {
    let trusted = trust_of_user(context).unwrap_or_default();
    let named = |fingerprint: &&Digest| failure.message.contains(&fingerprint.to_string());
    let found = trusted.iter().map(|(fingerprint, _)| fingerprint).find(named).copied();
    match found {
        Some(signer) if trusted.key(&signer).is_some() => {
            let signer = key(&signer, &trusted);
            failure.hint(format!(
                "it is signed by key {signer}, which you trust, and not by that of --public-key: leave --public-key out"
            ))
        }
        _ => {
            failure.hint("it is signed by another key than that of --public-key: use that one if you know whose it is")
        }
    }
}

/// Reads a public key from a file.
pub(crate) fn read_key(path: &Path) -> Result<PublicKey> {
    let pem = crate::input::read_text(path)?;
    PublicKey::from_pem(&pem).map_err(|error| {
        let failure = Failure::of(&error).hint("a public key begins with `-----BEGIN PUBLIC KEY-----`");
        Failure { message: format!("`{}` is not a public key: {error}", path.display()), ..failure }
    })
}

fn ours<'a>(document: &'a Document, trust: &'a Trust) -> Result<DocumentReport<'a>> {
    let Document { bytes, kind, id, .. } = document;
    let form = document.form()?;
    let signed = match form {
        Form::Json => verify_json(*kind, id, bytes, trust).map(|verified| (verified.signer, verified.at)),
        Form::Text(comment) => {
            verify_text(*kind, id, comment, bytes, trust).map(|verified| (verified.signer, verified.at))
        }
    };
    let (signer, at) = signed.map_err(|error| refused(document, &error))?;
    let spelling = (form == Form::Json).then_some(NOT_SPELLING);
    Ok(DocumentReport {
        file: &document.path,
        sound: true,
        form: "selvedge",
        kind: Some(kind.as_str()),
        id: Some(id),
        signer,
        key_id: None,
        owner: owner(&signer, trust),
        signed_at: at.to_string(),
        shown_at: local(at),
        time_covered: true,
        proves: PROVES.to_owned(),
        does_not_prove: [NOT_TRUE, NOT_SAFE].into_iter().chain(spelling).collect(),
    })
}

fn older<'a>(document: &'a Document, trust: &'a Trust) -> Result<DocumentReport<'a>> {
    let keys = trust.iter().filter_map(|(fingerprint, _)| trust.key(fingerprint));
    let verified = rye::verify(&document.bytes, keys).map_err(|error| named(document, Failure::of(&error)))?;
    let signer = verified.key.fingerprint();
    let covered = verified.coverage.covered();
    Ok(DocumentReport {
        file: &document.path,
        sound: true,
        form: "rye",
        kind: None,
        id: None,
        signer,
        key_id: Some(rye::key_id(&verified.key)),
        owner: owner(&signer, trust),
        shown_at: verified.time.clone(),
        signed_at: verified.time,
        time_covered: false,
        proves: format!("only this is as it was when that key signed it: {covered}"),
        does_not_prove: verified.coverage.not_covered().into_iter().chain([NOT_TRUE, NOT_SAFE]).collect(),
    })
}

fn refused(document: &Document, error: &DocumentError) -> Failure {
    let kind = document.kind.as_str();
    let id = &document.id;
    let failure = named(document, Failure::of(error)).detail("kind", kind).detail("id", id.as_str());
    match error {
        DocumentError::WrongKind { found, .. } => {
            failure.hint(format!("if it should be of kind `{found}`, use `--kind {found}`"))
        }
        DocumentError::BadSignature => failure.hint(format!(
            "it was verified as {kind} `{id}`; if it was signed as another kind or id, name them with `--kind` and `--id`"
        )),
        DocumentError::Unsigned => failure.hint("`selvedge sign FILE` signs a file of yours"),
        _ => failure,
    }
}

/// The failure with the file's name in front.
fn named(document: &Document, failure: Failure) -> Failure {
    Failure { message: format!("{}: {}", document.path.display(), failure.message), ..failure }
}
