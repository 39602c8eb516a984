//! The verdict on one thread, as text and JSON. A verdict always names a version and a key.

use std::path::{Path, PathBuf};

use selvedge_legacy::nova::Origin;
use selvedge_log::Trust;
use selvedge_log::recovery::Finding;
use selvedge_log::scan::{Damage, Flaw};
use selvedge_model::event::LostVersions;
use selvedge_model::{Digest, ThreadId};
use selvedge_store::Error;
use selvedge_store::error::describe;
use selvedge_store::verify::{BadBlob, Verification};
use serde::Serialize;

use super::statement::{self, Statement};
use crate::error::{Failure, Result};
use crate::imported;
use crate::output::{BAD, BOLD, DIM, GOOD, Output, WARN, paint};
use crate::text::{clean, count, grouped, local, owner, shell_word};

const PROVES: &str = "every byte up to that version is as it was when that key signed it";
const NOT_TRUE: &str = "that the content is true or complete";
const NOT_SAFE: &str = "that the owner of the key has not signed another history";
const NOT_LAST: &str = "that no later version was removed, together with everything that recorded it";

/// The verdict on one thread.
#[derive(Debug)]
pub(super) struct ThreadVerdict {
    thread: ThreadId,
    file: PathBuf,
    found: LogFinding,
    statements: Option<Vec<Statement>>,
    imported: Option<Origin>,
    /// Whether the file is an archive.
    is_archive: bool,
    /// The key of `--public-key`, if given.
    key: Option<PathBuf>,
}

#[derive(Debug)]
enum LogFinding {
    /// The log was read and verified.
    JudgedLog(Box<JudgedLog>),
    /// It could not be read.
    Failed(Failure),
}

#[derive(Debug)]
struct JudgedLog {
    verdict: Verification,
    /// Fingerprint, owner, and number of signed checkpoints.
    signers: Vec<SignerEntry>,
    /// Other sources that name a version of the log.
    known_versions: Vec<KnownVersion>,
    /// The threads that its log names and that were not imported with it.
    missing: Vec<(ThreadId, u64)>,
}

#[derive(Clone, Debug, Serialize)]
struct KnownVersion {
    by: String,
    version: u64,
}

#[derive(Clone, Debug, Serialize)]
struct SignerEntry {
    fingerprint: Digest,
    owner: Option<String>,
    checkpoints: u64,
}

#[derive(Serialize)]
struct ThreadReport<'a> {
    thread_id: &'a ThreadId,
    sound: bool,
    code: &'a str,
    message: String,
    unchanged_up_to: Option<u64>,
    signers: Vec<SignerEntry>,
    lines: u64,
    bytes: u64,
    erased: u64,
    erased_blobs: &'a [Digest],
    lost: &'a [LostVersions],
    bad_blobs: &'a [BadBlob],
    unnamed_blobs: &'a [Digest],
    trailing_bytes: u64,
    missing: Vec<MissingThread<'a>>,
    pending_bytes: u64,
    foreign_bytes: u64,
    damage: Option<DamageLocation<'a>>,
    /// The signing key, if it is not trusted; that is not damage.
    untrusted_key: Option<Digest>,
    named_by: &'a [KnownVersion],
    proves: Option<&'a str>,
    does_not_prove: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    imported: Option<&'a Origin>,
    #[serde(skip_serializing_if = "Option::is_none")]
    archive: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    statements: Option<&'a [Statement]>,
}

/// Another thread of a batch, which was not imported with this one.
#[derive(Serialize)]
struct MissingThread<'a> {
    thread_id: &'a ThreadId,
    version: u64,
}

#[derive(Serialize)]
struct DamageLocation<'a> {
    #[serde(serialize_with = "crate::text::in_json")]
    file: &'a Path,
    /// The file in the archive that line and byte refer to.
    #[serde(skip_serializing_if = "Option::is_none")]
    inside: Option<&'a str>,
    line: u64,
    first_line: u64,
    byte: u64,
    version: u64,
    why: String,
}

