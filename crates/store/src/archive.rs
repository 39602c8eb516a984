//! One thread as one file: a plain tar archive with the exact log.
//!
//! ```text
//! FOLDER/transcript.jsonl        the committed bytes of the log
//! FOLDER/thread.json             the signed manifest, if there is one
//! FOLDER/capabilities.md         the signed list of what it may call, if there is one
//! FOLDER/blobs/NAME              the blobs
//! FOLDER/keys/FINGERPRINT.pem    the public keys of its signers, and of their chains of rotations
//! FOLDER/chain/FINGERPRINT.json  the statements that record those rotations
//! ```
//!
//! Only modes, owners and times could differ, and those are fixed: all times are the one of the last checkpoint. Unpacked by any tar it is
//! a folder that can be verified with `FORMAT.md` alone.
//!
//! A key inside an archive proves nothing. A reader who trusts any one key of the chain can verify the archive (`check`); to import it into
//! a store, all signers must be trusted there, because from then on only that store's trust is used. No part of an archive is moved into
//! place before all of it was verified; until then a backend stages it ([`Staging`]).
//!
//! `ustar` is the format, `chain` collects the keys to include, `reader` reads an archive, `check` verifies one without a store.

mod chain;
mod check;
mod reader;
mod ustar;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use selvedge_log::recovery::Finding;
use selvedge_log::{Head, Trust};
use selvedge_model::account::AccountId;
use selvedge_model::{Digest, ThreadId};

use crate::contract::Logs;
use crate::error::{Error, Result};
use crate::verify::{Document, Verification, Verify, hash_of};
use crate::{capabilities, manifest};
use chain::Chain;
pub use check::{ArchivedKeys, KEY_BYTES_MAX, verify_archive};
use reader::ArchiveReader;
pub use reader::CheckedArchive;

/// The maximum length of a manifest or a key in an archive.
const SMALL_MAX: u64 = 64 << 20;
/// The maximum length of the folder's name in an archive.
const FOLDER_MAX: usize = 155;

/// The result of an export.
#[derive(Clone, Debug)]
pub struct Exported {
    /// The thread.
    pub thread: ThreadId,
    /// The head of its log in the archive.
    pub head: Head,
    /// The number of blobs.
    pub blobs: u64,
    /// The signers of the log, in order.
    pub signers: Vec<Digest>,
}

/// The result of an import.
#[derive(Clone, Debug)]
pub struct ImportReport {
    /// The thread.
    pub thread: ThreadId,
    /// The head of its log.
    pub head: Head,
    /// The number of blobs.
    pub blobs: u64,
    /// The signers of the log, in order.
    pub signers: Vec<Digest>,
    /// Whether it was imported.
    pub arrival: ImportOutcome,
    /// The accounts that it posted to, and whether every posting of each is in the store; unknown amounts are counted as spent.
    pub accounts: Accounts,
}

/// Accounts, and whether every posting of each is in the store.
pub type Accounts = BTreeMap<AccountId, bool>;

/// The outcome of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportOutcome {
    /// It was imported.
    Imported,
    /// A dry run: it would be imported.
    WouldImport,
    /// The store already has it with the same head.
    Unchanged,
}

/// Exporting and importing threads as archives.
pub trait Archives: Verify + Logs {
    /// Writes a thread as an archive. Refused if its log or one of its files fails verification.
    fn export(&self, thread: &ThreadId, out: &mut dyn Write) -> Result<Exported> {
        export(self, thread, out)
    }

    /// Verifies an archive with the keys that this store trusts and, if `keep` is set, imports its thread.
    ///
    /// On return it is durable and can be read; it can be continued if its last signer is our key or one of its predecessors. After an
    /// error nothing of it is stored.
    fn import(&self, archive: &mut (dyn Read + Send), keep: bool) -> Result<ImportReport>;
}

/// Where a backend stages an archive until all of it is verified.
pub trait Staging: Sync {
    /// Creates an empty file of this name, such as `blobs/NAME`.
    fn create(&self, name: &str) -> Result<Box<dyn Staged>>;

    /// Removes a file.
    fn remove(&self, name: &str) -> Result<()>;

    /// Makes the names of all files durable.
    fn sync(&self) -> Result<()>;
}

