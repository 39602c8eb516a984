//! What to do with a file, decided before anything is written.

use selvedge_log::Trust;
use selvedge_log::hash::sha256;
use selvedge_model::ThreadId;
use selvedge_store::{Error, Store};

use super::earlier_imports::{EarlierImport, EarlierImports};
use super::error::NovaError;
use super::import::{Outcome, Report};
use super::record::{self, ImportRecord};
use super::source::Source;
use super::survey::{self, Survey};
use crate::nova_file::Manifest;

/// What to do.
pub(super) struct Plan {
    pub(super) thread: ThreadId,
    pub(super) outcome: Outcome,
    pub(super) original_id: String,
    pub(super) record: Option<ImportRecord>,
    pub(super) version: Option<u64>,
    pub(super) survey: Survey,
}

impl Plan {
    /// The report of an import that follows the plan.
    pub(super) fn report(&self) -> Report {
        Report {
            outcome: self.outcome,
            thread_id: self.thread.clone(),
            version: self.version,
            added: self.survey.added,
            too_large: self.survey.too_large,
            counts: self.survey.counts.clone(),
        }
    }
}

/// Decides what to do with a file.
pub(super) fn plan(
    store: &dyn Store,
    trust: &Trust,
    earlier_imports: &mut EarlierImports,
    source: &dyn Source,
) -> Result<Plan, NovaError> {
    let name = || source.name().to_owned();
    let original_id = original_id(source, survey::manifest(source)?.as_ref());
    let thread = thread_id(&original_id);
    // An id is never reused, and that is reported before the whole file is read.
    if store.tombstone(&thread)?.is_some() {
        return Err(Error::Deleted(thread).into());
    }
    let loaded = record::load(store, trust, &thread)?;
    if let Some((Some(record), version)) = loaded {
        let survey = survey::survey(source, Some(&record))?;
        return continuing(source, original_id, EarlierImport { thread, record, version, survey, is_had: false });
    }
    let survey = survey::survey(source, None)?;
    if survey.counts.manifests + survey.counts.parsed == 0 {
        return Err(NovaError::NotNova { name: name() });
    }
    if let Some(known) = earlier_imports.find(store, trust, source, &survey)? {
        return continuing(source, original_id, known);
    }
    match loaded {
        Some(_) => Err(NovaError::Taken { name: name(), thread }),
        None => Ok(Plan { thread, outcome: Outcome::New, original_id, record: None, version: None, survey }),
    }
}

/// What to do with a file that was imported before, completely or in part.
fn continuing(source: &dyn Source, original_id: String, known: EarlierImport) -> Result<Plan, NovaError> {
    let EarlierImport { thread, record, version, survey, is_had } = known;
    if is_had {
        let outcome = Outcome::Unchanged;
        let record = Some(record);
        return Ok(Plan { thread, outcome, original_id, record, version: Some(version), survey });
    }
    if survey.kept_hash != Some(record.sha256) {
        let kept = record.bytes;
        let expected = record.sha256;
        let found = survey.kept_hash;
        return Err(NovaError::Diverged { name: source.name().to_owned(), thread, kept, expected, found });
    }
    let outcome = if !record.complete {
        Outcome::Resumed
    } else if record.bytes == survey.bytes && record.head_sha256 == Some(survey.head_hash) {
        Outcome::Unchanged
    } else {
        Outcome::Extended
    };
    Ok(Plan { thread, outcome, original_id, record: Some(record), version: Some(version), survey })
}

/// The thread's id in the file, or the file's name.
fn original_id(source: &dyn Source, manifest: Option<&Manifest>) -> String {
    let name = source.name();
    let stem = name.strip_suffix(".jsonl").filter(|stem| !stem.is_empty()).unwrap_or(name);
    manifest.and_then(Manifest::id).unwrap_or(stem).to_owned()
}

/// The same id if it is valid, else always the same one for the same text.
fn thread_id(original: &str) -> ThreadId {
    ThreadId::new(original).unwrap_or_else(|_| {
        let hash = sha256(format!("selvedge/import/nova/1\0{original}").as_bytes()).to_string();
        ThreadId::generate(original, &hash[..12])
    })
}