impl ThreadVerdict {
    pub(super) fn new(
        thread: ThreadId,
        file: PathBuf,
        verdict: selvedge_store::Result<Verification>,
        statements: Option<Vec<Statement>>,
        trust: &Trust,
    ) -> Self {
        let found = match verdict {
            Ok(verdict) => {
                let signed = |(fingerprint, checkpoints): &(Digest, u64)| SignerEntry {
                    fingerprint: *fingerprint,
                    owner: owner(fingerprint, trust).map(str::to_owned),
                    checkpoints: *checkpoints,
                };
                let signers = verdict.signers.iter().map(signed).collect();
                let known_versions = verdict.remembered.iter().cloned();
                let known_versions = known_versions.map(|(by, version)| KnownVersion { by, version }).collect();
                LogFinding::JudgedLog(Box::new(JudgedLog { signers, known_versions, missing: Vec::new(), verdict }))
            }
            Err(error) => LogFinding::Failed(error.into()),
        };
        Self { thread, file, found, statements, imported: None, is_archive: false, key: None }
    }

    /// The same for an archive, with the key of `--public-key`.
    #[must_use]
    pub(super) fn in_archive(mut self, key: Option<&Path>) -> Self {
        self.is_archive = true;
        self.key = key.map(Path::to_owned);
        self
    }

    /// The same with the origin of an imported thread.
    #[must_use]
    pub(super) fn imported(mut self, origin: Option<Origin>) -> Self {
        self.imported = origin;
        self
    }

    /// A missing thread that another log names.
    pub(super) fn gone(thread: ThreadId, version: u64, by: &ThreadId) -> Self {
        let finding = Finding::Truncated { have: None, version, by: log_of(by) };
        let failure = Error::Log { thread: thread.clone(), finding }.into();
        let file = PathBuf::new();
        let found = LogFinding::Failed(failure);
        Self { thread, file, found, statements: None, imported: None, is_archive: false, key: None }
    }

    pub(super) fn thread(&self) -> &ThreadId {
        &self.thread
    }

    /// The other threads of its batches, and their versions.
    pub(super) fn committed_with(&self) -> &[(ThreadId, u64)] {
        match &self.found {
            LogFinding::JudgedLog(judged) => &judged.verdict.committed_with,
            LogFinding::Failed(_) => &[],
        }
    }

    /// Sets which of the threads that its log names are missing.
    pub(super) fn set_missing(&mut self, absent: Vec<(ThreadId, u64)>) {
        if let LogFinding::JudgedLog(judged) = &mut self.found {
            judged.missing = absent;
        }
    }

    /// Adds that the log `by` names this thread at `version`.
    pub(super) fn is_named_by(&mut self, version: u64, by: &ThreadId) {
        let LogFinding::JudgedLog(judged) = &mut self.found else { return };
        judged.known_versions.push(KnownVersion { by: log_of(by), version });
        let have = judged.verdict.judgement.unchanged_up_to;
        let sound = matches!(
            judged.verdict.judgement.finding,
            Finding::Sound | Finding::Foreign { .. } | Finding::Database { .. }
        );
        if sound && have.is_none_or(|have| have < version) {
            judged.verdict.judgement.finding = Finding::Truncated { have, version, by: log_of(by) };
        }
    }

    pub(super) fn is_sound(&self) -> bool {
        matches!(&self.found, LogFinding::JudgedLog(judged) if judged.verdict.judgement.finding == Finding::Sound)
    }

    /// Whether any version of it is proven.
    fn proves_something(&self) -> bool {
        matches!(&self.found, LogFinding::JudgedLog(judged) if judged.verdict.judgement.unchanged_up_to.is_some())
    }

    /// Why the thread is not sound.
    pub(super) fn failure(&self) -> Option<Failure> {
        match &self.found {
            LogFinding::Failed(failure) => Some(failure.clone()),
            LogFinding::JudgedLog(_) if self.is_sound() => None,
            LogFinding::JudgedLog(judged) => {
                let finding = judged.verdict.judgement.finding.clone();
                let failure = Failure::from(Error::Log { thread: self.thread.clone(), finding });
                Some(if self.is_archive { self.with_hint_for_archive(failure, judged) } else { failure })
            }
        }
    }

