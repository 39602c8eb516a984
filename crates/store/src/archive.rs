//! One thread as one file: a plain tar archive with the exact log.
//!
//! ```text
//! FOLDER/transcript.jsonl        the committed bytes of the log
//! FOLDER/thread.json             the signed manifest, if there is one
//! FOLDER/capabilities.md         the signed page of what it was offered to call, if there is one
//! FOLDER/blobs/NAME              what lies beside the log
//! FOLDER/keys/FINGERPRINT.pem    the public keys of its signers, and of their chain
//! FOLDER/chain/FINGERPRINT.json  the statements with which one of them took over from another
//! ```
//!
//! Only modes, owners and times could differ, and those are fixed: all times are the one that the last checkpoint claims.
//! Unpacked by any tar it is a folder that can be checked with `FORMAT.md` alone.
//!
//! A key inside an archive proves nothing. A reader who trusts any one key of the chain can check the archive (`check`); to take it into a
//! store, all signers must be trusted there, since from then on only that store's trust is asked. Nothing of an archive is put in
//! place before all of it was checked; until then a backend keeps it aside ([`Staging`]).
//!
//! `ustar` is the form, `chain` gathers the keys that go along, `arriving` reads an archive, `check` judges one without a store.

mod arriving;
mod chain;
mod check;
mod ustar;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use selvedge_log::recovery::Finding;
use selvedge_log::{Head, Trust};
use selvedge_model::account::AccountId;
use selvedge_model::{Digest, ThreadId};

use crate::contract::Logs;
use crate::error::{Error, Result};
use crate::verify::{Document, Verdict, Verify, hash_of};
use crate::{capabilities, manifest};
use arriving::Arriving;
pub use arriving::Judged;
use chain::Chain;
pub use check::{ArchivedKeys, KEY_BYTES_MAX, verify_archive};

/// How long a manifest or a key in an archive may be.
const SMALL_MAX: u64 = 64 << 20;
/// How long the name of the folder in an archive may be.
const FOLDER_MAX: usize = 155;

/// What was exported.
#[derive(Clone, Debug)]
pub struct Exported {
    /// The thread.
    pub thread: ThreadId,
    /// Where its log ends in the archive.
    pub head: Head,
    /// How many blobs came along.
    pub blobs: u64,
    /// Who signed the log, in the order they took over.
    pub signers: Vec<Digest>,
}

/// What arrived.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// The thread.
    pub thread: ThreadId,
    /// Where its log ends.
    pub head: Head,
    /// How many blobs came along.
    pub blobs: u64,
    /// Who signed the log, in the order they took over.
    pub signers: Vec<Digest>,
    /// What became of it.
    pub arrival: Arrival,
    /// The accounts that it posted to, and whether every posting of each is here; what is not known is put down as spent.
    pub accounts: Accounts,
}

/// Accounts, and whether every posting of each is here.
pub type Accounts = BTreeMap<AccountId, bool>;

/// What becomes of a thread that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is here now.
    Imported,
    /// It would be, had that been asked for.
    WouldImport,
    /// It was here already, exactly so.
    Unchanged,
}

/// Threads as archives.
pub trait Archives: Verify + Logs {
    /// Writes a thread as an archive. Refused if its log or what lies beside it is not what was signed.
    fn export(&self, thread: &ThreadId, out: &mut dyn Write) -> Result<Exported> {
        export(self, thread, out)
    }

    /// Checks an archive with the keys that this store trusts and, if `keep` says so, takes its thread in.
    ///
    /// On return it is durable and can be read; it can be gone on with if our key signed it, or took over from the one that
    /// did. On an error nothing of it is there.
    fn import(&self, archive: &mut (dyn Read + Send), keep: bool) -> Result<Arrived>;
}

/// Where a backend keeps what arrives until all of it was checked.
pub trait Staging: Sync {
    /// A new, empty file of this name, such as `blobs/NAME`.
    fn create(&self, name: &str) -> Result<Box<dyn Staged>>;

    /// Removes a file again.
    fn remove(&self, name: &str) -> Result<()>;

    /// Makes the names of everything that was kept durable.
    fn sync(&self) -> Result<()>;
}

/// One file of what arrives.
pub trait Staged: Send {
    /// Writes all bytes behind what was written.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes what was written durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// Reads an archive, keeps its files in `staging` if there is one, and accepts it only if its log holds with these keys, ends with a
/// checkpoint, is all that its manifest remembers, and has every blob that it names beside it. `check_name` refuses ids that a backend
/// can't have.
pub fn arrive(
    archive: &mut (dyn Read + Send),
    trust: &Trust,
    staging: Option<&dyn Staging>,
    check_name: &dyn Fn(&ThreadId) -> Result<()>,
) -> Result<Judged> {
    Arriving::new(trust, staging, &mut |_| {}).read(archive)?.judge(check_name)
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
    // What holds otherwise and lacks a blob is no whole thread either.
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
        Failed::Store(error) => error,
        Failed::Io(source) => Error::Io { what: "write the archive of", path: thread.as_str().into(), source },
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
) -> Result<u64, Failed> {
    // The folder of a very long id does not fit; the log's own name always does.
    let folder = Some(thread.folder()).filter(|name| name.len() <= FOLDER_MAX);
    let folder = folder.unwrap_or_else(|| head.log_id.to_string());
    // Logs only grow, so this is the same beginning that was checked.
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
        let path = || of.place(thread).join("blobs").join(blob.to_string());
        let failed = |source| Error::Io { what: "read", path: path(), source };
        let hash = || hash_of(&mut *of.stored_blob(thread, &blob)?.1);
        // One that the log names was checked; what else lies here comes along if it is what its name says.
        if erased.contains(&blob) || hash().map_err(failed)? != blob {
            continue;
        }
        let (size, mut content) = of.stored_blob(thread, &blob).map_err(failed)?;
        ustar::write(out, &folder, &format!("blobs/{blob}"), size, seconds, &mut content)?;
        blobs += 1;
    }
    let Chain { keys, vouchers } = Chain::of(of, thread, signers);
    for (name, key) in keys {
        let pem = key.to_pem();
        ustar::write(out, &folder, &format!("keys/{name}.pem"), pem.len() as u64, seconds, &mut pem.as_bytes())?;
    }
    for voucher in vouchers {
        let name = format!("chain/{}.json", voucher.to);
        let mut text = voucher.text();
        ustar::write(out, &folder, &name, text.len() as u64, seconds, &mut text)?;
    }
    ustar::finish(out)?;
    Ok(blobs)
}

/// The manifest, if it is rightly signed and does not know more than the log.
fn manifest_bytes<S: Verify + ?Sized>(of: &S, thread: &ThreadId, head: &Head) -> Option<Vec<u8>> {
    let bytes = of.document(thread, Document::Manifest).ok()??;
    let shown = manifest::parse(&bytes, of.trust(), thread).ok()?;
    (shown.memory.version <= head.version).then_some(bytes)
}

/// The page of what it may call, if it is rightly signed.
fn capabilities_bytes<S: Verify + ?Sized>(of: &S, thread: &ThreadId) -> Option<Vec<u8>> {
    let bytes = of.document(thread, Document::Capabilities).ok()??;
    capabilities::check_kept(thread, &bytes, of.trust()).ok()?;
    Some(bytes)
}

/// Why an archive could not be written.
enum Failed {
    Store(Error),
    Io(io::Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<io::Error> for Failed {
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