/// One staged file.
pub trait Staged: Send {
    /// Appends bytes.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes the bytes durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// Reads an archive, writes its files to `staging` if there is one, and accepts it only if its log verifies with these keys, ends with a
/// checkpoint, has every version that its manifest records, and every blob that it names. `check_name` refuses ids that a backend can't
/// use.
pub fn read_archive(
    archive: &mut (dyn Read + Send),
    trust: &Trust,
    staging: Option<&dyn Staging>,
    check_name: &dyn Fn(&ThreadId) -> Result<()>,
) -> Result<CheckedArchive> {
    ArchiveReader::new(trust, staging, &mut |_| {}).read(archive)?.judge(check_name)
}

/// Writes a thread as an archive; see [`Archives::export`].
pub fn export<S: Verify + Logs + ?Sized>(of: &S, thread: &ThreadId, out: &mut dyn Write) -> Result<Exported> {
    let mut last = None;
    let verdict = of.verify(thread, &mut |entry| {
        let at = entry.lines.last().map(|line| line.timestamp.as_micros());
        last = Some((entry.head.clone(), at.unwrap_or_default()));
    })?;
    let holds = matches!(
        verdict.judgement.finding,
        Finding::Sound | Finding::Foreign { .. } | Finding::Contradicted { .. } | Finding::Database { .. }
    );
    // A thread that lacks a blob is not complete either.
    if let Some(bad) = verdict.bad_blobs.first().filter(|_| holds) {
        return Err(Error::Log { thread: thread.clone(), finding: bad.clone().into_finding() });
    }
    let Some((head, at)) = last.filter(|_| holds) else {
        return Err(Error::Log { thread: thread.clone(), finding: verdict.judgement.finding });
    };
    let signers: Vec<_> = verdict.signers.iter().map(|(signer, _)| *signer).collect();
    let seconds = u64::try_from(at / 1_000_000).unwrap_or_default();
    let packed = pack(of, thread, &head, &signers, &verdict.erased_blobs, seconds, out);
    let blobs = packed.map_err(|error| match error {
        ArchiveFailure::Store(error) => error,
        ArchiveFailure::Io(source) => Error::Io { what: "write the archive of", path: thread.as_str().into(), source },
    })?;
    Ok(Exported { thread: thread.clone(), head, blobs, signers })
}

fn pack<S: Verify + Logs + ?Sized>(
    of: &S,
    thread: &ThreadId,
    head: &Head,
    signers: &[Digest],
    erased: &[Digest],
    seconds: u64,
    out: &mut dyn Write,
) -> Result<u64, ArchiveFailure> {
    // The folder name of a very long id does not fit; the log id always does.
    let folder = Some(thread.folder()).filter(|name| name.len() <= FOLDER_MAX);
    let folder = folder.unwrap_or_else(|| head.log_id.to_string());
    // Logs only grow, so this is the same prefix that was verified.
    let (_, mut transcript) = of.transcript(thread)?;
    ustar::write(out, &folder, "transcript.jsonl", head.bytes, seconds, &mut transcript)?;
    if let Some(bytes) = manifest_bytes(of, thread, head) {
        ustar::write(out, &folder, manifest::NAME, bytes.len() as u64, seconds, &mut bytes.as_slice())?;
    }
    if let Some(bytes) = capabilities_bytes(of, thread) {
        ustar::write(out, &folder, capabilities::NAME, bytes.len() as u64, seconds, &mut bytes.as_slice())?;
    }
    let mut blobs = 0;
    for blob in of.blobs(thread)? {
        let path = || of.location(thread).join("blobs").join(blob.to_string());
        let failed = |source| Error::Io { what: "read", path: path(), source };
        let hash = || hash_of(&mut *of.stored_blob(thread, &blob)?.1);
        // Blobs that the log names were verified; others are included if their content matches their name.
        if erased.contains(&blob) || hash().map_err(failed)? != blob {
            continue;
        }
        let (size, mut content) = of.stored_blob(thread, &blob).map_err(failed)?;
        ustar::write(out, &folder, &format!("blobs/{blob}"), size, seconds, &mut content)?;
        blobs += 1;
    }
    let Chain { keys, statements } = Chain::of(of, thread, signers);
    for (name, key) in keys {
        let pem = key.to_pem();
        ustar::write(out, &folder, &format!("keys/{name}.pem"), pem.len() as u64, seconds, &mut pem.as_bytes())?;
    }
    for statement in statements {
        let name = format!("chain/{}.json", statement.to);
        let mut text = statement.text();
        ustar::write(out, &folder, &name, text.len() as u64, seconds, &mut text)?;
    }
    ustar::finish(out)?;
    Ok(blobs)
}

/// The manifest, if its signature is valid and it shows no version that the log does not have.
fn manifest_bytes<S: Verify + ?Sized>(of: &S, thread: &ThreadId, head: &Head) -> Option<Vec<u8>> {
    let bytes = of.document(thread, Document::Manifest).ok()??;
    let shown = manifest::parse(&bytes, of.trust(), thread).ok()?;
    (shown.memory.version <= head.version).then_some(bytes)
}

/// The capabilities file, if its signature is valid.
fn capabilities_bytes<S: Verify + ?Sized>(of: &S, thread: &ThreadId) -> Option<Vec<u8>> {
    let bytes = of.document(thread, Document::Capabilities).ok()??;
    capabilities::check_kept(thread, &bytes, of.trust()).ok()?;
    Some(bytes)
}

/// Why an archive could not be written.
enum ArchiveFailure {
    Store(Error),
    Io(io::Error),
}

impl From<Error> for ArchiveFailure {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<io::Error> for ArchiveFailure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn refused(why: impl std::fmt::Display) -> Error {
    Error::Integrity { what: "the archive".to_owned(), why: why.to_string(), hint: None }
}

fn small(size: u64, content: &mut dyn Read) -> Result<Vec<u8>> {
    if size > SMALL_MAX {
        return Err(refused("a manifest or a key in it is too long"));
    }
    let mut bytes = Vec::new();
    content.read_to_end(&mut bytes).map_err(refused)?;
    Ok(bytes)
}