    /// The file that lines and bytes refer to.
    fn place(&self) -> String {
        if self.is_archive {
            format!("transcript.jsonl in {}", self.file.display())
        } else {
            self.file.display().to_string()
        }
    }

    /// The hint for an archive without a store.
    fn with_hint_for_archive(&self, failure: Failure, judged: &JudgedLog) -> Failure {
        let file = shell_word(&self.file.display().to_string());
        let named = self
            .key
            .as_ref()
            .map_or_else(String::new, |key| format!(" --public-key {}", shell_word(&key.display().to_string())));
        // No hint to trust a key that was revoked on purpose, nor to replace a file that is only not understood.
        if matches!(failure.code, "log_revoked_key" | "unknown_payload") {
            return failure;
        }
        failure.hint(match judged.untrusted() {
            Some(key) => format!(
                "verify it with a key of its signer's chain that you got over another channel than the file: `selvedge verify {file} --public-key \
                 PUBLIC.pem`; key {key} would do"
            ),
            None => format!("`selvedge verify {file}{named} --explain` shows what is still proven; get the file again"),
        })
    }

    pub(super) fn show(&self, output: &Output) -> Result<()> {
        if output.is_json() {
            return output.record(&self.record());
        }
        output.text(match &self.found {
            LogFinding::JudgedLog(judged) => judged.text(&self.thread, &self.place()),
            LogFinding::Failed(failure) => {
                format!("{}: {}", paint(BOLD, &self.thread), paint(BAD, clean(&failure.message)))
            }
        })?;
        if let Some(origin) = &self.imported {
            output.text(format!("  {}", imported::sentence(origin)))?;
        }
        match &self.statements {
            Some(statements) => output.text(statement::table_of(statements)),
            None => Ok(()),
        }
    }

    fn record(&self) -> ThreadReport<'_> {
        let failure = self.failure();
        let code = failure.as_ref().map_or("sound", |failure| failure.code);
        let statements = self.statements.as_deref();
        let judged = match &self.found {
            LogFinding::JudgedLog(judged) => judged,
            LogFinding::Failed(failure) => return ThreadReport::failed(&self.thread, failure),
        };
        let verdict = &judged.verdict;
        ThreadReport {
            thread_id: &self.thread,
            sound: self.is_sound(),
            code,
            message: judged.message(&self.thread, &self.place()),
            unchanged_up_to: verdict.judgement.unchanged_up_to,
            signers: judged.signers.clone(),
            lines: verdict.lines,
            bytes: verdict.bytes,
            erased: verdict.erased,
            erased_blobs: &verdict.erased_blobs,
            lost: &verdict.lost,
            bad_blobs: &verdict.bad_blobs,
            unnamed_blobs: &verdict.unnamed_blobs,
            trailing_bytes: verdict.trailing_bytes,
            missing: judged
                .missing
                .iter()
                .map(|(thread_id, version)| MissingThread { thread_id, version: *version })
                .collect(),
            pending_bytes: verdict.healed_bytes,
            foreign_bytes: judged.foreign_bytes(),
            damage: judged.damage().map(|damage| DamageLocation {
                file: &self.file,
                inside: self.is_archive.then_some("transcript.jsonl"),
                line: damage.line,
                first_line: damage.first_line(),
                byte: damage.byte,
                version: damage.version,
                why: damage.what(),
            }),
            untrusted_key: judged.untrusted(),
            named_by: &judged.known_versions,
            proves: verdict.judgement.unchanged_up_to.map(|_| PROVES),
            does_not_prove: vec![NOT_TRUE.to_owned(), NOT_SAFE.to_owned(), judged.not_last()],
            imported: self.imported.as_ref(),
            archive: self.is_archive.then(|| self.file.display().to_string()),
            statements,
        }
    }
}

impl<'a> ThreadReport<'a> {
    fn failed(thread_id: &'a ThreadId, failure: &'a Failure) -> Self {
        Self {
            thread_id,
            sound: false,
            code: failure.code,
            message: failure.message.clone(),
            unchanged_up_to: None,
            signers: Vec::new(),
            lines: 0,
            bytes: 0,
            erased: 0,
            erased_blobs: &[],
            lost: &[],
            bad_blobs: &[],
            unnamed_blobs: &[],
            trailing_bytes: 0,
            missing: Vec::new(),
            pending_bytes: 0,
            foreign_bytes: 0,
            damage: None,
            untrusted_key: None,
            named_by: &[],
            proves: None,
            does_not_prove: vec![NOT_TRUE.to_owned(), NOT_SAFE.to_owned()],
            imported: None,
            archive: None,
            statements: None,
        }
    }
}

impl JudgedLog {
    fn damage(&self) -> Option<&Damage> {
        match &self.verdict.judgement.finding {
            Finding::Damaged(damage) if self.untrusted().is_none() => Some(damage),
            _ => None,
        }
    }

    /// The signing key, if it is not trusted. The bytes that were read are as it signed them.
    fn untrusted(&self) -> Option<Digest> {
        match &self.verdict.judgement.finding {
            Finding::Damaged(Damage { flaw: Flaw::Untrusted(key) | Flaw::Revoked(key), .. }) => Some(*key),
            _ => None,
        }
    }

    fn foreign_bytes(&self) -> u64 {
        match self.verdict.judgement.finding {
            Finding::Foreign { bytes } => bytes,
            _ => 0,
        }
    }

    /// What is proven, as a phrase about the thread.
    fn proven(&self) -> String {
        let Some(version) = self.verdict.judgement.unchanged_up_to else {
            return "nothing of it is proven".to_owned();
        };
        let keys: Vec<_> = self.signers.iter().map(SignerEntry::shown).collect();
        match keys.as_slice() {
            [] => format!("unchanged up to version {version}"),
            [key] => format!("unchanged up to version {version} since it was signed by key {key}"),
            keys => format!("unchanged up to version {version} since it was signed by keys {}", keys.join(" and ")),
        }
    }

    /// What is proven, and which versions are lost.
    fn proven_without_lost(&self) -> String {
        let words: Vec<_> = self.verdict.lost.iter().map(LostVersions::in_words).collect();
        if words.is_empty() {
            self.proven()
        } else {
            let is_one = matches!(self.verdict.lost.as_slice(), [one] if one.from_version == one.to_version);
            let verb = if is_one { "is" } else { "are" };
            format!("{}, without {}, which {verb} lost", self.proven(), words.join(" and "))
        }
    }

    /// The verdict: the finding first, then what is proven nevertheless.
    fn found(&self, thread: &ThreadId, file: &str) -> Vec<String> {
        match &self.verdict.judgement.finding {
            Finding::Sound => vec![self.proven_without_lost()],
            Finding::Foreign { bytes } => {
                vec![format!("{}, followed by {}", self.proven(), count(*bytes, "unsigned byte"))]
            }
            Finding::Damaged(damage) if self.damage().is_some() => {
                let place = format!("line {} begins at byte {} of {}", damage.line, grouped(damage.byte), file);
                vec![what_is_wrong(damage), place, self.proven()]
            }
            finding => vec![describe(thread, finding), self.proven()],
        }
    }

    /// The verdict in one sentence.
    fn message(&self, thread: &ThreadId, file: &str) -> String {
        self.found(thread, file).join("; ")
    }

    fn text(&self, thread: &ThreadId, file: &str) -> String {
        let style = match self.verdict.judgement.finding {
            Finding::Sound if self.verdict.lost.is_empty() => GOOD,
            Finding::Sound | Finding::Foreign { .. } | Finding::Unread(_) => WARN,
            _ => BAD,
        };
        let mut lines = self.found(thread, file).into_iter().map(|line| clean(&line));
        let headline = lines.next().unwrap_or_default();
        let mut text = vec![format!("{}: {}", paint(BOLD, thread), paint(style, headline))];
        text.extend(lines);
        let signatures = self.signers.iter().map(|signed| signed.checkpoints).sum();
        let checked =
            [count(signatures, "signature"), count(self.verdict.lines, "line"), count(self.verdict.bytes, "byte")];
        let known_versions = self.known_text().unwrap_or_else(|| "no other source names its last version".to_owned());
        text.push(paint(DIM, format_args!("checked {}; {known_versions}", checked.join(", "))));
        for lost in &self.verdict.lost {
            let by = lost.by.as_deref().map_or_else(String::new, |by| format!("; known from {by}"));
            let since = local(lost.since);
            text.push(format!(
                "lost: {} since {since}, recorded by `repair --accept-loss`{}",
                lost.in_words(),
                clean(&by)
            ));
        }
        if self.verdict.erased > 0 {
            let blobs = count(self.verdict.erased, "blob");
            let names: Vec<_> = self.verdict.erased_blobs.iter().map(Digest::short).collect();
            let names = names.join(", ");
            text.push(format!("erased: {blobs} ({names}); the log records when and why"));
        }
        if !self.verdict.unnamed_blobs.is_empty() {
            let blobs = count(self.verdict.unnamed_blobs.len() as u64, "blob");
            let names: Vec<_> = self.verdict.unnamed_blobs.iter().map(Digest::short).collect();
            text.push(format!(
                "unreferenced: {blobs} ({}) that the log does not name; they are not verified",
                names.join(", ")
            ));
        }
        if self.verdict.trailing_bytes > 0 {
            let bytes = count(self.verdict.trailing_bytes, "byte");
            text.push(paint(WARN, format!("not checked: {bytes} after the end of the archive")));
        }
        for (thread, version) in &self.missing {
            text.push(format!(
                "missing: `{thread}`, committed together with it up to version {version}, was not imported with it"
            ));
        }
        // The first one is in the headline, unless there is something worse.
        for bad in &self.verdict.bad_blobs {
            text.push(paint(BAD, format!("blob {}, named by version {}, {}", bad.blob, bad.version, bad.why)));
        }
        if self.verdict.healed_bytes > 0 {
            let pending = count(self.verdict.healed_bytes, "byte");
            text.push(format!(
                "pending: {pending} are committed in the database and not yet written to the file; that is not damage"
            ));
        }
        text.join("\n  ")
    }

    /// The versions that other sources name, as a sentence.
    fn known_text(&self) -> Option<String> {
        let known_text =
            self.known_versions.iter().map(|KnownVersion { by, version }| format!("{by} names version {version}"));
        Some(known_text.collect::<Vec<_>>().join(", ")).filter(|text| !text.is_empty())
    }

    fn not_last(&self) -> String {
        let Some(version) = self.verdict.judgement.unchanged_up_to else {
            return NOT_LAST.to_owned();
        };
        match self.known_text() {
            None => format!("that version {version} is the last: no other source names one"),
            Some(known_text) => format!(
                "that no version after {version} was removed, together with everything that recorded it: {known_text}"
            ),
        }
    }
}

impl SignerEntry {
    fn shown(&self) -> String {
        match &self.owner {
            Some(owner) => format!("{} ({owner})", self.fingerprint.short()),
            None => self.fingerprint.short(),
        }
    }
}

fn log_of(thread: &ThreadId) -> String {
    format!("the log of `{thread}`")
}

/// The damage, with version and lines.
fn what_is_wrong(damage: &Damage) -> String {
    let lines = if damage.first_line() == damage.line {
        format!("line {}", damage.line)
    } else {
        format!("lines {} to {}", damage.first_line(), damage.line)
    };
    format!("damaged in version {}, {lines}: {}", damage.version, damage.what())
}

/// What the verdicts prove, and what not.
pub(super) fn closing(checked: &[ThreadVerdict]) -> String {
    let sound = checked.iter().filter(|one| one.is_sound()).count();
    let total = match checked.len() {
        1 => String::new(),
        all => format!("\nExactly what was signed: {sound} of {}", count(all as u64, "thread")),
    };
    let proven = if checked.iter().any(ThreadVerdict::proves_something) { PROVES } else { "nothing" };
    format!("{total}\nProven      {proven}\nNot proven  {NOT_TRUE}\n            {NOT_SAFE}\n            {NOT_LAST}")
}
